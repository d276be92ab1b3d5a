// Matmuls by one block of 256 threads, in tiles of 64 x 64 of the result. Tiles of the operands are
// copied to shared memory, the next ones during the multiplication of the current ones. 16-bit
// floats are multiplied by mma.sync, other dtypes by fused multiply-adds.
#pragma once

namespace haliax::kernel {

// An operand: element (line, term) is at line * `line` + term * `term` elements from `at`. For a
// result: (row, column).
struct Side {
  Word at;
  int line, term;  // all offsets are below 2^30 elements
};
// size of a tile of the result, and lines of the tiles of the operands
inline constexpr int rows = 64, columns = 64;
// bytes of shared memory: two buffers for both operands
inline constexpr int stage_bytes = 2 * (rows + columns) * 40 * 2;

// Returns the same number, with its origin hidden from the compiler.
inline Word hidden(Word x) {
#ifndef haliax_thread
  asm volatile("" : "+l"(x));
#endif
  return x;
}
inline int hidden(int x) {
#ifndef haliax_thread
  asm volatile("" : "+r"(x));
#endif
  return x;
}

// c (16, 8) += a (16, 16) b (16, 8) by a warp. Each lane has some elements of each operand, two
// 16-bit floats per word.
#ifndef haliax_thread
template <class E>
inline void multiply_tile(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<E, bf16>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
// Each lane publishes the addresses of its elements to the others.
template <class E>
inline void multiply_tile(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  struct Shown {
    const std::uint32_t *a, *b;
  } mine[32];
  const unsigned lane = threadIdx_x % 32;
  auto* all = reinterpret_cast<Shown*>(
      haliax_thread->from_lane(reinterpret_cast<unsigned long long>(mine), 0));
  all[lane] = {a, b};
  haliax_thread->from_lane(0, 0);
  auto half = [](std::uint32_t word, unsigned k) {
    return number(std::bit_cast<E>(std::uint16_t(word >> 16 * (k % 2))));
  };
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = lane / 4, down = i / 2, column = lane % 4 * 2 + i % 2;
    float sum = 0;
    for (unsigned k = 0; k < 16; ++k)
      sum += half(all[row * 4 + k % 8 / 2].a[down + k / 8 * 2], k) *
             half(all[column * 4 + k % 8 / 2].b[k / 8], k);
    c[i] += sum;
  }
  haliax_thread->from_lane(0, 0);
}
#endif

template <class E, int n> struct alignas(sizeof(E) * n) Several { E x[n]; };
// A thread's part of a tile (lines, terms): n adjacent elements along the lines or the terms.
// Elements outside of the operand are 0. There may be more threads than parts.
template <class W, class E, int all_lines, int depth, int n> struct Part {
  Several<W, n> all;
  bool along_terms, there = threadIdx_x < all_lines * depth / n;
  int slow, fast;
  explicit Part(const Side& s) : along_terms(s.term == 1 || s.line != 1) {
    const int parts = (along_terms ? depth : all_lines) / n;
    slow = int(threadIdx_x) / parts, fast = int(threadIdx_x) % parts * n;
  }
  int line(int j) const { return along_terms ? slow : fast + j; }
  int term(int j) const { return along_terms ? fast + j : slow; }
  void fetch(const Side& s, int first_line, int first_term, int lines, int terms) {
    if (!there) return;
    const auto at =
        s.at + (long long)((first_line + line(0)) * s.line + (first_term + term(0)) * s.term) *
                   int(sizeof(E));
    if constexpr (std::is_same_v<W, E>) {
      constexpr int bytes = sizeof(E) * n;
      if ((along_terms ? s.term : s.line) == 1 && at % bytes == 0 &&
          first_line + line(n - 1) < lines && first_term + term(n - 1) < terms) {
        all = *reinterpret_cast<const Several<E, n>*>(at);
        return;
      }
    }
    const auto step = (along_terms ? s.term : s.line) * int(sizeof(E));
    const int left = along_terms ? (first_line + slow < lines ? terms - first_term - fast : 0)
                                 : (first_term + slow < terms ? lines - first_line - fast : 0);
    auto from = at;
    for (int j = 0; j < n; ++j, from += step) {
      if constexpr (std::is_same_v<W, E>)
        all.x[j] = j < left ? *reinterpret_cast<const E*>(from) : element<E>(0);
      else
        all.x[j] = j < left ? wide(cast<W, E>(load<E>(from, 0))) : W(0);
    }
  }
  template <class Sum> void put(W* stage) const {
    if (!there) return;
    auto* to = stage + Sum::template at<all_lines>(line(0), term(0));
    if (along_terms == Sum::by_lines) {
      *reinterpret_cast<Several<W, n>*>(to) = all;
    } else {
      constexpr int step =
          Sum::by_lines ? Sum::template at<all_lines>(1, 0) : Sum::template at<all_lines>(0, 1);
      for (int j = 0; j < n; ++j) to[j * step] = all.x[j];
    }
  }
};

// The sums of a thread, of a tile of the result.
template <class E> struct NarrowSums {  // by mma.sync: warps of 16 rows and 32 columns
  using Stage = E;
  static constexpr int depth = 32, each = 8;
  static constexpr bool by_lines = true;  // the terms of a line are contiguous
  static constexpr int pitch = 40;        // avoids bank conflicts
  static constexpr int elements(int lines) { return lines * pitch; }
  float c[4][4];
  int row = int(threadIdx_x) / 32 % 4 * 16, column = int(threadIdx_x) / 128 * 32,
      lane = int(threadIdx_x) % 32;
  template <int> static constexpr int at(int line, int term) { return line * pitch + term; }
  void clear() {
    for (auto& some : c)
      for (auto& x : some) x = 0;
  }
  void add(const E* a, const E* b, bool there) {
    if (!there) return;  // the same for the whole warp
    for (int k = 0; k < depth; k += 16) {
      auto two = [&](const E* from, int line, int term) {
        return *reinterpret_cast<const std::uint32_t*>(
            from + at<0>(line + lane / 4, k + term + lane % 4 * 2));
      };
      const std::uint32_t x[4] = {two(a, row, 0), two(a, row + 8, 0), two(a, row, 8),
                                  two(a, row + 8, 8)};
      for (int j = 0; j < 4; ++j) {
        const std::uint32_t y[2] = {two(b, column + 8 * j, 0), two(b, column + 8 * j, 8)};
        multiply_tile<E>(c[j], x, y);
      }
    }
  }
  template <class F> void each_sum(const F& f) const {
    for (int j = 0; j < 4; ++j)
      for (int i = 0; i < 4; ++i)
        f(row + lane / 4 + i / 2 * 8, column + 8 * j + lane % 4 * 2 + i % 2, c[j][i]);
  }
};
template <class T> struct Sums {  // 4 rows and 4 columns per thread
  using Stage = T;
  static constexpr int depth = sizeof(T) > 4 ? 8 : 16, each = depth / 4;
  static constexpr bool by_lines = false;  // the lines of a term are contiguous
  static constexpr int elements(int lines) { return depth * (lines + 4); }
  T c[4][4];
  int row = int(threadIdx_x) / 16 * 4, column = int(threadIdx_x) % 16 * 4;
  template <int lines> static constexpr int at(int line, int term) {
    return term * (lines + 4) + line;
  }
  void clear() {
    for (auto& some : c)
      for (auto& x : some) x = 0;
  }
  void add(const T* a, const T* b, bool there) {
    if (!there) return;
    T some[4][4] = {};  // sums of short sums are more accurate
    for (int k = 0; k < depth; ++k)
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j)
          some[i][j] =
              kernel::fma(a[at<rows>(row + i, k)], b[at<columns>(column + j, k)], some[i][j]);
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 4; ++j) c[i][j] = kernel::add(c[i][j], some[i][j]);
  }
  template <class F> void each_sum(const F& f) const {
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 4; ++j) f(row + i, column + j, c[i][j]);
  }
};

// out (m, n) = (adds ? out : 0) + a (m, k) b (k, n), rounded once. Lines are the rows of a and the
// columns of b. S: dtype of the result. stage: stage_bytes of shared memory.
template <class A, class B, class S, bool adds>
__noinline__ void block_product(Side a, Side b, Side out, int m, int n, int k,
                                unsigned char* stage) {
  constexpr bool narrow =
      std::is_same_v<A, B> && is_narrow<A> && (is_narrow<S> || std::is_same_v<S, float>);
  using Sum = std::conditional_t<narrow, NarrowSums<A>, Sums<Wide<S>>>;
  using W = typename Sum::Stage;
  constexpr int depth = Sum::depth, of_a = Sum::elements(rows),
                of_both = of_a + Sum::elements(columns);
  static_assert(2 * of_both * sizeof(W) <= stage_bytes);
  auto* staged = reinterpret_cast<W*>(stage);  // a, b of even steps, then a, b of odd steps
  Sum sums;
  Part<W, A, rows, depth, Sum::each> x(a);
  Part<W, B, columns, depth, Sum::each> y(b);
  for (int row = 0; row < m; row += rows)
    for (int column = 0; column < n; column += columns) {
      const bool there = row + sums.row < m && column + sums.column < n;
      sums.clear();
      x.fetch(a, row, 0, m, k), y.fetch(b, column, 0, n, k);
      for (int first = 0; first < k; first += depth) {
        auto* to = staged + (first / depth % 2 ? of_both : 0);
        x.template put<Sum>(to), y.template put<Sum>(to + of_a);
        __syncthreads();
        if (first + depth < k)
          x.fetch(a, row, first + depth, m, k), y.fetch(b, column, first + depth, n, k);
        sums.add(to, to + of_a, there);
      }
      sums.each_sum([&](int i, int j, auto sum) {
        if (row + i >= m || column + j >= n) return;
        const auto at = (row + i) * out.line + (column + j) * out.term;
        if constexpr (adds) sum = kernel::add(wide(load<S>(out.at, at)), sum);
        store<S>(out.at, at, result<S>(sum));
      });
      __syncthreads();  // all threads have read the staged tiles
    }
}

}  // namespace haliax::kernel
