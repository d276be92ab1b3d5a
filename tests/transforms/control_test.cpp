// cond, switch_ and while_loop: one branch runs, in every execution mode.
#include <doctest/doctest.h>

#include "haliax/haliax.h"
#include "support/near.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis Batch("batch", 4), Embed("embed", 3);

NamedArray values(const AxisSpec& axes) { return arange(axes) * .25 - 1.; }
NamedArray up(const NamedArray& x) { return exp(x) * 2.; }
NamedArray down(const NamedArray& x) { return square(x) - 3.; }
NamedArray either(const NamedArray& flag, const NamedArray& x) { return cond(flag, up, down)(x); }

// Returns the text of the Program, in which tests look for conditionals.
std::string program_of(const NamedArray& flag) {
  return jit(either).compile(flag, values({Embed})).program;
}

}  // namespace

TEST_CASE("cond returns the result of its branch") {
  auto x = values({Batch, Embed});
  auto compiled = jit(either);
  for (bool flag : {true, false}) {
    auto wanted = flag ? up(x) : down(x), on = sum(x) * 0. < (flag ? 1. : -1.);
    CHECK(difference(either(on, x), wanted, 1e-6) == "");
    CHECK(difference(compiled(on, x), wanted, 1e-6) == "");
    CHECK(difference(jit(either, {.backend = "reference"})(on, x), wanted, 1e-6) == "");
  }
  CHECK(compiled.report().traces == 1);
}

TEST_CASE("only one branch runs") {
  // two conditionals, one after the other
  auto program = program_of(NamedArray(1.) > 0.);
  auto first = program.find("\nif "), second = program.find("\nif ", first + 1);
  CHECK((first < program.find(" exp ") && program.find(" exp ") < second &&
         second < program.find(" sub ")));
  // A branch raises the errors of its checks only if it runs. Captured arrays are read in the
  // conditional, too.
  auto x = values({Embed});
  auto checked = [&](const NamedArray& flag) {
    return cond(
        flag,
        [&] {
          debug::check(x > 100., "too small");
          return x;
        },
        [&] { return x * 2.; })();
  };
  CHECK(difference(jit(checked)(NamedArray(1.) < 0.), x * 2., 1e-6) == "");
  raises([&] { return jit(checked)(NamedArray(1.) > 0.); }, {"[check] too small"});
}

TEST_CASE("branches return trees, and may return their arguments") {
  auto swap = [](const NamedArray& flag, const NamedArray& a, const NamedArray& b) {
    auto same = [](const NamedArray& x, const NamedArray& y) { return std::pair(x, y); };
    auto other = [](const NamedArray& x, const NamedArray& y) { return std::pair(y, x); };
    return cond(flag, same, other)(a, b);
  };
  auto a = values({Embed}), b = a + 5.;
  auto [p, q] = jit(swap)(any(a > 100.), a, b);
  CHECK(difference(p, b, 0) == "");
  CHECK(difference(q, a, 0) == "");
  auto constants = cond(
      any(a > -2.), [] { return arange(Embed); }, [] { return zeros(Embed, DType::i32); })();
  CHECK(difference(constants, arange(Embed), 0) == "");
}

TEST_CASE("the gradient of cond is the gradient of the branch that runs") {
  auto x = values({Embed});
  auto loss = [](const NamedArray& flag, const NamedArray& w) { return sum(either(flag, w) * w); };
  for (bool on : {true, false}) {
    auto flag = NamedArray(on ? 1. : -1.) > 0.;
    auto wanted = grad([&](const NamedArray& w) { return sum((on ? up(w) : down(w)) * w); })(x);
    auto g = [&](const NamedArray& f, const NamedArray& w) {
      return grad([&](const NamedArray& v) { return loss(f, v); })(w);
    };
    CHECK(difference(g(flag, x), wanted, 1e-6) == "");
    CHECK(difference(jit(g)(flag, x), wanted, 1e-6) == "");
    auto twice = grad([&](const NamedArray& w) { return sum(g(flag, w)); })(x);
    CHECK(difference(twice, on ? up(x) * (x + 2.) : 6. * x, 1e-5) == "");
  }
  // The square root of a negative value is not computed, so its gradient does not reach the other
  // branch.
  auto guarded = [](const NamedArray& w) {
    auto s = sum(w);
    return cond(
        s > 0., [](const NamedArray& v) { return sqrt(v); },
        [](const NamedArray& v) { return v * 0.; })(s);
  };
  CHECK(difference(grad(guarded)(x - 100.), zeros(Embed), 0) == "");
}

TEST_CASE("under vmap, cond selects position by position") {
  auto x = values({Batch, Embed});
  auto f = [](const NamedArray& row) { return either(sum(row) > 0., row); };
  CHECK(difference(vmap(f, "batch")(x), where(sum(x, "embed") > 0., up(x), down(x)), 1e-6) == "");
  CHECK(difference(jit(vmap(f, "batch"))(x), where(sum(x, "embed") > 0., up(x), down(x)), 1e-6) ==
        "");
  auto one = any(x > 100.);  // the flag lacks the mapped axis: one branch runs
  CHECK(difference(vmap([&](const NamedArray& row) { return either(one, row); }, "batch")(x),
                   down(x), 1e-6) == "");
}

TEST_CASE("cond works in a loop, and a loop in cond") {
  auto x = values({Batch, Embed});
  auto body = [](const NamedArray& c, const NamedArray& row) {
    return cond(
        sum(row) > 0., [](const NamedArray& a, const NamedArray& b) { return a + b; },
        [](const NamedArray& a, const NamedArray& b) { return a * .5 - b; })(c, row);
  };
  auto rows = x.unbind("batch");
  auto wanted = zeros(Embed);
  for (auto& row : rows) wanted = sum(row).item() > 0 ? wanted + row : wanted * .5 - row;
  auto folded = [&](const NamedArray& v) { return fold(body, "batch")(zeros(Embed), v); };
  CHECK(difference(folded(x), wanted, 1e-6) == "");
  CHECK(difference(jit(folded)(x), wanted, 1e-6) == "");
  auto loss = [&](const NamedArray& v) { return sum(square(folded(v))); };
  auto by_where = [&](const NamedArray& v) {
    auto pick = [](const NamedArray& c, const NamedArray& row) {
      return where(sum(row) > 0., c + row, c * .5 - row);
    };
    return sum(square(fold(pick, "batch")(zeros(Embed), v)));
  };
  CHECK(difference(jit(grad(loss))(x), grad(by_where)(x), 1e-5) == "");
  auto inside = [&](const NamedArray& flag, const NamedArray& v) {
    auto running = [](const NamedArray& c, const NamedArray& row) { return c + square(row); };
    return cond(
        flag, [&](const NamedArray& a) { return fold(running, "batch")(zeros(Embed), a); },
        [](const NamedArray& a) { return max(a, "batch"); })(v);
  };
  CHECK(difference(jit(inside)(any(x > 100.), x), max(x, "batch"), 1e-6) == "");
  CHECK(difference(jit(inside)(any(x > 0.), x), sum(square(x), "batch"), 1e-6) == "");
}

TEST_CASE("a select with one flag runs the loops of one side, and cond in shard_map is by device") {
  auto x = values({Batch, Embed}), start = values({Embed});
  auto running = [](const NamedArray& c, const NamedArray& row) {
    return tanh(c + row * .5) + row;
  };
  auto folded = [&](const NamedArray& v) {
    auto outer = [&](const NamedArray& c, const NamedArray& row) {
      return fold(running, "batch")(c, v) * .5 + row;  // a loop in a loop
    };
    return fold(outer, "batch")(start, v);
  };
  auto wanted = jit(folded, {.backend = "reference"})(x);
  auto picks = [&](const NamedArray& flag, const NamedArray& v) {
    return std::pair(where(flag, folded(v), 0.), where(flag, 1., folded(v)));
  };
  for (const bool flag : {true, false}) {
    auto [a, b] = jit(picks)(NamedArray(flag), x);
    CHECK(difference(a, flag ? wanted : wanted * 0., 1e-6) == "");
    CHECK(difference(b, flag ? wanted * 0. + 1. : wanted, 1e-6) == "");
  }
  const Axis Device("device", 2);
  auto by_device = [&](const NamedArray& v) {
    return cond(
               axis_index("data") == 1,
               [&](const NamedArray& a) { return folded(x) + sum(a, "device"); },
               [](const NamedArray& a) { return sum(a, "device"); })(v)
        .broadcast_axis(Device.resize(1));
  };
  const Mapping by_data{{"device", "data"}};
  auto y = shard_map(
      by_device, {.mesh = Mesh{{{"data", 2}}}, .axis_resources = by_data})(zeros({Device, Embed}));
  CHECK(difference(y[{Device, 1}], wanted, 1e-6) == "");
  CHECK(difference(y[{Device, 0}], wanted * 0., 1e-6) == "");
}

TEST_CASE("cond on a mesh matches one device") {
  Mesh mesh{{{"data", 2}}};
  Mapping mapping{{"batch", "data"}};
  auto x = values({Batch, Embed}), w = values({Embed});
  auto step = [](const NamedArray& m, const NamedArray& v) {
    auto loss = [&](const NamedArray& a) {
      return cond(
          sum(v) > 0., [](const NamedArray& p, const NamedArray& q) { return mean(up(p * q)); },
          [](const NamedArray& p, const NamedArray& q) { return sum(down(p + q)); })(a, v);
    };
    return value_and_grad(loss)(m);
  };
  for (auto& v : {x, -x}) {
    auto [value, g] = step(w, v);
    auto [on_mesh, g_on_mesh] = named_jit(step, {.mesh = mesh, .axis_resources = mapping})(w, v);
    CHECK(difference(on_mesh, value, 1e-5) == "");
    CHECK(difference(g_on_mesh, g, 1e-5) == "");
  }
}

TEST_CASE("switch_ runs the branch with the given index") {
  auto x = values({Embed});
  auto f = [](const NamedArray& k, const NamedArray& v) {
    return switch_(k, up, down, [](const NamedArray& a) { return -a; })(v);
  };
  auto compiled = jit(f);
  for (int k : {-3, 0, 1, 2, 9}) {
    auto number = array(std::vector<std::int32_t>{k}, AxisSpec{});
    auto wanted = k <= 0 ? up(x) : k == 1 ? down(x) : -x;
    CHECK(difference(compiled(number, x), wanted, 1e-6) == "");
    CHECK(difference(f(number, x), wanted, 1e-6) == "");
  }
  auto each = vmap([&](const NamedArray& k) { return f(k, x); }, "batch")(arange(Batch));
  CHECK(difference(each, stack(Batch, {up(x), down(x), -x, -x}), 1e-6) == "");
  CHECK(compiled.report().traces == 1);
}

TEST_CASE("while_loop ends at its condition, and has a gradient") {
  const Axis Iterations("turns", 50);
  auto doubled = [&](const NamedArray& x) {  // until it is 100 or more
    return while_loop([](const NamedArray& v) { return v < 100.; },
                      [](const NamedArray& v) { return v * 2.; }, Iterations)(x);
  };
  CHECK(doubled(NamedArray(3.)).item() == 192);
  CHECK(jit(doubled)(NamedArray(3.)).item() == 192);
  CHECK(jit(doubled)(NamedArray(500.)).item() == 500);
  CHECK(jit(grad(doubled))(NamedArray(3.)).item() == 64);
  auto few = [](const NamedArray& x) {
    return while_loop([](const NamedArray& v) { return v < 100.; },
                      [](const NamedArray& v) { return v * 2.; }, Axis("turns", 3))(x);
  };
  CHECK(few(NamedArray(3.)).item() == 24);
}

TEST_CASE("cond and switch_ refuse unsuitable predicates and branches") {
  auto x = values({Embed});
  raises([&] { return cond(x > 0., up, down)(x); },
         {"[cond] the predicate must be a scalar, but has axes (embed=3)", "where",
          "control_test.cpp"});
  raises([&] { return cond(sum(x), up, down)(x); },
         {"[cond] predicate: expected bool, got f32; use a comparison, such as x != 0"});
  raises([&] { return switch_(sum(x), up, down)(x); },
         {"[switch_] index: expected an integer, got f32; convert it with astype(DType::i32)",
          "control_test.cpp"});
  raises([&] { return cond(any(x > 0.), up, [](const NamedArray& v) { return sum(v); })(x); },
         {"[cond] one branch returns f32 (embed=3), another f32 ()"});
  raises([&] { return cond(any(x > 0.), up, [](const NamedArray& v) { return v > 0.; })(x); },
         {"[cond] one branch returns f32", "bool"});
}

TEST_CASE("cond in chunks: each chunk runs one branch, in the backward pass too") {
  auto x = values({Batch, Embed});
  auto f = [](const NamedArray& v, const NamedArray& flag) {
    return chunked_reduce("batch", {.chunk = 3},
                          [&](const NamedArray& rows) { return sum(either(flag, rows)); })(v);
  };
  for (bool on : {true, false}) {
    auto flag = NamedArray(on ? 1. : -1.) > 0.;
    CHECK(difference(jit(f)(x, flag), sum(on ? up(x) : down(x)), 1e-5) == "");
    auto g = jit(grad([&](const NamedArray& v) { return f(v, flag); }))(x);
    CHECK(difference(g, on ? up(x) : x * 2., 1e-5) == "");
  }
}
