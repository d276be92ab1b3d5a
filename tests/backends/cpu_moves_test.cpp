// The kernels that move elements between layouts match loops over single elements, in all
// instruction sets of this machine.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/kernels.h"
#include "backends/cpu/fused/non_temporal.h"
#include "haliax/haliax.h"

namespace {

using namespace haliax;
using cpu::IdRun;
using cpu::RowStrides;
using Bytes = std::vector<std::byte>;

struct Layout {
  std::int64_t rows, n;
  RowStrides strides;
  // Returns the offset of the element that is first in memory, relative to element (0, 0).
  std::int64_t lowest() const {
    return std::min<std::int64_t>(0, (rows - 1) * strides.row) +
           std::min<std::int64_t>(0, (n - 1) * strides.column);
  }
  std::int64_t highest() const {
    return std::max<std::int64_t>(0, (rows - 1) * strides.row) +
           std::max<std::int64_t>(0, (n - 1) * strides.column);
  }
  std::int64_t elements() const { return highest() - lowest() + 1; }
};
// Calls f with the kernels of each instruction set, and each layout of rows. distinct: only layouts
// whose elements do not overlap.
template <class F> void each_layout(bool distinct, const F& f) {
  for (const char* isa : {"baseline", "avx2", "avx512"}) {
    const cpu::Kernels* kernels = cpu::kernels_of(isa);
    if (!kernels) continue;
    CAPTURE(std::string(isa));
    for (std::int64_t rows : {1, 2, 7, 41})
      for (std::int64_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 37}) {
        std::vector<RowStrides> all{{n, 1},  {n + 2, 1},  {3 * n, 2}, {1, rows},        {1, -rows},
                                    {n, -1}, {-n - 1, 1}, {-n, -1},   {2, 2 * rows + 1}};
        if (!distinct) all.insert(all.end(), {{0, 1}, {1, 0}, {0, 3}, {0, 0}, {-1, 0}, {0, -1}});
        for (RowStrides strides : all) {
          CAPTURE(rows);
          CAPTURE(n);
          CAPTURE(strides.row);
          CAPTURE(strides.column);
          f(*kernels, Layout{rows, n, strides});
        }
      }
  }
}
Bytes some_bytes(std::int64_t count, DType dtype) {
  static std::mt19937 random(1);
  Bytes out(std::size_t(count * bytes_of(dtype)));
  // quiet: the exponents of floats are small
  for (auto& b : out) b = std::byte(dtype == DType::boolean ? random() & 1 : random() & 0x3f);
  return out;
}
int width_of(DType dtype) { return cpu::bytes_of(cpu::lane_type_of(dtype)); }
const DType kDtypes[] = {DType::f32, DType::f64, DType::bf16,   DType::f16,
                         DType::i8,  DType::i64, DType::boolean};

TEST_CASE("load_rows and store_rows move the same elements as single loads and stores") {
  for (DType dtype : kDtypes) {
    const std::int64_t bytes = bytes_of(dtype), width = width_of(dtype);
    each_layout(false, [&](const cpu::Kernels& kernels, Layout layout) {
      const Bytes memory = some_bytes(layout.elements(), dtype);
      const std::byte* origin = memory.data() - layout.lowest() * bytes;
      Bytes got(std::size_t(layout.rows * layout.n * width)), expected = got;
      for (std::int64_t r = 0; r < layout.rows; ++r)
        for (std::int64_t c = 0; c < layout.n; ++c)
          kernels.load(dtype)(expected.data() + (r * layout.n + c) * width,
                              origin + (r * layout.strides.row + c * layout.strides.column) * bytes,
                              1, 1);
      kernels.load_rows(dtype)(got.data(), origin, layout.strides, layout.rows, layout.n);
      CHECK(got == expected);
    });
    each_layout(true, [&](const cpu::Kernels& kernels, Layout layout) {
      const Bytes values = some_bytes(layout.rows * layout.n, dtype);
      Bytes reg(std::size_t(layout.rows * layout.n * width));
      kernels.load(dtype)(reg.data(), values.data(), 1, layout.rows * layout.n);
      Bytes got(std::size_t(layout.elements() * bytes), std::byte(1)), expected = got;
      const std::int64_t at = -layout.lowest() * bytes;
      for (std::int64_t r = 0; r < layout.rows; ++r)
        for (std::int64_t c = 0; c < layout.n; ++c)
          kernels.store(dtype)(
              expected.data() + at + (r * layout.strides.row + c * layout.strides.column) * bytes,
              reg.data() + (r * layout.n + c) * width, 1, 1);
      kernels.store_rows(dtype)(got.data() + at, layout.strides, reg.data(), layout.rows, layout.n);
      CHECK(got == expected);
    });
  }
}

TEST_CASE("copy_rows copies each element, between any two layouts") {
  for (DType dtype : {DType::u8, DType::bf16, DType::f32, DType::f64}) {
    const std::int64_t bytes = bytes_of(dtype);
    each_layout(false, [&](const cpu::Kernels& kernels, Layout from) {
      for (RowStrides strides : {RowStrides{from.n, 1}, RowStrides{from.n + 3, 1},
                                 RowStrides{1, from.rows}, RowStrides{from.n, -1}}) {
        const Layout to{from.rows, from.n, strides};
        const Bytes memory = some_bytes(from.elements(), dtype);
        const std::byte* origin = memory.data() - from.lowest() * bytes;
        Bytes got(std::size_t(to.elements() * bytes), std::byte(1)), expected = got;
        const std::int64_t at = -to.lowest() * bytes;
        for (std::int64_t r = 0; r < from.rows; ++r)
          for (std::int64_t c = 0; c < from.n; ++c)
            std::memcpy(expected.data() + at + (r * to.strides.row + c * to.strides.column) * bytes,
                        origin + (r * from.strides.row + c * from.strides.column) * bytes,
                        std::size_t(bytes));
        kernels.copy_rows(int(bytes), got.data() + at, to.strides, origin, from.strides, from.rows,
                          from.n);
        CHECK(got == expected);
      }
    });
  }
}

TEST_CASE("count writes the positions of rows") {
  each_layout(false, [&](const cpu::Kernels& kernels, Layout layout) {
    std::vector<std::int32_t> got(std::size_t(layout.rows * layout.n)), expected = got;
    for (std::int64_t r = 0; r < layout.rows; ++r)
      for (std::int64_t c = 0; c < layout.n; ++c)
        expected[std::size_t(r * layout.n + c)] =
            std::int32_t(5 + r * layout.strides.row + c * layout.strides.column);
    kernels.count(cpu::LaneType::i32, got.data(), 5, layout.strides, layout.rows, layout.n);
    CHECK(got == expected);
  });
}

TEST_CASE("ids resolve to offsets: negative ids count from the end, others are out of range") {
  const std::vector<std::int64_t> ids{0, 3, -1, -4, 4, -5, 2, 1, INT64_MAX, INT64_MIN, 3, -2, 0};
  const std::vector<std::int64_t> positions{0, 3, 3, 0, 9, 9, 2, 1, 9, 9, 3, 2, 0};
  const std::vector<std::int64_t> clamped{0, 3, 3, 0, 3, 0, 2, 1, 3, 0, 3, 2, 0};
  for (const char* isa : {"baseline", "avx2", "avx512"}) {
    const cpu::Kernels* kernels = cpu::kernels_of(isa);
    if (!kernels) continue;
    for (bool clamps : {false, true}) {
      std::vector<std::int64_t> offsets(ids.size(), 100);
      offsets.back() = IdRun::outside;
      kernels->add_ids(offsets.data(), {ids.data(), DType::i64, 1, 4, 10, clamps},
                       std::int64_t(ids.size()));
      std::vector<float> table(200), out(ids.size());
      for (std::size_t k = 0; k < table.size(); ++k) table[k] = float(k);
      const float absent = -1;
      kernels->gather_values(4, out.data(), table.data(), offsets.data(), &absent,
                             std::int64_t(ids.size()));
      for (std::size_t k = 0; k < ids.size(); ++k) {
        const auto position = clamps ? clamped[k] : positions[k];
        const bool outside = k + 1 == ids.size() || position == 9;
        CHECK(offsets[k] == (outside ? IdRun::outside : 100 + 10 * position));
        CHECK(out[k] == (outside ? absent : float(100 + 10 * position)));
      }
    }
    // 32-bit ids at a distance of two
    const std::vector<std::int32_t> narrow{1, 7, -1, 7, 2, 7};
    std::vector<std::int64_t> offsets(3, 0);
    kernels->add_ids(offsets.data(), {narrow.data(), DType::i32, 2, 3, 1, false}, 3);
    CHECK(offsets == std::vector<std::int64_t>{1, 2, 2});
  }
}

TEST_CASE("gathers of words match the two kernels that they replace") {
  for (const char* isa : {"baseline", "avx2", "avx512"}) {
    const cpu::Kernels* kernels = cpu::kernels_of(isa);
    if (!kernels || !kernels->gather_words) continue;
    std::vector<std::uint32_t> table(500);
    for (std::size_t k = 0; k < table.size(); ++k) table[k] = std::uint32_t(1000 + k);
    std::mt19937 bits(3);
    for (std::int64_t n : {1, 15, 16, 17, 100})
      for (std::int64_t stride : {0, 1, 7})
        for (bool clamps : {false, true}) {
          std::vector<std::int32_t> ids;
          for (std::int64_t k = 0; k < n; ++k) ids.push_back(std::int32_t(bits() % 200) - 100);
          ids.back() = n % 2 ? INT32_MIN : INT32_MAX;
          const IdRun run{ids.data(), DType::i32, 1, 60, stride, clamps};
          const std::uint32_t absent = 5;
          std::vector<std::int64_t> offsets(ids.size(), 0);
          std::vector<std::uint32_t> got(ids.size() + 1, 7), expected(ids.size() + 1, 7);
          kernels->add_ids(offsets.data(), run, n);
          kernels->gather_values(4, expected.data(), table.data(), offsets.data(), &absent, n);
          kernels->gather_words(got.data(), table.data(), run, absent, n);
          CHECK(got == expected);
        }
  }
}

}  // namespace

TEST_CASE("copy_non_temporal copies any number of bytes to any address, and no others") {
  Bytes from(400), to(400);
  for (std::size_t k = 0; k < from.size(); ++k) from[k] = std::byte(k % 251 + 1);
  for (std::size_t start : {0, 1, 15, 16, 63, 64})
    for (std::size_t bytes : {0, 1, 16, 63, 64, 65, 127, 200, 300}) {
      INFO(bytes, " bytes at ", start);
      std::fill(to.begin(), to.end(), std::byte(0));
      cpu::copy_non_temporal(to.data() + start, from.data() + 3, std::int64_t(bytes));
      Bytes expected(to.size());
      std::copy_n(from.begin() + 3, bytes, expected.begin() + std::ptrdiff_t(start));
      CHECK(to == expected);
    }
}

TEST_CASE("copies and gathers of arrays that exceed the caches match single elements") {
  const Axis N("n", 2'100), M("m", 4'097), K("k", 2'050);  // rows that share cache lines
  const auto x = arange({N, M}, {.dtype = DType::i32}).eval();
  const auto rolled = roll(x, 1, "m").eval();
  const auto taken = take(x, "n", (arange(K, {.dtype = DType::i32}) * 7) % int(N.size)).eval();
  const auto a = rolled.integers(), b = taken.integers();
  std::int64_t wrong = 0;
  for (std::int64_t n = 0; n < N.size; ++n)
    for (std::int64_t m = 0; m < M.size; ++m) {
      const auto at = std::size_t(n * M.size + m);
      wrong += a[at] != n * M.size + (m + M.size - 1) % M.size;
      wrong += n < K.size && b[at] != n * 7 % N.size * M.size + m;
    }
  CHECK(wrong == 0);
}
