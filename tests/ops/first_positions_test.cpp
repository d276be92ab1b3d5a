// The first positions of an order, which are found without a sort, match those of a full sort.
#include <doctest/doctest.h>

#include <limits>

#include "haliax/haliax.h"

using namespace haliax;

namespace {

// Returns values with many ties, zeros of both signs, infinities and NaN.
NamedArray hard_values(const Axes& axes, int seed, DType dtype) {
  auto x = round(random::normal(random::key(seed), axes) * 3.);
  if (!is_float(dtype)) return (x + (is_signed(dtype) ? 0. : 20.)).astype(dtype);
  const auto kind = random::randint(random::key(seed + 1), axes, 0, 40);
  x = where(kind == 0, -0., x);
  x = where(kind == 1, std::numeric_limits<double>::infinity(), x);
  x = where(kind == 2, -std::numeric_limits<double>::infinity(), x);
  x = where(kind < (seed % 2 ? 5 : 0), std::numeric_limits<double>::quiet_NaN(), x);
  return x.astype(dtype);
}
// Compares the first `count` positions of an argsort with the start of a full argsort.
void check_first(const NamedArray& x, std::int64_t count) {
  const auto first = [count](const NamedArray& x) { return slice(argsort(x, "n"), "n", 0, count); };
  const auto all = [](const NamedArray& x) { return argsort(x, "n"); };
  CHECK(jit(first)(x).integers() == slice(jit(all)(x), "n", 0, count).integers());
}

TEST_CASE("first positions: rows of any layout, number and length match a sort") {
  const DType dtypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32,
                          DType::u32, DType::i8,   DType::u16, DType::i64};
  const std::int64_t lengths[] = {16, 67, 130, 512, 513}, rows[] = {1, 3, 4, 7, 66, 67};
  int seed = 0;
  for (auto n : lengths)
    for (auto r : rows) {
      const DType dtype = dtypes[seed % 9];
      const std::int64_t count = 1 + seed % std::min<std::int64_t>(n / 8, 10);
      CAPTURE(n);
      CAPTURE(r);
      CAPTURE(count);
      CAPTURE(std::string(name_of(dtype)));
      ++seed;
      check_first(hard_values({{"b", r}, {"n", n}}, seed, dtype), count);
      check_first(hard_values({{"n", n}, {"b", r}}, seed, DType::f32), count);
      check_first(hard_values({{"b", r}, {"n", n}}, seed, DType::f32), count);
      check_first(hard_values({{"a", 3}, {"n", n}, {"b", r}}, seed, dtype), count);
    }
}

TEST_CASE("first positions: NaN is last, in order of position") {
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  const Axis B("b", 8), N("n", 16);
  check_first(full({B, N}, nan), 2);
  check_first(where(arange(N) == 9, 1.f, full({B, N}, nan)), 2);
}

}  // namespace
