// The CPU backend against the reference: every kind of step, dtype and layout, on random programs.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "allocations.h"
#include "backends/cpu/cpu.h"
#include "backends/reference/reference.h"
#include "base/scalar.h"
#include "haliax/error.h"
#include "support/product.h"

namespace {

using namespace haliax;
using namespace haliax::program;

using Bytes = std::vector<std::byte>;
constexpr DType all_dtypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i8,  DType::i16,    DType::i32,
                                DType::i64, DType::u8,  DType::u16,  DType::u32, DType::u64, DType::boolean};

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(n)); }
  double normal() { return std::normal_distribution<double>()(engine_); }
  bool coin() { return below(2) == 0; }
  template <class T>
  const T& pick(const std::vector<T>& from) {
    return from[static_cast<std::size_t>(below(static_cast<std::int64_t>(from.size())))];
  }

 private:
  std::mt19937_64 engine_;
};

// A program with arguments and results only, and what goes in.
struct Case {
  Program program;
  std::vector<Bytes> arguments, results;
  std::vector<DType> argument_dtypes, result_dtypes;
  Random random;

  explicit Case(unsigned seed) : random(seed) {}
  int slot(bool result, DType dtype, std::int64_t elements) {
    Slot s;
    s.bytes = elements * bytes_of(dtype);
    s.home = result ? Home::result : Home::argument;
    s.index = result ? program.results++ : program.arguments++;
    program.slots.push_back(s);
    (result ? program.result_slots : program.argument_slots).push_back(static_cast<int>(program.slots.size()) - 1);
    Bytes bytes(static_cast<std::size_t>(s.bytes));
    fill(bytes, dtype);
    (result ? results : arguments).push_back(bytes);
    (result ? result_dtypes : argument_dtypes).push_back(dtype);
    return static_cast<int>(program.slots.size()) - 1;
  }
  void fill(Bytes& bytes, DType dtype) {
    for (std::size_t i = 0; i < bytes.size(); i += static_cast<std::size_t>(bytes_of(dtype)))
      scalar::store(dtype, &bytes[i],
                    scalar::rounded(dtype, {random.normal(), random.below(19) - (scalar::is_unsigned(dtype) ? 0 : 9)}));
  }
  // A view of dims with a random layout, over a slot of its own. Broadcast dims only where they are read.
  enum Layout { dense, permuted, gaps, negative, broadcast };
  View view(bool result, DType dtype, const Dims& dims, Layout layout) {
    View v;
    v.dtype = dtype;
    v.strides.assign(dims.size(), 0);
    std::vector<std::size_t> order;
    for (std::size_t d = 0; d < dims.size(); ++d) order.push_back(d);
    if (layout == permuted || layout == gaps)
      std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(random.below(1 << 30))));
    std::int64_t next = 1, low = 0, high = 0;
    for (std::size_t i = order.size(); i-- > 0;) {
      const std::size_t d = order[i];
      if (layout == broadcast && random.coin()) continue;
      v.strides[d] = next;
      next = next * dims[d] + (layout == gaps ? random.below(3) : 0);
      if (layout == negative && random.coin()) v.strides[d] = -v.strides[d];
      (v.strides[d] < 0 ? low : high) += v.strides[d] * std::max<std::int64_t>(0, dims[d] - 1);
    }
    v.offset = -low + random.below(3);
    v.slot = slot(result, dtype, v.offset + high + 1);
    return v;
  }
  View any_view(bool result, DType dtype, const Dims& dims) {
    return view(result, dtype, dims, static_cast<Layout>(random.below(result ? 4 : 5)));
  }
  Step& add(Kind kind) {
    program.steps.emplace_back();
    program.steps.back().kind = kind;
    return program.steps.back();
  }
  std::vector<Bytes> run(Device& device, std::vector<Bytes>* arguments_after = nullptr) const {
    auto executable = device.compile(std::make_shared<const Program>(program));
    std::vector<Bytes> in = arguments, out = results;
    std::vector<void*> in_pointers, out_pointers;
    for (Bytes& b : in) in_pointers.push_back(b.data());
    for (Bytes& b : out) out_pointers.push_back(b.data());
    const auto size = static_cast<std::size_t>((program.arena_bytes + 127) / 64 * 64);
    const std::unique_ptr<void, decltype(&std::free)> arena(std::aligned_alloc(64, size), &std::free);  // run may raise
    executable->run(in_pointers, out_pointers, arena.get(), nullptr);
    if (arguments_after) *arguments_after = in;
    return out;
  }
};

double tolerance(DType dtype) {
  return dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 2e-5 : dtype == DType::bf16 ? 2e-2 : dtype == DType::f16 ? 3e-3 : 0;
}
// Empty when near enough.
std::string difference(DType dtype, const Bytes& got, const Bytes& want, double tol) {
  for (std::size_t i = 0; i < got.size(); i += static_cast<std::size_t>(bytes_of(dtype))) {
    const auto x = scalar::load(dtype, &got[i]), y = scalar::load(dtype, &want[i]);
    bool same = is_float(dtype) ? (x.real == y.real || (x.real != x.real && y.real != y.real) ||
                                   std::abs(x.real - y.real) <= tol * (1 + std::abs(y.real)))
                                : x.whole == y.whole;
    if (!same)
      return std::string(name_of(dtype)) + " element " + std::to_string(i / static_cast<std::size_t>(bytes_of(dtype))) + ": " +
             (is_float(dtype) ? std::to_string(x.real) + " for " + std::to_string(y.real)
                              : std::to_string(x.whole) + " for " + std::to_string(y.whole));
  }
  return "";
}
void compare(const Case& c, double scale = 1) {
  auto cpu_device = cpu::make_cpu_device();
  auto reference_device = reference::make_reference_device();
  const auto got = c.run(*cpu_device), want = c.run(*reference_device);
  for (std::size_t r = 0; r < want.size(); ++r) {
    const std::string text = difference(c.result_dtypes[r], got[r], want[r], scale * tolerance(c.result_dtypes[r]));
    INFO("result ", r);
    CHECK(text == "");
  }
}
// The same bits for 1, 2 and 4 threads.
void same_bits(const Case& c) {
  std::vector<Bytes> first;
  for (int count : {1, 2, 4}) {
    cpu::set_threads(count);
    const auto got = c.run(*cpu::make_cpu_device());
    if (first.empty()) first = got;
    CHECK(got == first);
  }
  cpu::set_threads(0);
}

Instr leaf(Code code, DType dtype, bool inner = false) {
  Instr i;
  i.code = code;
  i.dtype = dtype;
  i.inner = inner;
  return i;
}
Instr load(const View& v, bool inner = false) {
  Instr i = leaf(Code::load, v.dtype, inner);
  i.view = v;
  return i;
}
Instr op(Code code, DType dtype, std::initializer_list<int> args, bool inner = false) {
  Instr i = leaf(code, dtype, inner);
  int k = 0;
  for (int a : args) i.args[k++] = a;
  return i;
}
Instr store(const View& v, int value, bool inner = false, Code code = Code::store) {
  Instr i = op(code, v.dtype, {value}, inner);
  i.view = v;
  return i;
}
Instr constant(DType dtype, double number, bool inner = false) {
  Instr i = leaf(Code::constant, dtype, inner);
  i.number = number;
  i.integer = static_cast<std::int64_t>(number);
  return i;
}
Dims random_dims(Random& random, int most, std::int64_t largest) {
  Dims dims;
  for (std::int64_t d = 1 + random.below(most); d > 0; --d) dims.push_back(1 + random.below(largest));
  auto points = [&] { return std::accumulate(dims.begin(), dims.end(), std::int64_t(1), std::multiplies<>()); };
  while (points() > 1 << 16) *std::max_element(dims.begin(), dims.end()) /= 2;  // the reference is slow
  return dims;
}

// --- fused ---

// clang-format off
const std::vector<double> special = {
    0.0, -0.0, 1, -1, 0.5, -0.5, 2, -2.5, 3.5, 1e-3, -1e-3, 1e-7, 1e-30, -1e-30, 1e-40, 20, -20, 80, -80, 88.7, 89.5, -87.5,
    -103.9, -105, 1e4, -1e4, 1e30, -1e30, 3e38, 127.9, 255, 256, -129, 65504, 70000, 2147483647, -2147483648., 4294967295.,
    1e19, -1e19, std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
    std::numeric_limits<double>::quiet_NaN(), 0.999999, -0.999999, 0.7, 0.35, -0.35, 0.3465, 5.9, 9.1, -9.1, 1.5, -1.5, 2.5};
// clang-format on

void put_special(Case& c, std::size_t argument, std::size_t turn) {
  const DType dtype = c.argument_dtypes[argument];
  Bytes& bytes = c.arguments[argument];
  const std::size_t n = bytes.size() / static_cast<std::size_t>(bytes_of(dtype));
  for (std::size_t i = 0; i < n; ++i) {
    const double x = special[(i / turn) % special.size()];
    scalar::store(dtype, &bytes[i * static_cast<std::size_t>(bytes_of(dtype))], scalar::cast({x, 0}, DType::f64, dtype));
  }
}

bool is_defined(Code code, DType dtype) {
  const bool floats = (code >= Code::exp && code <= Code::erf) || code == Code::erfinv || code == Code::lgamma ||
                      code == Code::digamma || code == Code::atan2 || code == Code::nextafter;
  const bool integers = code == Code::bit_not || code == Code::popcount || (code >= Code::bit_and && code <= Code::shift_right);
  const bool half = dtype == DType::bf16 || dtype == DType::f16;
  if (dtype == DType::boolean)
    return code == Code::logical_not || code == Code::bit_not || (code >= Code::less && code <= Code::bit_xor) ||
           code == Code::max || code == Code::min;
  if (code == Code::nextafter && half) return false;
  return is_float(dtype) ? !integers : !floats;
}

TEST_CASE("cpu: every point-wise code on special values") {
  const std::int64_t n = static_cast<std::int64_t>(special.size() * special.size());
  for (int k = static_cast<int>(Code::neg); k <= static_cast<int>(Code::shift_right); ++k) {
    const Code code = static_cast<Code>(k);
    if (code == Code::bitcast) continue;
    for (DType dtype : all_dtypes) {
      if (!is_defined(code, dtype)) continue;
      Case c(1);
      const View a = c.view(false, dtype, {n}, Case::dense), b = c.view(false, dtype, {n}, Case::dense);
      put_special(c, 0, 1);
      put_special(c, 1, special.size());
      const bool test = (code >= Code::less && code <= Code::not_equal) || (code >= Code::is_finite && code <= Code::is_inf) ||
                        code == Code::logical_not;
      const DType result = test ? DType::boolean : dtype;
      const View out = c.view(true, result, {n}, Case::dense);
      auto& f = c.add(Kind::fused).fused;
      f.dims = {n};
      f.outer = 1;
      f.code = {load(a), load(b), code < Code::add ? op(code, result, {0}) : op(code, result, {0, 1}), store(out, 2)};
      INFO("code ", k, " ", std::string(name_of(dtype)));
      const auto got = c.run(*cpu::make_cpu_device())[0], want = c.run(*reference::make_reference_device())[0];
      // Functions may be off by units in the last place, sums of the gamma family a little more; the rest is exact.
      const bool exact = !(code >= Code::exp && code <= Code::digamma && code != Code::sqrt) && code != Code::pow &&
                         code != Code::atan2 && code != Code::floor_div;
      const double ulp = dtype == DType::f64 ? 1e-13 : dtype == DType::f32 ? 3e-7 : dtype == DType::bf16 ? 8e-3 : 1e-3;
      int shown = 0;
      for (std::size_t i = 0; i < static_cast<std::size_t>(n) && shown < 3; ++i) {
        const std::size_t at = i * static_cast<std::size_t>(bytes_of(result));
        const auto x = scalar::load(result, &got[at]), y = scalar::load(result, &want[at]);
        bool same = x.whole == y.whole;
        if (is_float(result)) {
          const double tiny = dtype == DType::f64 ? 1e-300 : dtype == DType::f16 ? 6e-8 : 1e-38;
          const double slack = exact ? 0
                                     : (code == Code::lgamma || code == Code::digamma ? 20
                                        : code == Code::erfinv                        ? 4
                                                                                      : 1) *
                                           ulp;
          same = x.real == y.real || (x.real != x.real && y.real != y.real) ||
                 std::abs(x.real - y.real) <= slack * std::abs(y.real) + (exact ? 0 : tiny) ||
                 (code == Code::lgamma && std::abs(x.real - y.real) <= 1e-6);
        }
        if (same) continue;
        const auto p = scalar::load(dtype, &c.arguments[0][i * static_cast<std::size_t>(bytes_of(dtype))]);
        const auto q = scalar::load(dtype, &c.arguments[1][i * static_cast<std::size_t>(bytes_of(dtype))]);
        ++shown;
        INFO(p.real, " ", p.whole, " with ", q.real, " ", q.whole, " gives ", x.real, " ", x.whole, " for ", y.real, " ",
             y.whole);
        CHECK(same);
      }
    }
  }
}

TEST_CASE("cpu: casts and bitcasts between all dtypes") {
  const std::int64_t n = static_cast<std::int64_t>(special.size());
  for (DType from : all_dtypes)
    for (DType to : all_dtypes)
      for (Code code : {Code::cast, Code::bitcast}) {
        if (code == Code::bitcast && (bytes_of(from) != bytes_of(to) || to == DType::boolean)) continue;
        Case c(2);
        const View a = c.view(false, from, {n}, Case::dense), out = c.view(true, to, {n}, Case::dense);
        put_special(c, 0, 1);
        auto& f = c.add(Kind::fused).fused;
        f.dims = {n};
        f.outer = 1;
        f.code = {load(a), op(code, to, {0}), store(out, 1)};
        INFO(std::string(name_of(from)), " to ", std::string(name_of(to)));
        CHECK(difference(to, c.run(*cpu::make_cpu_device())[0], c.run(*reference::make_reference_device())[0], 0) == "");
      }
}

TEST_CASE("cpu: functions that random numbers go through give the bits of the reference") {
  const std::int64_t n = 1 << 16;
  for (Code code : {Code::log1p, Code::erfinv, Code::floor_div}) {
    Case c(4);
    const View x = c.view(false, DType::f32, {n}, Case::dense), out = c.view(true, DType::f32, {n}, Case::dense);
    for (std::int64_t i = 0; i < n; ++i) {  // from tiny to 1, of both signs
      const double y = (i % 2 ? -1 : 1) * std::pow(2.0, -static_cast<double>(i % 977) / 40) * (1 - 1e-7 * c.random.normal());
      scalar::store(DType::f32, &c.arguments[0][static_cast<std::size_t>(x.offset + i) * 4], {y, 0});
    }
    auto& f = c.add(Kind::fused).fused;
    f.dims = {n};
    f.outer = 1;
    f.code = {load(x), constant(DType::f32, std::numeric_limits<double>::infinity()),
              code == Code::floor_div ? op(code, DType::f32, {0, 1}) : op(code, DType::f32, {0}), store(out, 2)};
    const auto got = c.run(*cpu::make_cpu_device())[0];
    CHECK(difference(DType::f32, got, c.run(*reference::make_reference_device())[0], 0) == "");
    if (code == Code::floor_div)
      CHECK(scalar::load(DType::f32, &got[static_cast<std::size_t>(out.offset + 1) * 4]).real == -1);  // -x / infinity
  }
}

// What is written over in place must have the same width: chains that widen and narrow, in tiles of any size.
TEST_CASE("cpu: chains of mixed widths, point by point, in rows and in columns") {
  const std::vector<DType> lanes = {DType::f32, DType::f64, DType::i32, DType::u32, DType::i64, DType::u64, DType::boolean};
  for (DType from : lanes)
    for (DType to : lanes)
      for (std::int64_t n : {1, 2, 3, 4, 7, 40, 1100})
        for (int mode = 0; mode < 3; ++mode) {
          Case c(3);
          const bool inner = mode > 0;
          View x = c.view(false, from, {2, n}, Case::dense), y = c.view(false, from, {2, n}, Case::dense);
          View out = c.view(true, to, {2, n}, Case::dense);
          if (mode == 2) x.strides = y.strides = out.strides = {1, 2};
          auto& f = c.add(Kind::fused).fused;
          f.dims = {2, n};
          f.outer = inner ? 1 : 2;
          // x < y (as `to`) + max(x, y) (as `to`), then max(...) == x picks one of the two
          f.code = {load(x, inner),
                    load(y, inner),
                    op(Code::less, DType::boolean, {0, 1}, inner),
                    op(Code::cast, to, {2}, inner),
                    op(Code::max, from, {0, 1}, inner),
                    op(Code::equal, DType::boolean, {4, 0}, inner),
                    op(Code::cast, to, {4}, inner),
                    op(Code::select, to, {5, 6, 3}, inner),
                    op(Code::max, to, {3, 7}, inner),
                    store(out, 8, inner)};
          if (inner) {
            View best = c.view(true, to, {2}, Case::dense);
            best.strides.push_back(0);
            f.code.push_back(op(Code::reduce_max, from, {0}));
            f.code.push_back(op(Code::equal, DType::boolean, {0, 10}, true));
            f.code.push_back(op(Code::cast, to, {11}, true));
            f.code.push_back(op(Code::reduce_max, to, {12}));
            f.code.push_back(store(best, 13));
          }
          INFO(std::string(name_of(from)), " to ", std::string(name_of(to)), " of ", n, " in mode ", mode);
          compare(c);
        }
}

// Smooth codes only: errors stay small through a chain.
Code random_code(Random& random, DType dtype) {
  static const std::vector<Code> both = {Code::add, Code::sub, Code::mul, Code::max,   Code::min,
                                         Code::neg, Code::abs, Code::fma, Code::select};
  static const std::vector<Code> floats = {Code::tanh, Code::sin, Code::erf};
  return is_float(dtype) && random.below(4) == 0 ? random.pick(floats) : random.pick(both);
}

// A chain over random operands, with reductions when there are inner dims.
void random_fused(Case& c, const Dims& dims, int outer, DType dtype, int length) {
  auto& random = c.random;
  const Dims outer_dims(dims.begin(), dims.begin() + outer);
  std::vector<Instr> code;
  std::vector<int> values;  // of dtype
  auto inner = [&](int v) { return code[static_cast<std::size_t>(v)].inner; };
  auto push = [&](Instr i) {
    code.push_back(i);
    return static_cast<int>(code.size()) - 1;
  };
  const bool has_inner = outer < static_cast<int>(dims.size());
  auto outer_view = [&](bool result) {
    View v = c.any_view(result, dtype, outer_dims);
    v.strides.resize(dims.size(), 0);
    return v;
  };
  for (int k = 0; k < 3; ++k) {
    const bool in = has_inner && (k == 0 || random.coin());
    values.push_back(push(in ? load(c.any_view(false, dtype, dims), true) : load(outer_view(false))));
  }
  values.push_back(push(constant(dtype, 0.5 + static_cast<double>(random.below(3)))));
  for (int k = 0; k < length; ++k) {
    if (has_inner && random.below(4) == 0) {
      const int v = random.pick(values);
      if (inner(v)) {
        const std::vector<Code> reductions = {Code::reduce_sum, Code::reduce_max, Code::reduce_min};
        int r = push(op(random.pick(reductions), dtype, {v}));
        if (is_float(dtype)) r = push(op(Code::tanh, dtype, {r}));  // small again
        values.push_back(r);
        continue;
      }
    }
    const Code what = random_code(random, dtype);
    const int a = random.pick(values), b = random.pick(values), d = random.pick(values);
    const bool in = inner(a) || inner(b) || inner(d);
    if (what == Code::select) {
      const int test = push(op(Code::less, DType::boolean, {values[0], values[1]}, inner(values[0]) || inner(values[1])));
      values.push_back(push(op(what, dtype, {test, a, b}, in || inner(test))));
    } else if (what == Code::fma) {
      values.push_back(push(op(what, dtype, {a, b, d}, in)));
    } else if (what == Code::neg || what == Code::abs || what == Code::tanh || what == Code::sin || what == Code::erf) {
      values.push_back(push(op(what, dtype, {a}, inner(a))));
    } else {
      values.push_back(push(op(what, dtype, {a, b}, inner(a) || inner(b))));
    }
    if (is_float(dtype) && what == Code::mul) values.back() = push(op(Code::tanh, dtype, {values.back()}, inner(values.back())));
  }
  if (has_inner) {
    values.push_back(push(op(Code::add, dtype, {values.back(), values[0]}, true)));
    push(store(c.any_view(true, dtype, dims), values.back(), true));
    const int sum = push(op(Code::reduce_max, dtype, {values.back()}));
    push(store(outer_view(true), sum, false, random.coin() ? Code::store : Code::store_max));
  } else {
    push(store(outer_view(true), values.back(), false, random.coin() ? Code::store : Code::store_add));
  }
  auto& f = c.add(Kind::fused).fused;
  f.dims = dims;
  f.outer = outer;
  f.code = code;
}

TEST_CASE("cpu: random fused programs") {
  for (unsigned seed = 0; seed < 400; ++seed) {
    Case c(seed);
    auto dims = random_dims(c.random, 4, seed % 5 == 0 ? 40 : 9);
    const DType dtype = all_dtypes[c.random.below(12)];
    const int outer = static_cast<int>(c.random.below(static_cast<std::int64_t>(dims.size()) + 1));
    random_fused(c, dims, outer, dtype, 1 + static_cast<int>(c.random.below(8)));
    INFO("seed ", seed, " ", std::string(name_of(dtype)), " outer ", outer, " of ", dims.size());
    compare(c, is_float(dtype) ? 8 : 1);
  }
}

TEST_CASE("cpu: random fused programs over long rows and columns, with the same bits for any number of threads") {
  const std::vector<Dims> shapes = {{3, 5000}, {5000, 3}, {1, 70000}, {70000, 1}, {40, 900}, {900, 40}, {2, 300, 70}};
  for (unsigned seed = 0; seed < 42; ++seed) {
    Case c(seed);
    const Dims& dims = shapes[seed % shapes.size()];
    const DType dtype = seed % 4 == 0 ? DType::bf16 : seed % 4 == 1 ? DType::i32 : DType::f32;
    random_fused(c, dims, seed % 3 == 0 ? static_cast<int>(dims.size()) : 1, dtype, 6);
    INFO("seed ", seed);
    compare(c, 8);
    same_bits(c);
  }
}

// Rows that must be worked on in lanes: the outer dimension is the contiguous one.
TEST_CASE("cpu: reductions over strided dimensions") {
  for (auto [m, n] : {std::pair<std::int64_t, std::int64_t>{7, 5}, {300, 700}, {3000, 33}, {9000, 300}}) {
    for (DType dtype : {DType::f32, DType::f64, DType::i32}) {
      Case c(5);
      View x = c.view(false, dtype, {m, n}, Case::dense);
      x.strides = {1, n};  // dims (n, m)
      View out = c.view(true, dtype, {n}, Case::dense), best = c.view(true, DType::i32, {n}, Case::dense);
      out.strides.push_back(0);
      best.strides.push_back(0);
      auto& f = c.add(Kind::fused).fused;
      f.dims = {n, m};
      f.outer = 1;
      f.code = {load(x, true), op(Code::reduce_sum, dtype, {0}), op(Code::reduce_argmax, DType::i32, {0}), store(out, 1),
                store(best, 2)};
      compare(c);
      if (m == 3000) same_bits(c);
    }
  }
}

TEST_CASE("cpu: softmax, layer norm") {
  for (std::int64_t n : {1, 5, 64, 768, 5000, 30000}) {
    Case c(7);
    const View x = c.view(false, DType::f32, {6, n}, Case::dense), y = c.view(true, DType::f32, {6, n}, Case::dense);
    const View z = c.view(true, DType::f32, {6, n}, Case::dense);
    auto& f = c.add(Kind::fused).fused;
    f.dims = {6, n};
    f.outer = 1;
    const DType t = DType::f32;
    f.code = {load(x, true), op(Code::reduce_max, t, {0}), op(Code::sub, t, {0, 1}, true), op(Code::exp, t, {2}, true),
              op(Code::reduce_sum, t, {3}), op(Code::div, t, {3, 4}, true), store(y, 5, true),
              op(Code::reduce_sum, t, {0}), constant(t, static_cast<double>(n)), op(Code::div, t, {7, 8}),
              op(Code::sub, t, {0, 9}, true), op(Code::mul, t, {10, 10}, true), op(Code::reduce_sum, t, {11}),
              op(Code::div, t, {12, 8}), constant(t, 1e-5), op(Code::add, t, {13, 14}), op(Code::rsqrt, t, {15}),
              op(Code::mul, t, {10, 16}, true), store(z, 17, true)};
    compare(c);
    same_bits(c);
  }
}

TEST_CASE("cpu: a sum of 40 million elements is exact to 1e-6") {
  Case c(8);
  const std::int64_t n = 40'000'000;
  View x;
  x.dtype = DType::f32;
  x.strides = {1};
  x.slot = c.slot(false, DType::f32, 0);
  c.program.slots[0].bytes = n * 4;
  c.arguments[0].resize(static_cast<std::size_t>(n) * 4);
  float* p = reinterpret_cast<float*>(c.arguments[0].data());
  double want = 0;
  for (std::int64_t i = 0; i < n; ++i) want += p[i] = 0.1f + 1e-3f * static_cast<float>(i % 1000);
  View out = c.view(true, DType::f32, {}, Case::dense);
  out.strides = {0};
  auto& f = c.add(Kind::fused).fused;
  f.dims = {n};
  f.outer = 0;
  f.code = {load(x, true), op(Code::reduce_sum, DType::f32, {0}), store(out, 1)};
  const auto got = c.run(*cpu::make_cpu_device());
  const double sum = scalar::load(DType::f32, &got[0][static_cast<std::size_t>(out.offset) * 4]).real;
  CHECK(std::abs(sum - want) <= 1e-6 * want);
}

TEST_CASE("cpu: empty dimensions") {
  for (Dims dims : {Dims{0, 3}, Dims{3, 0}, Dims{0}}) {
    Case c(9);
    const bool two = dims.size() == 2;
    View x = c.view(false, DType::f32, dims, Case::dense), out = c.view(true, DType::f32, {3}, Case::dense);
    out.strides.resize(dims.size(), 0);
    auto& f = c.add(Kind::fused).fused;
    f.dims = dims;
    f.outer = two ? 1 : 0;
    f.code = {load(x, true), op(Code::reduce_max, DType::f32, {0}), store(out, 1)};
    compare(c);
  }
  // Nothing to sum, and nothing to read either: the view begins behind the end of its slot.
  Case c(10);
  View x = c.view(false, DType::f32, {3}, Case::dense), out = c.view(true, DType::f32, {}, Case::dense);
  x.strides = out.strides = {0};
  x.offset = 1 << 30;
  auto& f = c.add(Kind::fused).fused;
  f.dims = {0};
  f.outer = 0;
  f.code = {load(x), op(Code::reduce_sum, DType::f32, {0}), store(out, 1)};
  compare(c);
}

TEST_CASE("cpu: iota, loops and terms") {
  Case c(10);
  const std::int64_t n = 37;
  const View table = c.view(false, DType::f32, {6, n}, Case::dense);
  View start = c.view(false, DType::i32, {}, Case::dense);
  for (std::size_t i = 0; i < c.arguments[1].size(); i += 4)
    scalar::store(DType::i32, &c.arguments[1][i], {0, 77});  // beyond the limit
  const View out = c.view(true, DType::f32, {6, n}, Case::dense), last = c.view(true, DType::f32, {n}, Case::dense);
  c.program.loops = 2;
  auto& loop = c.add(Kind::loop).loop;
  loop.variable = 0;
  loop.trips = 6;
  loop.reverse = true;
  Step body;
  body.kind = Kind::fused;
  body.fused.dims = {n};
  body.fused.outer = 1;
  View row = table, to = out, dynamic = table;
  row.strides = to.strides = dynamic.strides = {1};
  Term turn;
  turn.loop = 0;
  turn.stride = n;
  row.terms = to.terms = {turn};
  Term scalar_term;
  scalar_term.slot = start.slot;
  scalar_term.slot_offset = start.offset;
  scalar_term.limit = 5;
  scalar_term.stride = n;
  dynamic.terms = {scalar_term};
  Instr position = leaf(Code::iota, DType::f32);
  position.dim = 0;
  position.stride = 3;
  position.integer = 2;
  position.view.terms = {turn};
  body.fused.code = {load(row),
                     position,
                     op(Code::add, DType::f32, {0, 1}),
                     load(dynamic),
                     op(Code::add, DType::f32, {2, 3}),
                     store(to, 4),
                     store(last, 4, false, Code::store_add)};
  loop.body.push_back(body);
  compare(c);
}

TEST_CASE("cpu: results may take the place of operands") {
  for (bool direct : {false, true}) {
    const std::int64_t n = 5000;
    Case c(11);
    const View p = c.view(false, DType::f32, {n}, Case::dense), q = c.view(false, DType::f32, {n}, Case::dense);
    View p_out = p, q_out = q;
    auto& f = c.add(Kind::fused).fused;
    f.dims = {n};
    f.outer = 1;
    // p, q = q, p + q (direct: p, q = q, p)
    if (direct)
      f.code = {load(p), load(q), store(p_out, 1), store(q_out, 0)};
    else
      f.code = {load(p), load(q), op(Code::add, DType::f32, {0, 1}), store(p_out, 1), store(q_out, 2)};
    std::vector<Bytes> got, want;
    c.run(*cpu::make_cpu_device(), &got);
    c.run(*reference::make_reference_device(), &want);
    CHECK(got == want);
  }
}

// --- contractions ---

void random_contract(Case& c, Dims batch, Dims m, Dims n, Dims k, DType in, DType out, bool accumulate, bool dense) {
  auto& k_step = c.add(Kind::contract).contract;
  k_step.batch = batch, k_step.m = m, k_step.n = n, k_step.k = k;
  k_step.accumulate = accumulate;
  auto view = [&](bool result, DType dtype, bool has_m, bool has_n, bool has_k) {
    Dims dims = batch;
    auto add = [&](const Dims& d, bool has) {
      if (has) dims.insert(dims.end(), d.begin(), d.end());
    };
    add(m, has_m), add(n, has_n), add(k, has_k);
    View v = c.view(result, dtype, dims, dense ? Case::dense : static_cast<Case::Layout>(c.random.below(3)));
    Dims strides(v.strides.begin(), v.strides.begin() + static_cast<std::ptrdiff_t>(batch.size()));
    std::size_t at = batch.size();
    auto spread = [&](const Dims& d, bool has) {
      for (std::size_t i = 0; i < d.size(); ++i) strides.push_back(has ? v.strides[at++] : 0);
    };
    spread(m, has_m), spread(n, has_n), spread(k, has_k);
    v.strides = strides;
    return v;
  };
  k_step.a = view(false, in, true, false, true);
  k_step.b = view(false, in, false, true, true);
  k_step.out = view(true, out, true, true, false);
}

TEST_CASE("cpu: random contractions") {
  for (unsigned seed = 0; seed < 150; ++seed) {
    Case c(seed);
    auto dims = [&](int most, std::int64_t largest) {
      Dims d;
      for (std::int64_t i = c.random.below(most + 1); i > 0; --i) d.push_back(1 + c.random.below(largest));
      return d;
    };
    const std::int64_t size = seed % 3 == 0 ? 20 : 7;
    const DType in = all_dtypes[seed % 2 ? c.random.below(12) : 2 * c.random.below(2)];
    const DType out = in == DType::bf16 && c.random.coin() ? DType::f32 : in;
    random_contract(c, dims(2, 4), dims(2, size), dims(2, size), dims(2, size), in, out, c.random.coin(), c.random.below(3) == 0);
    INFO("seed ", seed, " ", std::string(name_of(in)), " ", std::string(name_of(out)));
    compare(c, 20);
  }
}

TEST_CASE("cpu: large contractions, with the same bits for any number of threads") {
  struct Sizes {
    Dims batch, m, n, k;
  };
  const std::vector<Sizes> sizes = {{{}, {130}, {300}, {70}},   {{}, {1}, {700}, {100}},       {{}, {700}, {1}, {100}},
                                    {{2, 3}, {65}, {33}, {40}}, {{}, {20, 7}, {300}, {4, 17}}, {{12}, {31}, {16}, {31}},
                                    {{}, {512}, {513}, {64}},
                                    {{}, {137}, {1001}, {801}},   {{}, {16}, {60}, {6007}}};
  for (unsigned seed = 0; seed < 48; ++seed) {
    Case c(seed);
    const Sizes& s = sizes[seed % sizes.size()];
    const DType in = seed % 4 == 3 ? DType::bf16 : seed % 13 == 5 ? DType::f64 : DType::f32;
    random_contract(c, s.batch, s.m, s.n, s.k, in, in == DType::bf16 && seed % 8 == 3 ? DType::f32 : in, seed % 3 == 1,
                    seed % 2 == 0);
    INFO("seed ", seed);
    const auto got = c.run(*cpu::make_cpu_device())[0];
    const auto want = testing::product(c.program.steps[0].contract, c.arguments[0], c.arguments[1], c.results[0]);
    CHECK(difference(c.result_dtypes[0], got, want, 50 * tolerance(c.result_dtypes[0])) == "");
    same_bits(c);
  }
}

// --- moves ---

TEST_CASE("cpu: copies of any layout") {
  for (unsigned seed = 0; seed < 150; ++seed) {
    Case c(seed);
    const Dims dims = random_dims(c.random, 4, seed % 4 == 0 ? 70 : 8);
    const DType dtype = all_dtypes[c.random.below(13)];
    auto& copy = c.add(Kind::copy).copy;
    copy.dims = dims;
    copy.x = c.any_view(false, dtype, dims);
    copy.out = c.any_view(true, dtype, dims);
    INFO("seed ", seed);
    compare(c);
    if (seed % 16 == 0) same_bits(c);
  }
}

void put_ids(Case& c, const View& v, std::int64_t size, bool wild) {
  Bytes& bytes = c.arguments[static_cast<std::size_t>(c.program.slots[static_cast<std::size_t>(v.slot)].index)];
  const std::size_t width = static_cast<std::size_t>(bytes_of(v.dtype));
  for (std::size_t i = 0; i < bytes.size(); i += width)
    scalar::store(v.dtype, &bytes[i], {0, wild ? c.random.below(4 * size) - 2 * size : c.random.below(size)});
}

TEST_CASE("cpu: gathers") {
  for (unsigned seed = 0; seed < 120; ++seed) {
    Case c(seed);
    const std::int64_t rows = 1 + c.random.below(9), more = 1 + c.random.below(5), cols = 1 + c.random.below(seed % 3 ? 9 : 300);
    const Dims dims = {1 + c.random.below(6), 1 + c.random.below(6), cols};
    const DType dtype = all_dtypes[c.random.below(13)];
    auto& g = c.add(Kind::gather).gather;
    g.dims = dims;
    View table = c.any_view(false, dtype, {rows, more, cols});
    g.outside = static_cast<Outside>(c.random.below(3));
    const Dims table_strides = table.strides;
    table.strides = {0, 0, table_strides[2]};
    g.table = table;
    g.out = c.any_view(true, dtype, dims);
    for (int k = 0; k < 2; ++k) {
      View ids = c.any_view(false, k ? DType::i64 : DType::i32, dims);
      if (c.random.below(3)) ids.strides[2] = 0;
      put_ids(c, ids, k ? more : rows, true);
      g.indexed.push_back({ids, table_strides[static_cast<std::size_t>(k)], k ? more : rows});
    }
    INFO("seed ", seed);
    compare(c);
  }
}

TEST_CASE("cpu: scatters") {
  for (unsigned seed = 0; seed < 120; ++seed) {
    Case c(seed);
    const std::int64_t rows = 1 + c.random.below(9), cols = 1 + c.random.below(seed % 3 ? 9 : 300);
    const Dims dims = {1 + c.random.below(seed % 3 ? 9 : 90), 1 + c.random.below(6), cols};
    const DType dtype = all_dtypes[c.random.below(13)];
    auto& s = c.add(Kind::scatter).scatter;
    s.dims = dims;
    s.updates = c.any_view(false, dtype, dims);
    View target = c.view(true, dtype, {rows, cols}, static_cast<Case::Layout>(c.random.below(4)));
    s.update = static_cast<Update>(c.random.below(5));
    s.clamp = c.random.coin();
    const std::int64_t stride = target.strides[0];
    target.strides = {0, 0, target.strides[1]};
    s.target = target;
    View ids = c.any_view(false, DType::i32, dims);
    ids.strides[2] = 0;
    put_ids(c, ids, rows, true);
    s.indexed.push_back({ids, stride, rows});
    INFO("seed ", seed, " ", std::string(name_of(dtype)), " update ", static_cast<int>(s.update));
    compare(c);
    if (seed % 16 == 0) same_bits(c);
  }
}

TEST_CASE("cpu: sorts and running sums") {
  for (unsigned seed = 0; seed < 120; ++seed) {
    Case c(seed);
    Dims dims = random_dims(c.random, 3, 9);
    if (seed % 3 == 0) dims.push_back(1 + c.random.below(200));
    const DType dtype = all_dtypes[c.random.below(12)];
    auto& sort = c.add(Kind::sort).sort;
    sort.dims = dims;
    sort.x = c.any_view(false, dtype, dims);
    if (seed % 5 == 0) put_special(c, 0, 1);
    if (c.random.below(3)) sort.out = c.any_view(true, dtype, dims);
    if (c.random.below(3) || sort.out.slot < 0) sort.indices = c.any_view(true, c.random.coin() ? DType::i32 : DType::i64, dims);
    const View x = c.any_view(false, dtype, dims), out = c.any_view(true, dtype, dims);
    auto& sum = c.add(Kind::cumulative).cumulative;
    sum.dims = dims;
    sum.x = x;
    sum.out = out;
    sum.monoid = static_cast<Monoid>(c.random.below(4));
    sum.reverse = c.random.coin();
    INFO("seed ", seed, " ", std::string(name_of(dtype)));
    compare(c);
    if (seed % 16 == 0) same_bits(c);
  }
}

// --- the border ---

TEST_CASE("cpu: running allocates nothing") {
  Case c(12);
  random_fused(c, {40, 900}, 1, DType::f32, 6);
  random_contract(c, {}, {40}, {50}, {10}, DType::f32, DType::f32, false, true);
  auto& copy = c.add(Kind::copy).copy;
  copy.dims = {50, 60};
  copy.x = c.view(false, DType::f32, {50, 60}, Case::permuted);
  copy.out = c.view(true, DType::f32, {50, 60}, Case::dense);
  auto device = cpu::make_cpu_device();
  auto executable = device->compile(std::make_shared<const Program>(c.program));
  std::vector<void*> in, out;
  for (Bytes& b : c.arguments) in.push_back(b.data());
  for (Bytes& b : c.results) out.push_back(b.data());
  executable->run(in, out, nullptr, nullptr);
  const Allocations made = allocations_of([&] { executable->run(in, out, nullptr, nullptr); });
  CHECK(made.all == made.by_onednn);
}

TEST_CASE("cpu: a collective without a communicator, and the wrong number of arguments, are errors") {
  Case c(13);
  auto& collective = c.add(Kind::collective).collective;
  collective.x = {{{4}, c.view(false, DType::f32, {4}, Case::dense)}};
  collective.out = {{{4}, c.view(true, DType::f32, {4}, Case::dense)}};
  CHECK_THROWS_AS(c.run(*cpu::make_cpu_device()), Error);
  auto executable = cpu::make_cpu_device()->compile(std::make_shared<const Program>(c.program));
  CHECK_THROWS_AS(executable->run({}, {}, nullptr, nullptr), Error);
}

}  // namespace
