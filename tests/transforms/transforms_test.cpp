// Gradients, forward derivatives, vmap, and the residuals saved for the gradient.
#include <doctest/doctest.h>

#include "haliax/haliax.h"
#include "ops/prim.h"
#include "support/near.h"

using namespace haliax;

namespace {

const Axis Batch("batch", 4), In("in", 3), Out("out", 2);

NamedArray values(const AxisSpec& axes, double from = -1, double to = 1, DType dtype = DType::f64) {
  auto n = axis_size(axes.axes());
  std::vector<double> v(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < v.size(); ++i) {
    double place = double(i + 1) * 0.6180339887498949 + from;
    v[i] = from + (to - from) * (place - std::floor(place));
  }
  return array(std::span<const double>(v), axes).astype(dtype);
}

struct Model {
  NamedArray weight, bias;
  NamedArray steps;  // an integer
  std::optional<NamedArray> extra;
  Frozen<NamedArray> scale;
  int depth = 2;
};
Model model() {
  return {values({In, Out}),
          values({Out}, 0, 1),
          array(std::vector<std::int32_t>{3}, Axis("one", 1)),
          std::nullopt,
          {values({Out}, 1, 2)}};
}
NamedArray predict(const Model& m, const NamedArray& x) {
  return tanh(dot(x, m.weight, "in") + m.bias) * *m.scale;
}
NamedArray loss(const Model& m, const NamedArray& x) { return mean(square(predict(m, x))); }

// Returns the derivative of f along `tangent`, from values.
template <class F> NamedArray along(const F& f, const NamedArray& x, const NamedArray& tangent) {
  constexpr double h = 1e-5;
  return (f(x + tangent * h) - f(x - tangent * h)) / (2 * h);
}

}  // namespace

TEST_CASE("grad: the gradient has the type of the model; integers and frozen leaves have none") {
  auto m = model();
  auto x = values({Batch, In});
  Model g = grad(loss)(m, x);
  CHECK(g.steps.empty());
  CHECK(g.scale->empty());
  CHECK(!g.extra);
  CHECK(g.depth == 2);
  CHECK(g.weight.axes() == m.weight.axes());
  auto by_bias = [&](const NamedArray& b) {
    auto n = m;
    n.bias = b;
    return loss(n, x);
  };
  auto t = values({Out}, -2, 2);
  CHECK(difference(sum(g.bias * t), along(by_bias, m.bias, t), 1e-8) == "");
  m.extra = values({Out});
  auto with_extra = grad([&](const Model& n) { return sum(*n.extra * *n.extra); })(m);
  CHECK(difference(*with_extra.extra, 2 * *m.extra, 0) == "");
  CHECK(difference(with_extra.weight, zeros_like(m.weight), 0) == "");  // unused: zeros
}

TEST_CASE("value_and_grad: values, and auxiliary results") {
  auto m = model();
  auto x = values({Batch, In});
  auto [value, g] = value_and_grad(loss)(m, x);
  CHECK(difference(value, loss(m, x), 1e-14) == "");
  auto with_aux = [](const Model& n, const NamedArray& v) {
    auto p = predict(n, v);
    return std::pair{mean(square(p)), p};
  };
  auto [both, h] = value_and_grad(with_aux)(m, x);
  CHECK(difference(both.first, value, 1e-14) == "");
  CHECK(difference(both.second, predict(m, x), 1e-14) == "");
  CHECK(difference(h.weight, g.weight, 1e-14) == "");
  auto [only, aux] = grad(with_aux)(m, x);
  CHECK(difference(only.weight, g.weight, 1e-14) == "");
  CHECK(difference(aux, both.second, 1e-14) == "");
}

TEST_CASE("grad: trees of any shape, and gradients by several arguments") {
  auto a = values({In}), b = values({In}, 0, 2);
  auto f = [](const std::pair<NamedArray, std::vector<NamedArray>>& t) {
    return sum(t.first * t.second[0] * t.second[1]);
  };
  auto g = grad(f)(std::pair{a, std::vector{b, a}});
  CHECK(difference(g.first, a * b, 1e-14) == "");
  CHECK(difference(g.second[0], a * a, 1e-14) == "");
  CHECK(difference(g.second[1], a * b, 1e-14) == "");
  // A value that occurs twice among the arguments has a gradient for each of them.
  auto h = grad([](const std::pair<NamedArray, NamedArray>& t) {
    return sum(t.first * t.first * t.second);
  })(std::pair{a, a});
  CHECK(difference(h.first, 2 * a * a, 1e-14) == "");
  CHECK(difference(h.second, a * a, 1e-14) == "");
}

TEST_CASE("grad: third derivatives are right, and gradients have the axis order of the primal") {
  auto x = values({In, Out});
  auto f = [](const NamedArray& v) { return sum(v * v * v * v); };
  auto g1 = [&](const NamedArray& v) { return sum(grad(f)(v)); };
  auto g2 = [&](const NamedArray& v) { return sum(grad(g1)(v)); };
  CHECK(difference(grad(g2)(x), 24 * x, 1e-13) == "");
  auto transposed = grad([](const NamedArray& v) {
    return sum(rearrange(v, Names{"out", "in"}) * values({Out, In}));
  })(x);
  CHECK(difference(transposed, rearrange(values({Out, In}), Names{"in", "out"}), 0) == "");
}

TEST_CASE("grad: functions without a gradient raise") {
  auto x = values({In});
  CHECK_THROWS_WITH_AS(grad([](const NamedArray& v) { return v * v; })(x),
                       doctest::Contains("the function must return a scalar"), Error);
  CHECK_THROWS_WITH_AS(grad([](const NamedArray& v) { return argmax(v); })(x),
                       doctest::Contains("must return a float, but returned i32"), Error);
  CHECK_THROWS_WITH_AS(grad([](const NamedArray&) { return NamedArray(); })(x),
                       doctest::Contains("returned an empty array"), Error);
}

TEST_CASE("jvp: values and derivatives along a tangent") {
  auto x = values({In}), t = values({In}, -2, 2);
  auto f = [](const NamedArray& v) { return exp(sin(v)) * sum(v); };
  auto [y, d] = jvp(f, x, t);
  CHECK(difference(y, f(x), 1e-14) == "");
  CHECK(difference(d, along(f, x, t), 1e-8) == "");
  // Trees; a leaf with an empty tangent is constant; integers have no tangent.
  auto g = [](const std::pair<NamedArray, NamedArray>& p) {
    return std::pair{p.first * p.second, argmax(p.first, "in")};
  };
  auto [z, e] = jvp(g, std::pair{x, x}, std::pair{t, NamedArray()});
  CHECK(difference(e.first, t * x, 1e-14) == "");
  CHECK(e.second.empty());
  CHECK_THROWS_WITH_AS(jvp(f, x, values({Out})), doctest::Contains("a tangent is (out=2)"), Error);
  CHECK_THROWS_WITH_AS(jvp(f, x, t.astype(DType::i32)),
                       doctest::Contains("[jvp] a tangent is i32, but its array is f64"), Error);
  // Forward over backward: a Hessian-vector product.
  auto s = [](const NamedArray& v) { return sum(v * v * v); };
  CHECK(difference(jvp(grad(s), x, t).second, 6 * x * t, 1e-13) == "");
}

TEST_CASE("vjp: the pullback of a function with several results") {
  auto x = values({In});
  auto [y, pull] = vjp([](const NamedArray& v) { return std::pair{v * v, sum(v)}; }, x);
  auto c = values({In}, 0, 1);
  CHECK(difference(y.first, x * x, 1e-14) == "");
  CHECK(difference(pull({c, NamedArray()}), 2 * x * c, 1e-14) == "");
  CHECK(difference(pull({c, full({}, 3, DType::f64)}), 2 * x * c + 3, 1e-14) == "");
}

TEST_CASE("vmap: nested, over a new axis, with shared arguments") {
  auto x = values({Batch, In}), w = values({In, Out});
  auto f = [](const NamedArray& v, const NamedArray& u) {
    CHECK(v.axes() == Axes{In});  // the mapped axis is hidden
    return dot(v, u, "in");
  };
  CHECK(difference(vmap(f, "batch")(x, w), dot(x, w, "in"), 1e-14) == "");
  auto total = [](const NamedArray& v) { return sum(v); };
  CHECK(difference(vmap(vmap(total, "batch"), "in")(rearrange(x, Names{"in", "batch"})),
                   rearrange(x, Names{"in", "batch"}), 1e-14) == "");
  CHECK(difference(vmap([&](const NamedArray& v) { return v; }, Axis("copy", 3))(w),
                   broadcast_axis(w, Axis("copy", 3)), 0) == "");
  CHECK_THROWS_WITH_AS(vmap(total, "heads")(x), doctest::Contains("no argument has axis heads"),
                       Error);
  CHECK_THROWS_WITH_AS(vmap(total, Axis("batch", 5))(x), doctest::Contains("size 4"), Error);
  CHECK_THROWS_WITH_AS(vmap(
                           [](const NamedArray& v) {
                             sum(v).item();
                             return v;
                           },
                           "batch")(x),
                       doctest::Contains("inside vmap over batch"), Error);
  // a failed call leaves no state
  CHECK(difference(vmap(total, "batch")(x), sum(x, "in"), 1e-14) == "");
}

TEST_CASE("vmap of grad: a gradient for each example, also by shared weights") {
  auto m = model();
  auto x = values({Batch, In});
  auto each = vmap([&](const NamedArray& v) { return grad(loss)(m, v); }, "batch")(x);
  auto rows = x.unbind("batch");
  Leaves weight, bias;
  for (auto& r : rows) {
    auto g = grad(loss)(m, r);
    weight.push_back(g.weight);
    bias.push_back(g.bias);
  }
  CHECK(difference(each.weight, stack("batch", weight), 1e-13) == "");
  CHECK(difference(each.bias, stack("batch", bias), 1e-13) == "");
  CHECK(each.steps.empty());
  // grad of vmap: the gradient of the mean loss
  auto mean_loss = [](const Model& n, const NamedArray& v) {
    return mean(vmap([&](const NamedArray& r) { return loss(n, r); }, "batch")(v));
  };
  auto mean_gradient = grad(mean_loss)(m, x);
  CHECK(difference(mean_gradient.weight, mean(each.weight, "batch"), 1e-13) == "");
}

TEST_CASE("checkpoint: values and gradients are equal, and the inside is recomputed") {
  auto x = values({In}), w = values({In}, 0, 1);
  int calls = 0;
  // w is captured
  auto inside = [&](const NamedArray& v) {
    ++calls;
    return sin(v * w) * exp(v);
  };
  auto plain = [&](const std::pair<NamedArray, NamedArray>& p) {
    return sum(inside(p.first) * p.second);
  };
  auto checkpointed = [&](const std::pair<NamedArray, NamedArray>& p) {
    return sum(checkpoint(inside)(p.first) * p.second);
  };
  auto a = grad(plain)(std::pair{x, w}), b = grad(checkpointed)(std::pair{x, w});
  CHECK(difference(b.first, a.first, 1e-14) == "");
  CHECK(difference(b.second, a.second, 1e-14) == "");
  CHECK(calls == 2);
  auto by_captured = [&](auto wrap) {
    return grad([&](const NamedArray& u) {
      return sum(wrap([&](const NamedArray& v) { return sin(v * u) * u; })(x));
    })(w);
  };
  CHECK(difference(by_captured([](auto f) { return checkpoint(f); }),
                   by_captured([](auto f) { return f; }), 1e-14) == "");
  auto twice = [&](auto f) {
    return grad([&](const NamedArray& v) { return sum(square(grad(f)(v))); })(x);
  };
  CHECK(difference(twice([&](const NamedArray& v) { return sum(checkpoint(inside)(v)); }),
                   twice([&](const NamedArray& v) { return sum(inside(v)); }), 1e-13) == "");
}

TEST_CASE("checkpoint: an array that is passed twice, or is captured too, has one gradient") {
  auto x = values({In});
  auto by = [&](auto f) { return grad([&](const NamedArray& v) { return sum(f(v)); })(x); };
  auto f = [](const NamedArray& a, const NamedArray& b) { return sin(a) * b; };
  auto expected = by([&](const NamedArray& v) { return f(v, v); });
  CHECK(difference(by([&](const NamedArray& v) { return checkpoint(f)(v, v); }), expected, 1e-14) ==
        "");
  auto captured = [&](const NamedArray& v) {
    return checkpoint([&](const NamedArray& a) { return f(a, v); })(v);
  };
  CHECK(difference(by(captured), expected, 1e-14) == "");
}

TEST_CASE("custom_vjp: the handwritten gradient replaces the derived one, also under vmap") {
  auto x = values({In});
  // Straight-through estimator: rounds, but passes gradients unchanged.
  auto f =
      custom_vjp([](const NamedArray& v) { return round(v); },
                 [](const auto&, const NamedArray&, const NamedArray& g) { return std::tuple{g}; });
  CHECK(difference(f(x), round(x), 0) == "");
  CHECK(difference(grad([&](const NamedArray& v) { return sum(f(v) * v); })(x), round(x) + x,
                   1e-14) == "");
  auto mul = custom_vjp(
      [](const NamedArray& a, const NamedArray& b) {
        return std::pair{a * b, a};
      },
      [](const auto& in, const auto& out, const auto& g) {
        CHECK(out.first.axes() == Axes{In});
        // no gradient by b
        return std::tuple{g.first * std::get<1>(in) * 10, NamedArray()};
      });
  auto g = grad([&](const std::pair<NamedArray, NamedArray>& p) {
    return sum(mul(p.first, p.second).first);
  })(std::pair{x, x + 1});
  CHECK(difference(g.first, (x + 1) * 10, 1e-14) == "");
  CHECK(difference(g.second, zeros_like(x), 0) == "");
  CHECK(difference(vmap(grad([&](const NamedArray& v) { return sum(f(v)); }),
                        "batch")(values({Batch, In})),
                   ones({Batch, In}, DType::f64), 0) == "");
}

// The rule doubles the derivative by x. Expected values are those of jax.custom_jvp.
TEST_CASE("custom_jvp: gradients, tangents and second derivatives follow the rule, as in JAX") {
  auto value = [](const NamedArray& x, const NamedArray& y) { return sin(x) * y; };
  auto f = custom_jvp(value, [=](const auto& in, const auto& tangents) {
    const auto& [x, y] = in;
    const auto& [dx, dy] = tangents;
    return std::pair(value(x, y), 2. * cos(x) * dx * y + sin(x) * dy);
  });
  const auto x = array({.5, 1., 2.}, In), y = array({2., 3., -1.}, In);
  const auto by_x = array({3.5103302, 3.2418137, 0.8322937}, In),
             by_y = array({0.47942555, 0.84147096, 0.9092974}, In);
  auto total = [&](const std::pair<NamedArray, NamedArray>& p) {
    return sum(f(p.first, p.second));
  };
  CHECK(difference(f(x, y), value(x, y), 0) == "");
  for (bool jitted : {false, true}) {
    CAPTURE(jitted);
    auto g = jitted ? jit(grad(total))(std::pair(x, y)) : grad(total)(std::pair(x, y));
    CHECK(difference(g.first, by_x, 1e-6) == "");
    CHECK(difference(g.second, by_y, 1e-6) == "");
  }
  auto of_pair = [&](const std::pair<NamedArray, NamedArray>& p) { return f(p.first, p.second); };
  auto [out, tangent] =
      jvp(of_pair, std::pair(x, y), std::pair(array({1., -1., .5}, In), array({.5, 2., 1.}, In)));
  CHECK(difference(out, value(x, y), 1e-12) == "");
  CHECK(difference(tangent, array({3.750043, -1.5588717, 1.3254442}, In), 1e-6) == "");
  auto first = grad([&](const NamedArray& v) { return sum(f(v, y)); });
  CHECK(difference(grad([&](const NamedArray& v) { return sum(first(v)); })(x),
                   array({-1.9177022, -5.0488257, 1.8185948}, In), 1e-6) == "");
  auto each = vmap(
      [&](const NamedArray& a, const NamedArray& b) { return grad(total)(std::pair(a, b)).first; },
      "in");
  CHECK(difference(each(x, y), by_x, 1e-6) == "");
  // In a loop, and rematerialized.
  auto step = [&](const NamedArray& c, const NamedArray& v) { return c + f(v, c * 0. + 1.); };
  for (ScanCheckpoint policy : {ScanCheckpoint(false), ScanCheckpoint(true)}) {
    auto looped = grad([&](const NamedArray& v) {
      return fold(step, "in", {.checkpoint = policy})(zeros({}, DType::f64), v);
    });
    CHECK(difference(looped(x), 2. * cos(x), 1e-12) == "");
  }
}

TEST_CASE("custom_jvp: trees, integers, stable derivatives, and rules that do not fit") {
  // The example of the documentation of JAX: the derived gradient is NaN.
  auto log1pexp =
      custom_jvp([](const NamedArray& x) { return log1p(exp(x)); },
                 [](const std::tuple<NamedArray>& in, const std::tuple<NamedArray>& tangents) {
                   auto& [x] = in;
                   return std::pair(log1p(exp(x)), std::get<0>(tangents) * nn::sigmoid(x));
                 });
  CHECK(grad(log1pexp)(full({}, 100.)).item() == 1);
  // A module, and an integer, whose tangent is empty.
  auto scaled = custom_jvp(
      [](const Model& m, const NamedArray& n) { return m.weight * astype(n, DType::f64); },
      [](const auto& in, const auto& tangents) {
        auto& [m, n] = in;
        auto& [dm, dn] = tangents;
        CHECK(dn.empty());
        CHECK(dm.steps.empty());
        return std::pair(m.weight, dm.weight * astype(n, DType::f64));
      });
  auto g = grad([&](const Model& m) { return sum(scaled(m, full({}, 3, DType::i32))); })(model());
  CHECK(difference(g.weight, full({In, Out}, 3., DType::f64), 0) == "");
  CHECK(difference(g.bias, zeros({Out}, DType::f64), 0) == "");

  auto refused = [](auto rule, const char* what) {
    auto f = custom_jvp([](const NamedArray& x) { return x * 2.; }, rule);
    CHECK_THROWS_WITH_AS(grad([&](const NamedArray& x) { return sum(f(x)); })(values({In})),
                         doctest::Contains(what), Error);
  };
  refused(
      [](const auto& in, const auto& t) { return std::pair(std::get<0>(in), sum(std::get<0>(t))); },
      "[custom_jvp] the tangent of result array 0 is (), but the array is (in=3)");
}

TEST_CASE("custom_vjp: a backward pass may iterate over the axis of the surrounding fold") {
  const Axis L("layer", 3);
  auto x = values({In}), w = values({L, In}, 1, 2), u = values({L, In}, 2, 3);
  auto plain = [=](const NamedArray& v) { return v * sum(u, L); };
  auto by_hand = custom_vjp(plain, [=](const auto& in, const NamedArray&, const NamedArray& g) {
    return std::tuple{fold([=](const NamedArray& c, const NamedArray& ul) { return c + g * ul; },
                           L)(0 * std::get<0>(in), u)};
  });
  auto slope = [&](auto f) {
    return grad([=](const NamedArray& v) {
      return sum(
          sin(fold([=](const NamedArray& c, const NamedArray& wl) { return f(c * wl); }, L)(v, w)));
    })(x);
  };
  CHECK(difference(slope(by_hand), slope(plain), 1e-12) == "");
}

TEST_CASE(
    "custom_vjp: a backward pass that captures a value "
    "of a rematerialized loop body raises by name") {
  const Axis L("layer", 3);
  auto x = values({In}), w = values({L, In}, 1, 2);
  auto run = [=](bool captures, const NamedArray& v) {
    auto body = [=](const NamedArray& c, const NamedArray& wl) {
      auto scale = stop_gradient(c * 2.);
      auto by_hand = custom_vjp(
          [](const NamedArray& a, const NamedArray& s) { return sin(a) * s; },
          [=](const auto& in, const NamedArray&, const NamedArray& g) {
            return std::tuple{g * cos(std::get<0>(in)) * (captures ? scale : std::get<1>(in)),
                              NamedArray()};
          });
      return sin(by_hand(c, scale) + wl);
    };
    return sum(sin(fold(body, L, {.checkpoint = true})(v, w)));
  };
  auto slope = [=](bool captures) {
    return [=](const NamedArray& v) {
      return grad([=](const NamedArray& v) { return run(captures, v); })(v);
    };
  };
  auto second = [=](bool captures) {
    return grad([=](const NamedArray& v) { return sum(sin(slope(captures)(v))); });
  };
  CHECK(difference(slope(true)(x), slope(false)(x), 1e-14) == "");
  CHECK_NOTHROW(second(false)(x));
  CHECK_THROWS_WITH_AS(
      second(true)(x),
      doctest::Contains("[custom_vjp] the backward reads an array that it captured from the body"),
      Error);
}

TEST_CASE("cotangents and tangents have the axes of their primals") {
  auto x = values({Batch, In});
  auto f = [](const NamedArray& v) { return sin(v); };
  auto [y, pull] = vjp(f, x);
  CHECK(difference(pull(rearrange(x, Names{"in", "batch"})), cos(x) * x, 1e-14) == "");
  CHECK(difference(pull(NamedArray()), zeros_like(x), 0) == "");
  CHECK_THROWS_WITH_AS(
      pull(values({In})),
      doctest::Contains("[vjp] a cotangent is (in=3), but its array is (batch=4, in=3)"), Error);
  CHECK_THROWS_AS(pull(values({Batch, In, Out})), Error);
  auto many = [](const NamedArray& v) { return std::vector{v, v * 2}; };
  auto pull_many = vjp(many, x).second;
  CHECK_THROWS_WITH_AS(pull_many({x}), doctest::Contains("2 arrays, but its cotangent has 1"),
                       Error);
  CHECK_THROWS_WITH_AS(jvp(f, x, values({In})), doctest::Contains("[jvp] a tangent is (in=3)"),
                       Error);
  auto by_hand = [&](auto backward) {
    return grad([=](const NamedArray& v) {
      return sum(custom_vjp([](const NamedArray& u) { return u; }, backward)(v));
    });
  };
  auto folded = [](const auto&, const NamedArray&, const NamedArray& g) {
    return std::tuple{sum(g, "in")};
  };
  CHECK_THROWS_WITH_AS(
      by_hand(folded)(x),
      doctest::Contains("[custom_vjp] the cotangent of argument array 0 is (batch=4), but"), Error);
  auto turned = [](const auto&, const NamedArray&, const NamedArray& g) {
    return std::tuple{rearrange(g * 3, Names{"in", "batch"})};
  };
  CHECK(difference(by_hand(turned)(x), 0 * x + 3, 0) == "");
}

TEST_CASE("grad: prod over an axis with zeros has the right gradient") {
  const Axis Row("row", 5), N("n", 4);
  // No zero, one, two, three zeros in a row, and a product over both axes.
  auto x = array(std::vector<double>{2, -3, .5, 4, 2, 0, .5, 4, 0, 3, 0, 4, 0, 0, 0, 4, 1, 2, 3, 0},
                 {Row, N});
  auto w = values({Row, N}, 1, 2);
  auto by_hand = [&](const NamedArray& v) {  // the running products, without prod
    auto parts = v.unbind("n");
    for (std::size_t i = 1; i < parts.size(); ++i) parts[i] = parts[i - 1] * parts[i];
    return parts;
  };
  auto a = [&](const NamedArray& v) {
    return sum(prod(v, "n") * w.unbind("n")[0]) + prod(slice(v, "row", 0, 1));
  };
  auto b = [&](const NamedArray& v) {
    return sum(by_hand(v).back() * w.unbind("n")[0]) + sum(by_hand(slice(v, "row", 0, 1)).back());
  };
  auto c = [&](const NamedArray& v) { return sum(cumprod(v, "n") * w); };
  auto d = [&](const NamedArray& v) { return sum(stack("n", by_hand(v)) * w); };
  auto slope = [](auto f) {
    return grad([f](const NamedArray& v) {
      return sum(grad(f)(v) * arange(v.axes(), {.start = 1, .dtype = DType::f64}));
    });
  };
  CHECK(difference(grad(a)(x), grad(b)(x), 1e-14) == "");
  CHECK(difference(slope(a)(x), slope(b)(x), 1e-13) == "");
  CHECK(difference(grad(c)(x), grad(d)(x), 1e-14) == "");
  CHECK(difference(slope(c)(x), slope(d)(x), 1e-13) == "");
  CHECK(difference(grad([&](const NamedArray& v) { return c(flip(v, "n")); })(x),
                   grad([&](const NamedArray& v) { return d(flip(v, "n")); })(x), 1e-14) == "");
  for (double first : {3., 0.})
    CHECK(grad([](const NamedArray& v) { return prod(v); })(array({first, 2, 5}, Axis("m", 3)))
              .doubles() == std::vector<double>{10, 5 * first, 2 * first});
}

TEST_CASE(
    "a node belongs to the backward pass unless "
    "forward code creates an equal one, before or after") {
  Axis I{"i", 4};
  auto x = (arange(I) * 0.5).node();
  Origin line, back;
  line.at = back.at = SourceLocation::current();
  back.backward = true;
  for (bool forward_first : {false, true}) {
    auto made = [&](const Origin& by) {
      OriginScope here(by);
      return prim::add(x, prim::number(forward_first ? 3. : 5., x->dtype));
    };
    auto first = made(forward_first ? line : back);
    CHECK(first->origin.backward == !forward_first);
    auto second = made(forward_first ? back : line);
    CHECK(second == first);
    CHECK_FALSE(first->origin.backward);
  }
}

// Initialized before main, and in a static program before the library's own globals.
static const auto global_slope =
    grad([](const NamedArray& v) { return sum(tanh(v) + square(v)); })(zeros(Axis("n", 2)));
static const double global_value = sum(exp(zeros(Axis("n", 3)))).item();

TEST_CASE("arrays can be computed during the initialization of globals") {
  CHECK(global_value == 3);
  CHECK(global_slope.floats() == std::vector<float>{1, 1});
}

TEST_CASE("stop_gradient blocks gradients, and eval_shape returns shapes") {
  auto x = values({In});
  CHECK(difference(grad([](const NamedArray& v) { return sum(v * stop_gradient(v)); })(x), x, 0) ==
        "");
  CHECK(difference(grad([](const NamedArray& v) { return sum(stop_gradient(v * v)); })(x),
                   zeros_like(x), 0) == "");
  auto m = model();
  auto shape = eval_shape(
      [](const Model& n, const NamedArray& v) {
        return std::pair{predict(n, v), n.steps};
      },
      m, values({Batch, In}));
  CHECK(shape.first.axes() == Axes{Batch, Out});
  CHECK(shape.first.dtype() == DType::f64);
  CHECK(shape.second.dtype() == DType::i32);
  CHECK_THROWS_AS(shape.first.doubles(), Error);
}

TEST_CASE("the gradient of take by a permutation is a take by the inverse permutation") {
  const Axis Row("row", 20), Place("place", 20), Embed("embed", 24);
  auto table = random::normal(random::key(0), {Batch, Row, Embed}).eval();
  auto keys = random::uniform(random::key(1), {Batch, Row}).eval();
  auto other = rename(keys, {{"row", "place"}}).eval();
  using Value = const NamedArray&;
  auto check = [&](const char* name, auto take_rows, Value by) {
    INFO(name);
    auto gradient = [&](Value x, Value k) {
      return grad([&](Value t) { return sum(square(take_rows(t, k)) * take_rows(t, k)); })(x);
    };
    auto f = jit(gradient);
    auto got = f(table, by);
    CHECK(f.report().program.find("scatter") == std::string::npos);
    // the gradient of the sum of the cubes does not depend on the order of the rows
    CHECK(difference(got, (3.f * square(table)).eval(), 1e-5) == "");
  };
  check(
      "of the axis itself", [](Value t, Value k) { return take(t, "row", argsort(k, "row")); },
      keys);
  check(
      "of a new axis", [](Value t, Value k) { return take(t, "row", argsort(k, "place")); }, other);
  check(
      "an inverse",
      [](Value t, Value k) { return take(t, "row", argsort(argsort(k, "row"), "row")); }, keys);
  // The cotangent of each row has the weight of its position in the order.
  auto weights = random::normal(random::key(2), {Batch, Row, Embed}).eval();
  auto weighted = [&](Value t) { return sum(take(t, "row", argsort(keys, "row")) * weights); };
  auto by_inverse = take(weights, "row", argsort(argsort(keys, "row"), "row"));
  auto got = grad(weighted)(table);
  CHECK(max(abs(got - by_inverse)).item() == 0);
  // Rows that are picked twice are no permutation.
  auto twice = jit([](Value x, Value k, Value w) {
    auto rows = floor_divide(argsort(k, "row"), 2);
    return grad([&](Value t) { return sum(take(t, "row", rows) * w); })(x);
  });
  auto doubled = twice(table, keys, weights);
  CHECK(twice.report().program.find("scatter") != std::string::npos);
  CHECK(max(abs(sum(doubled, "row") - sum(weights, "row"))).item() < 1e-4);
}

TEST_CASE("the gradient of a roll by an array is a roll back") {
  const Axis Row("row", 20);
  auto x = values({Batch, Row}), weights = values({Row, Batch}, 2, 5);
  for (int by : {0, 1, 7, 20, 33, -5}) {
    INFO("by ", by);
    auto f = jit([](const NamedArray& v, const NamedArray& w, const NamedArray& shift) {
      return grad([&](const NamedArray& u) { return sum(roll(u, shift, "row") * w); })(v);
    });
    auto got = f(x, weights, full({}, by, DType::i32));
    CHECK(f.report().program.find("scatter") == std::string::npos);
    CHECK(difference(got, roll(weights, -by, "row").rearrange({"batch", "row"}), 0) == "");
  }
  // an amount for each example of one shared array
  const Axis Shifts("shifts", 3);
  auto shifts = array(std::vector<std::int32_t>{1, -4, 30}, Shifts);
  auto each = [&](const NamedArray& u) {
    auto one = [&](const NamedArray& by) { return sum(roll(u, by, "row") * weights); };
    return sum(vmap(one, Shifts)(shifts));
  };
  auto expected = roll(weights, -1, "row") + roll(weights, 4, "row") + roll(weights, -30, "row");
  CHECK(difference(grad(each)(x), expected.rearrange({"batch", "row"}), 1e-12) == "");
}

TEST_CASE("the gradient of separate parts of an axis is one concatenation") {
  const Axis Row("row", 9);
  auto x = values({Batch, Row}), w = values({Batch}, 1, 2);
  auto f = jit([](const NamedArray& v, const NamedArray& u) {
    return grad([&](const NamedArray& y) {
      auto part = [&](int at) { return y[{"row", at}]; };
      auto some = slice(y, "row", 4, 2);
      return sum(part(1) * u + 3 * part(7) * u + sum(some, "row") * u);
    })(v);
  });
  auto got = f(x, w);
  CHECK(f.report().program.find("add f64") == std::string::npos);
  auto factor = array({0, 1, 0, 0, 1, 1, 0, 3, 0}, Row).astype(DType::f64);
  const auto all = ones({Batch, Row}, DType::f64);
  CHECK(difference(got, (all * factor * w).eval(), 0) == "");
  // parts that overlap are added
  auto twice = [&](const NamedArray& y) {
    return sum(slice(y, "row", 1, 4)) + sum(slice(y, "row", 3, 4));
  };
  auto counts = array({0, 1, 1, 2, 2, 1, 1, 0, 0}, Row).astype(DType::f64);
  CHECK(difference(grad(twice)(x), (all * counts).eval(), 0) == "");
}

// Compares with the gradient of the same function where each slice is a contraction with a matrix.
TEST_CASE("the gradient of overlapping parts of an axis is the sum of each part") {
  const Axis Row("row", 9);
  const auto x = values({Batch, Row}), w = values({Batch, Row}, 1, 2);
  using Part = std::function<NamedArray(const NamedArray&, std::int64_t, std::int64_t)>;
  const Part sliced = [](auto& y, auto start, auto size) { return slice(y, "row", start, size); };
  const Part contracted = [&](auto& y, auto start, auto size) {
    const Axis to("to", size);
    const auto rows = broadcast_axis(arange(Row), to);
    const auto matrix = (rows == arange(to) + start).astype(DType::f64);
    return dot(y, matrix, "row").rename({{"to", "row"}});
  };
  const std::vector<std::function<NamedArray(const NamedArray&, const Part&)>> functions = {
      [](auto& y, auto& part) { return sum(square(part(y, 1, 8) - part(y, 0, 8))); },
      [](auto& y, auto& part) { return sum(square(part(y, 2, 3))) + sum(sin(y)); },
      [](auto& y, auto& part) { return sum(square(sum(part(y, 2, 5), "row"))) + sum(y); },
      [&](auto& y, auto& part) { return sum(square(part(y, 0, 4) * part(y, 3, 4))) + sum(y * w); },
      [](auto& y, auto& part) { return sum(square(part(y, 8, 1))) + sum(part(y, 0, 9) * y); },
      [&](auto& y, auto& part) {  // more parts than are summed one by one
        auto total = sum(w);
        for (int k = 0; k < 7; ++k) total = total + sum(square(part(y, k, 3)));
        return total;
      },
      [](auto& y, auto& part) {  // parts of two axes
        return sum(square(part(y, 1, 8) - part(y, 0, 8))) + sum(square(y[{"batch", 1}]));
      },
  };
  for (auto& f : functions) {
    const auto got = grad([&](const NamedArray& y) { return f(y, sliced); })(x);
    const auto expected = grad([&](const NamedArray& y) { return f(y, contracted); })(x);
    CHECK(difference(got, expected, 1e-12) == "");
  }
  auto f = jit([&](const NamedArray& y) {
    return grad([&](const NamedArray& v) { return functions[0](v, sliced); })(y);
  });
  f(x);
  CHECK(f.report().program.find("place") == std::string::npos);
}
