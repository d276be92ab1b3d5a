// Tests the CPU backend against the reference: fused steps of every code, dtype and layout, in
// random programs.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "backends/cpu/assemble/assemble.h"
#include "backends/cpu/loops/loop_nest.h"
#include "haliax/haliax.h"
#include "support/programs.h"

namespace {

using namespace haliax;
using namespace haliax::program;
using namespace haliax::testing;

bool is_defined(Code code, DType dtype) {
  const bool floats = (code >= Code::exp && code <= Code::erf) || code == Code::erfinv ||
                      code == Code::lgamma || code == Code::digamma || code == Code::atan2 ||
                      code == Code::nextafter;
  const bool integers = is_bitwise(code) || code == Code::popcount;
  const bool half = dtype == DType::bf16 || dtype == DType::f16;
  if (dtype == DType::boolean)
    return code == Code::logical_not || code == Code::bit_not ||
           (code >= Code::less && code <= Code::bit_xor) || code == Code::max || code == Code::min;
  if (code == Code::nextafter && half) return false;
  return is_float(dtype) ? !integers : !floats;
}

// Each code runs alone, and before a code that returns its operand: machines with AVX2 merge such
// codes.
TEST_CASE("cpu: every elementwise code on special values matches the reference") {
  const std::int64_t n = static_cast<std::int64_t>(special.size() * special.size());
  bool alone = true;
  SUBCASE("alone") {}
  SUBCASE("with another") { alone = false; }
  for (int k = static_cast<int>(Code::neg); k <= static_cast<int>(Code::shift_right); ++k) {
    const Code code = static_cast<Code>(k);
    if (code == Code::bitcast) continue;
    for (DType dtype : all_dtypes) {
      if (!is_defined(code, dtype)) continue;
      Case c(1);
      const View a = c.view(false, dtype, {n}, Case::dense),
                 b = c.view(false, dtype, {n}, Case::dense);
      put_special(c, 0, 1);
      put_special(c, 1, special.size());
      const DType result = yields_bool(code) ? DType::boolean : dtype;
      const View out = c.view(true, result, {n}, Case::dense);
      auto& f = c.add(Kind::fused).fused;
      f.dims = {n};
      f.outer = 1;
      f.code = {load(a), load(b),
                operands_of(code) == 1 ? op(code, result, {0}) : op(code, result, {0, 1})};
      if (!alone)
        f.code.push_back(op(result == DType::boolean ? Code::bit_or : Code::max, result, {2, 2}));
      f.code.push_back(store(out, alone ? 2 : 3));
      INFO("code ", k, " ", std::string(name_of(dtype)));
      const auto got = c.run(*cpu::make_cpu_device())[0],
                 expected = c.run(*reference::make_reference_device())[0];
      // Functions may differ by units in the last place, the gamma family a little more. The other
      // codes are exact.
      const bool exact = !(code >= Code::exp && code <= Code::digamma && code != Code::sqrt) &&
                         code != Code::pow && code != Code::atan2 && code != Code::floor_div;
      const double ulp = dtype == DType::f64    ? 1e-13
                         : dtype == DType::f32  ? 3e-7
                         : dtype == DType::bf16 ? 8e-3
                                                : 1e-3;
      int shown = 0;
      for (std::size_t i = 0; i < static_cast<std::size_t>(n) && shown < 3; ++i) {
        const std::size_t at = i * static_cast<std::size_t>(bytes_of(result));
        const auto x = scalar::load(result, &got[at]), y = scalar::load(result, &expected[at]);
        bool same = x.integer == y.integer;
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
        const auto p =
            scalar::load(dtype, &c.arguments[0][i * static_cast<std::size_t>(bytes_of(dtype))]);
        const auto q =
            scalar::load(dtype, &c.arguments[1][i * static_cast<std::size_t>(bytes_of(dtype))]);
        ++shown;
        INFO(p.real, " ", p.integer, " with ", q.real, " ", q.integer, " gives ", x.real, " ",
             x.integer, " for ", y.real, " ", y.integer);
        CHECK(same);
      }
    }
  }
}

TEST_CASE("cpu: casts and bitcasts between all dtypes match the reference") {
  const std::int64_t n = static_cast<std::int64_t>(special.size());
  for (DType from : all_dtypes)
    for (DType to : all_dtypes)
      for (Code code : {Code::cast, Code::bitcast}) {
        if (code == Code::bitcast && (bytes_of(from) != bytes_of(to) || to == DType::boolean))
          continue;
        Case c(2);
        const View a = c.view(false, from, {n}, Case::dense),
                   out = c.view(true, to, {n}, Case::dense);
        put_special(c, 0, 1);
        auto& f = c.add(Kind::fused).fused;
        f.dims = {n};
        f.outer = 1;
        f.code = {load(a), op(code, to, {0}), store(out, 1)};
        INFO(std::string(name_of(from)), " to ", std::string(name_of(to)));
        CHECK(difference(to, c.run(*cpu::make_cpu_device())[0],
                         c.run(*reference::make_reference_device())[0], 0) == "");
      }
}

TEST_CASE("cpu: functions of random draws are bitwise identical to the reference") {
  const std::int64_t n = 1 << 16;
  for (Code code : {Code::log1p, Code::erfinv, Code::floor_div}) {
    Case c(4);
    const View x = c.view(false, DType::f32, {n}, Case::dense),
               out = c.view(true, DType::f32, {n}, Case::dense);
    for (std::int64_t i = 0; i < n; ++i) {  // from tiny to 1, with both signs
      const double y = (i % 2 ? -1 : 1) * std::pow(2.0, -static_cast<double>(i % 977) / 40) *
                       (1 - 1e-7 * c.random.normal());
      scalar::store(DType::f32, &c.arguments[0][static_cast<std::size_t>(x.offset + i) * 4],
                    {y, 0});
    }
    auto& f = c.add(Kind::fused).fused;
    f.dims = {n};
    f.outer = 1;
    f.code = {load(x), constant(DType::f32, std::numeric_limits<double>::infinity()),
              code == Code::floor_div ? op(code, DType::f32, {0, 1}) : op(code, DType::f32, {0}),
              store(out, 2)};
    const auto got = c.run(*cpu::make_cpu_device())[0];
    CHECK(difference(DType::f32, got, c.run(*reference::make_reference_device())[0], 0) == "");
    if (code == Code::floor_div)
      // -x / infinity
      CHECK(scalar::load(DType::f32, &got[static_cast<std::size_t>(out.offset + 1) * 4]).real ==
            -1);
  }
}

// A result in place of its operand must have the same width: chains that widen and narrow, in tiles
// of any size.
TEST_CASE("cpu: elementwise chains of mixed widths, in rows and in columns, match the reference") {
  const std::vector<DType> lanes = {DType::f32, DType::f64, DType::i32,    DType::u32,
                                    DType::i64, DType::u64, DType::boolean};
  for (DType from : lanes)
    for (DType to : lanes)
      for (std::int64_t n : {1, 2, 3, 4, 7, 40, 1100})
        for (int mode = 0; mode < 3; ++mode) {
          Case c(3);
          const bool inner = mode > 0;
          View x = c.view(false, from, {2, n}, Case::dense),
               y = c.view(false, from, {2, n}, Case::dense);
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
          INFO(std::string(name_of(from)), " to ", std::string(name_of(to)), " of ", n, " in mode ",
               mode);
          compare(c);
        }
}

TEST_CASE("cpu: random fused programs match the reference") {
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

TEST_CASE(
    "cpu: random fused programs over long rows and columns match, and are bitwise identical for "
    "any number of threads") {
  const std::vector<Dims> shapes = {{3, 5000}, {5000, 3}, {1, 70000},  {70000, 1},
                                    {40, 900}, {900, 40}, {2, 300, 70}};
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

// Rows that are computed in SIMD lanes: the outer dimension is the contiguous one.
TEST_CASE("cpu: reductions over strided dimensions match the reference") {
  for (auto [m, n] :
       {std::pair<std::int64_t, std::int64_t>{7, 5}, {300, 700}, {3000, 33}, {9000, 300}}) {
    for (DType dtype : {DType::f32, DType::f64, DType::i32}) {
      Case c(5);
      View x = c.view(false, dtype, {m, n}, Case::dense);
      x.strides = {1, n};  // dims (n, m)
      View out = c.view(true, dtype, {n}, Case::dense),
           best = c.view(true, DType::i32, {n}, Case::dense);
      out.strides.push_back(0);
      best.strides.push_back(0);
      auto& f = c.add(Kind::fused).fused;
      f.dims = {n, m};
      f.outer = 1;
      f.code = {load(x, true), op(Code::reduce_sum, dtype, {0}),
                op(Code::reduce_argmax, DType::i32, {0}), store(out, 1), store(best, 2)};
      compare(c);
      if (m == 3000) same_bits(c);
    }
  }
}

// Returns a reduction of f32 in order. A sum that overflows is computed in f64.
float reduced_in_order(Code code, const float* x, std::int64_t n) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  float narrow = code == Code::reduce_max ? -inf : code == Code::reduce_min ? inf : 0;
  double wide = code == Code::reduce_prod ? 1 : 0;
  for (std::int64_t i = 0; i < n; ++i) {
    wide = code == Code::reduce_prod ? wide * double(x[i]) : wide + double(x[i]);
    if (code == Code::reduce_sum)
      narrow += x[i];
    else if (x[i] != x[i] || (code == Code::reduce_max ? x[i] > narrow : x[i] < narrow))
      narrow = x[i];
  }
  const bool overflows = code == Code::reduce_sum && !std::isfinite(narrow);
  return code == Code::reduce_prod || overflows ? float(wide) : narrow;
}
TEST_CASE("cpu: reductions of short rows run in order, for any number of rows") {
  constexpr float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> some{1.5f, -2.25f, 3e38f, -0.f, 1e-30f, 7.f, inf, -inf, inf - inf, 0.1f};
  for (const char* isa : {"baseline", "avx2", "avx512"}) {
    const cpu::Kernels* kernels = cpu::kernels_of(isa);
    if (!kernels) continue;
    for (auto code : {Code::reduce_sum, Code::reduce_prod, Code::reduce_max, Code::reduce_min})
      for (std::int64_t columns : {2, 3, 4, 5, 6, 8}) {
        CAPTURE(std::string(isa));
        CAPTURE(int(code));
        CAPTURE(columns);
        const std::int64_t rows = 2500;
        std::vector<float> x(std::size_t(rows * columns)), got(rows);
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = some[(i * i / 7 + i) % some.size()];
        const auto r = kernels->reduce(code, cpu::LaneType::f32, DType::f32);
        std::vector<double> sums(std::size_t(rows * r.bytes / 8 + 1));
        r.init(sums.data(), rows);
        r.rows(sums.data(), x.data(), rows, columns, 0);
        r.finish(got.data(), sums.data(), rows);
        std::int64_t wrong = 0;
        for (std::int64_t row = 0; row < rows; ++row) {
          const float e = reduced_in_order(code, &x[std::size_t(row * columns)], columns);
          const float g = got[std::size_t(row)];
          wrong += !(g == e || (g != g && e != e));
        }
        CHECK(wrong == 0);
      }
  }
}

TEST_CASE("cpu: softmax and layer norm match the reference") {
  for (std::int64_t n : {1, 5, 64, 768, 5000, 30000}) {
    Case c(7);
    const View x = c.view(false, DType::f32, {6, n}, Case::dense),
               y = c.view(true, DType::f32, {6, n}, Case::dense);
    const View z = c.view(true, DType::f32, {6, n}, Case::dense);
    auto& f = c.add(Kind::fused).fused;
    f.dims = {6, n};
    f.outer = 1;
    const DType t = DType::f32;
    f.code = {load(x, true),
              op(Code::reduce_max, t, {0}),
              op(Code::sub, t, {0, 1}, true),
              op(Code::exp, t, {2}, true),
              op(Code::reduce_sum, t, {3}),
              op(Code::div, t, {3, 4}, true),
              store(y, 5, true),
              op(Code::reduce_sum, t, {0}),
              constant(t, static_cast<double>(n)),
              op(Code::div, t, {7, 8}),
              op(Code::sub, t, {0, 9}, true),
              op(Code::mul, t, {10, 10}, true),
              op(Code::reduce_sum, t, {11}),
              op(Code::div, t, {12, 8}),
              constant(t, 1e-5),
              op(Code::add, t, {13, 14}),
              op(Code::rsqrt, t, {15}),
              op(Code::mul, t, {10, 16}, true),
              store(z, 17, true)};
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
  double expected = 0;
  for (std::int64_t i = 0; i < n; ++i)
    expected += p[i] = 0.1f + 1e-3f * static_cast<float>(i % 1000);
  View out = c.view(true, DType::f32, {}, Case::dense);
  out.strides = {0};
  auto& f = c.add(Kind::fused).fused;
  f.dims = {n};
  f.outer = 0;
  f.code = {load(x, true), op(Code::reduce_sum, DType::f32, {0}), store(out, 1)};
  const auto got = c.run(*cpu::make_cpu_device());
  const double sum =
      scalar::load(DType::f32, &got[0][static_cast<std::size_t>(out.offset) * 4]).real;
  CHECK(std::abs(sum - expected) <= 1e-6 * expected);
}

TEST_CASE("cpu: empty dimensions match the reference") {
  for (Dims dims : {Dims{0, 3}, Dims{3, 0}, Dims{0}}) {
    Case c(9);
    const bool two = dims.size() == 2;
    View x = c.view(false, DType::f32, dims, Case::dense),
         out = c.view(true, DType::f32, {3}, Case::dense);
    out.strides.resize(dims.size(), 0);
    auto& f = c.add(Kind::fused).fused;
    f.dims = dims;
    f.outer = two ? 1 : 0;
    f.code = {load(x, true), op(Code::reduce_max, DType::f32, {0}), store(out, 1)};
    compare(c);
  }
  // Nothing to sum and nothing to read: the view begins after the end of its slot.
  Case c(10);
  View x = c.view(false, DType::f32, {3}, Case::dense),
       out = c.view(true, DType::f32, {}, Case::dense);
  x.strides = out.strides = {0};
  x.offset = 1 << 30;
  auto& f = c.add(Kind::fused).fused;
  f.dims = {0};
  f.outer = 0;
  f.code = {load(x), op(Code::reduce_sum, DType::f32, {0}), store(out, 1)};
  compare(c);
}

TEST_CASE("cpu: iota, loop indices and terms in memory match the reference") {
  Case c(10);
  const std::int64_t n = 37;
  const View table = c.view(false, DType::f32, {6, n}, Case::dense);
  View start = c.view(false, DType::i32, {}, Case::dense);
  for (std::size_t i = 0; i < c.arguments[1].size(); i += 4)
    scalar::store(DType::i32, &c.arguments[1][i], {0, 77});  // beyond the limit
  const View out = c.view(true, DType::f32, {6, n}, Case::dense),
             last = c.view(true, DType::f32, {n}, Case::dense);
  c.program.loops = 2;
  auto& step = c.add(Kind::loop);
  auto& loop = step.loop;
  loop.variable = 0;
  loop.trips = 6;
  loop.reverse = true;
  Step body;
  body.kind = Kind::fused;
  body.fused.dims = {n};
  body.fused.outer = 1;
  View row = table, to = out, dynamic = table;
  row.strides = to.strides = dynamic.strides = {1};
  Term loop_term;
  loop_term.loop = 0;
  loop_term.stride = n;
  row.terms = to.terms = {loop_term};
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
  position.view.terms = {loop_term};
  body.fused.code = {load(row),
                     position,
                     op(Code::add, DType::f32, {0, 1}),
                     load(dynamic),
                     op(Code::add, DType::f32, {2, 3}),
                     store(to, 4),
                     store(last, 4, false, Code::store_add)};
  step.body.push_back(body);
  compare(c);
}

TEST_CASE("cpu: results may overwrite operands") {
  const DType f32 = DType::f32;
  const std::vector<Instr> second = {op(Code::add, f32, {0, 1}), op(Code::cast, f32, {0}),
                                     op(Code::bitcast, f32, {0})};
  for (int k = 0; k < 4; ++k) {
    const std::int64_t n = 5000;
    Case c(11);
    const View p = c.view(false, f32, {n}, Case::dense), q = c.view(false, f32, {n}, Case::dense);
    auto& f = c.add(Kind::fused).fused;
    f.dims = {n};
    f.outer = 1;
    // p, q = q, `second`; or p, q = q, p
    f.code = {load(p), load(q)};
    if (k < 3) f.code.push_back(second[std::size_t(k)]);
    f.code.push_back(store(p, 1));
    f.code.push_back(store(q, k < 3 ? 2 : 0));
    INFO("case ", k);
    std::vector<Bytes> got, expected;
    c.run(*cpu::make_cpu_device(), &got);
    c.run(*reference::make_reference_device(), &expected);
    CHECK(got == expected);
  }
}

TEST_CASE("cpu: random results overwrite operands, in any order") {
  for (unsigned seed = 0; seed < 600; ++seed) {
    Case c(seed);
    const std::vector<Dims> shapes = {{5000}, {70, 90}, {3, 2100}, {40}};
    const Dims& dims = shapes[seed % shapes.size()];
    const int outer = static_cast<int>(dims.size()) - (seed % 3 == 0 ? 1 : 0);
    const bool inner = outer < static_cast<int>(dims.size());
    auto& f = c.add(Kind::fused).fused;
    f.dims = dims;
    f.outer = outer;
    std::vector<View> places;
    for (int k = 0; k < 3; ++k) {
      places.push_back(
          c.view(false, DType::f32, dims, k == 0 && seed % 5 == 0 ? Case::permuted : Case::dense));
      if (k < 2) f.code.push_back(load(places.back(), inner));
    }
    if (inner) {  // makes two passes over a row
      f.code.push_back(op(Code::reduce_max, DType::f32, {0}));
      f.code.push_back(op(Code::sub, DType::f32, {0, 2}, true));
      f.code.push_back(op(Code::exp, DType::f32, {3}, true));
    }
    for (int k = 0; k < 6; ++k) {
      if (k == 3) f.code.push_back(load(places[2], inner));
      const int known = static_cast<int>(f.code.size());
      const int a = static_cast<int>(c.random.below(known)),
                b = static_cast<int>(c.random.below(known));
      const bool in = inner && (f.code[static_cast<std::size_t>(a)].inner ||
                                f.code[static_cast<std::size_t>(b)].inner);
      f.code.push_back(op(c.random.coin() ? Code::min : Code::sub, DType::f32, {a, b}, in));
    }
    const int last = static_cast<int>(f.code.size()) - 1;
    f.code.push_back(op(Code::add, DType::f32, {last, 1}, inner));
    std::shuffle(places.begin(), places.end(), std::mt19937(seed));
    places.resize(static_cast<std::size_t>(1 + c.random.below(3)));
    f.code.push_back(op(Code::cast, DType::bf16, {0}, inner));
    // a bf16 op, whose result is rounded
    f.code.push_back(op(Code::add, DType::bf16, {last + 2, last + 2}, inner));
    const int values = last + 4;
    for (auto& p : places) {
      int v = static_cast<int>(c.random.below(values));
      if (inner && !f.code[static_cast<std::size_t>(v)].inner) v = last + 1;
      f.code.push_back(store(p, v, inner, c.random.below(4) ? Code::store : Code::store_add));
    }
    std::vector<Bytes> got, expected;
    c.run(*cpu::make_cpu_device(), &got);
    c.run(*reference::make_reference_device(), &expected);
    INFO("seed ", seed);
    for (std::size_t k = 0; k < got.size(); ++k)
      CHECK(difference(DType::f32, got[k], expected[k], 1e-5) == "");
  }
}

TEST_CASE("cpu: consecutive ops are merged, and read and write bf16 in place") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    Case c(1);
    const Dims dims = {33, 100};
    const View x = c.view(false, dtype, dims, Case::dense),
               row = c.view(false, dtype, {33, 1}, Case::dense),
               column = c.view(false, dtype, {1, 100}, Case::dense),
               out = c.view(true, dtype, dims, Case::dense);
    auto along = [](View v, Dims strides) {
      v.strides = std::move(strides);
      return v;
    };
    auto& f = c.add(Kind::fused).fused;
    f.dims = dims;
    f.outer = 2;
    f.code = {load(x),
              load(along(row, {1, 0})),
              load(along(column, {0, 1})),
              op(Code::sub, dtype, {0, 1}),
              op(Code::tanh, dtype, {3}),
              op(Code::less, DType::boolean, {4, 2}),
              op(Code::exp, dtype, {4}),
              op(Code::select, dtype, {5, 6, 2}),
              store(out, 7)};
    const cpu::Context context{c.program, static_cast<int>(c.program.slots.size()), 1};
    const auto plan = cpu::plan_fused(f, &context);
    if (!cpu::can_assemble()) continue;
    CHECK(plan.assembled.size() == 1);
    CHECK(plan.inner[0].size() == 3);  // x, all ops, a store
    const bool as_stored = dtype == DType::bf16 && cpu::can_assemble_as_stored();
    CHECK((plan.assembled.at(0).out.at(0).stored == cpu::Stored::bf16) == as_stored);
    CHECK(difference(dtype, c.run(*cpu::make_cpu_device())[0],
                     c.run(*reference::make_reference_device())[0],
                     dtype == DType::bf16 ? 8e-3 : 1e-6) == "");
  }
}

TEST_CASE("cpu: small steps with short rows have their lanes across rows, or are called") {
  Case c(1);
  View x = c.view(false, DType::f32, {256, 160}, Case::dense),
       out = c.view(true, DType::f32, {256, 160}, Case::dense);
  x.strides = out.strides = {160, 1};
  auto& step = c.add(Kind::fused);
  step.fused.dims = {256, 2};
  step.fused.outer = 2;
  step.fused.code = {load(x), op(Code::sin, DType::f32, {0}), store(out, 1)};
  const cpu::Context context{c.program, static_cast<int>(c.program.slots.size()), 1};
  const auto nest = cpu::nest_of(step, context, true);
  REQUIRE(nest);
  REQUIRE(nest->vector >= 0);
  CHECK(nest->dims[static_cast<std::size_t>(nest->vector)] == 256);
  CHECK(!cpu::nest_of(step, context, false));
}

TEST_CASE("cpu: lanes of small steps may be bf16 elements that are far apart") {
  if (!cpu::can_assemble_as_stored()) return;
  Case c(1);
  View x = c.view(false, DType::bf16, {20, 160}, Case::dense),
       out = c.view(true, DType::bf16, {20, 160}, Case::dense);
  x.strides = out.strides = {160};
  auto& step = c.add(Kind::fused);
  step.fused.dims = {20};
  step.fused.outer = 1;
  step.fused.code = {load(x), op(Code::neg, DType::bf16, {0}), store(out, 1)};
  const cpu::Context context{c.program, static_cast<int>(c.program.slots.size()), 1};
  CHECK(cpu::nest_of(step, context, true));
  CHECK(!cpu::nest_of(step, context, false));
}

// Alone, and after another op in one piece of machine code.
TEST_CASE("cpu: tanh is accurate everywhere, odd, and at most 1") {
  std::vector<float> values;
  for (float x = 1e-40f; x < 30; x *= 1.0003f) {
    values.push_back(x);
    values.push_back(-x);
  }

  values.insert(values.end(),
                {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()});
  const auto x = array(values, Axis("n", std::int64_t(values.size()))).eval();
  for (auto& y : {jit([](const NamedArray& x) { return tanh(x); })(x),
                  jit([](const NamedArray& x) { return tanh(-x); })(-x)}) {
    double worst = 0, most = 0;
    bool is_odd = true;
    auto got = y.floats();
    for (std::size_t k = 0; k < values.size(); ++k) {
      const double expected = std::tanh(double(values[k])), near = std::abs(float(expected));
      const double ulp = std::nextafter(float(near), 2.f) - float(near);
      worst = std::max(worst, std::abs(got[k] - expected) / (near < 1 ? ulp : ulp / 2));
      most = std::max(most, std::abs(double(got[k])));
      if (k % 2) is_odd &= got[k] == -got[k - 1];
    }
    CHECK(worst < 2.5);
    CHECK(most == 1);
    CHECK(is_odd);
  }
}

// Vectors whose results are all normal floats are scaled in another way than vectors with subnormal
// results. Both ways are bitwise identical.
TEST_CASE("cpu: exp is accurate everywhere, whatever the other elements of its vector") {
  const float inf = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> values;
  for (int k = 0; k <= 210000; ++k) values.push_back(-110.f + 1e-3f * float(k));  // to 100
  for (float x = 1e-40f; x < 1; x *= 1.001f) {
    values.push_back(x);
    values.push_back(-x);
  }

  values.insert(values.end(), {0.f, -0.f, inf, -inf, nan, 87.f, -87.f, -87.33f, 88.72f, 88.73f});
  std::vector<float> mixed;  // each next to distant ones
  for (std::size_t k = 0; k < values.size(); ++k)
    mixed.insert(mixed.end(), {values[k], k % 3 == 0 ? nan : k % 3 == 1 ? -100.f : inf, -1.f});
  auto y = [](const std::vector<float>& x, const NamedArray& less) {
    const auto in = array(x, Axis("n", std::int64_t(x.size()))).eval();
    return std::vector<std::vector<float>>{
        jit([](const NamedArray& x) { return exp(x); })(in).floats(),
        jit([](const NamedArray& x, const NamedArray& less) { return exp(-x - less) * 1.f; })(-in,
                                                                                              less)
            .floats()};
  };
  const auto less = full({}, 0.f).eval();
  const auto alone = y(values, less), beside = y(mixed, less);
  for (std::size_t form = 0; form < 2; ++form) {
    double worst = 0;
    std::size_t other_bits = 0;
    for (std::size_t k = 0; k < values.size(); ++k) {
      const float got = alone[form][k];
      other_bits +=
          std::bit_cast<std::uint32_t>(got) != std::bit_cast<std::uint32_t>(beside[form][3 * k]);
      const double expected = std::exp(double(values[k]));
      if (std::isnan(expected) || float(expected) > std::numeric_limits<float>::max())
        CHECK((std::isnan(expected) ? std::isnan(got) : got == inf));
      else
        worst = std::max(
            worst, std::abs(double(got) - expected) /
                       (double(std::nextafter(float(expected), inf)) - double(float(expected))));
    }
    CHECK(other_bits == 0);
    CHECK(worst < 2);
  }
}

// One pass over the row reads bf16 in place, the others read it as f32.
TEST_CASE("cpu: a softmax of bf16 over rows of any length may overwrite its operand") {
  for (std::int64_t n : {64, 5000, 9000, 30000}) {
    Case c(3);
    const DType t = DType::f32, narrow = DType::bf16;
    const View x = c.view(false, narrow, {6, n}, Case::dense),
               y = c.view(true, narrow, {6, n}, Case::dense);
    auto& f = c.add(Kind::fused).fused;
    f.dims = {6, n};
    f.outer = 1;
    f.code = {load(x, true),
              op(Code::cast, t, {0}, true),
              op(Code::reduce_max, t, {1}),
              op(Code::sub, t, {1, 2}, true),
              op(Code::exp, t, {3}, true),
              op(Code::reduce_sum, t, {4}),
              constant(t, 3),
              op(Code::add, t, {4, 6}, true),
              op(Code::div, t, {7, 5}, true),
              op(Code::cast, narrow, {8}, true),
              store(y, 9, true)};
    INFO("columns ", n);
    compare(c);
    same_bits(c);
  }
}

// The sum of exp over a row, minus the row's maximum.
TEST_CASE("cpu: a reduction computes several rows at once if they are near in memory") {
  auto rows_at_once = [](std::int64_t rows, std::int64_t columns, int once) {
    Case c(1);
    const View x = c.view(false, DType::f32, {rows, columns}, Case::dense),
               out = c.view(true, DType::f32, {rows, 1}, Case::dense);
    program::Fused f;
    f.dims = {rows, columns};
    f.outer = 1;
    f.code = {load(x, true), op(Code::reduce_max, DType::f32, {0}),
              op(Code::sub, DType::f32, {0, 1}, true), op(Code::exp, DType::f32, {2}, true),
              op(Code::reduce_sum, DType::f32, {3})};
    for (int k = 0; k < once; ++k)
      f.code.push_back(op(Code::exp, DType::f32, {int(f.code.size()) - 1}));
    f.code.push_back(store(out, int(f.code.size()) - 1));
    return cpu::plan_fused(f, nullptr).outer_box;
  };
  CHECK(rows_at_once(512, 800, 0) > 1);
  CHECK(rows_at_once(512, 800, 12) >= 16);   // much work, but once per row
  CHECK(rows_at_once(16384, 800, 12) == 1);  // read from memory
  CHECK(rows_at_once(8, 800, 12) == 1);      // every thread has some rows
}

// Non-temporal stores write whole cache lines, so rows that share a line must not use them.
TEST_CASE("cpu: results of 32 MiB and more equal those of their parts") {
  const auto functions = std::vector<std::function<NamedArray(NamedArray, NamedArray)>>{
      [](auto x, auto) { return abs(x); },
      [](auto x, auto row) { return x * 2 + row; },
      [](auto x, auto row) { return where(x < row, row, x); },
      [](auto x, auto row) { return broadcast_to(row, x.axes()); },
      [](auto x, auto row) { return x * sum(x * row, "column"); },
  };
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t size : {1024, 1000, 1001, 40}) {
      const std::int64_t bytes = bytes_of(dtype), rows = (std::int64_t(33) << 20) / bytes / size;
      const Axis row("row", rows), column("column", size);
      const auto rows_differ = broadcast_axis(arange(row) % 61 * 17 - 300, column);
      const auto x = (rows_differ + arange(column) % 13).astype(dtype).rearrange({row, column});
      const auto y = (arange(column) * 3 % 50).astype(dtype);
      for (auto& f : functions) {
        auto compiled = jit([&](const NamedArray& x, const NamedArray& y) { return f(x, y); });
        const auto all = compiled(x.eval(), y.eval());
        const std::int64_t part = rows / 5;
        for (std::int64_t at = 0; at + part <= rows; at += part) {
          const auto expected = compiled(slice(x, "row", at, part).eval(), y.eval());
          CHECK(array_equal(slice(all, "row", at, part), expected));
        }
      }
    }
}

TEST_CASE("cpu: tiles across a reduced middle axis are contiguous and stay in registers") {
  // softmax of [rows, n, columns] over n
  auto plan = [](std::int64_t rows, std::int64_t n, std::int64_t columns) {
    Case c(1);
    View x = c.view(false, DType::f32, {rows, columns, n}, Case::dense),
         out = c.view(true, DType::f32, {rows, columns, n}, Case::dense);
    x.strides = out.strides = {n * columns, 1, columns};
    program::Fused f;
    f.dims = {rows, columns, n};
    f.outer = 2;
    f.code = {load(x, true),
              op(Code::reduce_max, DType::f32, {0}),
              op(Code::sub, DType::f32, {0, 1}, true),
              op(Code::exp, DType::f32, {2}, true),
              op(Code::reduce_sum, DType::f32, {3}),
              op(Code::div, DType::f32, {3, 4}, true),
              store(out, 5, true)};
    return cpu::plan_fused(f, nullptr);
  };
  const auto one_row = plan(32, 48, 32), part_of_row = plan(32, 48, 1024), few = plan(32, 48, 4);
  CHECK(one_row.inner_major);
  CHECK(one_row.outer_box == 32);
  CHECK(one_row.single_inner_box);
  CHECK(part_of_row.outer_box < 1024);
  CHECK(part_of_row.single_inner_box);
  CHECK(few.outer_box > 4);               // short rows are joined
  CHECK(plan(32, 2, 48).outer_box > 48);  // so are short columns
  CHECK_FALSE(plan(32, 4096, 32).single_inner_box);
}

}  // namespace
