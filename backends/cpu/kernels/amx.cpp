// Matmuls in bf16 on processors with AMX. A tile register holds 16 rows of 64 bytes. One
// instruction multiplies 16 x 32 by 32 x 16 values and adds to 16 x 16 sums in f32. Used for small
// matmuls, in which the overhead of oneDNN exceeds its multiplications. Only `kernel` has external
// linkage (see all.cpp).
#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "backends/cpu/kernels.h"

namespace haliax::cpu::amx {
namespace {

#include "transpose.inc"

#include "bf16_vectors.inc"

// rows and depth of a tile of the left operand; a tile of the right one has as many columns
constexpr std::int64_t kRows = 16, kDepth = 32;
constexpr std::int64_t kTile = kRows * kDepth;  // elements of a tile
constexpr std::int64_t kSums = kRows * kRows;

// The compiler does not track memory accesses of tile instructions.
void fence() { asm volatile("" ::: "memory"); }
std::int64_t tiles(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit; }

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

void transpose_lines(const __m512i (&in)[16], Bf16* to) {
  Lines t;
  transpose_pairs(in, t);
  for (int i = 0; i < 16; ++i)
    _mm512_storeu_ps(to + i * kDepth, reinterpret_cast<__m512>(t.row[i]));
}
// Reads pairs of neighboring rows of `from`, with 16 columns each.
void read_pairs(__m512i (&to)[16], const Bf16* from, std::int64_t pitch, __mmask16 columns,
                std::int64_t depth) {
  for (int j = 0; j < 16; ++j) {
    auto row = [&](std::int64_t k) {
      return read_bf16_bits(from + k * pitch, k < depth ? columns : __mmask16{0});
    };
    to[j] = _mm512_or_si512(row(2 * j), _mm512_slli_epi32(row(2 * j + 1), 16));
  }
}

const Bf16* left_of(const Matmul& p) { return static_cast<const Bf16*>(p.a); }
// Packs tiles of a, one per 32 values of k, with rows of 32 elements. Zeros beyond `rows` and k.
void pack_left(Bf16* to, const Matmul& p, std::int64_t row) {
  const auto rows = std::min(kRows, p.m - row);
  for (std::int64_t k = 0; k < p.k; k += kDepth, to += kTile) {
    const Bf16* from = left_of(p) + row * p.a_m + k * p.a_k;
    __m512i lines[16];
    if (p.a_k == 1) {
      read_lines(lines, from, p.a_m, rows, p.k - k);
      for (int i = 0; i < 16; ++i) _mm512_storeu_si512(to + i * kDepth, lines[i]);
    } else {
      read_pairs(lines, from, p.a_k, first_of(rows), p.k - k);
      transpose_lines(lines, to);
    }
  }
}
// Packs tiles of b: 16 lines of pairs (b[k, n], b[k + 1, n]) for 16 values of n.
void pack_right(Bf16* to, const Matmul& p, std::int64_t column) {
  const auto columns = std::min(kRows, p.n - column);
  for (std::int64_t k = 0; k < p.k; k += kDepth, to += kTile) {
    const Bf16* from = static_cast<const Bf16*>(p.b) + column * p.b_n + k * p.b_k;
    __m512i lines[16];
    if (p.b_n == 1) {
      read_pairs(lines, from, p.b_k, first_of(columns), p.k - k);
      for (int j = 0; j < 16; ++j) _mm512_storeu_si512(to + j * kDepth, lines[j]);
    } else {
      read_lines(lines, from, p.b_n, columns, p.k - k);
      transpose_lines(lines, to);
    }
  }
}

// The source of a tile register: consecutive packed tiles, or rows in place.
struct Left {
  const Bf16* at;
  std::int64_t pitch, step;  // distance between rows; distance between tiles along k
};

// Computes R x C tiles of sums: c = or += a b. `c` is f32 with row distance `pitch`.
template <int R, int C>
void block(const Left* a, const Bf16* const* b, std::int64_t depths, float* c, std::int64_t pitch,
           bool add) {
  const auto line = std::size_t(pitch) * 4;
  auto at = [&](int r, int q) { return c + r * kRows * pitch + q * kRows; };
  if (add) {
    _tile_loadd(0, at(0, 0), line);
    if constexpr (C > 1) _tile_loadd(1, at(0, 1), line);
    if constexpr (R > 1) _tile_loadd(2, at(1, 0), line);
    if constexpr (R > 1 && C > 1) _tile_loadd(3, at(1, 1), line);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (std::int64_t d = 0; d < depths; ++d) {
    _tile_loadd(6, b[0] + d * kTile, 64);
    _tile_loadd(4, a[0].at + d * a[0].step, std::size_t(a[0].pitch) * 2);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (C > 1) {
      _tile_loadd(7, b[1] + d * kTile, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (R > 1) {
      _tile_loadd(5, a[1].at + d * a[1].step, std::size_t(a[1].pitch) * 2);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (C > 1) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, at(0, 0), line);
  if constexpr (C > 1) _tile_stored(1, at(0, 1), line);
  if constexpr (R > 1) _tile_stored(2, at(1, 0), line);
  if constexpr (R > 1 && C > 1) _tile_stored(3, at(1, 1), line);
}
void block(std::int64_t rows, std::int64_t columns, const Left* a, const Bf16* const* b,
           std::int64_t depths, float* c, std::int64_t pitch, bool add) {
  const bool two = columns > 1;
  if (rows > 1)
    (two ? block<2, 2> : block<2, 1>)(a, b, depths, c, pitch, add);
  else
    (two ? block<1, 2> : block<1, 1>)(a, b, depths, c, pitch, add);
}

// Rounds f32 to bf16, to nearest even. NaN stays NaN.
__m256i rounded(__m512 x) {
  const auto bits = _mm512_castps_si512(x);
  const auto odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  auto up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  up = _mm512_mask_or_epi32(up, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), bits,
                            _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
}
// The elements [row, row + rows) x [column, column + columns) of c, up to 32 x 32. Used if they do
// not fill tiles, or are bf16.
struct Part {
  std::int64_t row, rows, column, columns;
  // Calls f(offset in c, offset in rows of 32 sums, mask) for each 16 elements of a row.
  template <class F> void each(const Matmul& p, const F& f) const {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t j = 0; j < columns; j += kRows)
        f((row + r) * p.c_m + column + j, r * 2 * kRows + j, first_of(columns - j));
  }
};
void read_sums(const Matmul& p, float* sums, const Part& part) {
  part.each(p, [&](std::int64_t place, std::int64_t at, __mmask16 mask) {
    _mm512_storeu_ps(sums + at, read_as_f32(p.c, place, p.out, mask));
  });
}
void write_sums(const Matmul& p, const float* sums, const Part& part) {
  part.each(p, [&](std::int64_t place, std::int64_t at, __mmask16 mask) {
    const auto x = _mm512_loadu_ps(sums + at);
    if (p.out == DType::f32)
      _mm512_mask_storeu_ps(static_cast<float*>(p.c) + place, mask, x);
    else
      _mm256_mask_storeu_epi16(static_cast<Bf16*>(p.c) + place, mask, rounded(x));
  });
}

std::int64_t packed(std::int64_t n, std::int64_t k) {
  return tiles(n, kRows) * tiles(k, kDepth) * kTile;
}
// Returns true if a full tile of rows is contiguous along k and is read in place.
bool in_place(const Matmul& p, std::int64_t row) {
  return p.a_k == 1 && p.k % kDepth == 0 && p.m - row >= kRows;
}

std::int64_t scratch_bytes(const Matmul& p) {
  return (packed(p.m, p.k) + packed(p.n, p.k)) * 2 + 4 * kSums * 4;
}

void matmul(const Matmul& p, void* scratch) {
  static constexpr TileConfig config;
  Bf16* left = static_cast<Bf16*>(scratch);
  Bf16* right = left + packed(p.m, p.k);
  float* sums = reinterpret_cast<float*>(right + packed(p.n, p.k));
  const auto depths = tiles(p.k, kDepth), m_tiles = tiles(p.m, kRows), n_tiles = tiles(p.n, kRows);
  for (std::int64_t t = 0; t < m_tiles; ++t)
    if (!in_place(p, t * kRows)) pack_left(left + t * depths * kTile, p, t * kRows);
  for (std::int64_t t = 0; t < n_tiles; ++t) pack_right(right + t * depths * kTile, p, t * kRows);
  fence();
  _tile_loadconfig(&config);
  for (std::int64_t i = 0; i < m_tiles; i += 2) {
    Left a[2];
    for (std::int64_t t = i; t < std::min(i + 2, m_tiles); ++t)
      a[t - i] = in_place(p, t * kRows) ? Left{left_of(p) + t * kRows * p.a_m, p.a_m, kDepth}
                                        : Left{left + t * depths * kTile, kDepth, kTile};
    const auto row = i * kRows, rows = std::min(2 * kRows, p.m - row);
    for (std::int64_t j = 0; j < n_tiles; j += 2) {
      const Bf16* b[2] = {right + j * depths * kTile, right + (j + 1) * depths * kTile};
      const auto column = j * kRows, columns = std::min(2 * kRows, p.n - column);
      const auto down = tiles(rows, kRows), across = tiles(columns, kRows);
      if (p.out == DType::f32 && rows % kRows == 0 && columns % kRows == 0) {
        block(down, across, a, b, depths, static_cast<float*>(p.c) + row * p.c_m + column, p.c_m,
              p.accumulate);
      } else {
        const Part part{row, rows, column, columns};
        if (p.accumulate) read_sums(p, sums, part);
        fence();
        block(down, across, a, b, depths, sums, 2 * kRows, p.accumulate);
        fence();
        write_sums(p, sums, part);
      }
    }
  }
  _tile_release();
  fence();
}

}  // namespace

const MatmulKernel& kernel() {
  static constexpr MatmulKernel all{
      .run = matmul, .scratch_bytes = scratch_bytes, .only_small = true};
  return all;
}

}  // namespace haliax::cpu::amx
