// One op on extreme values: the cpu and the reference backend must agree.
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <stdexcept>

#include "fuzz.h"
#include "haliax/fmt.h"
#include "haliax/haliax.h"

namespace fuzz {
namespace {

using namespace haliax;
using Arrays = std::vector<NamedArray>;

const DType kTypes[] = {DType::f32, DType::f64, DType::bf16,   DType::f16, DType::i8,
                        DType::i16, DType::i32, DType::i64,    DType::u8,  DType::u16,
                        DType::u32, DType::u64, DType::boolean};
const std::vector<double> kReals{
    0.,           -0.,         1.,     -1.,     0.5,      -2.5,      3.,
    1e-3,         255.,        -256.,  65504.,  65536.,   -1e5,      3.4e38,
    -3.4e38,      1e-38,       1e-45,  1.7e308, -1.7e308, 5e-324,    2147483647.,
    -2147483648., 4294967296., 9.3e18, -9.3e18, INFINITY, -INFINITY, NAN};
const std::vector<std::int64_t> kWholes{0,
                                        1,
                                        -1,
                                        2,
                                        3,
                                        -2,
                                        5,
                                        7,
                                        63,
                                        64,
                                        127,
                                        -128,
                                        255,
                                        32767,
                                        -32768,
                                        65535,
                                        2147483647,
                                        -2147483648ll,
                                        4294967295ll,
                                        4294967296ll,
                                        std::numeric_limits<std::int64_t>::max(),
                                        std::numeric_limits<std::int64_t>::min()};

NamedArray made(Choices& c, const Axes& axes, DType d) {
  const auto n = axis_size(axes);
  if (is_float(d)) {
    std::vector<double> v;
    for (std::int64_t k = 0; k < n; ++k) v.push_back(c.of(kReals));
    return array(v, axes).astype(d).eval();
  }
  std::vector<std::int64_t> v;
  for (std::int64_t k = 0; k < n; ++k) v.push_back(c.of(kWholes));
  return array(v, axes).astype(d).eval();
}
NamedArray id(const NamedArray& x) {  // an index: an integer in any dtype
  return is_float(x.dtype()) || x.dtype() == DType::boolean ? x.astype(DType::i64) : x;
}

const Axis A("a", 3), B("b", 5), K("k", 2);
// x (a, b), y (a, b), s (k)
using Op = std::function<NamedArray(const NamedArray& x, const NamedArray& y, const NamedArray& s)>;
// The tolerance between backends: bitwise identical, two implementations of a function, or two
// orders of a sum, relative to its largest term.
enum class Near { exact, function, sum };
struct Named {
  const char* name;
  Op op;
  Near near = Near::exact;
};
#define X1(f)                                      \
  {                                                \
#f, [](auto& x, auto&, auto&) { return f(x); } \
  }
#define F1(f)                                                      \
  {                                                                \
#f, [](auto& x, auto&, auto&) { return f(x); }, Near::function \
  }
#define X2(f)                                           \
  {                                                     \
#f, [](auto& x, auto& y, auto&) { return f(x, y); } \
  }
#define F2(f)                                                           \
  {                                                                     \
#f, [](auto& x, auto& y, auto&) { return f(x, y); }, Near::function \
  }
#define R1(f)                                         \
  {                                                   \
#f, [](auto& x, auto&, auto&) { return f(x, B); } \
  }
#define S1(f)                                                    \
  {                                                              \
#f, [](auto& x, auto&, auto&) { return f(x, B); }, Near::sum \
  }
const std::vector<Named> kOps{
    X1(abs),
    X1(negative),
    X1(sign),
    F1(exp),
    F1(exp2),
    F1(expm1),
    F1(log),
    F1(log2),
    F1(log1p),
    X1(sqrt),
    F1(rsqrt),
    F1(cbrt),
    F1(sin),
    F1(cos),
    F1(tanh),
    X1(floor),
    X1(ceil),
    X1(round),
    X1(trunc),
    F1(reciprocal),
    X1(square),
    X1(isnan),
    X1(isinf),
    X1(isfinite),
    X1(logical_not),
    F1(nn::sigmoid),
    F1(nn::gelu),
    F1(arctan),
    F1(sinh),
    F1(cosh),
    F1(arcsinh),
    X1(signbit),
    F1(arcsin),
    F1(nn::silu),
    X2(add),
    X2(subtract),
    X2(multiply),
    X2(divide),
    F2(floor_divide),
    F2(mod),
    F2(fmod),
    X2(maximum),
    X2(minimum),
    X2(fmax),
    X2(fmin),
    F2(power),
    F2(arctan2),
    F2(hypot),
    F2(logaddexp),
    X2(nextafter),
    X2(equal),
    X2(less),
    X2(less_equal),
    X2(greater),
    X2(bitwise_and),
    X2(bitwise_or),
    X2(bitwise_xor),
    X2(left_shift),
    X2(right_shift),
    X2(logical_and),
    X2(logical_xor),
    S1(sum),
    S1(mean),
    S1(prod),
    R1(max),
    R1(min),
    R1(any),
    R1(all),
    S1(var),
    S1(std_dev),
    R1(argmax),
    R1(argmin),
    S1(logsumexp),
    S1(softmax),
    S1(log_softmax),
    S1(standardize),
    S1(cumsum),
    S1(cumprod),
    R1(sort),
    R1(argsort),
    {"sum all", [](auto& x, auto&, auto&) { return sum(x); }, Near::sum},
    {"mean all", [](auto& x, auto&, auto&) { return mean(x); }, Near::sum},
    {"prod all", [](auto& x, auto&, auto&) { return prod(x); }, Near::sum},
    {"trace", [](auto& x, auto&, auto&) { return trace(x, A, B); }, Near::sum},
    {"argmax all", [](auto& x, auto&, auto&) { return argmax(x); }},
    {"mean where", [](auto& x, auto& y, auto&) { return mean(x, B, {.where = y > 0}); }, Near::sum},
    {"sum f32", [](auto& x, auto&, auto&) { return sum(x, B, {.dtype = DType::f32}); }, Near::sum},
    {"sum i8", [](auto& x, auto&, auto&) { return sum(x, B, {.dtype = DType::i8}); }},
    {"dot", [](auto& x, auto& y, auto&) { return dot(x, y, B); }, Near::sum},
    {"matmul",
     [](auto& x, auto& y, auto&) {
       return dot(x, rename(y, {{"a", "c"}}), B);
     },
     Near::sum},
    {"einsum",
     [](auto& x, auto& y, auto&) {
       return einsum("{a b}, {b} -> b a", {x, sum(y, A)});
     },
     Near::sum},
    {"slice", [](auto& x, auto&, auto& s) { return slice(x, B, sum(id(s)), 2); }},
    {"slice raw", [](auto& x, auto&, auto& s) { return slice(x, B, id(take(s, K, 0)), 3); }},
    {"slice prod", [](auto& x, auto&, auto& s) { return slice(x, B, prod(id(s)), 1); }},
    {"updated_slice",
     [](auto& x, auto& y, auto& s) {
       return updated_slice(x, {{"b", sum(id(s))}}, slice(y, B, 0, 2));
     }},
    {"window",
     [](auto& x, auto&, auto& s) {
       return index(x, {{"b", ds(max(id(s)), Axis("w", 2))}});
     }},
    {"take", [](auto& x, auto&, auto& s) { return take(x, B, id(s)); }},
    {"take sum", [](auto& x, auto&, auto& s) { return take(x, B, sum(id(s))); }},
    {"index",
     [](auto& x, auto&, auto& s) {
       return index(x, {{"b", id(s)}});
     }},
    {"at", [](auto& x, auto&, auto& s) { return at(x, B, sum(id(s))); }},
    {"at_set",
     [](auto& x, auto& y, auto& s) {
       return at_set(x, {{"b", id(s)}}, slice(y, B, 0, 2, "k"));
     }},
    {"at_add",
     [](auto& x, auto& y, auto& s) {
       return at_add(x, {{"b", id(s)}}, slice(y, B, 0, 2, "k"));
     },
     Near::sum},
    {"at_mul",
     [](auto& x, auto& y, auto& s) {
       return at_mul(x, {{"b", id(s)}}, slice(y, B, 0, 2, "k"));
     }},
    {"at_max",
     [](auto& x, auto& y, auto& s) {
       return at_max(x, {{"b", id(s)}}, slice(y, B, 0, 2, "k"));
     }},
    {"roll", [](auto& x, auto&, auto& s) { return roll(x, sum(id(s)), B); }},
    {"one_hot", [](auto&, auto&, auto& s) { return one_hot(id(s), B); }},
    {"where", [](auto& x, auto& y, auto&) { return where(x, y, x); }},
    {"clip", [](auto& x, auto& y, auto&) { return clip(x, Arr(-1), Arr(y)); }},
    {"tril", [](auto& x, auto&, auto&) { return tril(x, A, B, -1); }},
    {"flip", [](auto& x, auto&, auto&) { return flip(x, B); }},
    {"pad",
     [](auto& x, auto&, auto&) {
       return pad(x, {{"b", {1, 2}}}, 1);
     }},
    {"repeat", [](auto& x, auto&, auto&) { return repeat(x, B, 2); }},
    {"top_k", [](auto& x, auto&, auto&) { return top_k(x, B, 2).first; }},
    {"top_k ids", [](auto& x, auto&, auto&) { return top_k(x, B, 2).second; }},
};

// scale: the largest term of a sum, or 1 if results have a fixed range.
bool same(double a, double b, DType d, Near near, double scale) {
  if (a == b || (a != a && b != b)) return true;
  if (near == Near::exact || !is_float(d) || std::isinf(a) || std::isinf(b) || a != a || b != b)
    return false;
  const double eps = d == DType::f64   ? 1e-13
                     : d == DType::f32 ? 4e-6
                     : d == DType::f16 ? 2e-3
                                       : 2e-2;
  // Subnormal numbers, which have fewer digits, are below this bound.
  const double least = d == DType::f64 ? 1e-300 : d == DType::f16 ? 1e-7 : 1e-37;
  return std::abs(a - b) <= eps * std::max({std::abs(a), std::abs(b), scale}) + least;
}
double largest(const NamedArray& x) {
  double m = 1;
  for (double v : x.doubles())
    if (std::isfinite(v)) m = std::max(m, std::abs(v));
  return m;
}

}  // namespace

void one_op(std::span<const std::uint8_t> bytes) {
  Choices c(bytes);
  auto& named = c.of(kOps);
  auto type = [&] { return kTypes[c.below(13)]; };
  const auto dx = type(), dy = c.below(3) ? dx : type(), ds = type();
  const auto x = made(c, {A, B}, dx), y = made(c, {A, B}, dy), s = made(c, {K}, ds);
  auto f = [&](const NamedArray& u, const NamedArray& v, const NamedArray& w) {
    return named.op(u, v, w);
  };
  std::vector<NamedArray> out;
  for (auto* backend : {"reference", "cpu"}) out.push_back(jit(f, {.backend = backend})(x, y, s));
  auto expected = out[0].doubles(), got = out[1].doubles();
  auto expected_integers = out[0].integers(), gots = out[1].integers();
  const std::string_view name = named.name;
  const bool ranged = name.find("softmax") != name.npos || name == "standardize",
             product = name == "dot" || name == "matmul" || name == "einsum";
  const double scale = named.near != Near::sum ? 0
                       : ranged                ? 1
                                               : largest(x) * (product ? largest(y) : 1);
  // If terms overflow, infinities of both signs may or may not meet, depending on their order.
  const bool order = named.near == Near::sum && scale > (out[0].dtype() == DType::f64 ? 1e307
                                                         : product                    ? 1e37
                                                                                      : 1e300);
  for (std::size_t k = 0; k < expected.size(); ++k) {
    if (order && !(std::isfinite(expected[k]) && std::isfinite(got[k]))) continue;
    if (is_float(out[0].dtype()) ? same(expected[k], got[k], out[0].dtype(), named.near, scale)
                                 : expected_integers[k] == gots[k])
      continue;
    throw std::logic_error(
        fmt::format("{} of {}, {}, {}: element {} is {} ({}) on the cpu, and {} ({}) on the "
                    "reference; x {} y {} s {}",
                    name, dx, dy, ds, k, got[k], gots[k], expected[k], expected_integers[k],
                    x.to_string(), y.to_string(), s.to_string()));
  }
}

}  // namespace fuzz
