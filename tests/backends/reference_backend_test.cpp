// Tests the reference backend against values computed by hand: every kind of step, and the corner
// cases of the scalar definitions.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/scalar.h"
#include "haliax/error.h"
#include "program/devices.h"

using namespace haliax;
using namespace haliax::program;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                kInf = std::numeric_limits<float>::infinity();
constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min(),
                       kMost = std::numeric_limits<std::int32_t>::max();

template <class T> constexpr DType dtype_for = DType::f32;
template <> constexpr DType dtype_for<double> = DType::f64;
template <> constexpr DType dtype_for<std::int8_t> = DType::i8;
template <> constexpr DType dtype_for<std::uint8_t> = DType::u8;
template <> constexpr DType dtype_for<std::int32_t> = DType::i32;
template <> constexpr DType dtype_for<std::int64_t> = DType::i64;
template <> constexpr DType dtype_for<std::uint32_t> = DType::u32;
template <> constexpr DType dtype_for<std::uint64_t> = DType::u64;

// A Program whose slots are all arguments, backed by vectors of the test.
class Bench {
 public:
  template <class T> int slot(std::vector<T>& data) {
    return slot(data.data(), std::int64_t(data.size() * sizeof(T)));
  }
  int slot(void* data, std::int64_t bytes) {
    Slot s;
    s.bytes = bytes;
    s.home = Home::argument;
    s.index = program.arguments++;
    program.slots.push_back(s);
    arguments.push_back(data);
    return int(program.slots.size()) - 1;
  }
  template <class T> View view(std::vector<T>& data, Dims strides, std::int64_t offset = 0) {
    return {slot(data), dtype_for<T>, offset, std::move(strides), {}};
  }
  void add(Step s) { program.steps.push_back(std::move(s)); }
  void run(Communicator* comm = nullptr) {
    reference::make_reference_device()
        ->compile(std::make_shared<Program>(program))
        ->run(arguments, results, arena.data(), comm);
  }

  Program program;
  std::vector<void*> arguments, results;
  std::vector<std::byte> arena;
};

Step step_of(Fused f) {
  Step s;
  s.kind = Kind::fused;
  s.fused = std::move(f);
  return s;
}
Step step_of(Contract c) {
  Step s;
  s.kind = Kind::contract;
  s.contract = std::move(c);
  return s;
}
Step step_of(Gather g) {
  Step s;
  s.kind = Kind::gather;
  s.gather = std::move(g);
  return s;
}
Step step_of(Scatter c) {
  Step s;
  s.kind = Kind::scatter;
  s.scatter = std::move(c);
  return s;
}
Step step_of(Sort c) {
  Step s;
  s.kind = Kind::sort;
  s.sort = std::move(c);
  return s;
}
Step step_of(Cumulative c) {
  Step s;
  s.kind = Kind::cumulative;
  s.cumulative = std::move(c);
  return s;
}
Step step_of(Copy c) {
  Step s;
  s.kind = Kind::copy;
  s.copy = std::move(c);
  return s;
}
Step step_of(Collective c) {
  Step s;
  s.kind = Kind::collective;
  s.collective = std::move(c);
  return s;
}
Step step_of(Loop l, std::vector<Step> body) {
  Step s;
  s.kind = Kind::loop;
  s.loop = l;
  s.body = std::move(body);
  return s;
}
Step step_of(Conditional c, std::vector<Step> body) {
  Step s;
  s.kind = Kind::conditional;
  s.conditional = std::move(c);
  s.body = std::move(body);
  return s;
}

Instr leaf(Code code, View v, bool inner = true) {
  Instr i{};
  i.code = code;
  i.dtype = v.dtype;
  i.view = std::move(v);
  i.inner = inner;
  return i;
}
Instr load_of(View v, bool inner = true) { return leaf(Code::load, std::move(v), inner); }
Instr store_of(int arg, View v, bool inner = true, Code code = Code::store) {
  auto i = leaf(code, std::move(v), inner);
  i.args[0] = arg;
  return i;
}
Instr op(Code code, DType dtype, std::vector<int> args, bool inner = true) {
  auto i = leaf(code, {}, inner);
  i.dtype = dtype;
  for (std::size_t a = 0; a < args.size(); ++a) i.args[a] = args[a];
  return i;
}
Instr number(double v) {
  auto i = leaf(Code::constant, {}, false);
  i.number = v;
  return i;
}

// Returns f(a, b, ...) over vectors of equal length.
template <class R, class... T> std::vector<R> apply(Code code, std::vector<T>... in) {
  std::int64_t n = std::int64_t(std::min({in.size()...}));
  std::vector<R> out(std::size_t(n), R(77));
  Bench b;
  Fused f{{n}, 0, {load_of(b.view(in, {1}))...}};
  std::vector<int> args;
  for (int a = 0; a < int(sizeof...(in)); ++a) args.push_back(a);
  f.code.push_back(op(code, dtype_for<R>, args));
  f.code.push_back(store_of(int(args.size()), b.view(out, {1})));
  b.add(step_of(f));
  b.run();
  return out;
}
// Returns f on 16-bit floats; arguments and results are bit patterns.
std::vector<std::uint16_t> apply16(DType dtype, Code code,
                                   std::vector<std::vector<std::uint16_t>> in) {
  std::int64_t n = std::int64_t(in[0].size());
  std::vector<std::uint16_t> out(in[0].size());
  Bench b;
  Fused f{{n}, 0, {}};
  std::vector<int> args;
  for (auto& x : in) {
    args.push_back(int(args.size()));
    f.code.push_back(load_of({b.slot(x), dtype, 0, {1}, {}}));
  }

  f.code.push_back(op(code, dtype, args));
  f.code.push_back(store_of(int(args.size()), {b.slot(out), dtype, 0, {1}, {}}));
  b.add(step_of(f));
  b.run();
  return out;
}
using F = std::vector<float>;
using D = std::vector<double>;
using I = std::vector<std::int32_t>;
using L = std::vector<std::int64_t>;
using U = std::vector<std::uint32_t>;
using B = std::vector<std::uint8_t>;
using S = std::vector<std::int8_t>;
using W = std::vector<std::uint64_t>;
constexpr std::int64_t kLeast64 = std::numeric_limits<std::int64_t>::min(),
                       kMost64 = std::numeric_limits<std::int64_t>::max();
bool same(const F& a, const F& b) {  // NaN equals NaN, and zeros differ by sign
  bool ok = a.size() == b.size();
  for (std::size_t k = 0; ok && k < a.size(); ++k)
    ok = (std::isnan(a[k]) && std::isnan(b[k])) ||
         (a[k] == b[k] && std::signbit(a[k]) == std::signbit(b[k]));
  return ok;
}

}  // namespace

TEST_CASE("half: bf16 and f16 round to nearest even") {
  CHECK(to_bf16(1.0f) == 0x3f80);
  CHECK(to_bf16(1.00390625f) == 0x3f80);  // half way: to even
  CHECK(to_bf16(1.01171875f) == 0x3f82);
  CHECK(to_bf16(3.4e38f) == 0x7f80);
  CHECK(to_bf16(-kInf) == 0xff80);
  CHECK(std::isnan(from_bf16(to_bf16(kNan))));
  CHECK(std::isnan(from_bf16(to_bf16(std::bit_cast<float>(0x7f800001u)))));
  CHECK(to_f16(1.0f) == 0x3c00);
  CHECK(to_f16(65504.f) == 0x7bff);
  CHECK(to_f16(65519.f) == 0x7bff);
  CHECK(to_f16(65520.f) == 0x7c00);
  CHECK(to_f16(-1e30f) == 0xfc00);
  CHECK(to_f16(0x1p-24f) == 0x0001);
  CHECK(to_f16(0x1p-25f) == 0x0000);  // half way to the least: to even
  CHECK(to_f16(0x1.8p-24f) == 0x0002);
  CHECK(to_f16(-0.f) == 0x8000);
  for (std::uint32_t h = 0; h < 0x10000; ++h) {  // both formats survive a round trip
    auto bits = std::uint16_t(h);
    bool nan16 = (h & 0x7fff) > 0x7c00, nanb = (h & 0x7fff) > 0x7f80;
    bool ok = (nan16 ? std::isnan(from_f16(bits)) : to_f16(from_f16(bits)) == bits) &&
              (nanb ? std::isnan(from_bf16(bits)) : to_bf16(from_bf16(bits)) == bits);
    if (!ok) FAIL_CHECK("bits " << h);
    // A value halfway to the next f16 rounds to the even one.
    auto middle = (double(from_f16(bits)) + from_f16(std::uint16_t(h + 1))) / 2;
    if (h < 0x7bff && to_f16(float(middle)) != ((h + 1) & ~1u)) FAIL_CHECK("bits " << h);
  }
}

TEST_CASE("scalar: threefry matches the known answers of Random123") {
  auto t = [](std::uint32_t k0, std::uint32_t k1, std::uint32_t x0, std::uint32_t x1) {
    auto w = scalar::threefry(k0, k1, x0, x1);
    return U{w.a, w.b};
  };
  CHECK(t(0, 0, 0, 0) == U{0x6b200159, 0x99ba4efe});
  CHECK(t(~0u, ~0u, ~0u, ~0u) == U{0x1cb996fc, 0xbb002be7});
  CHECK(t(0x13198a2e, 0x03707344, 0x243f6a88, 0x85a308d3) == U{0xc4923a9c, 0x483df7a0});
  CHECK(apply<std::uint32_t>(Code::threefry0, U{0}, U{0}, U{0}, U{0}) == U{0x6b200159});
  CHECK(apply<std::uint32_t>(Code::threefry1, U{0}, U{0}, U{0}, U{0}) == U{0x99ba4efe});
  CHECK(apply<std::uint32_t>(Code::threefry_xor, U{0}, U{0}, U{0}, U{0}) ==
        U{0x6b200159 ^ 0x99ba4efe});
}

TEST_CASE("scalar: log1p, erfinv and digamma match known values") {
  for (float x : {1e-40f, -1e-30f, 1e-9f, -1e-4f, 0.1f, -0.29f, -0.3f, 0.41f, 0.42f, -0.999f, 3.f,
                  1e10f, 3e38f})
    CHECK(scalar::log1p(x) == float(std::log1p(double(x))));
  CHECK(scalar::log1p(-1.f) == -kInf);
  CHECK(scalar::log1p(kInf) == kInf);
  CHECK(std::isnan(scalar::log1p(-2.f)));
  CHECK(std::isnan(scalar::log1p(kNan)));
  for (double x : {1e-300, 1e-12, 1e-5, 0.1, 0.3, 0.49999, 0.5, 0.7, 0.99, 0.9999999, 1 - 1e-12,
                   1 - 0x1p-53}) {
    double y = scalar::erfinv(x);
    CHECK(scalar::erfinv(-x) == -y);
    if (x < 0.5)
      CHECK(std::erf(y) == doctest::Approx(x).epsilon(1e-15));
    else
      CHECK(std::erfc(y) == doctest::Approx(1 - x).epsilon(1e-13));
    if (x < 0.999)
      CHECK(scalar::erfinv(float(x)) ==
            doctest::Approx(scalar::erfinv(double(float(x)))).epsilon(4e-7));
  }
  CHECK(scalar::erfinv(0.5) == doctest::Approx(0.47693627620446987).epsilon(1e-15));
  CHECK(scalar::erfinv(1.f) == kInf);
  CHECK(scalar::erfinv(-1.) == -kInf);
  CHECK(std::isnan(scalar::erfinv(1.5f)));
  CHECK(std::isnan(scalar::erfinv(-1.5)));
  CHECK(scalar::digamma(1) == doctest::Approx(-0.57721566490153286).epsilon(1e-15));
  CHECK(scalar::digamma(0.5) == doctest::Approx(-1.96351002602142348).epsilon(1e-15));
  CHECK(scalar::digamma(-0.5) == doctest::Approx(0.03648997397857652).epsilon(1e-13));
  CHECK(scalar::digamma(100) == doctest::Approx(4.60016185273808740).epsilon(1e-15));
  CHECK(std::isnan(scalar::digamma(-2)));
}

TEST_CASE("scalar: integers never trap, and wrap around") {
  I x{7, -7, 7, -7, 5, -5, kLeast, kLeast, 0}, y{2, 2, -2, -2, 0, 0, -1, 0, 0};
  CHECK(apply<std::int32_t>(Code::div, x, y) == I{3, -3, -3, 3, -1, -1, kLeast, -1, -1});
  CHECK(apply<std::int32_t>(Code::floor_div, x, y) == I{3, -4, -4, 3, -1, -1, kLeast, -1, -1});
  CHECK(apply<std::int32_t>(Code::rem, x, y) == I{1, -1, 1, -1, 5, -5, 0, kLeast, 0});
  CHECK(apply<std::int32_t>(Code::mod, x, y) == I{1, 1, -1, -1, 5, -5, 0, kLeast, 0});
  CHECK(apply<std::uint32_t>(Code::div, U{7, 7, 0}, U{2, 0, 0}) == U{3, ~0u, ~0u});
  CHECK(apply<std::uint8_t>(Code::floor_div, B{7, 250}, B{2, 0}) == B{3, 255});
  CHECK(apply<std::uint32_t>(Code::rem, U{7, 7}, U{2, 0}) == U{1, 7});
  CHECK(apply<std::int64_t>(Code::div, L{kLeast64}, L{-1}) == L{kLeast64});
  CHECK(apply<std::uint64_t>(Code::div, W{~0ull}, W{2}) == W{~0ull / 2});
  CHECK(apply<std::int8_t>(Code::add, S{127, -128}, S{1, -1}) == S{-128, 127});
  CHECK(apply<std::int8_t>(Code::div, S{-128}, S{-1}) == S{-128});
  CHECK(apply<std::uint8_t>(Code::sub, B{3}, B{5}) == B{254});
  CHECK(apply<std::int32_t>(Code::mul, I{kMost}, I{kMost}) == I{1});
  CHECK(apply<std::int32_t>(Code::neg, I{kLeast, 5}) == I{kLeast, -5});
  CHECK(apply<std::int32_t>(Code::abs, I{kLeast, -5, 3}) == I{kLeast, 5, 3});
  CHECK(apply<std::int32_t>(Code::sign, I{kLeast, 0, 3}) == I{-1, 0, 1});
  CHECK(apply<std::uint32_t>(Code::max, U{~0u, 1}, U{1, 2}) == U{~0u, 2});
  CHECK(apply<std::int32_t>(Code::pow, I{3, 2, -2, 0}, I{4, 31, 3, 0}) == I{81, kLeast, -8, 1});
  CHECK(apply<std::int32_t>(Code::pow, I{2, 1, -1, -1}, I{-1, -5, -5, -4}) == I{0, 1, -1, 1});
  CHECK(apply<std::int32_t>(Code::shift_left, I{1, 1, 1, 1, 3}, I{4, 31, 32, -1, 31}) ==
        I{16, kLeast, 0, 0, kLeast});
  CHECK(apply<std::int32_t>(Code::shift_right, I{-8, -8, 8, -8}, I{1, 40, 40, -1}) ==
        I{-4, -1, 0, -1});
  CHECK(apply<std::uint32_t>(Code::shift_right, U{0x80000000, 5}, U{31, 32}) == U{1, 0});
  CHECK(apply<std::uint8_t>(Code::shift_left, B{255, 255}, B{4, 8}) == B{0xf0, 0});
  CHECK(apply<std::int8_t>(Code::bit_not, S{0, -1}) == S{-1, 0});
  CHECK(apply<std::int32_t>(Code::popcount, I{-1, 5}) == I{32, 2});
  CHECK(apply<std::int8_t>(Code::popcount, S{-1}) == S{8});
  CHECK(apply<std::int32_t>(Code::fma, I{kMost}, I{2}, I{3}) == I{1});
  CHECK_THROWS_AS(apply<std::int32_t>(Code::exp, I{1}), Error);
}

TEST_CASE("scalar: float codes handle NaN, signed zeros and rounding") {
  CHECK(same(apply<float>(Code::max, F{1, kNan, 2, kNan}, F{kNan, 1, 3, kNan}),
             {kNan, kNan, 3, kNan}));
  CHECK(same(apply<float>(Code::min, F{1, kNan, 2}, F{kNan, 1, 3}), {kNan, kNan, 2}));
  CHECK(same(apply<float>(Code::sign, F{-2, 0, -0.f, 5, kNan}), {-1, 0, -0.f, 1, kNan}));
  CHECK(same(apply<float>(Code::round, F{0.5f, 1.5f, 2.5f, -0.5f, -2.5f}), {0, 2, 2, -0.f, -2}));
  CHECK(same(apply<float>(Code::rem, F{7, -7, 7, 1}, F{3, 3, -3, 0}), {1, -1, 1, kNan}));
  CHECK(same(apply<float>(Code::mod, F{7, -7, 7, -7}, F{3, 3, -3, -3}), {1, 2, -2, -1}));
  CHECK(same(apply<float>(Code::mod, F{-6, 6, 1, -1}, F{3, -3, 0, kInf}), {0, -0.f, kNan, kInf}));
  CHECK(same(apply<float>(Code::floor_div, F{7, -7, 7, -7, 6, 1, -1}, F{3, 3, -3, -3, 3, 0, kInf}),
             {2, -3, -3, 2, 2, kNan, -1}));
  CHECK(same(apply<float>(Code::div, F{1, -1, 0}, F{0, 0, 0}), {kInf, -kInf, kNan}));
  // rounds once
  CHECK(same(apply<float>(Code::fma, F{1 + 0x1p-12f}, F{1 - 0x1p-12f}, F{-1}), {-0x1p-24f}));
  CHECK(same(apply<float>(Code::add, F{16777216.f}, F{1}), {16777216.f}));  // rounds the sum
  CHECK(same(apply<float>(Code::nextafter, F{0, 1, 1}, F{1, 2, 1}), {0x1p-149f, 1 + 0x1p-23f, 1}));
  CHECK(same(apply<float>(Code::rsqrt, F{4, 0}), {0.5f, kInf}));
  CHECK(apply<double>(Code::exp, D{1.0}) == D{std::exp(1.0)});
  CHECK(apply<float>(Code::exp, F{1}) == F{float(std::exp(1.0))});
  CHECK(apply<std::int32_t>(Code::bitcast, F{1}) == I{0x3f800000});
  CHECK_THROWS_AS(apply<double>(Code::bitcast, F{1}), Error);
  // 1 + 2^-8 is not a bf16; in f16, 2048 + 1 is halfway.
  CHECK(apply16(DType::bf16, Code::add, {{0x3f80}, {0x3b80}}) ==
        std::vector<std::uint16_t>{0x3f80});
  CHECK(apply16(DType::f16, Code::add, {{0x6800}, {0x3c00}}) == std::vector<std::uint16_t>{0x6800});
  CHECK(apply16(DType::f16, Code::mul, {{0x7bff}, {0x4000}}) == std::vector<std::uint16_t>{0x7c00});
  CHECK(apply16(DType::bf16, Code::nextafter,
                {{0x3f80, 0x0000, 0xbf80, 0x8000}, {0x4000, 0xbf80, 0x0000, 0x8000}}) ==
        std::vector<std::uint16_t>{0x3f81, 0x8001, 0xbf7f, 0x8000});
}

TEST_CASE("scalar: casts saturate, truncate and round once") {
  CHECK(apply<std::int32_t>(Code::cast, F{2.9f, -2.9f, 1e20f, -1e20f, kNan, kInf}) ==
        I{2, -2, kMost, kLeast, 0, kMost});
  CHECK(apply<std::int8_t>(Code::cast, F{200, -200, kNan}) == S{127, -128, 0});
  CHECK(apply<std::uint8_t>(Code::cast, F{300, -1, 7.5f}) == B{255, 0, 7});
  CHECK(apply<std::uint64_t>(Code::cast, D{1e30, -1, 0x1p63}) == W{~0ull, 0, 1ull << 63});
  CHECK(apply<std::int64_t>(Code::cast, D{0x1p63, -0x1p63}) == L{kMost64, kLeast64});
  CHECK(apply<std::int8_t>(Code::cast, I{300, -129}) == S{44, 127});
  CHECK(apply<std::uint32_t>(Code::cast, I{-1}) == U{~0u});
  CHECK(apply<std::int64_t>(Code::cast, U{~0u}) == L{4294967295});
  CHECK(apply<float>(Code::cast, W{~0ull}) == F{0x1p64f});
  // rounded once
  CHECK(apply<float>(Code::cast, L{(1ll << 54) + (1ll << 30) + 1}) == F{0x1.000002p54f});
  Bench b;
  F x{0, 0.5f, kNan, -0.f};
  B out(4, 9);
  View to{b.slot(out), DType::boolean, 0, {1}, {}};
  b.add(step_of(Fused{
      {4}, 0, {load_of(b.view(x, {1})), op(Code::cast, DType::boolean, {0}), store_of(1, to)}}));
  b.run();
  CHECK(out == B{0, 1, 1, 0});
}

TEST_CASE("fused: softmax over the inner dim runs in place") {
  F x{0, std::log(3.f), 5, 5};  // x (row 2, column 2)
  Bench b;
  auto v = b.view(x, {2, 1});
  Fused f{{2, 2}, 1, {}};
  f.code = {load_of(v),
            op(Code::reduce_max, DType::f32, {0}, false),
            op(Code::sub, DType::f32, {0, 1}),
            op(Code::exp, DType::f32, {2}),
            op(Code::reduce_sum, DType::f32, {3}, false),
            op(Code::div, DType::f32, {3, 4}),
            store_of(5, v)};
  b.add(step_of(f));
  b.run();
  CHECK(x[0] == doctest::Approx(0.25));
  CHECK(x[1] == doctest::Approx(0.75));
  CHECK(x[2] == 0.5f);
  CHECK(x[3] == 0.5f);
}

TEST_CASE("fused: all loads of a row come before its stores") {
  F x{1, 2}, y{10, 20};  // swaps the values
  Bench b;
  auto a = b.view(x, {1}), c = b.view(y, {1});
  b.add(step_of(
      Fused{{2},
            1,
            {load_of(a, false), store_of(0, c, false), load_of(c, false), store_of(2, a, false)}}));
  b.run();
  CHECK(x == F{10, 20});
  CHECK(y == F{1, 2});
}

TEST_CASE("fused: strides may be negative, zero, and leave gaps; iota; no elements at all") {
  F x{1, 2, 3, 4}, out(4, -1), untouched{7};
  Bench b;
  auto position = leaf(Code::iota, {});  // 10 + 100 * position
  position.dim = 0;
  position.stride = 100;
  position.integer = 10;
  auto to = b.view(out, {2});
  b.add(step_of(Fused{{2},
                      0,
                      {load_of(b.view(x, {-2}, 3)), position, op(Code::add, DType::f32, {0, 1}),
                       store_of(2, to)}}));
  b.add(step_of(Fused{{0, 3}, 1, {number(1), store_of(0, b.view(untouched, {1, 1}))}}));
  b.run();
  CHECK(out == F{14, -1, 112, -1});
  CHECK(untouched == F{7});
}

TEST_CASE("fused: reductions return values and positions") {
  auto reduce = [](Code code, F x) {
    F out(1, -1);
    I position(1, -1);
    Bench b;
    const bool arg = finds_position(code);
    auto to = arg ? b.view(position, {0}) : b.view(out, {0});
    auto folded = op(code, arg ? DType::i32 : DType::f32, {0}, false);
    b.add(step_of(Fused{
        {std::int64_t(x.size())}, 0, {load_of(b.view(x, {1})), folded, store_of(1, to, false)}}));
    b.run();
    return arg ? float(position[0]) : out[0];
  };
  CHECK(reduce(Code::reduce_sum, {1e8f, 1, -1e8f}) == 1);  // accumulates in doubles
  CHECK(reduce(Code::reduce_prod, {2, 3, 4}) == 24);
  CHECK(reduce(Code::reduce_max, {-3, -2, -5}) == -2);
  CHECK(reduce(Code::reduce_min, {3, 2, 5}) == 2);
  CHECK(std::isnan(reduce(Code::reduce_max, {1, kNan, 3})));
  CHECK(std::isnan(reduce(Code::reduce_min, {kNan, 1, 3})));
  CHECK(std::isnan(reduce(Code::reduce_sum, {kInf, -kInf})));
  CHECK(reduce(Code::reduce_argmax, {1, 4, 4, 2}) == 1);
  CHECK(reduce(Code::reduce_argmin, {3, 1, 1}) == 1);
  CHECK(reduce(Code::reduce_argmax, {9, kNan, 10, kNan}) == 1);
  CHECK(reduce(Code::reduce_argmin, {kNan, -10}) == 0);
  CHECK(reduce(Code::reduce_sum, {}) == 0);
  CHECK(reduce(Code::reduce_prod, {}) == 1);
  CHECK(reduce(Code::reduce_max, {}) == -kInf);
  CHECK(reduce(Code::reduce_argmax, {}) == 0);

  // An outer value counts once for each inner element; an 8-bit sum wraps around.
  B x{100}, out(1);
  Bench b;
  auto folded = op(Code::reduce_sum, DType::u8, {0}, false);
  b.add(step_of(Fused{
      {3}, 0, {load_of(b.view(x, {0}), false), folded, store_of(1, b.view(out, {0}), false)}}));
  b.run();
  CHECK(out == B{300 - 256});
}

TEST_CASE("fused: accumulating stores combine with the old values") {
  F x{1, 5, kNan, 2}, sum{10}, most{-kInf, 3}, least{0};
  Bench b;
  auto in = load_of(b.view(x, {1}), false);
  auto add = store_of(0, b.view(sum, {0}), false, Code::store_add),
       min = store_of(0, b.view(least, {0}), false, Code::store_min);
  b.add(step_of(Fused{{2}, 1, {in, add, min}}));
  b.add(step_of(Fused{{4}, 1, {in, store_of(0, b.view(most, {0}), false, Code::store_max)}}));
  b.run();
  CHECK(sum == F{16});
  CHECK(least == F{0});
  CHECK(same(most, {kNan, 3}));
}

TEST_CASE("contract: batches, transposed operands, accumulation and other dtypes are right") {
  // a (m 2, k 3), w (n 2, k 3), out (m 2, n 2)
  F a{1, 2, 3, 4, 5, 6}, w{1, 0, 2, 0, 1, 3}, out{100, 100, 100, 100};
  Contract c{{}, {2}, {2}, {3}, {}, {}, {}, false};
  for (bool accumulate : {false, true}) {
    Bench b;
    c.a = b.view(a, {3, 0, 1});
    c.b = b.view(w, {0, 3, 1});
    c.out = b.view(out, {2, 1, 0});
    c.accumulate = accumulate;
    b.add(step_of(c));
    b.run();
    F once{7, 11, 16, 23};
    for (std::size_t k = 0; k < 4; ++k) CHECK(out[k] == once[k] * (accumulate ? 2.f : 1.f));
  }
  {  // x (b 2, k 2), y (b 2, k 2) -> (b 2)
    S x{100, 100, -3, 4}, y{100, 100, 5, 6};
    I dot(2, -1);
    Bench b;
    b.add(step_of(Contract{
        {2}, {}, {}, {2}, b.view(x, {2, 1}), b.view(y, {2, 1}), b.view(dot, {1, 0}), false}));
    b.run();
    CHECK(dot == I{20000, 9});
  }
  {  // an empty sum is zero
    F none, zero{5};
    Bench b;
    b.add(step_of(Contract{{},
                           {1},
                           {1},
                           {0},
                           b.view(none, {0, 0, 1}),
                           b.view(none, {0, 0, 1}),
                           b.view(zero, {1, 1, 0}),
                           false}));
    b.run();
    CHECK(zero == F{0});
  }
}

TEST_CASE("gather: indices out of range follow the selected mode") {
  auto gather = [](Outside outside) {
    F table{1, 2, 3, 4, 5, 6}, out(10);  // table (v 3, e 2), out (5, e 2)
    I ids{2, -1, 3, -4, 0};
    Bench b;
    b.add(step_of(Gather{{5, 2},
                         b.view(table, {0, 1}),
                         b.view(out, {2, 1}),
                         {{b.view(ids, {1, 0}), 2, 3}},
                         outside}));
    b.run();
    return out;
  };
  CHECK(same(gather(Outside::fill), {5, 6, 5, 6, kNan, kNan, kNan, kNan, 1, 2}));
  CHECK(gather(Outside::clamp) == F{5, 6, 5, 6, 5, 6, 1, 2, 1, 2});
  CHECK(gather(Outside::zero) == F{5, 6, 5, 6, 0, 0, 0, 0, 1, 2});

  I table{1, 2, 3, 4}, out(2);  // two indexed axes at once
  U words{9}, filled(1);
  I row{1, 7}, column{0, 0};
  W high{~0ull};  // large, not -1
  Bench b;
  Indexed rows{b.view(row, {1}), 2, 2}, columns{b.view(column, {1}), 1, 2};
  b.add(step_of(Gather{{2}, b.view(table, {0}), b.view(out, {1}), {rows, columns}, Outside::fill}));
  b.add(step_of(Gather{
      {1}, b.view(words, {0}), b.view(filled, {1}), {{b.view(high, {1}), 1, 1}}, Outside::fill}));
  b.run();
  CHECK(out == I{3, kLeast});
  CHECK(filled == U{~0u});
}

TEST_CASE("scatter: duplicates apply in order, and updates out of range are dropped or clamped") {
  auto scatter = [](Update update, bool clamp = false) {
    F target{1, 1, 1}, updates{2, 3, 4, 5};
    I ids{0, 0, -1, 3};
    Bench b;
    b.add(step_of(Scatter{{4},
                          b.view(updates, {1}),
                          b.view(target, {0}),
                          {{b.view(ids, {1}), 1, 3}},
                          update,
                          clamp}));
    b.run();
    return target;
  };
  CHECK(scatter(Update::set) == F{3, 1, 4});
  CHECK(scatter(Update::add) == F{6, 1, 5});
  CHECK(scatter(Update::mul) == F{6, 1, 4});
  CHECK(scatter(Update::min) == F{1, 1, 1});
  CHECK(scatter(Update::max) == F{3, 1, 4});
  CHECK(scatter(Update::set, true) == F{3, 1, 5});

  F target{7}, updates{1, 2, 3};
  L far{kLeast64, kMost64, -2};
  Bench b;
  b.add(step_of(Scatter{{3},
                        b.view(updates, {1}),
                        b.view(target, {0}),
                        {{b.view(far, {1}), 1000, 1}},
                        Update::set,
                        false}));
  b.run();
  CHECK(target == F{7});
}

TEST_CASE("sort: stable, NaN last, along a strided dim, in place") {
  F x{3, kNan, 1, 0.f, 3, -0.f}, sorted(6);
  I order(6);
  Bench b;
  auto in = b.view(x, {1});
  b.add(step_of(Sort{{6}, in, {}, b.view(order, {1})}));
  b.add(step_of(Sort{{6}, in, in, {}}));
  b.run();
  CHECK(order == I{3, 5, 2, 0, 4, 1});  // 0 and -0 are equal
  CHECK(same(x, {0.f, -0.f, 1, 3, 3, kNan}));

  F parity(100);  // equal elements keep their order, even many of them
  I positions(100);
  for (std::size_t k = 0; k < 100; ++k) parity[k] = float(k % 2);
  Bench many;
  many.add(step_of(Sort{{100}, many.view(parity, {1}), {}, many.view(positions, {1})}));
  many.run();
  for (std::int32_t k = 0; k < 100; ++k)
    CHECK(positions[std::size_t(k)] == (k < 50 ? 2 * k : 2 * (k - 50) + 1));

  U columns{3, 5, ~0u, 1, 2, 6}, out(6);  // (row 3, column 2), sorted along row
  Bench c;
  c.add(step_of(Sort{{2, 3}, c.view(columns, {1, 2}), c.view(out, {1, 2}), {}}));
  c.run();
  CHECK(out == U{2, 1, 3, 5, ~0u, 6});
}

TEST_CASE("cumulative: both directions, every monoid") {
  auto run = [](Monoid m, bool reverse, F x) {
    Bench b;
    auto v = b.view(x, {1});
    b.add(step_of(Cumulative{{std::int64_t(x.size())}, v, v, m, reverse}));
    b.run();
    return x;
  };
  CHECK(run(Monoid::sum, false, {1, 2, 3}) == F{1, 3, 6});
  CHECK(run(Monoid::sum, true, {1, 2, 3}) == F{6, 5, 3});
  CHECK(run(Monoid::prod, false, {1, 2, 3, 4}) == F{1, 2, 6, 24});
  CHECK(same(run(Monoid::max, false, {1, 3, 2, kNan, 5}), {1, 3, 3, kNan, kNan}));
  CHECK(run(Monoid::min, true, {1, 3, 2}) == F{1, 2, 2});
}

TEST_CASE("conditional: its steps run if the flag of the iteration is true") {
  F out{0, 0, 0}, last{7};
  std::vector<std::uint8_t> flags{1, 0, 1}, never{0};
  Bench b;
  b.program.loops = 1;
  auto one = leaf(Code::constant, {}, false);
  one.dtype = DType::f32;
  one.number = 1;
  auto to = b.view(out, {});
  to.terms = {{.loop = 0, .stride = 1}};
  View flag{b.slot(flags), DType::boolean, 0, {}, {{.loop = 0, .stride = 1}}};
  Step add = step_of(Fused{{}, 0, {one, store_of(0, to, false, Code::store_add)}});
  Step skipped = step_of(Fused{{}, 0, {one, store_of(0, b.view(last, {}), false)}});
  b.add(step_of(Loop{.variable = 0, .trips = 3}, {step_of(Conditional{flag}, {add}), add}));
  b.add(step_of(Conditional{{b.slot(never), DType::boolean, 0, {}, {}}}, {skipped}));
  b.run();
  CHECK(out == F{2, 1, 2});
  CHECK(last == F{7});
}

TEST_CASE("loop: nested and reversed, with offsets from loop indices and from memory") {
  // out[i][j] = i * 10 + j for i in 0..1, j in 2..0, and a log of the order of iterations.
  F out(6, -1), log(6, -1);
  I iterations{0};
  Bench b;
  b.program.loops = 2;
  auto value = leaf(Code::iota, {}, false);
  value.view.terms = {{.loop = 0, .stride = 10}, {.loop = 1, .stride = 1}};
  auto to = b.view(out, {}), log_to = b.view(log, {}), counter = b.view(iterations, {});
  to.terms = {{.loop = 0, .stride = 3}, {.loop = 1, .stride = 1}};
  log_to.terms = {{.slot = counter.slot, .slot_dtype = DType::i32, .limit = 5, .stride = 1}};
  auto one = leaf(Code::constant, {}, false);
  one.dtype = DType::i32;
  one.integer = 1;
  Step set = step_of(Fused{{}, 0, {value, store_of(0, to, false), store_of(0, log_to, false)}});
  Step tick = step_of(Fused{{}, 0, {one, store_of(0, counter, false, Code::store_add)}});
  Step inner = step_of(Loop{.variable = 1, .trips = 3, .reverse = true}, {set, tick});
  b.add(step_of(Loop{.variable = 0, .trips = 2}, {inner}));
  b.run();
  CHECK(out == F{0, 1, 2, 10, 11, 12});
  CHECK(log == F{2, 1, 0, 12, 11, 10});
  CHECK(iterations == I{6});

  F x{1, 2, 3, 4}, slice(6);  // a start in memory is clamped to [0, limit]
  I starts{-5, 1, 99};
  Bench c;
  int at = c.slot(starts);
  auto from = c.view(x, {1}), dense = c.view(slice, {1});
  for (std::int64_t k = 0; k < 3; ++k) {
    from.terms = {
        {.slot = at, .slot_dtype = DType::i32, .slot_offset = k, .limit = 2, .stride = 1}};
    dense.offset = 2 * k;
    c.add(step_of(Copy{{2}, from, dense}));
  }
  c.run();
  CHECK(slice == F{1, 2, 2, 3, 3, 4});
}

TEST_CASE("slots: results, the arena, and aliases of both resolve to the right memory") {
  F argument{1, 2}, result(2);
  Program p;
  p.arguments = 1;
  p.results = 2;
  p.arena_bytes = 128;
  auto slot = [&](Home home, int index, std::int64_t offset, int alias) {
    Slot s;
    s.bytes = 8;
    s.home = home;
    s.index = index;
    s.offset = offset;
    s.alias = alias;
    p.slots.push_back(s);
    return View{int(p.slots.size()) - 1, DType::f32, 0, {1}, {}};
  };
  auto in = slot(Home::argument, 0, -1, -1), middle = slot(Home::arena, -1, 64, -1),
       middle_alias = slot(Home::arena, -1, -1, 1);
  auto out = slot(Home::result, 0, -1, -1), donated = slot(Home::result, 1, -1, 0);
  auto doubled = [&](const View& x, const View& y) {
    return step_of(Fused{{2}, 0, {load_of(x), op(Code::add, DType::f32, {0, 0}), store_of(1, y)}});
  };
  p.steps = {doubled(in, middle), doubled(middle_alias, middle_alias), doubled(middle, out),
             doubled(out, donated)};
  alignas(64) std::byte arena[128];
  auto run = [&] {
    auto executable = reference::make_reference_device()->compile(std::make_shared<Program>(p));
    executable->run({argument.data()}, {result.data(), nullptr}, arena, nullptr);
  };
  run();
  CHECK(result == F{8, 16});
  CHECK(argument == F{16, 32});  // result 1 has the memory of the argument
  float stored[2];
  std::memcpy(stored, arena + 64, 8);
  CHECK(stored[1] == 8);

  p.steps[0].fused.code[0].view.offset = 1;  // one element past the end
  CHECK_THROWS_AS(run(), Error);
  p.steps[0].fused.code[0].view.offset = 0;
  p.slots[0].alias = 4;  // a cycle
  CHECK_THROWS_AS(run(), Error);
}

TEST_CASE("collective: the communicator receives the addresses that the terms specify") {
  struct Recorder : Communicator {
    void run(const Collective& c, const void* const* x, void* const* out, void*,
             std::int64_t) override {
      for (std::int64_t k = 0; k < c.x[0].dims[0]; ++k)
        static_cast<float*>(out[0])[k] = 2 * static_cast<const float*>(x[0])[k];
    }
    void fail(const char*) override {}
  } recorder;
  F x{1, 2, 3, 4}, out(2);
  Bench b;
  Collective c;
  c.x = {{{2}, b.view(x, {1}, 2)}};
  c.out = {{{2}, b.view(out, {1})}};
  b.add(step_of(c));
  CHECK_THROWS_AS(b.run(), Error);
  b.run(&recorder);
  CHECK(out == F{6, 8});
}
