// NamedArray in user code: methods, assignment operators, and indices in brackets.
#include <doctest/doctest.h>

#include "haliax/haliax.h"
#include "support/raises.h"

using namespace haliax;

namespace {

using Values = std::vector<float>;
using Ids = std::vector<std::int64_t>;
const Axis A("a", 2), B("b", 3), K("k", 2);
NamedArray x() { return array({1, 2, 3, 4, 5, 6}, {A, B}); }  // (a, b)
std::string line(int offset = 0, int of = __builtin_LINE()) {
  return "methods_test.cpp:" + std::to_string(of + offset);
}
bool same(const NamedArray& p, const NamedArray& q) {
  return p.axes() == q.axes() && p.dtype() == q.dtype() && p.doubles() == q.doubles();
}

}  // namespace

TEST_CASE("each method matches the function with its name") {
  auto v = x();
  auto mask = v > 2.;
  CHECK(same(v.sum(), sum(v)));
  CHECK(same(v.sum("b"), sum(v, "b")));
  CHECK(same(v.sum({"a", "b"}), sum(v)));
  CHECK(same(v.sum(B, {.where = mask}), sum(v, B, {.where = mask})));
  CHECK(same(v.mean("a"), mean(v, "a")));
  CHECK(same(v.mean({}, {.where = mask}), mean(v, {}, {.where = mask})));
  CHECK(same(v.prod("b"), prod(v, "b")));
  CHECK(same(v.prod("b", {.where = mask}), prod(v, "b", {.where = mask})));
  CHECK(same(v.max("b"), max(v, "b")));
  CHECK(same(v.max("b", {.where = mask}), max(v, "b", {.where = mask})));
  CHECK(same(v.min("b"), min(v, "b")));
  CHECK(same(v.min("a", {.where = mask}), min(v, "a", {.where = mask})));
  CHECK(same(mask.any("b"), any(mask, "b")));
  CHECK(same(mask.any("b", {.where = mask}), any(mask, "b", {.where = mask})));
  CHECK(same(mask.all("b"), all(mask, "b")));
  CHECK(same(mask.all("b", {.where = mask}), all(mask, "b", {.where = mask})));
  CHECK(same(v.var("b"), var(v, "b")));
  CHECK(same(v.var("b", {.ddof = 1}), var(v, "b", {.ddof = 1})));
  CHECK(same(v.std_dev("b"), std_dev(v, "b")));
  CHECK(same(v.std_dev("b", {.ddof = 1}), std_dev(v, "b", {.ddof = 1})));
  CHECK(same(v.argmax(), argmax(v)));
  CHECK(same(v.argmax("b"), argmax(v, "b")));
  CHECK(same(v.argmin(), argmin(v)));
  CHECK(same(v.argmin("a"), argmin(v, "a")));
  CHECK(same(v.cumsum("b"), cumsum(v, "b")));
  CHECK(same(v.cumprod("b"), cumprod(v, "b")));
  CHECK(same((-v).sort("b"), sort(-v, "b")));
  CHECK(same((-v).argsort("b"), argsort(-v, "b")));
  CHECK(same(v.astype(DType::i32), astype(v, DType::i32)));
  CHECK(same(v.clip(2, 4.5), clip(v, 2, 4.5)));
  CHECK(same((v / 7.).round(1), round(v / 7., 1)));
  CHECK(same(v.trace("a", "b", 1), trace(v, "a", "b", 1)));
  CHECK(same(v.dot(v, "b"), dot(v, v, "b")));
  CHECK(same(v.rename({{"a", "b"}, {"b", "a"}}), rename(v, {{"a", "b"}, {"b", "a"}})));
  CHECK(same(v.rename(A, K), rename(v, A, K)));
  CHECK(same(v.rearrange(Names{"b", "a"}), rearrange(v, Names{"b", "a"})));
  CHECK(same(v.rearrange({"b", "a"}), rearrange(v, {"b", "a"})));
  CHECK(same(v.rearrange({"b", "a"}).rearrange(v.axes()), v));
  CHECK(same(v.rearrange("a b -> (ab: a b)"), rearrange(v, "a b -> (ab: a b)")));
  CHECK(same(v.broadcast_axis(K), broadcast_axis(v, K)));
  CHECK(same(v.broadcast_to({A, K, B}), broadcast_to(v, {A, K, B})));
  CHECK(same(v.flatten_axes({"a", "b"}, "ab"), flatten_axes(v, {"a", "b"}, "ab")));
  CHECK(same(v.ravel("ab").unflatten_axis("ab", {A, B}), v));
  CHECK(same(v.take("b", arange(K)), take(v, "b", arange(K))));
  CHECK(same(v.slice("b", 1, 2), slice(v, "b", 1, 2)));
  CHECK(same(v.updated_slice({{"b", arange(Axis("one", 1)).sum()}}, zeros({A, B.resize(1)})),
             updated_slice(v, {{"b", arange(Axis("one", 1)).sum()}}, zeros({A, B.resize(1)}))));
  CHECK(same(v.unbind("a")[1], unbind(v, "a")[1]));
  CHECK(same(v.split("b", {B.resize(1), B.alias("c").resize(2)})[1],
             split(v, "b", {B.resize(1), B.alias("c").resize(2)})[1]));
  CHECK(same(+v, v));
}

TEST_CASE("an error in a method reports the line of the call") {
  auto v = x();
  CHECK(has(message_of([&] { v.sum("c"); }), line()));
  CHECK(has(message_of([&] { v.max("c", {.where = v > 1.}); }), line()));
  CHECK(has(message_of([&] { v.rearrange(Names{"b"}); }), line()));
  CHECK(has(message_of([&] { v.rearrange({"b"}); }), line()));
  CHECK(has(message_of([&] { v.rearrange({"a", B.resize(7)}); }), line()));
  CHECK(has(message_of([&] { v.rearrange(Axes{B.resize(7)}); }), "axis b"));
  CHECK(has(message_of([&] { v.slice("b", 2, 2); }), line()));
  CHECK(has(message_of([&] { v.unflatten_axis("b", {A, A.alias("d")}); }), line()));
  CHECK(has(message_of([&] { NamedArray().sum(); }), line()));
  for (auto& message :
       {message_of([&] { NamedArray().axes(); }), message_of([&] { NamedArray().dtype(); }),
        message_of([&] { NamedArray().nbytes(); }),
        message_of([&] { (void)NamedArray().has_axis("a"); })})
    CHECK(has(message, "methods_test.cpp:"));
}

TEST_CASE("compound assignment rebinds the handle to a new array") {
  auto v = x(), other = v;
  auto row = array({1, 2, 3}, B);
  v += row;
  CHECK(same(v, x() + row));
  CHECK(same(other, x()));  // other handles keep their arrays
  v -= 1;
  v *= 2.;
  v /= row;
  CHECK(same(v, (x() + row - 1) * 2. / row));
  auto n = arange(B);
  n %= 2;
  n |= 4;
  n &= 5;
  n ^= 1;
  CHECK(n.integers() == Ids{5, 4, 5});
  NamedArray total = 0.;
  for (auto& part : x().unbind("a")) total += part;  // () grows to (b)
  CHECK(same(total, x().sum("a")));
  auto narrow = zeros(B, DType::bf16);
  narrow += 1.5;
  CHECK(narrow.dtype() == DType::bf16);
  narrow += ones(B);
  CHECK(narrow.dtype() == DType::f32);  // the dtype of narrow + ones
  CHECK(has(message_of([&] { v += ones(K); }), line()));
  CHECK(has(message_of([&] { v += NamedArray(); }), "[add]"));
  auto f = [](const NamedArray& w) {
    auto sum_of_squares = w * w;
    sum_of_squares += w;
    return sum(sum_of_squares);
  };
  CHECK(grad(f)(row).floats() == Values{3, 5, 7});
  CHECK(jit(f)(row).item() == 20);
}

TEST_CASE("brackets index an axis by a position, a slice or other arrays") {
  auto v = x();
  auto ids = array(std::vector<std::int32_t>{2, 0}, K);
  CHECK(v[{"a", 1}].floats() == Values{4, 5, 6});
  CHECK(v[{A, -1}].floats() == Values{4, 5, 6});
  CHECK(same(v[{"b", Slice{0, 2}}], index(v, {{"b", Slice{0, 2}}})));
  CHECK(same(v[{"b", Slice{.step = -1}}], flip(v, "b")));
  CHECK(same(v[{"b", ids}], index(v, {{"b", ids}})));
  CHECK(same(v[{"b", ds(arange(A).sum(), B.resize(2))}], index(v, {{"b", ds(1, B.resize(2))}})));
  CHECK(v[{{"a", 1}, {"b", 2}}].item() == 6);
  CHECK(same(v[{{A, 0}, {"b", Slice{1}}}], array({2, 3}, B.resize(2))));
  CHECK(same(v[Indices{{"a", 1}}], v[{"a", 1}]));
  CHECK(has(message_of([&] { v[{"c", 1}]; }), line()));
  CHECK(has(message_of([&] {
              v[{"b", 3}];
            }),
            "[index] position 3 is outside of axis b=3; " + line()));
  CHECK(has(message_of([&] { v[{{"a", 1}, {"b", Slice{0, 4}}}]; }), "4 is outside of axis b=3; "));
  CHECK(has(message_of([&] { v[{Axis("b", 4), 1}]; }), "axis b has size 3"));
  CHECK(has(message_of([&] { v[{{"b", 1}, {"b", 2}}]; }), "twice"));
}

TEST_CASE("at(...) returns an array with the part changed") {
  auto v = x();
  auto row = array({1, 1, 8}, B);
  CHECK(same(v.at({"a", 0}).set(0.), at_set(v, {{"a", 0}}, 0.)));
  CHECK(same(v.at({"a", 1}).add(row), at_add(v, {{"a", 1}}, row)));
  CHECK(same(v.at({"a", 1}).mul(row), at_mul(v, {{"a", 1}}, row)));
  CHECK(same(v.at({"a", 1}).min(row), at_min(v, {{"a", 1}}, row)));
  CHECK(same(v.at({{"a", 1}, {"b", 2}}).max(7), at_max(v, {{"a", 1}, {"b", 2}}, 7)));
  CHECK(same(v, x()));
  CHECK(has(message_of([&] { (void)v.at({"c", 1}).set(0.); }), line()));
}
