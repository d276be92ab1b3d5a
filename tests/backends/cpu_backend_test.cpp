// Tests the CPU backend against the reference: contractions, copies, gathers, scatters, sorts, in
// random programs.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "backends/cpu/matmul/gemv.h"
#include "backends/cpu/move/scatter_updates.h"
#include "haliax/error.h"
#include "support/allocations.h"
#include "support/product.h"
#include "support/programs.h"

namespace {

using namespace haliax;
using namespace haliax::program;
using namespace haliax::testing;

// --- contractions ---

// Checks that the only contraction of the case matches f64, and is bitwise identical for any number
// of threads.
static void is_product(const Case& c) {
  const auto got = c.run(*cpu::make_cpu_device())[0];
  const auto expected =
      testing::product(c.program.steps[0].contract, c.arguments[0], c.arguments[1], c.results[0]);
  CHECK(difference(c.result_dtypes[0], got, expected, 50 * tolerance(c.result_dtypes[0])) == "");
  same_bits(c);
}

TEST_CASE("cpu: random contractions match the reference") {
  for (unsigned seed = 0; seed < 150; ++seed) {
    Case c(seed);
    auto dims = [&](int most, std::int64_t largest) {
      Dims d;
      for (std::int64_t i = c.random.below(most + 1); i > 0; --i)
        d.push_back(1 + c.random.below(largest));
      return d;
    };
    const std::int64_t size = seed % 3 == 0 ? 20 : 7;
    const DType in = all_dtypes[seed % 2 ? c.random.below(12) : 2 * c.random.below(2)];
    const DType out = in == DType::bf16 && c.random.coin() ? DType::f32 : in;
    random_contract(c, dims(2, 4), dims(2, size), dims(2, size), dims(2, size), in, out,
                    c.random.coin(), c.random.below(3) == 0);
    INFO("seed ", seed, " ", std::string(name_of(in)), " ", std::string(name_of(out)));
    compare(c, 20);
  }
}

TEST_CASE(
    "cpu: large contractions match f64, and are bitwise identical for any number of threads") {
  struct Sizes {
    Dims batch, m, n, k;
  };
  const std::vector<Sizes> sizes = {
      {{}, {}, {}, {170, 90}},  {{}, {130}, {300}, {70}},   {{}, {1}, {700}, {100}},
      {{}, {700}, {1}, {100}},  {{2, 3}, {65}, {33}, {40}}, {{}, {20, 7}, {300}, {4, 17}},
      {{12}, {31}, {16}, {31}}, {{}, {512}, {513}, {64}},   {{}, {137}, {1001}, {801}},
      {{}, {16}, {60}, {6007}}, {{3}, {45}, {83}, {64}},    {{}, {24}, {192}, {190}},
      {{}, {64}, {100}, {301}}, {{}, {17}, {50}, {40}}};  // few rows
  for (unsigned seed = 0; seed < 78; ++seed) {
    Case c(seed);
    const Sizes& s = sizes[seed % sizes.size()];
    const DType in = seed % 4 == 3 ? DType::bf16 : seed % 13 == 5 ? DType::f64 : DType::f32;
    random_contract(c, s.batch, s.m, s.n, s.k, in,
                    in == DType::bf16 && seed % 8 == 3 ? DType::f32 : in, seed % 3 == 1,
                    seed % 2 == 0);
    INFO("seed ", seed);
    is_product(c);
  }
}

// A contraction with flags for blocks along two of its dims: blocks whose flag is false are
// skipped. If the contraction sums along one of these dims, the operand is 0 there, so the result
// equals the full contraction. Otherwise a skipped block of the result has any values, or with
// `zero` either 0 or the matmul.
TEST_CASE("cpu: matmuls skip blocks whose flag is false") {
  for (unsigned seed = 0; seed < 120; ++seed) {
    Case c(seed);
    auto size = [&] { return 16 + c.random.below(300); };
    const std::int64_t sizes[] = {size(), size(), size()};
    const DType in = seed % 4 == 3 ? DType::bf16 : DType::f32;
    random_contract(c, {2}, {sizes[0]}, {sizes[1]}, {sizes[2]}, in, in, seed % 3 == 1,
                    seed % 2 == 0);
    auto& p = c.program.steps[0].contract;
    // two of m, n and k have flags
    const int without = seed % 3, row = without == 0 ? 1 : 0, column = without == 2 ? 1 : 2;
    const std::int64_t block[] = {8 << c.random.below(4), 8 << c.random.below(4)};
    const std::int64_t rows = (sizes[row] + block[0] - 1) / block[0],
                       columns = (sizes[column] + block[1] - 1) / block[1];
    auto flags = c.view(false, DType::boolean, {rows, columns}, Case::permuted);
    std::vector<bool> computed(std::size_t(rows * columns));
    auto* bytes = &c.arguments.back()[std::size_t(flags.offset)];
    for (std::int64_t x = 0; x < rows; ++x)
      for (std::int64_t y = 0; y < columns; ++y) {
        computed[std::size_t(x * columns + y)] = c.random.coin();
        bytes[x * flags.strides[0] + y * flags.strides[1]] =
            std::byte(computed[std::size_t(x * columns + y)] ? 1 : 0);
      }
    auto is_computed = [&](std::int64_t x, std::int64_t y) {
      return computed[std::size_t(x / block[0] * columns + y / block[1])];
    };
    Contract::BlockMask::Flags* of[] = {&p.block_mask.m, &p.block_mask.n, &p.block_mask.k};
    *of[row] = {block[0], flags.strides[0]};
    *of[column] = {block[1], flags.strides[1]};
    p.block_mask.flags = flags;
    p.block_mask.flags.strides = Dims(4, 0);
    p.block_mask.zero = c.random.coin();
    if (without != 2) {  // along k: 0 in one of the operands
      auto& v = without == 1 ? p.a : p.b;
      auto* x = c.arguments[without == 1 ? 0 : 1].data() + v.offset * bytes_of(in);
      for (std::int64_t batch = 0; batch < 2; ++batch)
        for (std::int64_t i = 0; i < sizes[row]; ++i)
          for (std::int64_t k = 0; k < sizes[2]; ++k)
            if (!is_computed(i, k))
              std::fill_n(x + (batch * v.strides[0] + i * v.strides[std::size_t(1 + row)] +
                               k * v.strides[3]) *
                                  bytes_of(in),
                          bytes_of(in), std::byte{0});
    }
    INFO("seed ", seed);
    if (without != 2) same_bits(c);
    const auto got = c.run(*cpu::make_cpu_device())[0],
               expected = testing::product(p, c.arguments[0], c.arguments[1], c.results[0]);
    if (without != 2) {
      CHECK(difference(in, got, expected, 50 * tolerance(in)) == "");
      continue;
    }
    auto at = [&](const Bytes& b, std::int64_t batch, std::int64_t i, std::int64_t j) {
      const auto element =
          p.out.offset + batch * p.out.strides[0] + i * p.out.strides[1] + j * p.out.strides[2];
      if (in == DType::bf16)
        return from_bf16(reinterpret_cast<const std::uint16_t*>(b.data())[element]);
      return reinterpret_cast<const float*>(b.data())[element];
    };
    int wrong = 0;
    for (std::int64_t batch = 0; batch < 2; ++batch)
      for (std::int64_t i = 0; i < sizes[0]; ++i)
        for (std::int64_t j = 0; j < sizes[1]; ++j) {
          const float x = at(got, batch, i, j), y = at(expected, batch, i, j),
                      before = at(c.results[0], batch, i, j);
          const bool right =
                         std::abs(x - y) <= (in == DType::bf16 ? 1e-2f : 1e-4f) * (1 + std::abs(y)),
                     nothing = x == (p.accumulate ? before : 0.f);
          wrong += !right && (is_computed(i, j) || (p.block_mask.zero && !nothing));
        }
    CHECK(wrong == 0);
  }
}

TEST_CASE(
    "cpu: small matmuls in any layout match f64, "
    "and are bitwise identical for any number of threads") {
  for (unsigned seed = 0; seed < 240; ++seed) {
    Case c(seed);
    auto size = [&](std::int64_t most) { return Dims{16 + c.random.below(most)}; };
    auto vectors = [&] { return Dims{16 * (1 + c.random.below(8))}; };  // full vectors, for columns
    const DType in = seed % 3 == 2 ? DType::f32 : DType::bf16;
    const Dims batch = c.random.coin() ? Dims{} : Dims{1 + c.random.below(5)};
    random_contract(c, batch, size(120), c.random.coin() ? vectors() : size(120), size(200), in,
                    c.random.coin() ? in : DType::f32, c.random.coin(), seed % 2 == 0);
    INFO("seed ", seed);
    is_product(c);
  }
}

// Both operands are stored by columns: the left one is packed, the right one is read in place.
TEST_CASE("cpu: column matmuls are right if the left operand maps to few cache lines") {
  for (std::int64_t n : {16, 32, 48, 64, 80}) {
    const Axis M("m", 1024), N("n", n), K("k", 70);
    auto x = random::normal(random::key(1), {K, M}).eval(),
         w = random::normal(random::key(2), {K, N}).eval();
    auto expected = dot(x.astype(DType::f64), w.astype(DType::f64), "k");
    CHECK(max(abs(dot(x, w, "k") - expected)).item() < 1e-4);
  }
}

// Results in bf16 are rounded once, even if k and the rows are split into several blocks. Some dims
// are small.
TEST_CASE("cpu: matmuls in bf16 round once") {
  for (unsigned seed = 0; seed < 36; ++seed) {
    Case c(seed);
    auto size = [&](unsigned narrow) {
      return Dims{seed % 4 == narrow ? 2 + c.random.below(14)
                                     : 60 + c.random.below(narrow == 3 ? 2000 : 500)};
    };
    const Dims m = size(1), n = size(2), k = size(3);
    random_contract(c, {}, m, n, k, DType::bf16, seed % 5 == 1 ? DType::f32 : DType::bf16,
                    c.random.coin(), seed % 3 == 2);
    INFO("seed ", seed);
    is_product(c);
  }
}

// The left operand is stored by columns or by rows, and has more than one block of rows.
TEST_CASE("cpu: column matmuls in several blocks match f64") {
  for (auto [m, n, k] : {std::tuple(64, 192, 128), std::tuple(65, 200, 1000),
                         std::tuple(301, 331, 385), std::tuple(130, 191, 127)}) {
    const Axis M("m", m), N("n", n), K("k", k);
    for (bool columns : {true, false}) {
      auto x = random::normal(random::key(1), columns ? Axes{K, M} : Axes{M, K}).eval(),
           w = random::normal(random::key(2), {K, N}).eval();
      auto expected = dot(x.astype(DType::f64), w.astype(DType::f64), "k");
      CHECK(max(abs(dot(x, w, "k") - expected)).item() < 3e-4);
    }
  }
}

TEST_CASE("cpu: bf16 matmuls add to f32 results, in blocks of rows") {
  for (unsigned seed = 0; seed < 8; ++seed) {
    Case c(seed);
    const Dims m{600 + c.random.below(300)}, n{100 + c.random.below(60)},
        k{seed % 2 ? 352 : 200 + c.random.below(200)};
    random_contract(c, {}, m, n, k, DType::bf16, DType::f32, seed % 4 != 3, seed % 3 == 2);
    INFO("seed ", seed);
    is_product(c);
  }
}

TEST_CASE(
    "cpu: a vector times a matrix, in any layout, is bitwise identical for any number of threads") {
  struct Sizes {
    Dims batch, n, k;
  };
  const std::vector<Sizes> sizes = {
      {{}, {700}, {130}}, {{}, {64}, {3001}},      {{12}, {64}, {500}}, {{12}, {500}, {64}},
      {{}, {33}, {1500}}, {{2, 3}, {5, 40}, {71}}, {{}, {4500}, {19}},  {{3}, {128}, {257}},
      {{}, {32}, {4000}}, {{}, {2100}, {40}},      {{12}, {301}, {128}}};
  int fast = 0;
  for (unsigned seed = 0; seed < 120; ++seed) {
    Case c(seed);
    const auto& s = sizes[seed % sizes.size()];
    const DType types[] = {DType::f32, DType::bf16};
    const DType a = types[c.random.below(2)], b = types[c.random.below(2)],
                out = types[c.random.below(3) == 0];
    const bool swapped = c.random.coin();
    random_contract(c, s.batch, swapped ? s.n : Dims{1}, swapped ? Dims{} : s.n, s.k, a, out,
                    c.random.below(3) == 0, seed % 4 != 0, b);
    INFO("seed ", seed);
    fast += cpu::gemv_scratch(c.program.steps[0]).has_value();
    const auto got = c.run(*cpu::make_cpu_device())[0];
    const auto expected =
        testing::product(c.program.steps[0].contract, c.arguments[0], c.arguments[1], c.results[0]);
    CHECK(difference(c.result_dtypes[0], got, expected, 50 * tolerance(c.result_dtypes[0])) == "");
    same_bits(c);
  }
  CHECK(fast > 80);
}

// --- moves ---

TEST_CASE("cpu: copies of any layout match the reference") {
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
  Bytes& bytes = c.arguments[static_cast<std::size_t>(
      c.program.slots[static_cast<std::size_t>(v.slot)].index)];
  const std::size_t width = static_cast<std::size_t>(bytes_of(v.dtype));
  for (std::size_t i = 0; i < bytes.size(); i += width)
    scalar::store(v.dtype, &bytes[i],
                  {0, wild ? c.random.below(4 * size) - 2 * size : c.random.below(size)});
}

TEST_CASE("cpu: gathers match the reference") {
  for (unsigned seed = 0; seed < 120; ++seed) {
    Case c(seed);
    const std::int64_t rows = 1 + c.random.below(9), more = 1 + c.random.below(5),
                       cols = 1 + c.random.below(seed % 3 ? 9 : 300);
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

// Writes ids of which neighbors are mostly neighbors in the table, as in a roll.
void put_pieces(Case& c, const View& v, std::int64_t n, std::int64_t size) {
  auto* ids = reinterpret_cast<std::int32_t*>(
      c.arguments[static_cast<std::size_t>(c.program.slots[static_cast<std::size_t>(v.slot)].index)]
          .data());
  std::int64_t id = c.random.below(size), after = c.random.below(n);
  for (std::int64_t j = 0; j < n; ++j, ++id) {
    if (j % 150 == after) id = c.random.below(2 * size) - size / 2;
    ids[j] = static_cast<std::int32_t>(id);
  }
}

TEST_CASE("cpu: gathers with ids that all lines share match the reference") {
  int rolls = 0;
  for (unsigned seed = 0; seed < 120; ++seed) {
    Case c(seed);
    const bool rolled = seed % 2;
    rolls += rolled;
    const std::int64_t lines = 1 + c.random.below(60), size = 1 + c.random.below(rolled ? 700 : 9),
                       n = 1 + c.random.below(rolled ? 1500 : 9),
                       cols = seed % 3 ? 1 : 1 + c.random.below(9);
    const DType dtype = all_dtypes[c.random.below(13)];
    auto& g = c.add(Kind::gather).gather;
    g.dims = {lines, n, cols};
    g.table = c.view(false, dtype, {lines, size, cols}, Case::dense);
    g.table.strides = {size * cols, 0, 1};
    g.outside = static_cast<Outside>(c.random.below(3));
    g.out = c.any_view(true, dtype, g.dims);
    View ids = c.view(false, DType::i32, {n}, Case::dense);
    rolled ? put_pieces(c, ids, n, size) : put_ids(c, ids, size, true);
    ids.strides = {0, 1, 0};
    g.indexed.push_back({ids, cols, size});
    INFO("seed ", seed);
    compare(c);
    if (seed % 8 == 0) same_bits(c);
  }
  CHECK(rolls > 50);
}

TEST_CASE("cpu: gathers of short lines with ids of their own match the reference") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    Case c(seed);
    const std::int64_t lines = 1 + c.random.below(300), size = 1 + c.random.below(9),
                       n = 1 + c.random.below(20);
    const DType dtype = all_dtypes[c.random.below(13)];
    auto& g = c.add(Kind::gather).gather;
    g.dims = {lines, n};
    g.table = c.view(false, dtype, {lines, size}, Case::dense);
    g.table.strides = {size, 0};
    g.outside = static_cast<Outside>(c.random.below(3));
    g.out = c.view(true, dtype, g.dims, Case::dense);
    View ids = c.view(false, seed % 2 ? DType::i32 : DType::i64,
                      seed % 3 ? Dims{lines, n} : Dims{n, lines}, Case::dense);
    put_ids(c, ids, size, true);
    if (seed % 3 == 0) ids.strides = {1, lines};
    g.indexed.push_back({ids, 1, size});
    INFO("seed ", seed);
    compare(c);
    if (seed % 8 == 0) same_bits(c);
  }
}

TEST_CASE("cpu: gathers of a transposed result with ids of their own match the reference") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    Case c(seed);
    const std::int64_t outer = 1 + c.random.below(4), lines = 14 + c.random.below(60),
                       size = 1 + c.random.below(9),
                       n = seed % 4 ? 14 + c.random.below(60) : 1000 + c.random.below(60);
    const DType dtype = all_dtypes[c.random.below(13)];
    auto& g = c.add(Kind::gather).gather;
    g.dims = {n, outer, lines};
    g.table = c.view(false, dtype, {outer, size, lines}, Case::dense);
    g.table.strides = {0, size * lines, 1};
    const bool by_rows = seed % 2;
    if (by_rows) g.table.strides = {0, size * lines, size};
    g.outside = static_cast<Outside>(c.random.below(3));
    g.out = c.view(true, dtype, g.dims, Case::dense);
    View ids = c.view(false, seed % 5 ? DType::i32 : DType::i64, {lines, n}, Case::dense);
    put_ids(c, ids, size, true);
    ids.strides = {1, 0, n};
    g.indexed.push_back({ids, by_rows ? 1 : lines, size});
    INFO("seed ", seed);
    compare(c);
    if (seed % 8 == 0) same_bits(c);
  }
}

TEST_CASE("cpu: scatters match the reference") {
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

TEST_CASE("cpu: a scatter whose workers own some runs of each position matches the reference") {
  const DType dtypes[] = {DType::f32, DType::f64, DType::bf16, DType::i32, DType::u8, DType::u64};
  for (unsigned seed = 0; seed < 60; ++seed) {
    Case c(seed);
    const std::int64_t rows = 1 + c.random.below(9), cols = 1 + c.random.below(40);
    const std::int64_t runs = seed % 10 == 9 ? 0 : 2 + c.random.below(30);
    const Dims dims = {700 + c.random.below(900), runs, cols};
    const DType dtype = dtypes[seed % 6];
    auto& s = c.add(Kind::scatter).scatter;
    s.dims = dims;
    s.updates = c.any_view(false, dtype, seed % 3 ? dims : Dims{dims[0]});
    s.updates.strides.resize(3, 0);
    View target = c.view(true, dtype, {dims[1], rows, cols}, Case::Layout::dense);
    s.update = static_cast<Update>(c.random.below(5));
    const std::int64_t stride = target.strides[1];
    target.strides[1] = target.strides[0];
    target.strides[0] = 0;
    s.target = target;
    View ids = c.any_view(false, DType::i32, dims);
    ids.strides[1] = ids.strides[2] = 0;
    put_ids(c, ids, rows, true);
    s.indexed.push_back({ids, stride, rows});
    INFO("seed ", seed, " ", std::string(name_of(dtype)), " update ", static_cast<int>(s.update));
    compare(c);
    if (seed % 8 == 0) same_bits(c);
  }
}

TEST_CASE("cpu: a scatter of strided updates that several runs share matches the reference") {
  const DType dtypes[] = {DType::f32, DType::bf16, DType::i32, DType::f16, DType::f64};
  const std::int64_t sizes[] = {7, 8, 40, 512, 513};
  for (unsigned seed = 0; seed < 50; ++seed) {
    Case c(seed);
    const std::int64_t rows = 1 + c.random.below(9), cols = sizes[seed / 5 % 5];
    const Dims dims = {1 + c.random.below(90), 2 + c.random.below(5), cols};
    const DType dtype = dtypes[seed % 5];
    auto& s = c.add(Kind::scatter).scatter;
    s.dims = dims;
    s.updates = c.view(false, dtype, {cols, dims[0]}, Case::dense);
    s.updates.strides = {1, 0, dims[0]};
    View target = c.view(true, dtype, {dims[1], rows, cols}, Case::dense);
    s.update = static_cast<Update>(c.random.below(5));
    const std::int64_t stride = target.strides[1];
    target.strides = {0, target.strides[0], 1};
    s.target = target;
    View ids = c.view(false, DType::i32, {dims[0]}, Case::dense);
    ids.strides = {1, 0, 0};
    put_ids(c, ids, rows, true);
    s.indexed.push_back({ids, stride, rows});
    INFO("seed ", seed, " ", std::string(name_of(dtype)), " update ", static_cast<int>(s.update));
    compare(c);
    if (seed % 8 == 0) same_bits(c);
  }
}

TEST_CASE("cpu: a scatter of transposed updates matches the reference") {
  const DType dtypes[] = {DType::f32, DType::bf16, DType::i32, DType::u8, DType::f64};
  const std::int64_t sizes[] = {7, 8, 33, 129, 300};
  for (unsigned seed = 0; seed < 50; ++seed) {
    Case c(seed);
    const std::int64_t rows = 1 + c.random.below(9), cols = sizes[seed / 5 % 5],
                       n = 1 + c.random.below(seed % 2 ? 40 : 400);
    const DType dtype = dtypes[seed % 5];
    auto& s = c.add(Kind::scatter).scatter;
    s.dims = {n, cols};
    s.updates = c.view(false, dtype, {cols, n}, Case::dense);
    s.updates.strides = {1, n};
    s.target = c.view(true, dtype, {rows, cols}, Case::dense);
    s.target.strides = {0, 1};
    s.update = static_cast<Update>(seed / 5 % 5);
    s.clamp = c.random.coin();
    View ids = c.view(false, DType::i32, {n}, Case::dense);
    ids.strides = {1, 0};
    put_ids(c, ids, rows, true);
    s.indexed.push_back({ids, cols, rows});
    INFO("seed ", seed, " ", std::string(name_of(dtype)), " update ", static_cast<int>(s.update));
    compare(c);
    if (seed % 8 == 0) same_bits(c);
  }
}

TEST_CASE("cpu: many updates of few elements match the reference") {
  for (unsigned seed = 0; seed < 65; ++seed) {
    Case c(seed);
    const std::int64_t size = seed % 3 ? 1 + c.random.below(9) : 500 + c.random.below(30),
                       n = 4000 + c.random.below(9000);
    const DType dtype = all_dtypes[seed % 13];
    auto& s = c.add(Kind::scatter).scatter;
    s.dims = {n};
    s.updates = c.view(false, dtype, {n}, Case::dense);
    if (seed % 2) s.updates.strides = {0};
    s.target = c.view(true, dtype, {size}, Case::dense);
    s.target.strides = {0};
    s.update = static_cast<Update>(c.random.below(5));
    s.clamp = c.random.coin();
    const View ids = c.view(false, DType::i32, {n}, Case::dense);
    put_ids(c, ids, size, true);
    s.indexed.push_back({ids, 1, size});
    INFO("seed ", seed, " ", std::string(name_of(dtype)), " update ", static_cast<int>(s.update));
    compare(c);
    if (seed % 8 == 0) same_bits(c);
  }
}

TEST_CASE("cpu: very many updates of few elements are combined in blocks") {
  const DType dtypes[] = {DType::f32, DType::f64, DType::i32, DType::u8, DType::boolean};
  for (unsigned seed = 0; seed < 20; ++seed) {
    Case c(seed);
    const std::int64_t lines = 20 + c.random.below(9), n = 1000 + c.random.below(900),
                       size = 1 + c.random.below(9), stride = 1 + seed % 3;
    const DType dtype = dtypes[seed % 5];
    auto& s = c.add(Kind::scatter).scatter;
    s.dims = {lines, n};
    s.updates = c.view(false, dtype, {n, lines}, Case::dense);
    s.updates.strides = {1, lines};
    s.target = c.view(true, dtype, {size, stride}, Case::dense);
    s.target.strides = {0, 0};
    s.update = static_cast<Update>(1 + seed / 5);
    s.clamp = c.random.coin();
    const View ids = c.view(false, seed % 4 ? DType::i32 : DType::i64, {lines, n}, Case::dense);
    put_ids(c, ids, size, true);
    s.indexed.push_back({ids, stride, size});
    INFO("seed ", seed, " ", std::string(name_of(dtype)), " update ", static_cast<int>(s.update));
    CHECK(cpu::updates_few(s));
    compare(c);
    same_bits(c);
  }
}

TEST_CASE("cpu: sorts and cumulative ops match the reference") {
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
    if (c.random.below(3) || sort.out.slot < 0)
      sort.indices = c.any_view(true, c.random.coin() ? DType::i32 : DType::i64, dims);
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

TEST_CASE("cpu: sorts of short and long, few and many lines match the reference") {
  const std::vector<Dims> sizes = {{300}, {3, 257}, {4, 300}, {19, 700}, {2, 2049}, {6, 2100}};
  unsigned seed = 0;
  for (const Dims& dims : sizes)
    for (const DType dtype : all_dtypes) {
      Case c(seed++);
      auto& sort = c.add(Kind::sort).sort;
      sort.dims = dims;
      sort.x = c.any_view(false, dtype, dims);
      put_special(c, 0, 1);
      sort.out = c.any_view(true, dtype, dims);
      sort.indices = c.any_view(true, DType::i32, dims);
      INFO("length ", dims.back(), " ", std::string(name_of(dtype)));
      compare(c);
    }
}

TEST_CASE(
    "cpu: cumulative ops match over dense lines and interleaved lines, by eights and the rest") {
  for (unsigned seed = 0; seed < 160; ++seed) {
    Case c(seed);
    Dims dims = {1 + c.random.below(20), 1 + c.random.below(9), 1 + c.random.below(70)};
    auto layout = static_cast<Case::Layout>(seed % 4);
    auto& sum = c.add(Kind::cumulative).cumulative;
    const DType dtype = seed % 2 ? DType::f32 : all_dtypes[c.random.below(13)];
    sum.x = c.view(false, dtype, dims, layout);
    sum.out = c.view(true, dtype, dims, layout);
    sum.monoid = static_cast<Monoid>(c.random.below(4));
    // neighbors of a line are not contiguous
    if (const auto along = static_cast<std::size_t>(seed / 4 % 3); along < 2) {
      std::swap(dims[along], dims[2]);
      for (View* v : {&sum.x, &sum.out}) std::swap(v->strides[along], v->strides[2]);
    }
    sum.dims = dims;
    sum.reverse = c.random.coin();
    INFO("seed ", seed, " ", std::string(name_of(dtype)));
    compare(c);
    if (seed % 16 == 0) same_bits(c);
  }
}

TEST_CASE("cpu: cumulative ops of long lines of 16 bits match the reference") {
  for (unsigned seed = 0; seed < 16; ++seed) {
    Case c(seed);
    const bool columns = seed % 4 == 0;
    const Dims dims = {columns ? 70 : 11, 1500};
    auto& sum = c.add(Kind::cumulative).cumulative;
    sum.dims = dims;
    const DType dtype = seed % 2 ? DType::bf16 : DType::f16;
    const auto layout = columns ? Case::permuted : Case::dense;
    sum.x = c.view(false, dtype, dims, layout);
    sum.out = c.view(true, dtype, dims, layout);
    sum.monoid = seed % 3 ? Monoid::sum : Monoid::prod;
    sum.reverse = seed / 4 % 2 != 0;
    INFO("seed ", seed);
    compare(c);
  }
}

// --- the interface ---

TEST_CASE("cpu: a run allocates no memory") {
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

TEST_CASE("cpu: a collective without a communicator, and a wrong number of arguments, raise") {
  Case c(13);
  auto& collective = c.add(Kind::collective).collective;
  collective.x = {{{4}, c.view(false, DType::f32, {4}, Case::dense)}};
  collective.out = {{{4}, c.view(true, DType::f32, {4}, Case::dense)}};
  CHECK_THROWS_AS(c.run(*cpu::make_cpu_device()), Error);
  auto executable = cpu::make_cpu_device()->compile(std::make_shared<const Program>(c.program));
  CHECK_THROWS_AS(executable->run({}, {}, nullptr, nullptr), Error);
}

}  // namespace

TEST_CASE("collectives: the communicator receives the step's scratch") {
  struct Recorder : Communicator {
    void run(const Collective&, const void* const*, void* const*, void* at,
             std::int64_t n) override {
      scratch = at;
      bytes = n;
    }
    void fail(const char*) override {}
    void* scratch = nullptr;
    std::int64_t bytes = -1;
  } recorder;
  Program p;
  p.slots = {{4, Home::argument, 0}, {4, Home::result, 0}};
  p.arguments = p.results = 1;
  p.argument_slots = {0};
  p.result_slots = {1};
  p.donated = {-1};
  p.arena_bytes = 256;
  Step s;
  s.kind = Kind::collective;
  s.scratch = 128;
  s.scratch_bytes = 100;
  s.collective.x = {{{1}, {0, DType::f32, 0, {1}, {}}}};
  s.collective.out = {{{1}, {1, DType::f32, 0, {1}, {}}}};
  p.steps = {s};
  alignas(64) std::byte arena[256];
  float x = 1, out = 0;
  auto run = [&] {
    cpu::make_cpu_device()
        ->compile(std::make_shared<Program>(p))
        ->run({&x}, {&out}, arena, &recorder);
  };
  run();
  CHECK(recorder.scratch == arena + 128);
  CHECK(recorder.bytes == 100);
  p.steps[0].scratch = -1;
  p.steps[0].scratch_bytes = 0;
  run();
  CHECK(recorder.scratch == nullptr);
  CHECK(recorder.bytes == 0);
}
