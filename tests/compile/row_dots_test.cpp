// Dot products of matching rows are elementwise steps with a sum.
#include <doctest/doctest.h>

#include "compile/pipeline.h"
#include "haliax/haliax.h"
#include "ops/prim.h"

using namespace haliax;

namespace {

const Axis B{"b", 6}, N{"n", 70}, K{"k", 40}, M{"m", 3};

int contractions(const NamedArray& y) {
  Compilation c{{y.node()}, {}};
  run(c);
  int count = 0;
  for (auto& s : c.program->steps) count += s.kind == program::Kind::contract;
  return count;
}
NamedArray draw(int seed, const Axes& axes, DType d = DType::f32) {
  return (random::normal(random::key(seed), axes) * 4.f).astype(d).eval();
}

}  // namespace

TEST_CASE("row dots: match rows alone, in any order of axes") {
  auto x = draw(1, {B, N, K}), y = draw(2, {K, B, N});
  CHECK(contractions(dot(x, y, "k")) == 0);
  CHECK(contractions(dot(x, y, {"k", "n"})) == 0);
  CHECK(contractions(dot(x, y, {"k", "n", "b"})) == 1);  // a scalar
  CHECK(contractions(dot(x, draw(2, {K, B, N, M}), "k")) == 1);
  CHECK(contractions(dot(x, draw(2, {K, N}), "k")) == 1);
}
// The reverse: elementwise products that outnumber their factors by far, and are summed, are a
// contraction.
TEST_CASE(
    "row dots: a sum of products of two matrices is a contraction, "
    "if the products are not rounded") {
  const Axis few = M, M("m", 64);
  // (b, n, k), (b, k, m)
  auto f = [=](const NamedArray& x, const NamedArray& y) {
    return sum(broadcast_axis(x, M) * y, "k");
  };
  CHECK(contractions(sum(broadcast_axis(draw(1, {B, N, K}), few) * draw(2, {B, K, few}), "k")) ==
        0);
  for (auto d : {DType::f32, DType::f64, DType::bf16, DType::i32}) {
    CAPTURE(std::string(name_of(d)));
    auto x = draw(1, {B, N, K}, d), y = draw(2, {B, K, M}, d);
    bool exact = d == DType::f32 || d == DType::f64;
    CHECK(contractions(f(x, y)) == (exact ? 1 : 0));
    CHECK(max(abs((f(x, y) - dot(x, y, "k")).astype(DType::f64))).item() <= (d == DType::bf16 ? 4
                                                                             : exact          ? 1e-3
                                                                                              : 0));
  }
  auto x = draw(1, {B, N, K}), y = draw(2, {B, K, M});
  CHECK(contractions(mean(broadcast_axis(x, M) * y, "k")) == 1);
  CHECK(contractions(sum(broadcast_axis(x, M) * y, {"b", "k"})) == 1);
  CHECK(contractions(sum(broadcast_axis(x, M) * y, "n")) == 0);  // only one factor has it
  CHECK(contractions(sum(x * draw(2, {K}), "k")) ==
        0);  // x has as many elements as there are products
  CHECK(contractions(sum(square(broadcast_axis(x, M) - y), "k")) == 0);
  auto slope = [&](auto g) {
    return grad([&](const NamedArray& x) { return sum(sin(g(x, y))); })(x);
  };
  auto by_dot = slope([](const NamedArray& x, const NamedArray& y) { return dot(x, y, "k"); });
  CHECK(slope(f).floats() == by_dot.floats());
}
TEST_CASE("row dots: match the reference") {
  for (auto d : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::u8}) {
    CAPTURE(std::string(name_of(d)));
    auto x = draw(3, {B, N, K}, d), y = draw(4, {K, B, N}, d);
    auto f = [](const NamedArray& x, const NamedArray& y) { return dot(x, y, "k"); };
    auto got = jit(f)(x, y), expected = jit(f, {.backend = "reference"})(x, y);
    CHECK(got.dtype() == expected.dtype());
    CHECK(got.axes() == expected.axes());
    const double unit = d == DType::f64    ? 1e-14
                        : d == DType::f32  ? 1e-6
                        : d == DType::bf16 ? 8e-3
                        : d == DType::f16  ? 1e-3
                                           : 0;
    auto a = got.astype(DType::f64), b = expected.astype(DType::f64);
    CHECK(max(abs(a - b)).item() <= unit * max(abs(b)).item());
  }
}
