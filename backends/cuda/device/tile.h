// Tiles of rows. A block of 256 threads computes 64 rows by two tiles of 32 columns at a time. Warp
// w has rows 16 * (w % 4) onward, of the columns of half w / 4. Operands are staged in shared
// memory in their own order, element by element along their contiguous dim. Tiles are registers, in
// the layout of mma.sync. Element t[j][e] of a tile t is at
// - row strip + lane / 4 + 8 * (e / 2),
// - column 8 * j + lane % 4 * 2 + e % 2.
// Only for 16-bit floats.
#pragma once

namespace haliax::kernel {

inline constexpr int tile_columns = 32, tile_rows = 64;
using Tile = float[4][4];

// The columns that a block of threads iterates over, 32 at a time: the columns of the blocks in
// `wanted`, each of which has `width` columns.
struct TileColumns {
  unsigned long long wanted;  // bit mask of up to 64 blocks
  int width, all;
  struct Range {
    int column, block, end;  // end: of the block; after the last block, column and end are `all`
    // columns of a tile that exist
    int there() const { return end - column < tile_columns ? end - column : tile_columns; }
  };
  int columns() const {  // total number
    const int blocks = (all + width - 1) / width;
    const auto existing = blocks < 64 ? wanted & ((1ull << blocks) - 1) : wanted;
    return int(__popcll(existing)) * width -
           ((wanted >> (blocks - 1) & 1) != 0 ? blocks * width - all : 0);
  }
  Range from(int block) const {
    while (block * width < all && (wanted >> block & 1) == 0) ++block;
    const int column = block * width;
    return column >= all ? Range{all, block, all}
                         : Range{column, block, column + width < all ? column + width : all};
  }
  Range next(const Range& t) const {
    return t.column + tile_columns < t.end ? Range{t.column + tile_columns, t.block, t.end}
                                           : from(t.block + 1);
  }
};
// Rounds to a 16-bit float, or packs two of them in a word.
#ifndef haliax_thread
template <class E> inline std::uint32_t packed(float low, float high) {
  std::uint32_t out;
  if constexpr (std::is_same_v<E, bf16>)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
template <class E> inline float narrowed(float x) {
  if constexpr (std::is_same_v<E, bf16>) return std::bit_cast<float>(packed<E>(0, x));
  float out;
  asm("{ .reg .b16 h; cvt.rn.f16.f32 h, %1; cvt.f32.f16 %0, h; }" : "=f"(out) : "f"(x));
  return out;
}
struct Larger {
  float operator()(float x, float y) const {
    float out;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(x), "f"(y));
    return out;
  }
};
#else
template <class E> inline std::uint32_t packed(float low, float high) {
  return element<E>(low).bits | std::uint32_t(element<E>(high).bits) << 16;
}
template <class E> inline float narrowed(float x) { return number(element<E>(x)); }
using Larger = Max;
#endif
// exp in two instructions. For x in [-87, 88] the relative error is at most (2 + |x|) 2^-23; below,
// the result is 0.
inline float quick_exp(float x) {
  const float of_two = x * 1.442695041f;
#ifndef haliax_thread
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(of_two));
  return out;
#else
  return of_two < -126 ? 0 : std::exp2(of_two);
#endif
}

inline bool any_lane(bool x) { return __any_sync(0xffffffffu, x); }

// Asynchronous copies of 16 bytes to shared memory. They are visible after all threads have waited
// and synchronized.
#ifndef haliax_thread
struct Copies {
  void add(void* to, Word from) {
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(unsigned(__cvta_generic_to_shared(to))),
        "l"(from)
        : "memory");
  }
  void wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
};
#else
struct Copies {  // copies are delayed until wait()
  struct {
    void* to;
    Word from;
  } all[160];
  int count = 0;
  void add(void* to, Word from) { all[count++] = {to, from}; }
  void wait() {
    for (; count > 0; --count)
      __builtin_memcpy(all[count - 1].to, reinterpret_cast<const void*>(all[count - 1].from), 16);
  }
};
#endif

// An operand in shared memory: lines x terms. along: the terms of a line are contiguous; otherwise
// the lines of a term are. `terms` is a multiple of 16.
template <class E, bool along, int lines, int terms> struct Staged {
  static constexpr int fast = along ? terms : lines, slow = along ? lines : terms;
  static constexpr int pitch = fast + 8;  // avoids bank conflicts of eight lines of 16 bytes
  static constexpr int elements = slow * pitch;
  static constexpr bool is_along = along;
  using Element = E;
  E* at;
  static constexpr int place(int line, int term) {
    return along ? line * pitch + term : term * pitch + line;
  }
  // Copies the box (lines, terms) of the operand, from its first element. Missing elements are 0.
  // far: the operand is in global memory.
  template <bool far> void stage(Copies& copies, Side s, int lines_there, int terms_there) const {
    constexpr int chunks = fast / 8;
    const int fast_there = along ? terms_there : lines_there,
              slow_there = along ? lines_there : terms_there;
    const int fast_step = along ? s.term : s.line,
              slow_step = (along ? s.line : s.term) * int(sizeof(E));
    const bool wide =
        fast_step == 1 && s.at % 16 == 0 && slow_step % 16 == 0 && fast_there % 8 == 0;
#pragma unroll
    for (int first = 0; first < slow * chunks; first += 256) {
      const int k = first + int(threadIdx_x), i = k / chunks, j = k % chunks * 8;
      if (slow * chunks % 256 != 0 && k >= slow * chunks) return;
      E* const to = at + i * pitch + j;
      if (wide && i < slow_there && j < fast_there) {
        const auto from = s.at + i * slow_step + j * int(sizeof(E));
        if constexpr (far)
          copies.add(to, from);
        else
          *reinterpret_cast<Several<E, 8>*>(to) = *reinterpret_cast<const Several<E, 8>*>(from);
      } else {
#pragma unroll 1
        for (int e = 0; e < 8; ++e)
          to[e] = i < slow_there && j + e < fast_there
                      ? *reinterpret_cast<const E*>(s.at + i * slow_step +
                                                    (j + e) * fast_step * int(sizeof(E)))
                      : element<E>(0);
      }
    }
  }
};

// The source of tiles of an operand. Each thread copies one or several pieces of 16 bytes per tile.
// far: the operand is in global memory.
template <class To, bool far> struct Source {
  static constexpr int chunks = To::fast / 8, parts = (To::slow * chunks + 255) / 256;
  using E = typename To::Element;
  Side side;
  int terms;
  bool wide;  // existing elements have the staged layout, 16 bytes at a time
  Source(const Side& s, int terms_there) : side(s), terms(terms_there) {
    const int step = (To::is_along ? s.line : s.term) * int(sizeof(E));
    wide =
        (To::is_along ? s.term : s.line) == 1 && s.at % 16 == 0 && step % 16 == 0 && terms % 8 == 0;
  }
  // Copies two tiles that start at these lines to `at` and to the memory after it.
  void stage(Copies& copies, E* at, const int (&first)[2], const int (&there)[2]) const {
#pragma unroll
    for (int p = 0; p < parts; ++p) {
      const int k = p * 256 + int(threadIdx_x), i = k / chunks, j = k % chunks * 8,
                line = To::is_along ? i : j, term = To::is_along ? j : i;
      if (To::slow * chunks % 256 != 0 && k >= To::slow * chunks) return;
      const bool is_copied = wide && term < terms;
      const auto from = side.at + (line * side.line + term * side.term) * int(sizeof(E));
      E* const to = at + i * To::pitch + j;
      bool all = true;
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        const bool one = is_copied && line + (To::is_along ? 1 : 8) <= there[t];
        if (one)
          copy(copies, to + t * To::elements,
               from + (long long)(first[t] * side.line) * int(sizeof(E)));
        all &= one;
      }
      if (all) continue;
#pragma unroll 1
      for (int n = 0; n < 16; ++n) {  // elements of both tiles
        const int t = n / 8, e = n % 8, l = line + (To::is_along ? 0 : e),
                  k = term + (To::is_along ? e : 0);
        const int lines = t ? there[1] : there[0], before = t ? first[1] : first[0];
        if (lines == 0 || (is_copied && line + (To::is_along ? 1 : 8) <= lines)) continue;
        to[t * To::elements + e] =
            l < lines && k < terms
                ? *reinterpret_cast<const E*>(
                      side.at +
                      (long long)((before + l) * side.line + k * side.term) * int(sizeof(E)))
                : element<E>(0);
      }
    }
  }
  static void copy(Copies& copies, E* to, Word from) {
    if constexpr (far)
      copies.add(to, from);
    else
      *reinterpret_cast<Several<E, 8>*>(to) = *reinterpret_cast<const Several<E, 8>*>(from);
  }
};

// Loads a lane's elements of an operand (16, 16) at this place: of a (rows, terms), or of two
// adjacent tiles of b (terms, columns). by_terms: terms are contiguous.
template <class E, bool of_a, bool by_terms>
inline void fragment(std::uint32_t (&f)[4], const E* staged, int place, int pitch) {
  const int lane = int(threadIdx_x) % 32;
#ifndef haliax_thread
  const int i = lane / 8, line = (of_a ? i % 2 : i / 2) * 8, term = (of_a ? i / 2 : i % 2) * 8;
  place += by_terms ? (line + lane % 8) * pitch + term : (term + lane % 8) * pitch + line;
  const unsigned at =
      unsigned(__cvta_generic_to_shared(staged)) + unsigned(place) * unsigned(sizeof(E));
  if constexpr (by_terms)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
                 : "r"(at)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
                 : "r"(at)
                 : "memory");
#else
  for (int i = 0; i < 4; ++i) {
    const int line = (of_a ? i % 2 : i / 2) * 8 + lane / 4,
              term = (of_a ? i / 2 : i % 2) * 8 + lane % 4 * 2;
    auto one = [&](int t) {
      return std::uint32_t(staged[place + (by_terms ? line * pitch + t : t * pitch + line)].bits);
    };
    f[i] = one(term) | one(term + 1) << 16;
  }
#endif
}
template <class E>
inline void multiply_two(float (&x)[4], float (&y)[4], const std::uint32_t (&a)[4],
                         const std::uint32_t (&b)[4]) {
  const std::uint32_t first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
  multiply_tile<E>(x, a, first), multiply_tile<E>(y, a, second);
}

// The 16 rows of a warp of an operand (64, depth), in registers.
template <class E, int depth> struct RowFragments {
  std::uint32_t f[depth / 16][4];
  template <class X> void load(const X& x, int strip) {
#pragma unroll
    for (int k = 0; k < depth / 16; ++k)
      fragment<E, true, X::is_along>(f[k], x.at, x.place(strip, 16 * k), X::pitch);
  }
};
// tile = x (16 rows, depth) y (32 columns, depth)^T.
template <class E, int depth, class Y>
inline void compute_tile(Tile& tile, const RowFragments<E, depth>& x, const Y& y) {
  for (auto& some : tile)
    for (auto& c : some) c = 0;
#pragma unroll
  for (int k = 0; k < depth / 16; ++k)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      std::uint32_t b[4];
      fragment<E, false, Y::is_along>(b, y.at, y.place(16 * j, 16 * k), Y::pitch);
      multiply_two<E>(tile[2 * j], tile[2 * j + 1], x.f[k], b);
    }
}
// Returns true if a tile of a result exists completely, and any two adjacent elements can be
// accessed at once.
template <class S> inline bool in_pairs(const Side& out, bool full) {
  constexpr int bytes = 2 * sizeof(S);
  return full && out.term == 1 && out.at % bytes == 0 && out.line % 2 == 0;
}
// The sums of a warp over columns: 16 rows of a result (rows, depth).
template <class E, int depth> struct RowSums {
  float c[depth / 8][4];
  void clear() {
    for (auto& some : c)
      for (auto& x : some) x = 0;
  }
  void scale(const float (&by)[2]) {
    for (auto& some : c)
      for (int e = 0; e < 4; ++e) some[e] *= by[e / 2];
  }
  template <class Y>  // += tile (16, 32) y (32, depth)
  void add(const Tile& tile, const Y& y) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const auto &x = tile[2 * k], &next = tile[2 * k + 1];
      const std::uint32_t a[4] = {packed<E>(x[0], x[1]), packed<E>(x[2], x[3]),
                                  packed<E>(next[0], next[1]), packed<E>(next[2], next[3])};
#pragma unroll
      for (int d = 0; d < depth / 16; ++d) {
        std::uint32_t b[4];
        fragment<E, false, !Y::is_along>(b, y.at, y.place(16 * k, 16 * d), Y::pitch);
        multiply_two<E>(c[2 * d], c[2 * d + 1], a, b);
      }
    }
  }
  // Adds the sums of both halves of the columns, and stores them: out (rows, terms), += if `adds`.
  // room: 64 * depth unused floats.
  template <class S, bool adds> void store_to(Side out, int rows_there, int terms, float* room) {
    // Hidden, so that the compiler does not keep derived values in registers for the whole kernel.
    const int thread = hidden(int(threadIdx_x)), warp = thread / 32, lane = thread % 32,
              strip = warp % 4;
    __syncthreads();
    if (warp >= 4)
      for (int d = 0; d < depth / 8; ++d)
        for (int e = 0; e < 4; ++e) room[((d * 4 + e) * 4 + strip) * 32 + lane] = c[d][e];
    __syncthreads();
    if (warp >= 4) return;
    if (in_pairs<S>(out, rows_there == tile_rows && terms == depth)) {
      const Word at = out.at + ((16 * strip + lane / 4) * out.line + lane % 4 * 2) * int(sizeof(S));
      for (int d = 0; d < depth / 8; ++d)
        for (int h = 0; h < 2; ++h) {
          auto& two =
              *reinterpret_cast<Several<S, 2>*>(at + (8 * h * out.line + 8 * d) * int(sizeof(S)));
          float sum[2];
          for (int e = 0; e < 2; ++e) {
            sum[e] = c[d][2 * h + e] + room[((d * 4 + 2 * h + e) * 4 + strip) * 32 + lane];
            if constexpr (adds) sum[e] = number(two.x[e]) + sum[e];
          }
          two = {{element<S>(sum[0]), element<S>(sum[1])}};
        }
      return;
    }
    for (int d = 0; d < depth / 8; ++d)
      for (int e = 0; e < 4; ++e) {
        const int row = 16 * strip + lane / 4 + 8 * (e / 2), term = 8 * d + lane % 4 * 2 + e % 2;
        if (row >= rows_there || term >= terms) continue;
        const auto at = row * out.line + term * out.term;
        float sum = c[d][e] + room[((d * 4 + e) * 4 + strip) * 32 + lane];
        if constexpr (adds) sum = load<S>(out.at, at) + sum;
        store<S>(out.at, at, sum);
      }
  }
};

// The tiles of all warps as an operand of matmuls over rows: (64 rows, 2 * 32 columns).
template <class E> using Together = Staged<E, true, tile_rows, 2 * tile_columns>;
// Stores the tile of a warp at its rows and columns of `to`, rounded to E.
template <class E>
inline void publish(const Together<E>& to, const Tile& tile, int strip, int half) {
  const int lane = int(threadIdx_x) % 32;
  for (int j = 0; j < 4; ++j)
    for (int e = 0; e < 2; ++e)
      *reinterpret_cast<std::uint32_t*>(
          to.at + to.place(strip + lane / 4 + 8 * e, half * tile_columns + 8 * j + lane % 4 * 2)) =
          packed<E>(tile[j][2 * e], tile[j][2 * e + 1]);
}
// out (columns, terms) += tiles^T (columns, rows) x (rows, terms). A warp has 16 columns of the
// tile whose first element is at out, and every second group of 16 terms. The previous values are
// loaded before the warps wait for each other's tiles.
template <class E, int depth, class S, bool adds> struct OverRows {
  static constexpr int parts = (depth / 16 + 1) / 2;
  float c[parts][2][4];
  // Calls f for each pair of adjacent elements of a complete tile.
  template <class F> static void each_pair(const Side& out, const F& f) {
    const int warp = int(threadIdx_x) / 32, lane = int(threadIdx_x) % 32,
              term = 16 * (warp / 4) + lane % 4 * 2;
    const Word at = out.at + ((warp % 2 * 16 + lane / 4) * out.line + term) * int(sizeof(S));
#pragma unroll
    for (int p = 0; p < parts; ++p) {
      if (depth / 16 % 2 != 0 && warp / 4 + 2 * p >= depth / 16) continue;
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          f(p, j, 2 * h,
            reinterpret_cast<Several<S, 2>*>(at +
                                             (8 * h * out.line + 32 * p + 8 * j) * int(sizeof(S))));
    }
  }
  // Calls f for each pair of adjacent elements of an incomplete tile. The last argument is false if
  // only the first element exists.
  template <class F>
  static void each_two(const Side& out, int columns_there, int terms, const F& f) {
    const int warp = int(threadIdx_x) / 32, lane = int(threadIdx_x) % 32;
#pragma unroll
    for (int p = 0; p < parts; ++p)
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int column = warp % 2 * 16 + lane / 4 + 8 * h,
                    term = 16 * (warp / 4 + 2 * p) + 8 * j + lane % 4 * 2;
          if (column < columns_there && term < terms)
            f(p, j, 2 * h, out.at + (column * out.line + term * out.term) * int(sizeof(S)),
              term + 1 < terms);
        }
  }
  void load(const Side& out, int columns_there, int terms) {
    for (auto& part : c)
      for (auto& some : part)
        for (auto& x : some) x = 0;
    if constexpr (!adds) return;
    if (in_pairs<S>(out, columns_there == tile_columns && terms == depth))
      return each_pair(out, [&](int p, int j, int e, const Several<S, 2>* at) {
        const auto two = *at;
        c[p][j][e] = number(two.x[0]), c[p][j][e + 1] = number(two.x[1]);
      });
    each_two(out, columns_there, terms, [&](int p, int j, int e, Word at, bool both) {
      c[p][j][e] = kernel::load<S>(at, 0);
      if (both) c[p][j][e + 1] = kernel::load<S>(at, out.term);
    });
  }
  // Adds the matmul of tiles^T and x, 16 rows at a time. x: the staged operand (rows, terms).
  template <class X> void add(const Together<E>& tiles, const X& x) {
    const int warp = int(threadIdx_x) / 32;
    const int column = warp % 4 * 16;  // first of the 16 columns, of both tiles together
#pragma unroll
    for (int k = 0; k < tile_rows / 16; ++k) {
      std::uint32_t a[4];  // tiles^T (16 columns, 16 rows)
      fragment<E, true, false>(a, tiles.at, tiles.place(16 * k, column), tiles.pitch);
#pragma unroll
      for (int p = 0; p < parts; ++p) {
        const int d = warp / 4 + 2 * p;
        if (d >= depth / 16) continue;  // the same for the whole warp
        std::uint32_t b[4];             // x (16 rows, 16 terms)
        fragment<E, false, !X::is_along>(b, x.at, x.place(16 * k, 16 * d), X::pitch);
        multiply_two<E>(c[p][0], c[p][1], a, b);
      }
    }
  }
  void store(const Side& out, int columns_there, int terms) const {
    if (in_pairs<S>(out, columns_there == tile_columns && terms == depth))
      return each_pair(out, [&](int p, int j, int e, Several<S, 2>* at) {
        *at = {{element<S>(c[p][j][e]), element<S>(c[p][j][e + 1])}};
      });
    each_two(out, columns_there, terms, [&](int p, int j, int e, Word at, bool both) {
      kernel::store<S>(at, 0, c[p][j][e]);
      if (both) kernel::store<S>(at, out.term, c[p][j][e + 1]);
    });
  }
};

// Returns the flags of up to 64 blocks as bits, in all lanes.
inline unsigned long long block_flags(Word at, long long step, int count) {
  unsigned long long out = 0;
  for (int g = int(threadIdx_x) % 32; g < count; g += 32)
    if (load<bool>(at, g * step)) out |= 1ull << g;
  for (int by = 1; by < 32; by *= 2) out |= exchanged(out, by);
  return out;
}
// Reduces the values of a row over four lanes, and stores the result of each half in room: two T
// per row.
template <class T, class F> inline void fold_lanes(T (&x)[2], F f, T* room) {
  const int warp = int(threadIdx_x) / 32, lane = int(threadIdx_x) % 32;
  for (int h = 0; h < 2; ++h) {
    x[h] = f(x[h], exchanged(x[h], 1));
    x[h] = f(x[h], exchanged(x[h], 2));
    if (lane % 4 == 0) room[warp / 4 * tile_rows + warp % 4 * 16 + lane / 4 + 8 * h] = x[h];
  }
}

}  // namespace haliax::kernel
