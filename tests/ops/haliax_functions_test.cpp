// Functions of Haliax beyond one op: second names, comparisons, axes, modes of indices, padding,
// repetition, choices. Expected values are those of Haliax 1.4 on JAX 0.10.
#include <doctest/doctest.h>

#include <cmath>

#include "haliax/haliax.h"
#include "support/devices.h"
#include "support/near.h"
#include "support/raises.h"

using namespace haliax;

namespace {

using Values = std::vector<double>;
using Ints = std::vector<std::int64_t>;
const Axis A("a", 3), B("b", 4), N("n", 4);
NamedArray table() { return arange(Axes{A, B}, {.dtype = DType::f32}); }  // 0 to 11
NamedArray ints(std::initializer_list<double> v, const char* axis = "n") {
  return array(v, Axis(axis, std::int64_t(v.size()))).astype(DType::i32);
}
bool same(const NamedArray& p, const NamedArray& q) {
  return p.axes() == q.axes() && p.dtype() == q.dtype() && p.doubles() == q.doubles();
}

}  // namespace

TEST_CASE("second names compute the op of their first name") {
  auto x = array({-1.5, 0.5, 2.5}, A);
  auto i = ints({-3, 0, 5});
  CHECK(same(absolute(x), abs(x)));
  CHECK(same(fabs(x), abs(x)));
  CHECK(same(fabs(i), abs(i.astype(DType::f32))));
  CHECK(same(rint(x), round(x)));
  CHECK(same(rint(i), i.astype(DType::f32)));
  CHECK(same(fix(x), trunc(x)));
  CHECK(same(around(x / 7., 2), round(x / 7., 2)));
  CHECK(same(degrees(x), rad2deg(x)));
  CHECK(same(radians(x), deg2rad(x)));
  CHECK(same(invert(i), ~i));
  CHECK(same(bitwise_invert(i), ~i));
  CHECK(same(copy(x), x));
  CHECK(same(true_divide(i, 2), i / 2));
  CHECK(same(remainder(x, 2), x % 2));
  CHECK(same(bitwise_left_shift(i, 1), i << 1));
  CHECK(same(bitwise_right_shift(i, 1), i >> 1));
  CHECK(same(flatten(table(), "all"), ravel(table(), "all")));
  CHECK(same(amax(x, "a"), max(x, "a")));
  CHECK(same(amin(x), min(x)));
  CHECK(same(divmod(x, 2).first, floor_divide(x, 2)));
  CHECK(same(dslice(1, 2).start.array(), ds(1, 2).start.array()));
}

TEST_CASE("isclose, allclose, array_equal and array_equiv compare by name") {
  auto x = table(), y = rearrange(x, {"b", "a"});
  CHECK(allclose(x, y * (1 + 1e-6)));
  CHECK(!allclose(x, y + 1e-3));
  CHECK(allclose(x, y + 1e-3, {.atol = 1e-2}));
  CHECK(array_equal(x, y));
  CHECK(!array_equal(x, y + 1));
  CHECK(!array_equal(x, x.rename("a", "c")));
  CHECK(!array_equal(x, zeros(A)));
  auto row = arange(B, {.dtype = DType::f32});
  CHECK(array_equiv(broadcast_axis(row, A), row));
  CHECK(!array_equiv(row, x));
  CHECK(!array_equiv(row, arange(A)));
  auto nan = array({NAN, INFINITY, 1}, A), other = array({NAN, INFINITY, 2}, A);
  CHECK(isclose(nan, other).integers() == Ints{0, 1, 0});
  CHECK(isclose(nan, other, {.equal_nan = true}).integers() == Ints{1, 1, 0});
}

TEST_CASE("axes: functions of specifications and selections") {
  auto [Batch, Embed] = make_axes("batch", 8, "embed", 64);
  CHECK(Batch == Axis("batch", 8));
  CHECK(Embed == Axis("embed", 64));
  const Axes both{Batch, Embed};
  CHECK(zeros(make_axes("x", 2, "y", 3)).axes() == Axes{{"x", 2}, {"y", 3}});
  CHECK(axis_size(Batch) == 8);
  CHECK(axis_name(Batch) == Name("batch"));
  CHECK(axis_name(both) == Names{"batch", "embed"});
  CHECK(concat_axis_specs({Batch}, {Embed}) == both);
  CHECK(without_axes(both, Axis("batch", 9), true) == Axes{Embed});
  CHECK_THROWS_AS(without_axes(both, Axis("batch", 9)), Error);
  CHECK(unsize_axes(both) == Names{"batch", "embed"});
  auto half = unsize_axes(both, "embed");
  CHECK(half.items()[0].size == 8);
  CHECK(half.items()[1].size == -1);
  CHECK_THROWS_WITH_AS(unsize_axes(both, "pos"), doctest::Contains("axis pos is not in"), Error);
  CHECK(resolve_axis(both, "embed") == Embed);
  CHECK(resolve_axis(both, {"embed", Batch}) == Axes{Embed, Batch});
  CHECK_THROWS_WITH_AS(resolve_axis(both, Axis("embed", 3)), doctest::Contains("has size 64"),
                       Error);
  CHECK(rearrange_for_partial_order({"embed", ellipsis}, both) == Axes{Embed, Batch});
  CHECK_THROWS_AS(rearrange_for_partial_order({Axis("embed", 3), ellipsis}, both), Error);
  CHECK(flatten_axes(both, "all") == Axis("all", 512));
  CHECK(flatten_axes({{"a", 2}, {"b", 3}, {"c", 4}}, {"c", "a"}, "f") == Axes{{"f", 8}, {"b", 3}});
  CHECK(flatten_axes(both, Names{}, "one") == Axes{{"one", 1}, Batch, Embed});
  CHECK_THROWS_WITH_AS(flatten_axes(both, Axis("all", 5)), doctest::Contains("512 elements"),
                       Error);
  CHECK(selects_axis({"a", B}, {B, A}));
  CHECK(!selects_axis({"a"}, {A, B}));
  CHECK(!selects_axis({Axis("a", 7)}, {A}));
}

TEST_CASE("arrays: shape, places of axes, and matches of specifications") {
  auto x = table();
  CHECK(x.shape()["b"] == 4);
  CHECK(x.shape().size() == 2);
  CHECK_THROWS_WITH_AS(x.shape()["c"], doctest::Contains("axis c is not in"), Error);
  std::string listed;
  for (auto& [name, size] : x.shape()) listed += std::string(name.text()) + std::to_string(size);
  CHECK(listed == "a3b4");
  CHECK(x.axis_size({"b", A}) == Ints{4, 3});
  CHECK(x.resolve_axis({"b", "a"}) == Axes{B, A});
  CHECK(x.axis_indices("b") == std::optional<std::size_t>(1));
  CHECK(!x.axis_indices("c"));
  CHECK(x.axis_indices({"b", "c"})[1] == std::nullopt);
  CHECK_THROWS_WITH_AS(x.axis_indices(Axis("b", 5)), doctest::Contains("size 4"), Error);
  CHECK(x.matches_axes("a b"));
  CHECK(!x.matches_axes("b a"));
  CHECK(!x.matches_axes("a"));
  CHECK(x.matches_axes("a ..."));
  CHECK(x.matches_axes("... b"));
  CHECK(x.matches_axes("a ... b"));
  CHECK(!x.matches_axes("a ... a"));
  CHECK(!x.matches_axes("a b ... b"));
  CHECK(x.matches_axes("{b, a}"));
  CHECK(x.matches_axes("{b ...}"));
  CHECK(!x.matches_axes("{b}"));
  CHECK(!x.matches_axes("{c ...}"));
  CHECK(x.matches_axes("a b", DType::f32));
  CHECK(!x.matches_axes("a b", DType::bf16));
  CHECK_THROWS_WITH_AS(x.matches_axes("... a ..."), doctest::Contains("two ..."), Error);
  CHECK(named(x, {"p", Axis("q", 4)}).axes() == Axes{{"p", 3}, {"q", 4}});
  CHECK(named(x, Names{"p", "q"}).axes() == Axes{{"p", 3}, {"q", 4}});
  CHECK_THROWS_WITH_AS(named(x, {"p", Axis("q", 5)}), doctest::Contains("has size 4"), Error);
  CHECK_THROWS_WITH_AS(named(x, {"p"}), doctest::Contains("has 2 axes"), Error);
}

TEST_CASE("one_hot: a negative number counts from the end, an id in an array does not") {
  CHECK(one_hot(-1, N).doubles() == Values{0, 0, 0, 1});
  CHECK(one_hot(1, N, DType::i32).integers() == Ints{0, 1, 0, 0});
  CHECK(sum(one_hot(ints({-1, 4}, "k"), N)).item() == 0);
  CHECK_THROWS_WITH_AS(one_hot(4, N), doctest::Contains("4 is not a position of axis n=4"), Error);
  CHECK_THROWS_AS(one_hot(-5, N), Error);
  CHECK_THROWS_AS(one_hot(0.5, N), Error);
}

TEST_CASE("ds: keeps the name, reads 0 out of range and drops writes there") {
  auto x = table();
  auto start = [](int i) { return sum(ints({double(i)})); };  // not known when the graph is built
  for (bool known : {true, false}) {
    auto at = [&](int i) { return known ? Arr(i) : Arr(start(i)); };
    auto part = x[{"b", ds(at(3), 3)}];
    CHECK(part.axes() == Axes{A, {"b", 3}});
    CHECK(part.doubles() == Values{3, 0, 0, 7, 0, 0, 11, 0, 0});
    CHECK(x[{"b", ds(at(-1), Axis("m", 3))}].doubles() == Values{3, 0, 1, 7, 4, 5, 11, 8, 9});
    CHECK(x[{"b", ds(at(1), 2)}].doubles() == Values{1, 2, 5, 6, 9, 10});
    CHECK(x[{"b", dblock(at(1), 2)}].doubles() == Values{2, 3, 6, 7, 10, 11});
    CHECK(x.at({"b", ds(at(2), 3)}).add(arange(Axis("b", 3))).doubles() ==
          Values{0, 1, 2, 4, 4, 5, 6, 8, 8, 9, 10, 12});
    CHECK(x.at({"b", ds(at(7), 2)}).set(-1.).doubles() == x.doubles());
    CHECK(x[{"b", ds(at(0), 6)}].axes()[1].size == 6);
  }
  // All positions of a mixed index read 0 out of range if one of them is a dynamic slice.
  CHECK(x[{{"a", ds(0, 2)}, {"b", ints({0, 9}, "k")}}].doubles() == Values{0, 4, 0, 0});
  // A loop over blocks.
  auto blocks = map(
      [&](const NamedArray& i) {
        return x[{"b", DSlice::block(i, 2)}];
      },
      "block")(arange(Axis("block", 3)));
  CHECK(blocks[{"block", 1}].doubles() == Values{2, 3, 6, 7, 10, 11});
  CHECK(sum(abs(blocks[{"block", 2}])).item() == 0);
  // Starts near the limits of their dtype.
  auto far = array(std::vector<std::int64_t>{INT64_MAX}, Axis("one", 1)).sum();
  CHECK(sum(x[{"b", ds(far, 3)}]).item() == 0);
  CHECK(sum(x[{"b", ds(-far, 3)}]).item() == 0);
  CHECK(x[{"b", ds(full({}, 2, DType::u8), 3)}].doubles() == Values{2, 3, 0, 6, 7, 0, 10, 11, 0});
  CHECK_THROWS_WITH_AS(ds(0, -1), doctest::Contains("[ds] the length is -1"), Error);
  CHECK_THROWS_WITH_AS(ds(0, "b"), doctest::Contains("pass an Axis or a number"), Error);
}

TEST_CASE("at: modes of positions out of range match JAX") {
  auto x = table();
  auto i = ints({0, 9, -1}, "a");  // one position for each row
  auto at = [&] { return x.at({"b", i}); };
  CHECK(x[{"b", i}].doubles() == Values{0, 7, 11});
  CHECK(at().get().doubles() == Values{0, 7, 11});
  CHECK(at().get(IndexMode::clip).doubles() == Values{0, 7, 11});
  CHECK(std::isnan(at().get(IndexMode::fill).doubles()[1]));
  CHECK(at().get(IndexMode::fill, 5).doubles() == Values{0, 5, 11});
  CHECK(at().get(IndexMode::drop, 0.).doubles() == Values{0, 0, 11});
  CHECK(at().set(-1.).doubles() == Values{-1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, -1});
  CHECK(at().set(-1., IndexMode::promise_in_bounds).doubles() == at().set(-1.).doubles());
  CHECK(at().set(-1., IndexMode::clip).doubles() == Values{-1, 1, 2, 3, 4, 5, 6, -1, 8, 9, 10, -1});
  CHECK(at().multiply(2.).doubles() == at().mul(2.).doubles());
  CHECK(at().divide(2.).doubles() == Values{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 5.5});
  CHECK(at().power(2.).doubles() == Values{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 121});
  CHECK(at().max(3.).doubles() == Values{3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  CHECK(at().min(3.).doubles() == Values{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 3});
  CHECK(x.at({"b", ds(2, 3)}).get().doubles() == Values{2, 3, 3, 6, 7, 7, 10, 11, 11});
  CHECK(x.at({"b", ds(2, 3)}).get(IndexMode::fill, 5).doubles() ==
        Values{2, 3, 5, 6, 7, 5, 10, 11, 5});
  // Repeated positions.
  auto twice = ints({1, 1}, "k");
  CHECK(ones(N).at({"n", twice}).divide(2.).doubles() == Values{1, 0.25, 1, 1});
  CHECK(full(N, 3.).at({"n", twice}).power(2.).doubles() == Values{3, 81, 3, 3});
}

TEST_CASE("a base that is a partial sum is reduced before at_mul updates it") {
  Devices four(4);
  const Axis P("parts", 4), K("k", 2), One("one", 1);
  auto terms = array({0.5, 0.5, 0, 1}, P), factors = array({3, 5}, K);
  auto f = [&](const NamedArray& t, const NamedArray& u) {
    auto ids = zeros(K, DType::i32);
    return at_mul(broadcast_axis(sum(t, P), One), {{"one", ids}}, u);
  };
  Mesh mesh{{{"data", 2}, {"model", 2}}};
  auto step =
      named_jit(f, {.mesh = mesh, .axis_resources = Mapping{{"parts", "data"}, {"k", "model"}}});
  CHECK(step(terms, factors).item() == 30);
}

TEST_CASE("at: gradients of multiplied and extreme updates at repeated positions and zeros") {
  const Axis K("k", 3);
  auto ids = ints({1, 1, 7}, "k");
  auto u = array({2, 0, 5}, K), x = array({3, 4, 5, 6}, N);
  auto product = [&](const NamedArray& v) { return sum(at_mul(x, {{"n", ids}}, v)); };
  CHECK(grad(product)(u).doubles() == Values{0, 8, 0});
  auto base = [&](const NamedArray& v) { return sum(at_mul(v, {{"n", ids}}, u)); };
  CHECK(grad(base)(x).doubles() == Values{1, 0, 1, 1});
  auto top = [&](const NamedArray& v) { return sum(at_max(x, {{"n", ids}}, v)); };
  CHECK(grad(top)(array({9, 9, 9}, K)).doubles() == Values{0.5, 0.5, 0});
  CHECK(grad(top)(array({4, 1, 9}, K)).doubles() == Values{0.5, 0, 0});
}

TEST_CASE("slice of several axes") {
  auto x = table();
  CHECK(same(slice(x, {{"a", 1}, {"b", 2}}, {{"a", 2}, {"b", Axis("w", 2)}}),
             slice(slice(x, "a", 1, 2), "b", 2, 2, Name("w"))));
  CHECK(slice(x, {{"a", 0}, {"b", 0}}, {{"a", Axis("b", 2)}, {"b", Axis("a", 2)}}).axes() ==
        Axes{{"b", 2}, {"a", 2}});
  CHECK_THROWS_WITH_AS(slice(x, {{"a", 1}}, {{"b", 2}}), doctest::Contains("no start"), Error);
}

TEST_CASE("pad: modes match NumPy") {
  auto x = array({3, 1, 4, 1.5}, N), i = ints({3, 1, 4, 2});
  auto after = [&](PadMode m) { return pad(x, {{N, {3, 6}}}, m).doubles(); };
  auto of_ints = [&](PadMode m) { return pad(i, {{"n", {3, 2}}}, m).integers(); };
  CHECK(after(PadMode::edge) == Values{3, 3, 3, 3, 1, 4, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5});
  CHECK(after(PadMode::reflect) == Values{1.5, 4, 1, 3, 1, 4, 1.5, 4, 1, 3, 1, 4, 1.5});
  CHECK(after(PadMode::symmetric) == Values{4, 1, 3, 3, 1, 4, 1.5, 1.5, 4, 1, 3, 3, 1});
  CHECK(after(PadMode::wrap) == Values{1, 4, 1.5, 3, 1, 4, 1.5, 3, 1, 4, 1.5, 3, 1});
  CHECK(of_ints(PadMode::linear_ramp) == Ints{0, 1, 2, 3, 1, 4, 2, 1, 0});
  CHECK(of_ints(PadMode::mean) == Ints{2, 2, 2, 3, 1, 4, 2, 2, 2});
  CHECK(of_ints(PadMode::median) == Ints{2, 2, 2, 3, 1, 4, 2, 2, 2});
  CHECK(after(PadMode::median)[0] == 2.25);
  CHECK(of_ints(PadMode::maximum) == Ints{4, 4, 4, 3, 1, 4, 2, 4, 4});
  CHECK(of_ints(PadMode::minimum) == Ints{1, 1, 1, 3, 1, 4, 2, 1, 1});
  CHECK(of_ints(PadMode::constant) == Ints{0, 0, 0, 3, 1, 4, 2, 0, 0});
  auto single = pad(full(Axis("n", 1), 7.), {{"n", {2, 3}}}, PadMode::reflect);
  CHECK(single.doubles() == Values{7, 7, 7, 7, 7, 7});
  auto grid = arange({{"a", 2}, {"b", 3}}, {.dtype = DType::f32});
  CHECK(pad(grid, {{"b", {1, 2}}, {"a", {1, 1}}}, PadMode::mean).doubles() ==
        Values{2.5, 1.5, 2.5, 3.5, 2.5, 2.5, 1,   0,   1,   2,   1,   1,
               4,   3,   4,   5,   4,   4,   2.5, 1.5, 2.5, 3.5, 2.5, 2.5});
  CHECK(pad(zeros(Axis("n", 0)), {{"n", {1, 1}}}).size() == 2);
  CHECK_THROWS_WITH_AS(pad(zeros(Axis("n", 0)), {{"n", {1, 1}}}, PadMode::edge),
                       doctest::Contains("is empty"), Error);
  CHECK_THROWS_WITH_AS(pad_left(x, "n", Axis("n", 3)), doctest::Contains("smaller"), Error);
}

TEST_CASE("repeat, roll and tile") {
  auto x = array({5, 6, 7}, A);
  CHECK(repeat(x, "a", ints({2, 0, 1})).doubles() == Values{5, 5, 7});
  CHECK(repeat(x, "a", ints({2, 0, 1}), 5).doubles() == Values{5, 5, 7, 7, 7});
  CHECK(repeat(x, "a", ints({2, 3, 1}), 4).doubles() == Values{5, 5, 6, 6});
  CHECK_THROWS_WITH_AS(repeat(x, "a", ints({2, 3})), doctest::Contains("size 3"), Error);
  CHECK_THROWS_WITH_AS(repeat(x, "a", ints({2, -3, 1})), doctest::Contains("a count is -3"), Error);
  auto t = table();
  CHECK(same(roll(t, {1, -2}, {"a", "b"}), roll(roll(t, 1, "a"), -2, "b")));
  CHECK(same(roll(t, 1, {"a", "b"}), roll(roll(t, 1, "a"), 1, "b")));
  CHECK(tile(x, {{A, 2}, {Axis("z", 9), 2}}).axes() == Axes{{"z", 2}, {"a", 6}});
}

TEST_CASE("positions and counts") {
  auto grid = array({0, 1, 1, 1, 0, 0}, Axes{{"r", 2}, {"c", 3}});
  auto at = where(grid, -1, Axis("k", 5));
  CHECK(at[0].integers() == Ints{0, 0, 1, -1, -1});
  CHECK(at[1].integers() == Ints{1, 2, 0, -1, -1});
  CHECK(nonzero(grid, Axis("k", 2))[1].integers() == Ints{1, 2});
  CHECK(bincount(ints({-3, 1, 1, 9}), Axis("c", 4)).integers() == Ints{1, 2, 0, 0});
  CHECK(bincount(ints({1, 1, 2}), Axis("c", 4), array({0.5, 2, 3}, Axis("n", 3))).doubles() ==
        Values{0, 2.5, 3, 0});
  CHECK_THROWS_WITH_AS(bincount(zeros({A, B}, DType::i32), N), doctest::Contains("one axis"),
                       Error);
}

TEST_CASE("i0 in f32 is within 5 ulp of f64, up to the largest finite result") {
  const Axis points("points", 20001);
  auto x = linspace(points, {.start = -91.9, .stop = 91.9, .dtype = DType::f32});
  auto got = i0(x).doubles(), exact = i0(x.astype(DType::f64)).doubles();
  double worst = 0;
  for (std::size_t k = 0; k < got.size(); ++k) {
    const float nearest = float(exact[k]);
    const double ulp = double(std::nextafter(nearest, INFINITY)) - double(nearest);
    worst = std::max(worst, std::abs(got[k] - exact[k]) / ulp);
  }
  CHECK(worst < 5);
  auto slope = grad([](const NamedArray& v) { return sum(i0(v)); });
  CHECK(difference(slope(array({0, 1, 7, 9, -20}, Axis("n", 5))),
                   array({0, 0.5651591, 156.03909, 1030.9147, -42454973}, Axis("n", 5)),
                   1e-5) == "");
}

TEST_CASE("the gradient of hypot is finite at zero and at infinity") {
  auto b = array({4, 0, 1, INFINITY, 0}, Axis("n", 5));
  auto slope = grad([&](const NamedArray& a) { return sum(hypot(a, b)); });
  CHECK(difference(slope(array({3, 0, INFINITY, 0, -2}, Axis("n", 5))),
                   array({0.6, 0, 1, 0, -1}, Axis("n", 5)), 1e-6) == "");
}

TEST_CASE("spaced values and special functions") {
  CHECK(linspace("n").axes() == Axes{{"n", 50}});
  CHECK(linspace(N, {.stop = 10, .dtype = DType::i32}).integers() == Ints{0, 3, 6, 10});
  CHECK(difference(geomspace(N, {.start = -1, .stop = -64}), array({-1, -4, -16, -64}, N), 1e-5) ==
        "");
  CHECK_THROWS_WITH_AS(geomspace(N, {.start = 0, .stop = 1}), doctest::Contains("same sign"),
                       Error);
  CHECK(difference(i0(array({0, 1, 5, 20, -3}, Axis("n", 5))),
                   array({1, 1.2660659, 27.239872, 43558280, 4.8807926}, Axis("n", 5)),
                   1e-6) == "");
  CHECK(difference(sinc(array({0, 0.5, 1.5}, A)), array({1, 0.63661975, -0.21220659}, A), 1e-6) ==
        "");
  auto curvature = grad(
      [](const NamedArray& x) { return grad([](const NamedArray& y) { return sinc(y); })(x); });
  CHECK(curvature(NamedArray(0.)).item() == doctest::Approx(-3.28986).epsilon(1e-4));
  auto start = sum(ints({2}));
  CHECK(same(arange(N, start), ints({2, 3, 4, 5})));
  CHECK(arange(N, 0.5).doubles() == Values{0.5, 1.5, 2.5, 3.5});
}

TEST_CASE("arange: a dtype that cannot hold both ends raises, and large integers are i64") {
  const Axis Q("q", 2);
  auto message = [&](ArangeOptions options) {
    return message_of([&] { return arange(Q, options); });
  };
  CHECK(has(message({.start = 1e30, .dtype = DType::i32}),
            "[arange] 1e+30 to 1e+30 do not fit in i32"));
  CHECK(has(message({.start = 1e30, .dtype = DType::i64}), "do not fit in i64"));
  CHECK(has(message({.start = 0.5, .step = 300, .dtype = DType::u8}),
            "[arange] 0.5 to 300.5 do not fit in u8"));
  CHECK(has(message({.start = -1.5, .dtype = DType::u8}), "-1.5 to -0.5 do not fit in u8"));
  CHECK(has(message({.start = NAN, .dtype = DType::i32}), "nan to nan do not fit in i32"));
  CHECK(arange(Q, {.start = 0.5, .step = 200, .dtype = DType::u8}).integers() ==
        std::vector<std::int64_t>{0, 200});
  auto large = arange(Q, {.start = 1e16});
  CHECK(large.dtype() == DType::i64);
  CHECK(large.integers() ==
        std::vector<std::int64_t>{10'000'000'000'000'000, 10'000'000'000'000'001});
  CHECK(arange(Q, {.start = 1e30}).dtype() == DType::f32);
  CHECK(arange(Axis("q", 0), {.start = 1e30, .dtype = DType::i32}).dtype() == DType::i32);
}

TEST_CASE("contractions of a vector of arrays, with checked output axes") {
  auto x = table(), y = arange(Axes{B, {"c", 2}}, {.dtype = DType::f32}), z = ones(B);
  CHECK(same(dot(std::vector<NamedArray>{x, y, z}, "b"), dot({x, y, z}, "b")));
  CHECK(same(x.dot(y, z, "b"), dot({x, y, z}, "b")));
  CHECK(same(x.dot({y, z}, "b", {}), dot({x, y, z}, "b")));
  CHECK(same(x.dot(y, "b", {.out_axes = {"c", A}}), dot(x, y, "b", {.out_axes = Names{"c", "a"}})));
  CHECK_THROWS_WITH_AS(dot(x, y, "b", {.out_axes = {"c", Axis("a", 9)}}),
                       doctest::Contains("axis a has size 3"), Error);
  auto half = x.astype(DType::bf16);
  auto wide = einsum("a b -> a", {half}, {}, {.preferred_element_type = DType::f32});
  CHECK(wide.dtype() == DType::f32);
  CHECK(same(dot(x, y, "b", {.precision = Precision::highest}), dot(x, y, "b")));
  CHECK(same(einsum("a b, b c -> a c", std::vector<NamedArray>{x, y}), dot(x, y, "b")));
  CHECK(same(x.cumsum("b", DType::f64), cumsum(x, "b").astype(DType::f64)));
  CHECK(same(x.ptp("b"), max(x, "b") - min(x, "b")));
  CHECK(var(x, "b", {.dtype = DType::bf16}).dtype() == DType::bf16);
  CHECK(trace(x, "a", "b", 0, DType::f64).dtype() == DType::f64);
}

TEST_CASE("random: choice, samplers and splits match Haliax") {
  auto k = random::key(7);
  const Axis V("v", 6), M("m", 2), L("n", 2);
  auto v = arange(Axes{V, {"d", 2}}, {.dtype = DType::f32});
  auto p = array({.1, .2, .3, .1, .2, .1}, V);
  auto first = [&](const NamedArray& c) {
    CHECK(c.axes() == Axes{M, L, {"d", 2}});
    return c[{"d", 0}].doubles();
  };
  CHECK(first(random::choice(k, {M, L}, v, "v")) == Values{2, 4, 0, 2});
  CHECK(first(random::choice(k, {M, L}, v, "v", false)) == Values{8, 4, 6, 10});
  CHECK(first(random::choice(k, {M, L}, v, V, true, p)) == Values{4, 0, 6, 4});
  CHECK(first(random::choice(k, {M, L}, v, "v", false, p)) == Values{2, 8, 0, 4});
  auto repeated = random::choice(k, Axis("v", 3), v, "v");
  CHECK(repeated.axes() == Axes{{"v", 3}, {"d", 2}});
  CHECK(repeated[{"d", 0}].doubles() == Values{2, 4, 0});
  // The other axes follow the axes of the draw wherever the axis is.
  CHECK(same(random::choice(k, {M, L}, rearrange(v, {"d", "v"}), "v"),
             random::choice(k, {M, L}, v, "v")));
  CHECK(random::choice(k, {}, v, "v").axes() == Axes{{"d", 2}});
  CHECK_THROWS_WITH_AS(random::choice(k, Axis("n", 7), v, "v", false),
                       doctest::Contains("exceed the positions"), Error);
  CHECK_THROWS_WITH_AS(random::choice(k, Axis("d", 2), v, "v"), doctest::Contains("rename"), Error);
  CHECK_THROWS_WITH_AS(random::choice(k, M, v, "v", true, ones(M)), doctest::Contains("(v=6)"),
                       Error);

  auto near = [](const NamedArray& got, std::initializer_list<double> expected) {
    CHECK(difference(got, array(expected, A), 1e-5) == "");
  };
  near(random::laplace(k, A), {-0.42798662, -2.980525, 0.5013916});
  near(random::logistic(k, A), {0.72674203, 3.64796019, -0.8337934});
  near(random::cauchy(k, A), {0.6088751, 12.5136394, -0.71298087});
  near(random::pareto(k, A, 3.), {1.45311761, 3.40265846, 1.12777710});
  near(random::weibull_min(k, A, 1.5, 2.), {1.58825421, 2.87502337, 0.9009313});
  CHECK(random::rademacher(k, Axis("n", 5), DType::i32).integers() == Ints{-1, -1, 1, 1, -1});

  CHECK(random::maybe_rng_split(k, 1)[0].words.integers() == Ints{0, 7});
  auto [k1, k2] = random::maybe_rng_split<2>(k);
  CHECK(k1.words.integers() == Ints{3625411723, 1954958720});
  CHECK(k2.words.integers() == Ints{195045567, 4062205631});
  CHECK(!random::maybe_rng_split(Key(), 1)[0]);
  auto keys = random::shaped_rng_split(k, {M, L});
  CHECK(keys.words.axes() == Axes{M, L, {key_word, 2}});
  CHECK(keys.words.integers() == Ints{3625411723, 1954958720, 195045567, 4062205631, 966301609,
                                      1948237315, 276534068, 1641862660});
  CHECK(random::shaped_rng_split(k, Axis("one", 1)).words.integers() == Ints{0, 7});
}

TEST_CASE("vmap over several axes: the first axis is the outermost") {
  auto x = table();
  auto w = arange(B, {.dtype = DType::f32});
  auto f = [](const NamedArray& v, const NamedArray& u) {
    CHECK(v.axes().empty());
    return v * u + broadcast_axis(v, Axis("c", 2));
  };
  auto y = vmap(f, {"a", B})(x, w);
  CHECK(y.axes() == Axes{A, B, {"c", 2}});
  CHECK(vmap(f, {"b", "a"})(x, w).axes() == Axes{B, A, {"c", 2}});
  CHECK(same(y, vmap(vmap(f, "b"), "a")(x, w)));
  auto g = vmap(grad([](const NamedArray& v, const NamedArray& u) { return v * v * u; }),
                {"a", "b"})(x, w);
  CHECK(same(g, 2. * x * w));
  // An array that the function captures is not mapped.
  auto total = sum(w);
  CHECK(same(vmap([&](const NamedArray& v) { return v * total; }, {"a", "b"})(x), x * total));
}
