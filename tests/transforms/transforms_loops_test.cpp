// scan, fold, map, reduce and associative_scan: values, gradients, and every execution mode.
#include <doctest/doctest.h>

#include <functional>

#include "graph/loop.h"
#include "transforms/rewrite.h"
#include "haliax/haliax.h"
#include "support/near.h"
#include "support/raises.h"

using namespace haliax;

namespace {

using In = const NamedArray&;
const Axis Time("time", 6), Embed("embed", 3);

NamedArray values(const AxisSpec& axes, double from = -1, double to = 1) {
  std::vector<double> v(static_cast<std::size_t>(axis_size(axes.axes())));
  for (std::size_t i = 0; i < v.size(); ++i) {
    double place = double(i + 1) * 0.6180339887498949 + from;
    v[i] = from + (to - from) * (place - std::floor(place));
  }
  return array(std::span<const double>(v), axes);
}

struct Problem {
  NamedArray init, weight, xs;
};
Problem problem() {
  return {values({Embed}), values({Embed, Embed.alias("to")}), values({Time, Embed}, 0, 1)};
}

// A recurrent cell: the carry, the weight shared by all iterations, and one position of xs.
std::pair<NamedArray, NamedArray> cell(const NamedArray& c, const NamedArray& w,
                                       const NamedArray& x) {
  auto next = tanh(dot(c, w, "embed").rename({{"to", "embed"}}) + x);
  return {next, next * x};
}
std::pair<NamedArray, NamedArray> by_scan(const Problem& p, ScanOptions options) {
  return scan([&](const NamedArray& c, const NamedArray& x) { return cell(c, p.weight, x); },
              "time", options)(p.init, p.xs);
}
std::pair<NamedArray, NamedArray> by_hand(const Problem& p, bool reverse) {
  auto rows = p.xs.unbind("time");
  Leaves ys(rows.size());
  auto c = p.init;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    auto at = reverse ? rows.size() - 1 - i : i;
    std::tie(c, ys[at]) = cell(c, p.weight, rows[at]);
  }
  return {c, stack("time", ys)};
}
NamedArray loss(const std::pair<NamedArray, NamedArray>& r) {
  return sum(r.first) + sum(r.second * r.second * values({Time, Embed}, 1, 2));
}
void check_same(const std::string& what, const Problem& got, const Problem& expected,
                double tolerance) {
  CAPTURE(what);
  CHECK(difference(got.init, expected.init, tolerance) == "");
  CHECK(difference(got.weight, expected.weight, tolerance) == "");
  CHECK(difference(got.xs, expected.xs, tolerance) == "");
}

struct ReturnsAllLayers {  // a block that returns values of all layers, not its own
  NamedArray own;
  std::pair<NamedArray, NamedArray> operator()(const NamedArray& c) const {
    return {c, own * values({Time, Embed}, 1, 2)};
  }
};

std::vector<ScanOptions> ways() {
  std::vector<ScanOptions> out;
  for (const char* policy : {"none", "carries", "nested"})
    for (bool reverse : {false, true})
      for (std::int64_t unroll : {1, 2, 4, 6, 100})
        out.push_back({.checkpoint = policy, .reverse = reverse, .unroll = unroll});
  return out;
}

}  // namespace

TEST_CASE("scan: an iteration may index an array by its number") {
  const Axis T("t", 3), N("n", 5);
  auto x = arange({T, N}, {.dtype = DType::f32}).eval();
  auto by_index = [T](const NamedArray& x) {
    return map([&](const NamedArray& t) { return take(x, "t", t) * 2.f; }, T)(arange(T));
  };
  CHECK(all(jit(by_index)(x) == x * 2.f).item() == 1);
  CHECK(all(grad([&](const NamedArray& x) { return sum(by_index(x)); })(x) == 2.f).item() == 1);
}

TEST_CASE(
    "scan: values, gradients, second derivatives and jvp agree for every checkpoint policy, "
    "unrolled or reversed") {
  auto p = problem();
  for (auto& o : ways()) {
    CAPTURE(int(o.checkpoint.policy));
    CAPTURE(o.reverse);
    CAPTURE(o.unroll);
    auto got = by_scan(p, o), expected = by_hand(p, o.reverse);
    CHECK(difference(got.first, expected.first, 1e-13) == "");
    CHECK(difference(got.second, expected.second, 1e-13) == "");
    auto f = [&](const Problem& q) { return loss(by_scan(q, o)); };
    auto g = [&](const Problem& q) { return loss(by_hand(q, o.reverse)); };
    check_same("gradient", grad(f)(p), grad(g)(p), 1e-12);
    auto slope = [](auto h) {
      return [h](const Problem& q) {
        auto d = grad(h)(q);
        return sum(square(d.init)) + sum(square(d.weight)) + sum(square(d.xs));
      };
    };
    check_same("second derivative", grad(slope(f))(p), grad(slope(g))(p), 1e-11);
    Problem t{values({Embed}, 0, 1), values({Embed, Embed.alias("to")}, 0, 1),
              values({Time, Embed})};
    auto a = jvp(f, p, t), b = jvp(g, p, t);
    CHECK(difference(a.first, b.first, 1e-12) == "");
    CHECK(difference(a.second, b.second, 1e-11) == "");
    CHECK(difference(jit(f)(p), g(p), 1e-12) == "");
    CHECK(difference(jit(f, {.backend = "reference"})(p), g(p), 1e-12) == "");
  }
}

TEST_CASE("scan: unroll traces the body for several positions, and the loop has fewer iterations") {
  auto x = values({Time, Embed});  // six positions
  for (auto [unroll, bodies, loops] :
       // a single iteration is no loop
       {std::tuple{1, 1, 1},
        {2, 2, 1},
        {3, 3, 1},
        {4, 4 + 2, 0},
        {5, 5 + 1, 0},
        {6, 6, 0},
        {9, 6, 0}}) {
    CAPTURE(unroll);
    int traced = 0;
    auto add = [&](const NamedArray& c, const NamedArray& v) {
      ++traced;
      return sin(c) + v;
    };
    auto f = jit([&](const NamedArray& xs) {
      return fold(add, "time", {.unroll = unroll})(zeros({Embed}, DType::f64), xs);
    });
    f(x);
    CHECK(traced == bodies);
    CHECK(f.report().loops == loops);
  }
}

TEST_CASE(
    "scan: trees, integers in the carry, "
    "arguments without the axis, positions, and no scanned array") {
  struct State {
    NamedArray total, count;
  };
  auto x = values({Time, Embed});
  auto f = [](const State& s, const NamedArray& v, const NamedArray& shared) {
    return std::pair{State{s.total + v * shared, s.count + 1}, std::pair{s.total, s.count}};
  };
  auto shared = values({Embed}, 1, 2);
  auto [last, out] =
      scan(f, "time")(State{zeros({Embed}, DType::f64),
                            NamedArray(array(std::vector<std::int32_t>{5}, AxisSpec{{"one", 1}}))},
                      x, shared);
  CHECK(difference(last.total, sum(x, "time") * shared, 1e-13) == "");
  CHECK(last.count.integers() == std::vector<std::int64_t>{11});
  CHECK(out.second.integers() == std::vector<std::int64_t>{5, 6, 7, 8, 9, 10});
  CHECK(difference(out.first, (cumsum(x, "time") - x) * shared, 1e-13) == "");
  auto count =
      fold([](const NamedArray& c) { return c + 2; }, Axis("turn", 5))(zeros({}, DType::i32));
  CHECK(count.item() == 10);
  auto nothing = fold([](const NamedArray& c, const NamedArray& v) { return c + v; }, "time")(
      values({Embed}), zeros({{"time", 0}, Embed}, DType::f64));
  CHECK(difference(nothing, values({Embed}), 0) == "");
  for (std::int64_t unroll : {2, 9}) {
    auto none = fold([](const NamedArray& c, const NamedArray& v) { return c + v; }, "time",
                     {.unroll = unroll})(values({Embed}), zeros({{"time", 0}, Embed}, DType::f64));
    CHECK(difference(none, values({Embed}), 0) == "");
  }
  auto doubled =
      map([](const NamedArray& v) { return v * 2; }, "time")(rearrange(x, Names{"embed", "time"}));
  CHECK(difference(doubled, x * 2, 0) == "");
}

TEST_CASE("scan: the results of a stateful body must match in every traced iteration") {
  auto x = values({Time, Embed});  // six positions
  auto zero = zeros({Embed}, DType::f64);
  auto refused = [&](std::int64_t unroll, auto other, const std::string& what) {
    CAPTURE(unroll);
    int iteration = 0;
    auto body = [&](const NamedArray& c, const NamedArray& v) {
      auto gives = ++iteration == 6 || (unroll == 2 && iteration == 2) ? other(v) : v;
      return std::pair{c + v, gives};
    };
    auto run = [&] { return scan(body, "time", {.unroll = unroll})(zero, x).second; };
    CHECK_THROWS_WITH_AS(run(), doctest::Contains("[scan] one iteration returns"), Error);
    iteration = 0;
    CHECK_THROWS_WITH_AS(run(), doctest::Contains(what.c_str()), Error);
    iteration = 0;
    CHECK_THROWS_WITH_AS(jit(run)(), doctest::Contains("transforms_loops_test.cpp"), Error);
  };
  // in a block, in the rest after the blocks, without a loop
  for (std::int64_t unroll : {2, 4, 6, 9}) {
    refused(
        unroll, [](const NamedArray& v) { return rename(v, Embed, Axis("c", Embed.size)); },
        "another f64 (c=");
    refused(
        unroll, [](const NamedArray& v) { return slice(v, "embed", 0, 1); },
        "another f64 (embed=1)");
    refused(
        unroll, [](const NamedArray& v) { return v.astype(DType::f32); }, "another f32 (embed=");
  }
  int left = 0;  // only in the rest after the blocks
  auto body = [&](const NamedArray& c, const NamedArray& v) {
    return std::pair{c + v, ++left > 4 ? sum(v) : v};
  };
  CHECK_THROWS_WITH_AS(scan(body, "time", {.unroll = 4})(zero, x),
                       doctest::Contains("[scan] one iteration returns"), Error);
}

TEST_CASE("scan: results of iterations may gain a hidden axis, unrolled or not") {
  auto x = values({Axis("rows", 3), Time, Embed});
  for (std::int64_t unroll : {1, 2, 4, 9}) {
    CAPTURE(unroll);
    auto f = [&](const NamedArray& x) {
      return scan(
                 [](const NamedArray& c, const NamedArray& v) {
                   return std::pair{c + v, c};
                 },
                 "time", {.unroll = unroll})(zeros({Embed}, DType::f64), x)
          .second;
    };
    CHECK(difference(vmap(f, "rows")(x), cumsum(x, "time") - x, 1e-13) == "");
  }
}

TEST_CASE("scan: invalid calls raise") {
  auto x = values({Time, Embed});
  auto add = [](const NamedArray& c, const NamedArray& v) { return c + v; };
  CHECK_THROWS_WITH_AS(fold(add, "tim")(zeros({Embed}), x), doctest::Contains("did you mean time?"),
                       Error);
  CHECK_THROWS_WITH_AS(fold(add, Axis("time", 5))(zeros({Embed}, DType::f64), x),
                       doctest::Contains("axis time has size 6"), Error);
  CHECK_THROWS_WITH_AS(fold(add, "time")(zeros({Embed}), x),
                       doctest::Contains("changes its dtype from f32 to f64"), Error);
  CHECK_THROWS_WITH_AS(fold(add, "time")(zeros({}, DType::f64), x),
                       doctest::Contains("its axes and their order must stay the same"), Error);
  CHECK_THROWS_WITH_AS(fold(add, "time", {.unroll = 0})(zeros({Embed}, DType::f64), x),
                       doctest::Contains("unroll must be at least 1"), Error);
  CHECK_THROWS_WITH_AS(ScanCheckpoint("nestd"), doctest::Contains("did you mean nested?"), Error);
  auto reads = [](const NamedArray& c, const NamedArray& v) { return c + v.item(); };
  CHECK_THROWS_AS(fold(reads, "time")(zeros({}, DType::f64), values({Time})), Error);
  // a failed call leaves no state
  CHECK(difference(fold(add, "time")(zeros({Embed}, DType::f64), x), sum(x, "time"), 1e-13) == "");
}

TEST_CASE("scan: is_scanned selects the arrays that are sliced") {
  const auto x = values({Time, Embed}), table = values({Time, Embed}, 1, 2);
  // `rows` is passed in full: each position attends to all of them.
  auto step = [](const NamedArray& c, const NamedArray& v, const NamedArray& rows) {
    auto next = tanh(c + dot(dot(v, rows, "embed"), rows, "time"));
    return std::pair{next, next * v};
  };
  auto captured = [&](In w, const ScanOptions& o) {
    auto body = [&](In c, In v) { return step(c, v, w); };
    return scan(body, "time", o)(zeros({Embed}, DType::f64), x);
  };
  auto is_first = [](const std::string& path, const NamedArray&) { return path == "0"; };
  for (auto o : ways()) {
    CAPTURE(int(o.checkpoint.policy));
    CAPTURE(o.unroll);
    auto passed = [&](In w) {
      auto selecting = o;
      selecting.is_scanned = is_first;
      return scan(step, "time", selecting)(zeros({Embed}, DType::f64), x, w);
    };
    CHECK(difference(passed(table).first, captured(table, o).first, 1e-13) == "");
    CHECK(difference(passed(table).second, captured(table, o).second, 1e-13) == "");
    CHECK(difference(jit([&](In w) { return passed(w).second; })(table), captured(table, o).second,
                     1e-13) == "");
    auto by_argument = grad([&](In w) { return sum(passed(w).second); })(table),
         by_capture = grad([&](In w) { return sum(captured(w, o).second); })(table);
    CHECK(difference(by_argument, by_capture, 1e-12) == "");
  }
  // fold and map, a path in a tree, and no array to slice
  std::pair<NamedArray, NamedArray> both{x, table};
  auto each = [](const std::pair<NamedArray, NamedArray>& p) {
    return dot(p.first, p.second, "embed");
  };
  CHECK_THROWS_AS(map(each, "time", {.is_scanned = "0.0"})(both), Error);  // stacks time twice
  auto total = [](const std::pair<NamedArray, NamedArray>& p) { return p.first * sum(p.second); };
  CHECK(difference(map(total, "time", {.is_scanned = "0.0"})(both), x * sum(table), 1e-13) == "");
  auto add = [](In c, In v) { return c + sum(v); };
  CHECK(difference(fold(add, Time, {.is_scanned = !LeafFilter()})(zeros({}, DType::f64), x),
                   sum(x) * 6., 1e-12) == "");
  CHECK_THROWS_WITH_AS(fold(add, "time", {.is_scanned = "weight"})(zeros({}, DType::f64), x),
                       doctest::Contains("[fold] there is no array with weight in its path"),
                       Error);
}

TEST_CASE("scan: an iteration's result must not have the scanned axis, in any mode") {
  auto x = values({Time, Embed}), captured = values({Time, Embed}, 1, 2);
  auto refused = [](auto f, const char* op = "[map]") {
    raises(f, {op,
               "] the result of an iteration already has axis time: (time=6, embed=3); only "
               "arguments",
               "transforms_loops_test.cpp"});
  };
  auto one = [&](const NamedArray& v) { return v * captured; };
  auto two = [&](const NamedArray& c, const NamedArray& v) {
    return std::pair{c + sum(v), v * captured};
  };
  auto zero = zeros({}, DType::f64);
  for (auto& o : ways()) {
    CAPTURE(int(o.checkpoint.policy));
    CAPTURE(o.unroll);
    refused([&] { return map(one, "time", o)(x); });
    refused([&] { return scan(two, "time", o)(zero, x).second; }, "[scan]");
    refused([&] { return jit([&](const NamedArray& xs) { return map(one, "time", o)(xs); })(x); });
  }
  refused([&] { return map([&] { return captured; }, Axis("time", 6))(); });
  refused([&] {
    return map([&](const NamedArray& v) { return std::pair{v, captured * v}; }, "time")(x).first;
  });
  refused([&] { return nn::Stacked<ReturnsAllLayers>{{x}, Time}.scan(zero).second; }, "[scan]");
  CHECK(difference(map([](const NamedArray& v, const NamedArray& w) { return v * w; }, "time")(
                       x, captured),
                   x * captured, 1e-13) == "");
}

TEST_CASE("scan: a carry and intermediates may have an axis with the name of the scanned axis") {
  auto x = values({Time, Embed}), captured = values({Time, Embed}, 1, 2),
       row = values({Time}, 0.5, 1.5);
  auto carried = [](In xs, In, In r, const ScanOptions& o) {
    return fold([&](In c, In v) { return sin(c * sum(v)) + r; }, "time", o)(r, xs);
  };
  auto between = [](In xs, In w, In r, const ScanOptions& o) {
    auto body = [&](In c, In v) {
      return c * dot(sin(dot(v * c, w, "embed")), r, "time") + sum(sin(cumsum(v * w, "time")));
    };
    return fold(body, "time", o)(full({}, 0.5, DType::f64), xs);
  };
  // the inner loop saves residuals for its gradient, and the outer loop saves these
  auto nested = [](In xs, In w, In, const ScanOptions& o) {
    auto body = [&](In c, In v) {
      return fold([&](In d, In u) { return sin(d * sum(u * v)); }, "time", o)(c, w);
    };
    return fold(body, "time", o)(full({}, 0.5, DType::f64), xs);
  };
  auto check = [&](auto f) {
    for (auto& o : ways()) {
      CAPTURE(int(o.checkpoint.policy));
      CAPTURE(o.reverse);
      CAPTURE(o.unroll);
      ScanOptions flat{.reverse = o.reverse, .unroll = 100};  // no loop
      auto loss = [&](const ScanOptions& how) {
        return [&, how](const std::vector<NamedArray>& in) {
          return sum(square(f(in[0], in[1], in[2], how)));
        };
      };
      std::vector<NamedArray> in{x, captured, row};
      auto got = grad(loss(o))(in), expected = grad(loss(flat))(in);
      CHECK(difference(loss(o)(in), loss(flat)(in), 1e-12) == "");
      for (std::size_t k = 0; k < in.size(); ++k)
        CHECK(difference(got[k], expected[k], 1e-11) == "");
    }
  };
  check(carried);
  check(between);
  check(nested);
}

TEST_CASE("scan: a scanned array may also be read in full, before or after its slice") {
  using Cell = std::function<NamedArray(In c, In x, In xs)>;
  auto attend = [](In c, In xs) { return dot(softmax(dot(c, xs, "embed"), "time"), xs, "time"); };
  const Cell cells[] = {
      [=](auto& c, auto& x, auto& xs) { return sin(attend(c, xs) + c + x); },
      [=](auto& c, auto& x, auto& xs) { return sin(x + c + attend(c, xs)); },
      [=](auto& c, auto& x, auto& xs) { return c * x + sum(xs, "time"); },
      [=](auto& c, auto& x, auto& xs) {
        return fold([=](const NamedArray& inner,
                        const NamedArray& other) { return sin(inner * other + x); },
                    "time")(c, xs);
      },
      [=](auto& c, auto& x, auto& xs) {
        return checkpoint([=](In c, In x) { return sin(attend(c, xs) + c + x); })(c, x);
      },
  };
  auto [init, weight, xs] = problem();
  for (auto& cell : cells)
    for (ScanOptions o : {ScanOptions{}, ScanOptions{.checkpoint = true},
                          ScanOptions{.reverse = true}, ScanOptions{.unroll = 2}}) {
      auto looped = [=](In xs) {
        return fold([=](In c, In x) { return cell(c, x, xs); }, "time", o)(init, xs);
      };
      auto by_hand = [=](In xs) {
        auto c = init;
        for (int i = 0; i < 6; ++i) c = cell(c, at(xs, "time", o.reverse ? 5 - i : i), xs);
        return c;
      };
      auto slope = [](auto f) { return grad([=](In xs) { return sum(square(f(xs))); }); };
      auto second = [=](auto f) { return grad([=](In xs) { return sum(sin(slope(f)(xs))); }); };
      CHECK(difference(looped(xs), by_hand(xs), 1e-12) == "");
      CHECK(difference(jit(slope(looped))(xs), slope(by_hand)(xs), 1e-11) == "");
      CHECK(difference(jit(second(looped))(xs), second(by_hand)(xs), 1e-9) == "");
    }
}

TEST_CASE("scan: nested loops, also under vmap and grad, match the unrolled computation") {
  auto x = values({Time, Embed});
  auto inner = [](const NamedArray& c, const NamedArray& row) {
    return fold([&](const NamedArray& d, const NamedArray& v) { return sin(d) + v * c; }, "embed")(
        c, row);
  };
  auto f = [&](const NamedArray& xs) {
    return fold(inner, "time")(NamedArray(full({}, 0.5, DType::f64)), xs);
  };
  auto g = [&](const NamedArray& xs) {
    auto c = full({}, 0.5, DType::f64);
    for (auto& row : xs.unbind("time")) {
      auto d = c;
      for (auto& v : row.unbind("embed")) d = sin(d) + v * c;
      c = d;
    }
    return c;
  };
  CHECK(difference(f(x), g(x), 1e-13) == "");
  CHECK(difference(grad(f)(x), grad(g)(x), 1e-12) == "");
  auto second = [](auto h) {
    return grad([h](const NamedArray& v) { return sum(square(grad(h)(v))); });
  };
  CHECK(difference(second(f)(x), second(g)(x), 1e-11) == "");
  auto many = values({{"batch", 4}, Time, Embed});
  CHECK(difference(vmap(f, "batch")(many), vmap(g, "batch")(many), 1e-13) == "");
  CHECK(difference(vmap(grad(f), "batch")(many), vmap(grad(g), "batch")(many), 1e-12) == "");
  // A loop over an axis that an outer loop hides, and a loop within its own gradient.
  auto twice = [&](const NamedArray& xs) {
    auto add = [&](const NamedArray& c, const NamedArray& v) { return c + v * f(x); };
    return fold(add, "time")(full({}, 0, DType::f64), sum(xs, "embed"));
  };
  CHECK(difference(twice(x), sum(x) * g(x), 1e-13) == "");
}

TEST_CASE("the gradient of cumprod is exact at zeros, differentiable, and valid in a loop") {
  auto x = values({Time, Embed}, 0.5, 1.5), d = values({Time, Embed}, -1, 1);
  auto product = [&](const NamedArray& v) {
    return sum(cumprod(v, "time") * values({Time, Embed}, 1, 2));
  };
  auto slope = [&](const NamedArray& v) { return sum(grad(product)(v) * d); };
  // The loop of the gradient is inside of a loop over an equal axis.
  auto repeated = [&](const NamedArray& v) {
    auto add = [&](const NamedArray& c, const NamedArray& t) {
      return c + sum(cumprod(v * c * 0.3 + t * 0.1, "time")) * 0.1;
    };
    return fold(add, "time")(full({}, 1, DType::f64), sum(d, "embed"));
  };
  auto check = [&](auto f, const NamedArray& at) {
    const double h = 1e-5;
    auto numeric = (f(at + h * d) - f(at - h * d)) / (2 * h);
    CHECK(difference(sum(grad(f)(at) * d), numeric, 1e-8) == "");
  };
  const auto with_zeros = where(arange(Time) == 2., 0., x);
  for (auto& at : {x, with_zeros}) {
    check(product, at);
    check(slope, at);
    check(repeated, at);
  }
}

TEST_CASE("reduce starts from the first slice; associative_scan returns all running results") {
  auto x = values({Time, Embed}, 0.5, 1.5);
  auto mul = [](const NamedArray& a, const NamedArray& b) { return a * b; };
  CHECK(difference(reduce(mul, "time", x), prod(x, "time"), 1e-13) == "");
  CHECK(difference(reduce(mul, "time", values({Embed}), x), prod(x, "time") * values({Embed}),
                   1e-13) == "");
  CHECK(difference(grad([&](const NamedArray& v) { return sum(reduce(mul, "time", v)); })(x),
                   grad([](const NamedArray& v) { return sum(prod(v, "time")); })(x), 1e-12) == "");
  for (std::int64_t n : {1, 2, 5, 6}) {
    auto part = slice(x, "time", 0, n);
    CHECK(difference(associative_scan(mul, "time", part), cumprod(part, "time"), 1e-13) == "");
    CHECK(difference(associative_scan(mul, "time", part, true),
                     flip(cumprod(flip(part, "time"), "time"), "time"), 1e-13) == "");
  }
  auto slope = [&](auto f) {
    return grad([&](const NamedArray& v) { return sum(f(v) * values({Time, Embed}, 1, 2)); })(x);
  };
  CHECK(difference(slope([&](const NamedArray& v) { return associative_scan(mul, "time", v); }),
                   slope([](const NamedArray& v) { return cumprod(v, "time"); }), 1e-12) == "");
  // Trees, and an operation that does not commute: h = a h + b.
  using Pair = std::pair<NamedArray, NamedArray>;
  auto linear = [](const Pair& l, const Pair& r) {
    return Pair{l.first * r.first, l.second * r.first + r.second};
  };
  auto h = associative_scan(linear, "time", Pair{x, values({Time, Embed})}).second;
  auto step = [](const NamedArray& c, const NamedArray& a, const NamedArray& b) {
    return std::pair{c * a + b, c * a + b};
  };
  auto expected = scan(step, "time")(zeros({Embed}, DType::f64), x, values({Time, Embed})).second;
  CHECK(difference(h, expected, 1e-12) == "");
  CHECK_THROWS_WITH_AS(associative_scan(mul, "tme", x), doctest::Contains("did you mean time?"),
                       Error);
  auto reduced = [](const NamedArray& a, const NamedArray& b) { return sum(a + b); };
  CHECK_THROWS_WITH_AS(
      associative_scan(reduced, "time", x),
      doctest::Contains("[associative_scan] the function must combine two arrays f64"), Error);
  auto narrow = [](const NamedArray& a, const NamedArray& b) { return (a + b).astype(DType::f32); };
  CHECK_THROWS_WITH_AS(associative_scan(narrow, "time", x), doctest::Contains("but returned f32"),
                       Error);
  auto none = [](const NamedArray&, const NamedArray&) { return NamedArray(); };
  CHECK_THROWS_WITH_AS(associative_scan(none, "time", x), doctest::Contains("but returned none"),
                       Error);
  auto turned = [](const NamedArray& a, const NamedArray& b) {
    return rearrange(a + b, Names{"embed", "time"});
  };
  // The result has the order of axes that the function returns.
  CHECK(difference(associative_scan(turned, "time", x),
                   rearrange(cumsum(x, "time"), {"embed", "time"}), 1e-13) == "");
  // Captured arrays may have an axis that vmap hides, even if the scanned array lacks it.
  auto scaled = [&](const NamedArray& s) {
    return associative_scan([&](const NamedArray& a, const NamedArray& b) { return a + b * s; },
                            "time", x);
  };
  auto by = values({{"batch", 4}}), all = vmap(scaled, "batch")(by);
  for (int i = 0; i < 4; ++i)
    CHECK(difference(at(all, "batch", i), scaled(at(by, "batch", i)), 1e-13) == "");
  CHECK_THROWS_WITH_AS(reduce(mul, "tme", values({Embed}), values({Time, Embed})),
                       doctest::Contains("transforms_loops_test.cpp"), Error);
  CHECK_THROWS_WITH_AS(reduce(mul, "time", zeros({{"time", 0}})),
                       doctest::Contains("[reduce] there are no elements along (time=0)"), Error);
}

TEST_CASE("a contraction of scanned inputs with a weight runs once, before the loop") {
  auto p = problem();
  const Axis To = p.weight.axes()[1];
  auto cell = [&](In state, In x) {
    return tanh(rename(dot(x, p.weight, Embed), {{To.name, Embed.name}}) + state * 0.5);
  };
  // contractions in the loop that computes y
  auto in_body = [](In y) {
    int count = 0;
    for (auto& n : all_nodes({y.node()}))
      count += n->op->kind == Kind::contract && !n->free.empty();
    return count;
  };
  auto y = fold(cell, Time)(p.init, p.xs);
  CHECK(in_body(y) == 0);
  auto expected = p.init;
  for (int t = 0; t < Time.size; ++t) expected = cell(expected, haliax::at(p.xs, Time, t));
  CHECK(max(abs(y - expected)).item() < 1e-6);
  auto loss = [&](In weight) {
    auto by = [&](In state, In x) {
      return tanh(rename(dot(x, weight, Embed), {{To.name, Embed.name}}) + state * 0.5);
    };
    return [=, &p](bool loop) {
      if (loop) return sum(fold(by, Time)(p.init, p.xs));
      auto state = p.init;
      for (int t = 0; t < Time.size; ++t) state = by(state, haliax::at(p.xs, Time, t));
      return sum(state);
    };
  };
  auto got = grad([&](In w) { return loss(w)(true); })(p.weight),
       should = grad([&](In w) { return loss(w)(false); })(p.weight);
  CHECK(max(abs(got - should)).item() < 1e-6);
  // The carry is an operand, or the result is large.
  auto carried = [&](In state, In x) {
    return rename(dot(state, p.weight, Embed), {{To.name, Embed.name}}) + x;
  };
  CHECK(in_body(fold(carried, Time)(p.init, p.xs)) == 1);
  const Axis Wide("wide", 40000);
  const auto wide = values({Embed, Wide});
  auto large = [&](In state, In x) { return state + sum(dot(x, wide, Embed)); };
  CHECK(in_body(fold(large, Time)(zeros({}, DType::f64), p.xs)) == 1);
  CHECK(in_body(fold(cell, Time, {.checkpoint = "carries"})(p.init, p.xs)) == 1);
}

// The gradient of each part is placed in zeros, in memory that all iterations share.
TEST_CASE("scan: a carry may be read at several positions that depend on the iteration") {
  const Axis Row("row", 3), Column("column", 3), Step("step", 3);
  const auto x = values({Row, Column});
  const auto f = [&](const NamedArray& x) {
    const auto step = [&](const NamedArray& a, const NamedArray& k) {
      const auto element = a[{{"row", k}, {"column", k}}], column = a[{"column", k}];
      return std::pair(a * 0.5, sum(column) + element);
    };
    return sum(scan(step, "step")(x, arange(Step)).second);
  };
  const auto expected = jit(grad(f), {.backend = "reference"})(x);
  CHECK(difference(jit(grad(f))(x), expected, 1e-12) == "");
}

namespace {

// Returns the number of loop results that are sums.
int sums_in_loops(const std::vector<NamedArray>& roots) {
  Nodes nodes;
  for (auto& r : roots) nodes.push_back(r.node());
  int count = 0;
  for (auto& n : all_nodes(nodes))
    if (n->op == &kLoop)
      for (auto& r : loop_of(*n).results) count += r.kind == ResultKind::fold;
  return count;
}

// A cell with two weights and a bias, one weight used twice.
struct TwoWeights {
  NamedArray carry, doubled, bias;
};
NamedArray next_state(const TwoWeights& p, In state, In x) {
  auto product = [](In s, In w) { return dot(s, w, Embed).rename({{"to", "embed"}}); };
  return tanh(product(state, p.carry) + product(product(x * state, p.doubled), p.doubled) + p.bias);
}

}  // namespace

TEST_CASE("sums of contractions in the gradient of a loop are computed after it") {
  const Axis Batch("batch", 2);
  const auto weight = values({Embed, Embed.alias("to")});
  const TwoWeights p{weight, weight * 0.3 + 0.1, values({Embed}, 0, 0.1)};
  const auto xs = values({Batch, Time, Embed}), start = values({Batch, Embed}, 0, 1);
  auto by_loop = [&](const ScanOptions& options) {
    return [&, options](const TwoWeights& w) {
      auto step = [&](In state, In x) { return next_state(w, state, x); };
      return sum(square(fold(step, Time, options)(start, xs)));
    };
  };
  auto unrolled = [&](bool reverse) {
    return [&, reverse](const TwoWeights& w) {
      auto state = start;
      for (std::int64_t t = 0; t < Time.size; ++t)
        state = next_state(w, state, haliax::at(xs, Time, reverse ? Time.size - 1 - t : t));
      return sum(square(state));
    };
  };
  for (bool reverse : {false, true}) {
    const auto got = grad(by_loop({.reverse = reverse}))(p);
    CHECK(sums_in_loops({got.carry, got.doubled, got.bias}) == 0);
    const auto expected = grad(unrolled(reverse))(p);
    CHECK(difference(got.carry, expected.carry, 1e-12) == "");
    CHECK(difference(got.doubled, expected.doubled, 1e-12) == "");
    CHECK(difference(got.bias, expected.bias, 1e-12) == "");
  }
  // without a batch, the cotangent of the bias is the stacked one
  auto without_batch = [&](const TwoWeights& w) {
    auto step = [&](In s, In x) { return next_state(w, s, x); };
    return sum(fold(step, Time)(values({Embed}), values({Time, Embed})));
  };
  CHECK(sums_in_loops({grad(without_batch)(p).bias}) == 0);
  // policies that save memory keep the sums in the loop
  const auto saving = grad(by_loop({.checkpoint = "carries"}))(p);
  CHECK(sums_in_loops({saving.carry, saving.doubled, saving.bias}) == 3);
  // operands that have more elements than the sum are not stacked
  const Axis Large("batch", 100);
  auto of_large = [&](In w) {
    auto step = [&](In s, In x) { return tanh(dot(s, w, Embed).rename({{"to", "embed"}}) + x); };
    return sum(fold(step, Time)(zeros({Large, Embed}, DType::f64), values({Time, Large, Embed})));
  };
  CHECK(sums_in_loops({grad(of_large)(weight)}) == 1);
}

TEST_CASE("slices at the index of a loop that are not positions of its axis") {
  const Axis Batch("batch", 2), Vocab("vocab", 9), Longer("time", 9);
  const auto weight = values({Embed, Embed.alias("to")}), start = values({Batch, Embed}, 0, 1);
  struct Read {
    const char* what;
    NamedArray table;
    std::function<NamedArray(In table, In t)> at;
  };
  const auto by_vocab = values({Batch, Vocab, Embed}), by_time = values({Batch, Longer, Embed});
  auto window = [](const char* axis) {
    return [axis](In x, In t) { return sum(slice(x, axis, t, 2), axis); };
  };
  const std::vector<Read> reads = {
      {"a row of another axis", by_vocab, [](In x, In t) { return haliax::at(x, "vocab", t); }},
      {"a longer axis", by_time, [](In x, In t) { return haliax::at(x, "time", t); }},
      {"a later position", by_time, [](In x, In t) { return haliax::at(x, "time", t + 1); }},
      {"every second position", by_time, [](In x, In t) { return haliax::at(x, "time", t * 2); }},
      {"a window of another axis", by_vocab, window("vocab")},
      {"a window of a longer axis", by_time, window("time")}};
  using Arguments = std::pair<NamedArray, NamedArray>;
  for (auto& read : reads)
    for (bool renamed : {false, true}) {  // contractions of renamed slices stay in the loop
      INFO(read.what, renamed ? ", renamed" : "");
      auto next = [&](In state, In x, In w) {
        auto product = renamed ? dot(x.rename({{"embed", "k"}}), w.rename({{"embed", "k"}}), "k")
                               : dot(x, w, Embed);
        return tanh(state * 0.5 + product.rename({{"to", "embed"}}));
      };
      auto by_loop = [&](const Arguments& p) {
        auto step = [&](In s, In t) { return next(s, read.at(p.first, t), p.second); };
        return sum(square(fold(step, Time)(start, arange(Time))));
      };
      auto unrolled = [&](const Arguments& p) {
        auto state = start;
        for (int t = 0; t < Time.size; ++t)
          state = next(state, read.at(p.first, array(std::vector<int>{t}, Axes{})), p.second);
        return sum(square(state));
      };
      const Arguments arguments{read.table, weight};
      CHECK(difference(by_loop(arguments), unrolled(arguments), 1e-12) == "");
      const auto got = grad(by_loop)(arguments), expected = grad(unrolled)(arguments);
      CHECK(difference(got.first, expected.first, 1e-12) == "");
      CHECK(difference(got.second, expected.second, 1e-12) == "");
    }
}
