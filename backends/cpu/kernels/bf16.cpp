// Matmuls in bf16 on processors with AVX-512 and its bf16 instructions. One instruction multiplies
// 16 pairs of neighbors along k and adds both results to 16 sums in f32. Only `kernel` has
// external linkage (see all.cpp).
//
// As in matmul.inc, a block of b is packed into panels, which tiles of rows of a read in
// order. An element is summed in the order of the taps and of k, in parts that depend on k only, so
// results are bitwise independent of how m and n are split.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // false positive of gcc 12 in immintrin.h
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "backends/cpu/kernels.h"

namespace haliax::cpu::bf16 {
namespace {

#include "transpose.inc"

#include "bf16_vectors.inc"

#include "blocks.inc"

using Word = std::uint32_t;  // a pair of bf16
// a tile: 8 rows of 3 vectors of sums, 24 of 32 registers
constexpr std::int64_t kLanes = 16, kRows = 8, kVectors = 3, kColumns = kLanes * kVectors;
constexpr std::int64_t kHeight = 32;      // rows of a that are packed at once
constexpr std::int64_t kDepth = 1024;     // values of k per part
constexpr std::int64_t kRight = 1 << 17;  // pairs of a block of b, in the second-level cache
constexpr std::int64_t kWidth = 1536;     // columns of a block of b
constexpr std::int64_t kSums = 1 << 18;   // sums that wait for further parts
constexpr std::int64_t kPanels = kWidth / kLanes;

__m512i load_words(const Word* from) { return _mm512_loadu_si512(from); }
Word read_word(const Bf16* from) {
  Word w;
  __builtin_memcpy(&w, from, sizeof w);
  return w;
}

// Rows of a that the next tiles read. One cache line is prefetched per four pairs of a tile.
struct RowsAhead {
  const Bf16 *at = nullptr, *end = nullptr;  // within the current row
  std::int64_t width = 0, pitch = 0, rows = 0;
  RowsAhead() = default;
  RowsAhead(const Bf16* from, std::int64_t n, std::int64_t count, std::int64_t distance)
      : at(from), end(from + n), width(n), pitch(distance), rows(count) {}
  void fetch() {
    if (rows <= 0) return;
    __builtin_prefetch(at, 0, 2);
    at += 64 / sizeof(Bf16);
    if (at < end) return;
    --rows;
    at = end - width + pitch;
    end += pitch;
  }
};

// ---- multiplication ----
// The operands of a tile, for one or several terms that are summed. Rows of a are read in place, or
// from packed pairs of kRows rows.
struct Operands {
  const Bf16* a;
  std::int64_t a_row, a_pair;  // distance of rows and of pairs along k
  const Word* b;
  std::int64_t b_pair;
  std::int64_t pairs;
  const MatmulTap* terms;  // offsets in elements of a and in pairs of b
  std::int64_t term_count;
};
// c[R, N vectors] = or += the sum over the terms of a[R, k] b[k, N vectors].
template <int R, int N>
void tile(const Operands& in, float* c, std::int64_t pitch, bool add, RowsAhead& soon) {
  auto ahead = soon;  // a copy in registers
  __m512 sum[R][N];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 3
    for (int q = 0; q < N; ++q) sum[r][q] = _mm512_setzero_ps();
  const auto row = in.a_row, a_pair = in.a_pair, b_pair = in.b_pair;
  for (std::int64_t t = 0; t < in.term_count; ++t) {
    const Bf16* a = in.a + in.terms[t].a;
    const Word* b = in.b + in.terms[t].b;
    for (auto k = in.pairs; k > 0; --k, a += a_pair, b += b_pair) {
      if (k % 4 == 0) ahead.fetch();
      __m512bh y[N];
#pragma GCC unroll 3
      for (int q = 0; q < N; ++q) y[q] = (__m512bh)load_words(b + q * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const auto x = (__m512bh)_mm512_set1_epi32(int(read_word(a + r * row)));
#pragma GCC unroll 3
        for (int q = 0; q < N; ++q) sum[r][q] = _mm512_dpbf16_ps(sum[r][q], x, y[q]);
      }
    }
  }
  soon = ahead;
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 3
    for (int q = 0; q < N; ++q) {
      float* at = c + r * pitch + q * kLanes;
      _mm512_storeu_ps(at, add ? _mm512_add_ps(_mm512_loadu_ps(at), sum[r][q]) : sum[r][q]);
    }
}
using Tile = void (*)(const Operands&, float*, std::int64_t, bool, RowsAhead&);
template <int N, std::size_t... R> Tile tile_of(std::int64_t rows, std::index_sequence<R...>) {
  static constexpr Tile all[] = {tile<R + 1, N>...};
  return all[rows - 1];
}
Tile tile_of(std::int64_t rows, std::int64_t vectors) {
  constexpr auto r = std::make_index_sequence<kRows>();
  return vectors == 1   ? tile_of<1>(rows, r)
         : vectors == 2 ? tile_of<2>(rows, r)
                        : tile_of<3>(rows, r);
}

// ---- packing ----
// Interleaves two rows of up to 32 values to pairs.
struct Pairs {
  __m512i first, second;
};
Pairs interleave(__m512i x, __m512i y) {
  const auto step = _mm512_set1_epi32(0x00010001);
  auto at = _mm512_set_epi32(0x002f000f, 0x002e000e, 0x002d000d, 0x002c000c, 0x002b000b, 0x002a000a,
                             0x00290009, 0x00280008, 0x00270007, 0x00260006, 0x00250005, 0x00240004,
                             0x00230003, 0x00220002, 0x00210001, 0x00200000);
  const auto first = _mm512_permutex2var_epi16(x, at, y);
  at = _mm512_add_epi16(at, _mm512_slli_epi16(step, 4));
  return {first, _mm512_permutex2var_epi16(x, at, y)};
}
// Reads `columns` values of row k of a matrix of `depth` rows, and prefetches a later row.
__m512i read_row(const Bf16* from, std::int64_t pitch, std::int64_t k, std::int64_t depth,
                 std::int64_t columns) {
  constexpr std::int64_t rows_ahead = 24;
  __builtin_prefetch(from + (k + rows_ahead) * pitch);
  return k < depth ? _mm512_maskz_loadu_epi16(first_of_depth(columns), from + k * pitch)
                   : _mm512_setzero_si512();
}
Word pair_at(const Bf16* from, std::int64_t stride, bool both) {
  return Word(from[0]) | (both ? Word(from[stride]) << 16 : 0);
}

// The destination of 16 columns of b: pairs at to[pair * pitch].
struct Panel {
  Word* to;
  std::int64_t pitch;
};
// Packs b[depth, n] to pairs. Fills the last panel with zeros.
void pack_right(const Panel* panels, const Bf16* from, std::int64_t n, std::int64_t b_n,
                std::int64_t depth, std::int64_t b_k) {
  const auto vectors = ceil_div(n, kLanes);
  if (b_n == 1) {
    for (std::int64_t k = 0; k < depth; k += 2)
      for (std::int64_t v = 0; v < vectors; v += 2) {
        const auto columns = n - v * kLanes;
        const auto pairs = interleave(read_row(from + v * kLanes, b_k, k, depth, columns),
                                      read_row(from + v * kLanes, b_k, k + 1, depth, columns));
        _mm512_storeu_si512(panels[v].to + k / 2 * panels[v].pitch, pairs.first);
        if (v + 1 < vectors)
          _mm512_storeu_si512(panels[v + 1].to + k / 2 * panels[v + 1].pitch, pairs.second);
      }
    return;
  }
  for (std::int64_t v = 0; v < vectors; ++v) {
    const auto columns = std::min(kLanes, n - v * kLanes);
    const Bf16* rows = from + v * kLanes * b_n;
    auto [to, pitch] = panels[v];
    for (std::int64_t k = 0; k < depth; k += 32) {
      const auto some = std::min<std::int64_t>(32, depth - k);
      if (b_k == 1) {
        __m512i lines[16];
        Lines pairs;
        read_lines(lines, rows + k, b_n, columns, some);
        transpose_pairs(lines, pairs);
        for (std::int64_t i = 0; i < ceil_div(some, 2); ++i)
          _mm512_storeu_ps(to + (k / 2 + i) * pitch, reinterpret_cast<__m512>(pairs.row[i]));
        continue;
      }
      for (std::int64_t i = k; i < k + some; i += 2)
        for (std::int64_t j = 0; j < kLanes; ++j)
          to[i / 2 * pitch + j] =
              j < columns ? pair_at(rows + j * b_n + i * b_k, b_k, i + 1 < depth) : 0;
    }
  }
}
// Packs a[rows, depth], up to kHeight rows, to pairs of kRows rows: to[tile][pair][row].
void pack_left(Word* to, const Bf16* from, std::int64_t rows, std::int64_t a_m, std::int64_t depth,
               std::int64_t a_k) {
  const auto pairs = ceil_div(depth, 2), size = pairs * kRows;
  if (a_m == 1) {
    for (std::int64_t k = 0; k < depth; k += 2, to += kRows) {
      const auto all =
          interleave(read_row(from, a_k, k, depth, rows), read_row(from, a_k, k + 1, depth, rows));
      alignas(64) Word words[kHeight];
      _mm512_store_si512(words, all.first);
      _mm512_store_si512(words + kLanes, all.second);
      for (std::int64_t t = 0; t * kRows < rows; ++t)
        __builtin_memcpy(to + t * size, words + t * kRows, kRows * sizeof(Word));
    }
    return;
  }
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t k = 0; k < depth; k += 2)
      to[i / kRows * size + k / 2 * kRows + i % kRows] =
          pair_at(from + i * a_m + k * a_k, a_k, k + 1 < depth);
}

// ---- blocks ----
constexpr MatmulTap kNoOffset{0, 0};
// The sizes of the blocks of a matmul, and its parts: ranges of k, for each tap if the taps do not
// share a block of b.
struct Blocks {
  std::int64_t taps;  // number of taps
  SharedTaps shared;
  std::int64_t depth, width, height;
  std::int64_t row_pairs, left, right, sums = 0;  // elements of packed operands and of sums
  explicit Blocks(const Matmul& p) : taps(p.taps ? p.tap_count : 1) {
    depth = even_part(p.k, kDepth, 2);
    const auto pairs = depth / 2;
    shared = SharedTaps(p, kRight / pairs, kColumns);
    width = std::max(kColumns, (kRight / pairs - shared.reach) / kColumns * kColumns);
    width = even_part(p.n, std::min(kWidth, width), kColumns);
    row_pairs = round_up(width + shared.reach, kLanes) + kLanes;
    right = pairs * (shared.used ? row_pairs : width);
    left = packs_left(p) ? kHeight * pairs * (shared.used ? taps : 1) : 0;
    height = p.m;
    if (p.out == DType::f32 || parts(p) == 1) return;
    height = even_part(p.m, std::max(kHeight, kSums / width / kHeight * kHeight), kHeight);
    sums = height * width;
  }
  std::int64_t parts(const Matmul& p) const {
    return ceil_div(p.k, depth) * (shared.used ? 1 : taps);
  }
  static bool packs_left(const Matmul& p) { return p.a_k != 1 || p.k % 2 != 0; }
};

class BlockMatmul {
 public:
  BlockMatmul(const Matmul& p, const Blocks& size, void* scratch)
      : p_(p), size_(size), right_(static_cast<Word*>(scratch)), left_(right_ + size.right),
        sums_(reinterpret_cast<float*>(left_ + size.left)), packs_left_(Blocks::packs_left(p)) {}
  // Computes the columns from j on of the rows from i on.
  void run(std::int64_t i, std::int64_t j) {
    i_ = i;
    j_ = j;
    rows_ = std::min(size_.height, p_.m - i);
    columns_ = std::min(size_.width, p_.n - j);
    const auto parts = size_.parts(p_), ranges = ceil_div(p_.k, size_.depth);
    for (std::int64_t part = 0; part < parts; ++part) {
      first_ = part == 0;
      last_ = part == parts - 1;
      tap_ = p_.taps ? p_.taps[part / ranges] : kNoOffset;
      k0_ = part % ranges * size_.depth;
      k_ = std::min(size_.depth, p_.k - k0_);
      pairs_ = ceil_div(k_, 2);
      if (parts > 1 || i == 0) pack_block();
      set_terms();
      for (std::int64_t r = 0; r < rows_; r += kHeight) by_rows(r, std::min(kHeight, rows_ - r));
    }
  }

 private:
  const Bf16* left_at(std::int64_t row, const MatmulTap& tap) const {
    return static_cast<const Bf16*>(p_.a) + tap.a + (i_ + row) * p_.a_m + k0_ * p_.a_k;
  }
  void pack_block() {
    const auto vectors = ceil_div(columns_, kLanes);
    panels_ = ceil_div(vectors, kVectors);
    for (std::int64_t q = 0, at = 0; q < panels_; ++q) {
      first_of_panel_[q] = at;
      at += (vectors / panels_ + (q < vectors % panels_)) * kLanes;
      first_of_panel_[q + 1] = at;
    }
    const Bf16* from = static_cast<const Bf16*>(p_.b) + j_ * p_.b_n + k0_ * p_.b_k;
    if (size_.shared.used) {
      const auto n = columns_ + size_.shared.reach;
      Panel to[2 * kPanels + 2];
      for (std::int64_t v = 0; v * kLanes < n; ++v) to[v] = {right_ + v * kLanes, size_.row_pairs};
      return pack_right(to, from + size_.shared.first, n, 1, k_, p_.b_k);
    }
    Panel to[kPanels];
    for (std::int64_t q = 0; q < panels_; ++q)
      for (auto c = first_of_panel_[q]; c < first_of_panel_[q + 1]; c += kLanes)
        to[c / kLanes] = {right_ + first_of_panel_[q] * pairs_ + c - first_of_panel_[q],
                          first_of_panel_[q + 1] - first_of_panel_[q]};
    pack_right(to, from + tap_.b, columns_, p_.b_n, k_, p_.b_k);
  }
  // Sets the offsets of the terms of a tile. A part that is no shared block has one term.
  void set_terms() {
    term_count_ = size_.shared.used ? size_.taps : 1;
    terms_[0] = kNoOffset;
    for (std::int64_t t = 0; size_.shared.used && t < term_count_; ++t)
      terms_[t] = {packs_left_ ? 2 * t * kHeight * pairs_ : p_.taps[t].a,
                   p_.taps[t].b - size_.shared.first};
  }
  // Computes the rows [row, row + tall) of the block.
  void by_rows(std::int64_t row, std::int64_t tall) {
    for (std::int64_t t = 0; packs_left_ && t < term_count_; ++t)
      pack_left(left_ + t * kHeight * pairs_, left_at(row, size_.shared.used ? p_.taps[t] : tap_),
                tall, p_.a_m, k_, p_.a_k);
    for (std::int64_t i = 0; i < tall; i += kRows) {
      Operands in{};
      in.pairs = pairs_;
      in.terms = terms_;
      in.term_count = term_count_;
      if (packs_left_) {
        in.a = reinterpret_cast<const Bf16*>(left_ + i * pairs_);
        in.a_row = 2;
        in.a_pair = 2 * kRows;
      } else {
        in.a = left_at(row + i, size_.shared.used ? kNoOffset : tap_);
        in.a_row = p_.a_m;
        in.a_pair = 2;
        ahead_ = {in.a + kRows * p_.a_m, k_, std::min(kRows, rows_ - row - i - kRows), p_.a_m};
      }
      for (std::int64_t q = 0; q < panels_; ++q) {
        in.b = right_ + first_of_panel_[q] * (size_.shared.used ? 1 : pairs_);
        in.b_pair =
            size_.shared.used ? size_.row_pairs : first_of_panel_[q + 1] - first_of_panel_[q];
        compute(in, row + i, std::min(kRows, tall - i), q);
      }
    }
  }
  // Computes a tile, and adds it to the sums of earlier parts.
  void compute(const Operands& in, std::int64_t row, std::int64_t rows, std::int64_t q) {
    const auto first = first_of_panel_[q], pitch = first_of_panel_[q + 1] - first,
               columns = std::min(pitch, columns_ - first);
    const auto run = tile_of(rows, pitch / kLanes);
    float* sums = sums_ + row * size_.width + first;
    const auto to = (i_ + row) * p_.c_m + j_ + first;
    if (p_.out == DType::f32 && columns == pitch)
      return run(in, static_cast<float*>(p_.c) + to, p_.c_m, p_.accumulate || !first_, ahead_);
    if (p_.out != DType::f32 && !last_) return run(in, sums, size_.width, !first_, ahead_);
    alignas(64) float all[kRows * kColumns];
    run(in, all, pitch, false, ahead_);
    const bool in_sums = p_.out != DType::f32 && !first_;
    const bool in_c = p_.accumulate || (p_.out == DType::f32 && !first_);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t j = 0; j < columns; j += kLanes) {
        const auto mask = first_of(columns - j);
        auto x = _mm512_loadu_ps(all + r * pitch + j);
        if (in_sums) x = _mm512_add_ps(_mm512_loadu_ps(sums + r * size_.width + j), x);
        if (in_c) x = _mm512_add_ps(read_as_f32(p_.c, to + r * p_.c_m + j, p_.out, mask), x);
        write(to + r * p_.c_m + j, mask, x);
      }
  }

  // Rounds to nearest even. As in the sums, values below the smallest normal float become 0.
  void write(std::int64_t to, __mmask16 mask, __m512 x) const {
    if (p_.out == DType::f32)
      _mm512_mask_storeu_ps(static_cast<float*>(p_.c) + to, mask, x);
    else
      _mm256_mask_storeu_epi16(static_cast<Bf16*>(p_.c) + to, mask, (__m256i)_mm512_cvtneps_pbh(x));
  }

  const Matmul& p_;
  const Blocks& size_;
  Word *const right_, *const left_;
  float* const sums_;
  const bool packs_left_;
  std::int64_t i_ = 0, j_ = 0, rows_ = 0, columns_ = 0;  // the block
  std::int64_t k0_ = 0, k_ = 0, pairs_ = 0;              // the part
  MatmulTap tap_ = kNoOffset;
  bool first_ = true, last_ = true;
  std::int64_t panels_ = 0, first_of_panel_[kPanels + 1];
  MatmulTap terms_[most_summed_taps];
  std::int64_t term_count_ = 1;
  RowsAhead ahead_;
};

std::int64_t scratch_bytes(const Matmul& p) {
  const Blocks size(p);
  return (size.right + size.left + size.sums) * 4;
}
void matmul(const Matmul& p, void* scratch) {
  const Blocks size(p);
  BlockMatmul block(p, size, scratch);
  for (std::int64_t j = 0; j < p.n; j += size.width)
    for (std::int64_t i = 0; i < p.m; i += size.height) block.run(i, j);
}

}  // namespace

const MatmulKernel& kernel() {
  static constexpr MatmulKernel all{.run = matmul, .scratch_bytes = scratch_bytes};
  return all;
}

}  // namespace haliax::cpu::bf16
