// Elementwise ops, and those that make arrays.
#include <limits>

#include "ops_entries.h"

namespace ops_test {
namespace {

constexpr auto b8 = DType::boolean;
constexpr auto i32 = DType::i32;
constexpr auto u32 = DType::u32;
constexpr auto f32 = DType::f32;

NamedArray with_specials(In x) {          // infinities and a NaN among ordinary values
  auto place = arange(Axis("n", 6));
  auto inf = full({}, std::numeric_limits<double>::infinity()), nan = full({}, std::numeric_limits<double>::quiet_NaN());
  return where(place == 0, inf, where(place == 2, -inf, where(place == 4, nan, x[0])));
}

}  // namespace

Entries elementwise_entries() {
  return {
      {"abs", {"b2n3"}, [](In x) { return abs(x[0]); }, "b2n3"},
      {"sign", {"b2n3"}, [](In x) { return sign(x[0]); }, "b2n3"},
      {"negative", {"b2n3"}, [](In x) { return negative(x[0]); }, "b2n3"},
      {"positive", {"b2n3"}, [](In x) { return positive(x[0]); }, "b2n3"},
      {"square", {"b2n3"}, [](In x) { return square(x[0]); }, "b2n3"},
      {"square of integers", {whole("b2n3", -9, 9)}, [](In x) { return square(x[0]); }, "b2n3", i32},
      {"reciprocal", {positive("b2n3")}, [](In x) { return reciprocal(x[0]); }, "b2n3"},
      {"exp", {"b2n3"}, [](In x) { return exp(x[0]); }, "b2n3"},
      {"exp of integers", {whole("b2n3", -3, 3)}, [](In x) { return exp(x[0]); }, "b2n3", f32},
      {"exp2", {"b2n3"}, [](In x) { return exp2(x[0]); }, "b2n3"},
      {"expm1", {"b2n3"}, [](In x) { return expm1(x[0]); }, "b2n3"},
      {"log", {positive("b2n3")}, [](In x) { return log(x[0]); }, "b2n3"},
      {"log2", {positive("b2n3")}, [](In x) { return log2(x[0]); }, "b2n3"},
      {"log10", {positive("b2n3")}, [](In x) { return log10(x[0]); }, "b2n3"},
      {"log1p", {positive("b2n3")}, [](In x) { return log1p(x[0]); }, "b2n3"},
      {"sqrt", {positive("b2n3")}, [](In x) { return sqrt(x[0]); }, "b2n3"},
      {"rsqrt", {positive("b2n3")}, [](In x) { return rsqrt(x[0]); }, "b2n3"},
      {"cbrt", {{"b2n3", -3, -0.3}}, [](In x) { return cbrt(x[0]); }, "b2n3"},
      {"sin", {"b2n3"}, [](In x) { return sin(x[0]); }, "b2n3"},
      {"cos", {"b2n3"}, [](In x) { return cos(x[0]); }, "b2n3"},
      {"tan", {unit("b2n3")}, [](In x) { return tan(x[0]); }, "b2n3"},
      {"arcsin", {unit("b2n3")}, [](In x) { return arcsin(x[0]); }, "b2n3"},
      {"arccos", {unit("b2n3")}, [](In x) { return arccos(x[0]); }, "b2n3"},
      {"arctan", {"b2n3"}, [](In x) { return arctan(x[0]); }, "b2n3"},
      {"sinh", {"b2n3"}, [](In x) { return sinh(x[0]); }, "b2n3"},
      {"cosh", {"b2n3"}, [](In x) { return cosh(x[0]); }, "b2n3"},
      {"tanh", {"b2n3"}, [](In x) { return tanh(x[0]); }, "b2n3"},
      {"sigmoid", {"b2n3"}, [](In x) { return nn::sigmoid(x[0]); }, "b2n3"},
      {"arcsinh", {"b2n3"}, [](In x) { return arcsinh(x[0]); }, "b2n3"},
      {"arccosh", {{"b2n3", 1.2, 3}}, [](In x) { return arccosh(x[0]); }, "b2n3"},
      {"arctanh", {unit("b2n3")}, [](In x) { return arctanh(x[0]); }, "b2n3"},
      {"erf", {"b2n3"}, [](In x) { return erf(x[0]); }, "b2n3"},
      {"erfinv", {unit("b2n3")}, [](In x) { return erfinv(x[0]); }, "b2n3"},
      {"deg2rad", {"b2n3"}, [](In x) { return deg2rad(x[0]); }, "b2n3"},
      {"rad2deg", {"b2n3"}, [](In x) { return rad2deg(x[0]); }, "b2n3"},
      {"floor", {"b2n3"}, [](In x) { return floor(x[0]); }, "b2n3"},
      {"ceil", {"b2n3"}, [](In x) { return ceil(x[0]); }, "b2n3"},
      {"trunc", {"b2n3"}, [](In x) { return trunc(x[0]); }, "b2n3"},
      {"round", {"b2n3"}, [](In x) { return round(x[0]); }, "b2n3"},
      {"round to decimals", {"b2n3"}, [](In x) { return round(x[0], 1); }, "b2n3", f32, Smooth::once},
      {"isfinite", {"n6"}, [](In x) { return isfinite(with_specials(x)); }, "n6", b8},
      {"isnan", {"n6"}, [](In x) { return isnan(with_specials(x)); }, "n6", b8},
      {"isinf", {"n6"}, [](In x) { return isinf(with_specials(x)); }, "n6", b8},
      {"isneginf", {"n6"}, [](In x) { return isneginf(with_specials(x)); }, "n6", b8},
      {"isposinf", {"n6"}, [](In x) { return isposinf(with_specials(x)); }, "n6", b8},
      {"signbit", {"b2n3"}, [](In x) { return signbit(x[0]); }, "b2n3", b8},
      {"logical_not", {mask("b2n3")}, [](In x) { return logical_not(x[0]); }, "b2n3", b8},
      {"bitwise_not", {whole("b2n3", -9, 9)}, [](In x) { return bitwise_not(x[0]); }, "b2n3", i32},
      {"astype to integers", {"b2n3"}, [](In x) { return astype(x[0], DType::i8); }, "b2n3", DType::i8},
      {"astype to f32", {"b2n3"}, [](In x) { return astype(astype(x[0], DType::f64), x[0].dtype()); }, "b2n3"},
      {"stop_gradient", {"b2n3"}, [](In x) { return x[0] * x[0] + stop_gradient(x[0]); }, "b2n3", f32, Smooth::none},
  };
}

Entries binary_entries() {
  return {
      {"add", {"b2n3", "n3"}, [](In x) { return add(x[0], x[1]); }, "b2n3"},
      {"add with the larger on the right", {"n3", "b2n3"}, [](In x) { return x[0] + x[1]; }, "b2n3"},
      {"add in another order", {"b2n3", "n3b2"}, [](In x) { return x[0] + x[1]; }, "b2n3"},
      {"subtract", {"b2n3", "b2"}, [](In x) { return subtract(x[0], x[1]); }, "b2n3"},
      {"multiply", {"b2n3", "n3"}, [](In x) { return multiply(x[0], x[1]); }, "b2n3"},
      {"multiply integers by floats", {whole("b2n3", -9, 9), "n3"}, [](In x) { return x[0] * x[1]; }, "b2n3"},
      {"divide", {"b2n3", positive("n3")}, [](In x) { return divide(x[0], x[1]); }, "b2n3"},
      {"divide integers", {whole("b2n3", -9, 9), whole("n3", 1, 5)}, [](In x) { return x[0] / x[1]; }, "b2n3", f32},
      {"power", {positive("b2n3"), "n3"}, [](In x) { return power(x[0], x[1]); }, "b2n3"},
      {"power by a number", {"b2n3"}, [](In x) { return power(x[0], 3); }, "b2n3"},
      {"power by a fraction", {positive("b2n3")}, [](In x) { return power(x[0], 1.5); }, "b2n3"},
      {"maximum", {"b2n3", "n3"}, [](In x) { return maximum(x[0], x[1]); }, "b2n3"},
      {"minimum", {"b2n3", "n3"}, [](In x) { return minimum(x[0], x[1]); }, "b2n3"},
      {"floor_divide", {"b2n3", positive("n3")}, [](In x) { return floor_divide(x[0], x[1]); }, "b2n3"},
      {"floor_divide integers", {whole("b2n3", -9, 9), whole("n3", 1, 5)}, [](In x) { return floor_divide(x[0], x[1]); }, "b2n3",
       i32},
      {"mod", {"b2n3", positive("n3")}, [](In x) { return mod(x[0], x[1]); }, "b2n3", f32},
      {"mod integers", {whole("b2n3", -9, 9), whole("n3", 1, 5)}, [](In x) { return x[0] % x[1]; }, "b2n3", i32},
      {"fmod", {"b2n3", positive("n3")}, [](In x) { return fmod(x[0], x[1]); }, "b2n3", f32},
      {"arctan2", {"b2n3", positive("n3")}, [](In x) { return arctan2(x[0], x[1]); }, "b2n3"},
      {"hypot", {"b2n3", positive("n3")}, [](In x) { return hypot(x[0], x[1]); }, "b2n3"},
      {"logaddexp", {"b2n3", "n3"}, [](In x) { return logaddexp(x[0], x[1]); }, "b2n3"},
      {"nextafter", {"b2n3", "n3"}, [](In x) { return nextafter(x[0], x[1]); }, "b2n3", f32, Smooth::none},
      {"equal", {whole("b2n3", 0, 3), whole("n3", 0, 3)}, [](In x) { return equal(x[0], x[1]); }, "b2n3", b8},
      {"not_equal", {whole("b2n3", 0, 3), whole("n3", 0, 3)}, [](In x) { return not_equal(x[0], x[1]); }, "b2n3", b8},
      {"less", {"b2n3", "n3"}, [](In x) { return less(x[0], x[1]); }, "b2n3", b8},
      {"less_equal", {whole("b2n3", 0, 3), whole("n3", 0, 3)}, [](In x) { return less_equal(x[0], x[1]); }, "b2n3", b8},
      {"greater", {"b2n3", "n3"}, [](In x) { return greater(x[0], x[1]); }, "b2n3", b8},
      {"greater_equal", {whole("b2n3", 0, 3), whole("n3", 0, 3)}, [](In x) { return greater_equal(x[0], x[1]); }, "b2n3", b8},
      {"logical_and", {mask("b2n3"), mask("n3")}, [](In x) { return logical_and(x[0], x[1]); }, "b2n3", b8},
      {"logical_or", {mask("b2n3"), mask("n3")}, [](In x) { return logical_or(x[0], x[1]); }, "b2n3", b8},
      {"logical_xor", {mask("b2n3"), mask("n3")}, [](In x) { return logical_xor(x[0], x[1]); }, "b2n3", b8},
      {"bitwise_and", {whole("b2n3", -9, 9), whole("n3", -9, 9)}, [](In x) { return bitwise_and(x[0], x[1]); }, "b2n3", i32},
      {"bitwise_or", {whole("b2n3", -9, 9), whole("n3", -9, 9)}, [](In x) { return bitwise_or(x[0], x[1]); }, "b2n3", i32},
      {"bitwise_xor", {whole("b2n3", -9, 9), whole("n3", -9, 9)}, [](In x) { return bitwise_xor(x[0], x[1]); }, "b2n3", i32},
      {"left_shift", {whole("b2n3", -9, 9), whole("n3", 0, 9)}, [](In x) { return left_shift(x[0], x[1]); }, "b2n3", i32},
      {"right_shift", {whole("b2n3", -99, 99), whole("n3", 0, 9)}, [](In x) { return right_shift(x[0], x[1]); }, "b2n3", i32},
      {"right_shift of unsigned", {whole("b2n3", 0, 99, u32), whole("n3", 0, 9, u32)}, [](In x) { return x[0] >> x[1]; }, "b2n3",
       u32},
      {"fmax", {"b2n3", "n3"}, [](In x) { return fmax(x[0], x[1]); }, "b2n3"},
      {"fmin", {"b2n3", "n3"}, [](In x) { return fmin(x[0], x[1]); }, "b2n3"},
      {"where", {mask("b2n3"), "n3", "b2n3"}, [](In x) { return where(x[0], x[1], x[2]); }, "b2n3"},
      {"where with a number", {"b2n3"}, [](In x) { return where(x[0] > 0, x[0] * x[0], 0); }, "b2n3"},
      {"clip", {"b2n3"}, [](In x) { return clip(x[0], -1, 1); }, "b2n3"},
      {"clip by arrays", {"b2n3", Sample("n3", -1.5, -1), positive("n3")}, [](In x) { return clip(x[0], x[1], x[2]); }, "b2n3"},
  };
}

Entries creation_entries() {
  return {
      {"zeros", {}, [](In) { return zeros({{"b", 2}, {"n", 3}}); }, "b2n3"},
      {"ones", {}, [](In) { return ones({{"b", 2}}, i32); }, "b2", i32},
      {"full", {""}, [](In x) { return full({{"b", 2}, {"n", 3}}, x[0]); }, "b2n3"},
      {"zeros_like", {"b2n3"}, [](In x) { return zeros_like(x[0]); }, "b2n3"},
      {"ones_like", {"b2n3"}, [](In x) { return ones_like(x[0], i32); }, "b2n3", i32},
      {"full_like", {"b2n3", ""}, [](In x) { return full_like(x[0], x[1]); }, "b2n3"},
      {"arange", {}, [](In) { return arange({{"b", 2}, {"n", 3}}); }, "b2n3", i32},
      {"arange with a step", {"n3"}, [](In x) { return x[0] * arange(Axis("n", 3), {.start = 1, .step = 0.5}); }, "n3"},
      {"linspace", {"n5"}, [](In x) { return x[0] * linspace(Axis("n", 5), {.start = -1, .stop = 1}); }, "n5"},
      {"one_hot", {whole("b2n3", -1, 6)}, [](In x) { return one_hot(x[0], Axis("c", 5)); }, "b2n3c5"},
  };
}

}  // namespace ops_test
