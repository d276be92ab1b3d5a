// Custom ops that require a full axis, map, reduce, or add an axis. Each op is compared with the
// same computation in ordinary ops under every transformation, on meshes and on both backends.
// docs/how-to/custom-op.md shows some of them; tests/docs_test.py checks its code blocks.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "compile/lower/lower.h"
#include "compile/verify.h"
#include "haliax/haliax.h"
#include "support/devices.h"
#include "support/near.h"
#include "support/raises.h"

using namespace haliax;

namespace {

// ---- the ops ----
const CustomFunction rank_of = custom_op({
    .name = "rank",
    .along = {AxisRule::whole},
    .cpu = {[](Strided<const float> x, Strided<std::int32_t> rank) {
      for (std::int64_t i = 0; i < x.size(); ++i) {
        rank(i) = 0;
        for (std::int64_t j = 0; j < x.size(); ++j)
          rank(i) += x(j) < x(i) || (x(j) == x(i) && j < i);
      }
    }},
});

const CustomFunction max_abs = custom_op({
    .name = "max_abs",
    .along = {AxisRule::reduce_max},
    .cpu = {[](Strided<const float> x, Strided<float> out) {
      out() = 0;
      for (std::int64_t i = 0; i < x.size(); ++i) out() = std::max(out(), std::abs(x(i)));
    }},
    .grad = [](const CustomCall& c) -> std::vector<NamedArray> {
      return {where(equal(abs(c.in[0]), c.out), sign(c.in[0]) * c.g, 0.)};
    },
});

// Computes y[i] = x[i] + y[i - 1] / 2. The gradient runs in the other direction.
const CustomFunction smoothed = custom_op({
    .name = "smoothed",
    .along = {AxisRule::whole},
    .cpu = {[](Strided<const float> x, Strided<float> y) {
              for (std::int64_t i = 0; i < x.size(); ++i) y(i) = x(i) + (i ? y(i - 1) / 2 : 0);
            },
            [](Strided<const double> x, Strided<double> y) {
              for (std::int64_t i = 0; i < x.size(); ++i) y(i) = x(i) + (i ? y(i - 1) / 2 : 0);
            }},
    .grad = [](const CustomCall& c) -> std::vector<NamedArray> {
      auto& n = c.along[0];
      return {flip(smoothed(flip(c.g, n), n), n)};
    },
    .linear = {0},
});

// Computes x^3 - w x inside of [-1, 1], else 0.
const CustomFunction clipped = custom_op({
    .name = "clipped",
    .cpu = {[](Strided<const float> x, Strided<const float> w, Strided<float> y) {
      for (std::int64_t i = 0; i < x.size(); ++i)
        y(i) = std::abs(x(i)) < 1 ? x(i) * (x(i) * x(i) - w(i)) : 0;
    }},
    .grad = [](const CustomCall& c) -> std::vector<NamedArray> {
      auto &x = c.in[0], &w = c.in[1];
      auto g = where(abs(x) < 1., c.g, 0.);
      return {g * (3 * x * x - w), g * -x};
    },
});

// Sums `w` into the bins that `ids` select.
const CustomFunction histogram = custom_op({
    .name = "histogram",
    .along = {AxisRule::reduce_sum, AxisRule::made},
    .cpu = {[](Strided<const std::int32_t> ids, Strided<const float> w, Strided<float> out) {
      for (std::int64_t b = 0; b < out.size(1); ++b) out(0, b) = 0;
      for (std::int64_t i = 0; i < ids.size(); ++i)
        if (ids(i) >= 0 && ids(i) < out.size(1)) out(0, ids(i)) += w(i);
    }},
    .grad = [](const CustomCall& c) -> std::vector<NamedArray> {
      auto& bins = c.along[1];
      return {NamedArray(), dot(one_hot(c.in[0], bins), c.g, bins)};
    },
    .linear = {1},
});

// Computes half the sum of the two middle values.
const CustomFunction median = custom_op({
    .name = "median",
    .along = {AxisRule::gone},
    .cpu = {[](Strided<const float> x, Strided<float> out) {
      auto below = [&](float v, bool equal) {
        std::int64_t n = 0;
        for (std::int64_t i = 0; i < x.size(); ++i) n += x(i) < v || (equal && x(i) == v);
        return n;
      };
      out() = 0;
      for (auto k : {(x.size() - 1) / 2, x.size() / 2})
        for (std::int64_t i = 0; i < x.size(); ++i)
          if (below(x(i), false) <= k && k < below(x(i), true)) {
            out() += x(i) / 2;
            break;
          }
    }},
});

// ---- the same ops in ordinary ops ----
const Axis B("b", 5), N("n", 7), C("c", 3), Bin("bin", 4);
using In = const std::vector<NamedArray>&;
using Function = std::function<NamedArray(In)>;
struct Case {
  std::string name;
  Function custom, plain;  // functions of x (b, n, c), w (n, c), ids (b, n)
  bool smooth = true;
  const char* refused = nullptr;  // part of the error of chunked_reduce over n
};
NamedArray by_matrix(const NamedArray& x) {  // 2^-(i - j) below the diagonal
  auto i = broadcast_axis(arange(N), Axis("m", N.size)), j = rename(arange(N), {{"n", "m"}});
  auto weight = where(i >= j, exp2((j - i).astype(DType::f32)), 0.);
  Names order;
  for (auto& a : x.axes()) order.push_back(a.name);
  return rearrange(dot(weight, rename(x, {{"n", "m"}}), "m"), order);
}
NamedArray middle(const NamedArray& x) {
  auto sorted = sort(x, "n");
  return (at(sorted, "n", (N.size - 1) / 2) + at(sorted, "n", N.size / 2)) / 2.;
}
NamedArray as_float(const NamedArray& x) { return x.astype(DType::f32); }
const Case cases[] = {
    {"rank", [](In x) { return as_float(rank_of(x[0], "n")); },
     [](In x) { return as_float(argsort(argsort(x[0], "n"), "n")); }, false,
     "rank requires all positions at once"},
    {"smoothed", [](In x) { return smoothed(x[0], "n"); }, [](In x) { return by_matrix(x[0]); },
     true, "smoothed requires all positions at once"},
    {"median", [](In x) { return median(x[0], "n"); }, [](In x) { return middle(x[0]); }, false,
     "median requires all positions at once"},
    {"max_abs", [](In x) { return max_abs(x[0], "n"); }, [](In x) { return max(abs(x[0]), "n"); }},
    {"max_abs of an expression", [](In x) { return max_abs(x[0] * x[1], N); },
     [](In x) { return max(abs(x[0] * x[1]), "n"); }},
    {"clipped",
     [](In x) {
       return clipped({x[0], x[1]});
     },
     [](In x) { return where(abs(x[0]) < 1., x[0] * (x[0] * x[0] - x[1]), 0.); }},
    {"clipped by a number",
     [](In x) {
       return clipped({sum(x[0], "n"), 0.5});
     },
     [](In x) {
       auto s = sum(x[0], "n");
       return where(abs(s) < 1., s * (s * s - 0.5), 0.);
     }},
    {"histogram",
     [](In x) {
       return histogram({x[2], x[0]}, {"n", Bin});
     },
     [](In x) { return dot(x[0], one_hot(x[2], Bin), "n"); }},
};

std::vector<NamedArray> inputs() {
  std::vector<NamedArray> x{random::normal(random::key(1), {B, N, C}),
                            random::normal(random::key(2), {N, C}),
                            random::randint(random::key(3), {B, N}, -1, 5)};
  eval(x);
  return x;
}
struct Backend {
  explicit Backend(const char* name) : before(default_backend()) { set_default_backend(name); }
  ~Backend() { set_default_backend(before); }
  std::string before;
};

// A loss whose gradients are compared: f, its gradient by x and w, and the gradient of a function
// of the gradient.
struct Loss {
  const Function& f;
  NamedArray operator()(const std::pair<NamedArray, NamedArray>& p, const NamedArray& ids) const {
    auto y = f({p.first, p.second, ids});
    return sum(y * y * y);
  }
};
Leaves all_of(const Function& f, bool smooth, In x) {
  Leaves out{f(x)};
  if (!smooth) return out;
  std::pair p{x[0], x[1]};
  auto first = grad(Loss{f})(p, x[2]);
  auto second = grad([&](const std::pair<NamedArray, NamedArray>& q, const NamedArray& ids) {
    auto g = grad(Loss{f})(q, ids);
    return sum(square(g.first)) + (g.second.empty() ? NamedArray(0.) : sum(square(g.second)));
  })(p, x[2]);
  for (auto& g : {first.first, first.second, second.first, second.second}) out.push_back(g);
  return out;
}
void same(const Leaves& got, const Leaves& expected, const std::string& what) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t k = 0; k < got.size(); ++k) {
    std::string wrong;
    if (got[k].empty() != expected[k].empty() ||
        (!got[k].empty() && got[k].ndim() != expected[k].ndim()))
      wrong = "another kind of array";
    else if (!got[k].empty()) {
      Names order;
      for (auto& a : expected[k].axes()) order.push_back(a.name);
      wrong = difference(rearrange(got[k], order), expected[k], 2e-5);
    }
    CHECK_MESSAGE(wrong.empty(), what << ", array " << k << ": " << wrong);
  }
}
// Runs a function of arrays under a transform.
using Transform = std::function<Leaves(const Function&, bool smooth, In)>;
std::vector<std::pair<std::string, Transform>> transforms() {
  auto all = [](const Function& f, bool smooth) {
    return [=](In x) { return all_of(f, smooth, x); };
  };
  auto inside = [](auto wrap) {  // wraps f in a transform that returns an equal function
    return [=](const Function& f, bool smooth, In x) {
      Function g = [=](In y) { return wrap(f, y); };
      return jit([=](In y) { return all_of(g, smooth, y); })(x);
    };
  };
  return {
      {"eager", [=](const Function& f, bool smooth, In x) { return all(f, smooth)(x); }},
      {"jit", [=](const Function& f, bool smooth, In x) { return jit(all(f, smooth))(x); }},
      {"vmap over b", inside([](const Function& f, In y) {
         return vmap(
             [&](const NamedArray& x, const NamedArray& ids) {
               return f({x, y[1], ids});
             },
             "b")(y[0], y[2]);
       })},
      {"vmap over c and b", inside([](const Function& f, In y) {
         return vmap(vmap(
                         [&](const NamedArray& x, const NamedArray& w, const NamedArray& ids) {
                           return f({x, w, ids});
                         },
                         "b"),
                     "c")(y[0], y[1], y[2]);
       })},
      {"scan over b", inside([](const Function& f, In y) {
         return map(
             [&](const NamedArray& x, const NamedArray& ids) {
               return f({x, y[1], ids});
             },
             AxisSelector("b"))(y[0], y[2]);
       })},
      {"checkpoint", inside([](const Function& f, In y) {
         return checkpoint([&](const NamedArray& x) { return f({x, y[1], y[2]}); })(y[0]);
       })},
      {"chunks of b by 2", inside([](const Function& f, In y) {
         return chunked_reduce("b", {.chunk = 2}, [&](const NamedArray& x, const NamedArray& ids) {
           return f({x, y[1], ids});
         })(y[0], y[2]);
       })},
  };
}

}  // namespace

TEST_CASE("custom ops match ordinary ops under every transform") {
  for (auto* name : {"cpu", "reference"}) {
    Backend backend(name);
    auto x = inputs();
    for (auto& c : cases) {
      auto expected = all_of(c.plain, c.smooth, x);
      for (auto& [how, run] : transforms())
        same(run(c.custom, c.smooth, x), expected, c.name + ", " + how + ", " + name);
    }
  }
}

TEST_CASE("custom ops in chunks of their axis are reduced, tiled, or refused by name") {
  auto x = inputs();
  for (auto& c : cases) {
    Function chunked = [&](In y) {
      return chunked_reduce("n", {.chunk = 3},
                            [&](const NamedArray& a, const NamedArray& w, const NamedArray& ids) {
                              return c.custom({a, w, ids});
                            })(y[0], y[1], y[2]);
    };
    auto step = jit([&](In y) { return all_of(chunked, c.smooth, y); });
    if (c.refused) {
      raises([&] { return step(x); },
             {"[chunked_reduce]", c.refused, "over the tiled axis n=7", "custom_op_test.cpp"});
    } else {
      same(step(x), all_of(c.plain, c.smooth, x), c.name + ", chunks of n by 3");
      CHECK(step.report().loops > 0);
    }
  }
}

TEST_CASE("custom ops on six meshes are mapped, reduced and gathered by their rule alone") {
  const Mesh meshes[] = {{{{"data", 2}}},
                         {{{"data", 3}}},
                         {{{"data", 8}}},
                         {{{"data", 2}, {"model", 2}}},
                         {{{"data", 2}, {"model", 3}}},
                         {{{"data", 3}, {"model", 2}}}};
  Devices eight(8);
  for (auto* name : {"cpu", "reference"}) {
    Backend backend(name);
    auto x = inputs();
    for (auto& c : cases) {
      auto expected = all_of(c.plain, c.smooth, x);
      for (auto& mesh : meshes) {
        std::vector<Mapping> mappings{{{"n", "data"}}, {{"b", "data"}}, {{"c", "data"}}};
        if (mesh.axes().size() > 1)
          mappings = {{{"n", "data"}, {"b", "model"}},
                      {{"n", {"model", "data"}}},
                      {{"b", "data"}, {"c", "model"}}};
        for (auto& m : mappings) {
          auto step = named_jit([&](In y) { return all_of(c.custom, c.smooth, y); },
                                {.mesh = mesh, .axis_resources = m});
          same(step(x), expected,
               c.name + " on " + to_string(mesh) + " by " + to_string(m) + ", " + name);
        }
      }
    }
  }
}

TEST_CASE("custom ops on a mesh communicate nothing for axes that their rule keeps sharded") {
  Devices four(4);
  const Mesh mesh{{{"data", 4}}};
  auto x = inputs();
  auto sent = [&](const Case& c, const Mapping& m, const Mapping& out) {
    auto step = named_jit(c.custom, {.mesh = mesh, .axis_resources = m, .out = Mappings(out)});
    step(x);
    std::string kinds;
    for (auto& move : step.report().collectives) kinds += move.kind + " ";
    return kinds;
  };
  const Mapping by_n{{"n", "data"}}, by_b{{"b", "data"}};
  CHECK(sent(cases[0], by_b, by_b) == "");
  CHECK(sent(cases[5], by_n, by_n) == "");
  CHECK(sent(cases[3], by_n, {}) == "all-reduce ");
  CHECK(sent(cases[7], by_n, {}) == "all-reduce ");
  // an all-to-all moves the sharding to another axis, and back
  CHECK(sent(cases[0], by_n, by_n) == "all-to-all all-to-all ");
  auto line = named_jit([](const NamedArray& y) { return rank_of(y, "n"); },
                        {.mesh = mesh, .axis_resources = by_n});
  line(at(at(x[0], "b", 0), "c", 0));
  REQUIRE(line.report().collectives.size() == 1);
  CHECK(line.report().collectives[0].kind == "all-gather");
}

TEST_CASE("custom ops: a partial sum passes through a linear op only") {
  Devices four(4);
  const Mesh mesh{{{"data", 4}}};
  auto x = inputs()[0];
  auto run = [&](const CustomFunction& op) {
    auto f = [&](const NamedArray& y) { return sum(op(sum(y, "b"), "n"), "n"); };
    auto step = named_jit(
        f, {.mesh = mesh, .axis_resources = Mapping{{"b", "data"}}, .out = Mappings(Mapping{})});
    CHECK(difference(step(x), f(x), 1e-5) == "");
    REQUIRE(step.report().collectives.size() == 1);
    return step.report().collectives[0].bytes;
  };
  auto plain = custom_op({.name = "smoothed",
                          .along = {AxisRule::whole},
                          .cpu = {[](Strided<const float> a, Strided<float> y) {
                            for (std::int64_t i = 0; i < a.size(); ++i)
                              y(i) = a(i) + (i ? y(i - 1) / 2 : 0);
                          }}});
  const double ring = 2 * 3 / 4.;  // bytes sent per byte of an all-reduce on four devices
  CHECK(run(smoothed) == ring * double(C.size * 4));
  CHECK(run(plain) == ring * double(N.size * C.size * 4));
}

TEST_CASE("custom ops work in the carry of a scan, over a donated argument, and on local shards") {
  auto x = inputs()[0];  // (b, n, c)
  auto walk = [](auto op) {
    return [op](const NamedArray& y) {
      auto step = [&](const NamedArray& h, const NamedArray& row) {
        auto next = op(h * 0.5 + row);
        return std::pair{next, max_abs(next, "n")};
      };
      auto [last, all] = scan(step, "b")(zeros({N, C}), y);
      return sum(square(last)) + sum(all);
    };
  };
  auto custom = walk([](const NamedArray& h) { return smoothed(h, "n"); });
  auto plain = walk(by_matrix);
  for (auto* name : {"cpu", "reference"}) {
    Backend backend(name);
    CHECK(difference(jit(custom)(x), plain(x), 1e-5) == "");
    CHECK(difference(jit(grad(custom))(x), rearrange(grad(plain)(x), {"b", "n", "c"}), 1e-5) == "");
    auto replace = jit([](const NamedArray& y) { return smoothed(y, "n"); }, {.donate = {0}});
    auto expected = by_matrix(x);
    CHECK(difference(replace(NamedArray(x * 1.).eval()), expected, 1e-5) == "");
  }
  Devices three(3);
  const Mapping by_c{{"c", "data"}};
  auto local =
      shard_map([](const NamedArray& y) { return psum(max_abs(y, "n"), "data"); },
                {.mesh = Mesh{{{"data", 3}}}, .in = Mappings(by_c), .out = Mappings(Mapping{})});
  CHECK(difference(at(local(x), "c", 0), sum(max(abs(x), "n"), "c"), 1e-5) == "");
}

TEST_CASE("custom ops accept any strides, any dtype they declare, and any size") {
  const Axis Wide("wide", 3000);
  auto x = random::normal(random::key(4), {Wide, N});
  for (auto* name : {"cpu", "reference"}) {
    Backend backend(name);
    auto f = jit([](const NamedArray& y) {
      return std::vector{rank_of(flip(slice(y, "wide", 7, 9), "wide"), "wide"),
                         rank_of(at(y, "n", 2), "wide")};
    });
    auto plain = jit([](const NamedArray& y) {
      auto order = [](const NamedArray& z) { return argsort(argsort(z, "wide"), "wide"); };
      return std::vector{order(flip(slice(y, "wide", 7, 9), "wide")), order(at(y, "n", 2))};
    });
    auto got = f(x), expected = plain(x);
    for (int k : {0, 1}) CHECK(difference(got[std::size_t(k)], expected[std::size_t(k)], 0) == "");
    CHECK(smoothed(x.astype(DType::f64), "n").dtype() == DType::f64);
    CHECK(smoothed(x, "n").dtype() == DType::f32);
    CHECK(clipped({full({}, 0.5), full({}, 1.)}).item() == -0.375);
    auto none = zeros({B, Axis("n", 0)});
    CHECK(max_abs(none, "n").floats() == std::vector<float>(5, -INFINITY));  // as for `max`
    CHECK(rank_of(none, "n").size() == 0);
    CHECK(rank_of(zeros({Axis("b", 0), N}), "n").size() == 0);
  }
}

TEST_CASE(
    "custom ops: equal calls are one node, "
    "and calls of two ops are two, even if the ops look equal") {
  auto x = inputs()[0];
  auto make = [] {
    return custom_op({.name = "twice", .cpu = {[](Strided<const float> a, Strided<float> y) {
                                         for (std::int64_t i = 0; i < a.size(); ++i)
                                           y(i) = 2 * a(i);
                                       }}});
  };
  auto one = make(), other = make();
  CHECK(one(x).node() == one(x).node());
  CHECK(one(x).node() != other(x).node());
  CHECK(smoothed(x, "n").node() != smoothed(x, "b").node());
  CHECK(difference(one(x), x * 2., 0) == "");
}

TEST_CASE("custom ops report an invalid call with its source location") {
  auto x = inputs();
  const auto line = "custom_op_test.cpp:" + std::to_string(__LINE__ + 1);
  const auto wrong = error_of([&] { return rank_of(x[0], "nn"); });
  CHECK(wrong == "[rank] axis nn is not in (b=5, n=7, c=3); did you mean n?; " + line);
  raises([&] { return rank_of(x[0], Axis("n", 8)); },
         {"[rank] axis n has size 7 in (b=5, n=7, c=3), not 8"});
  raises([&] { return rank_of(x[0]); }, {"[rank] requires 1 axis, but the call names 0"});
  raises([&] { return rank_of(x[2], "n"); }, {"[rank] expected f32, got i32; cast with astype"});
  raises([&] { return smoothed(x[2], "n"); }, {"[smoothed] expected f32 or f64, got i32"});
  raises(
      [&] {
        return histogram({x[0], x[0]}, {"n", Bin});
      },
      {"[histogram] expected (i32, f32), got (f32, f32)"});
  raises([&] { return clipped(x[0]); }, {"[clipped] expects 2 operands, but 1 is given"});
  raises(
      [&] {
        return histogram({x[2]}, {"n", Bin});
      },
      {"[histogram] expects 2 operands, but 1 is given"});
  raises([&] { return clipped({x[0], NamedArray()}); }, {"[clipped]", "empty NamedArray"});
  raises(
      [&] {
        return clipped({x[0], rename(x[0], {{"n", "m"}})});
      },
      {"[clipped] cannot broadcast (b=5, n=7, c=3) and (b=5, m=7, c=3)"});
  raises(
      [&] {
        return clipped({x[0], zeros(N.resize(8))});
      },
      {"[clipped] axis n has size 7 in", "and 8 in"});
  raises(
      [&] {
        return histogram({x[2], x[0]}, {"n", "bin"});
      },
      {"[histogram] creates axis bin", "pass an Axis"});
  raises(
      [&] {
        return histogram({x[2], x[0]}, {"n", Axis("c", 3)});
      },
      {"[histogram] creates axis c, but an operand has it"});
  raises(
      [&] {
        return histogram({x[2], x[0]}, {"n", "n"});
      },
      {"[histogram] axis n is given twice"});
  raises([&] { return median(zeros({B, Axis("n", 0)}), "n"); }, {"[median] axis n has size 0"});
}

TEST_CASE("custom ops: a gradient may have the axes of the other operands, which are summed") {
  static const auto fold = custom_op({
      .name = "scaled_square",
      .along = {AxisRule::reduce_sum},
      .cpu = {[](Strided<const float> x, Strided<const float> w, Strided<float> out) {
        out() = 0;
        for (std::int64_t i = 0; i < x.size(); ++i) out() += x(i) * x(i) * w(i);
      }},
      .grad = [](const CustomCall& c) -> std::vector<NamedArray> {  // by all axes of x, for w too
        return {2 * c.g * c.in[0] * c.in[1], c.g * square(c.in[0])};
      },
  });
  auto x = inputs()[0];
  // axes of w: n is reduced, and may be an axis of x alone
  for (const Axes& axes : {Axes{}, Axes{C}, Axes{N}, Axes{C, N}, Axes{B, N, C}}) {
    auto w = broadcast_to(full({}, 0.5f), axes);
    auto custom = [&](const NamedArray& v) { return sum(square(fold({x, v}, "n"))); };
    auto plain = [&](const NamedArray& v) { return sum(square(sum(square(x) * v, "n"))); };
    CHECK(difference(grad(custom)(w), grad(plain)(w), 1e-4) == "");
    CHECK(difference(jit(grad(custom))(w), grad(plain)(w), 1e-4) == "");
  }
}

TEST_CASE("custom ops report an invalid gradient with the name of the call") {
  auto x = inputs()[0];
  auto with = [](auto g) {
    return custom_op({.name = "odd",
                      .along = {AxisRule::whole},
                      .cpu = {[](Strided<const float>, Strided<float>) {}},
                      .grad = g});
  };
  auto extra = with([](const CustomCall& c) -> std::vector<NamedArray> {
    return {broadcast_axis(c.g, Axis("m", 2))};
  });
  auto size =
      with([](const CustomCall& c) -> std::vector<NamedArray> { return {slice(c.g, "n", 0, 3)}; });
  auto many = with([](const CustomCall& c) -> std::vector<NamedArray> { return {c.g, c.g}; });
  auto of = [&](const CustomFunction& f) {
    return [&] { return grad([&](const NamedArray& y) { return sum(f(y, "n")); })(x); };
  };
  raises(of(extra),
         {"[odd] the gradient of operand 0 has axis m, which neither an operand nor the result",
          "custom_op_test.cpp"});
  raises(of(size), {"[odd] axis n has size 3 in the gradient of operand 0, but 7 in the call"});
  raises(of(many), {"[odd] its gradient returns 2 arrays for 1 operands"});
  raises(of(median), {"[median] has no gradient", "custom_op_test.cpp"});
  CHECK(difference(
            grad([](const NamedArray& y) { return sum(y + stop_gradient(median(y, "n"))); })(x),
            ones({B, N, C}), 0) == "");
}

TEST_CASE("custom ops report invalid definitions") {
  auto kernel = [](Strided<const float>, Strided<float>) {};
  auto two = [](Strided<const float>, Strided<const float>, Strided<float>) {};
  auto any = [](Strided<const float>, Strided<bool>) {};
  raises([&] { return custom_op({.cpu = {kernel}}); },
         {"[custom_op] an op needs a name", "custom_op_test.cpp"});
  raises([&] { return custom_op({.name = "a"}); }, {"[custom_op] a has no kernel"});
  raises(
      [&] {
        return custom_op({.name = "a", .cpu = {kernel, two}});
      },
      {"kernels of a have different operand counts"});
  raises(
      [&] {
        return custom_op(
            {.name = "a", .along = {AxisRule::reduce_max, AxisRule::reduce_sum}, .cpu = {kernel}});
      },
      {"a reduces by two monoids"});
  raises([&] { return custom_op({.name = "a", .along = {AxisRule::reduce_sum}, .cpu = {any}}); },
         {"a sums bools"});
  raises([&] { return custom_op({.name = "a", .cpu = {kernel}, .linear = {1}}); },
         {"a is linear in operand 1, but has 1"});
}

TEST_CASE("custom ops: a backend that cannot run them raises") {
  struct RemoteError : program::Device {
    const char* name() const override { return "elsewhere"; }
    std::unique_ptr<program::Executable> compile(std::shared_ptr<const program::Program>) override {
      return nullptr;
    }
  } device;
  auto x = inputs()[0];
  auto rank = lower({rank_of(x, "n").node()}, {}, {}, {}),
       sorted = lower({sort(x, "n").node()}, {}, {}, {});
  CHECK(has(to_string(*rank.program), "rank [5 3][7]"));
  CHECK_NOTHROW(query_scratch(*sorted.program, device, 1));
  raises(
      [&] {
        query_scratch(*rank.program, device, 1);
        return 0;
      },
      {"[rank] backend elsewhere does not support this step", "custom_op_test.cpp"});
}

TEST_CASE("custom ops: the verifier reports a result that lacks a mapped axis") {
  auto n = rank_of(inputs()[0], "n").node();
  CHECK_NOTHROW(verify({n}, "test"));
  auto other = make(*n->op, n->in, {B.resize(4), N, C}, n->dtype, n->attr);
  raises(
      [&] {
        verify({other}, "test");
        return 0;
      },
      {"[verify] rank after test: it maps axis b of (b=5, "
       "n=7, c=3), but produces (b=4, n=7, c=3)"});
}
