// Iteration over strided memory, and strided copies.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <utility>
#include <vector>

#include "backends/cpu/step.h"
#include "haliax/error.h"

namespace haliax::cpu {

// The joint iteration space of several operands. Dims of size 1 are dropped, and neighboring dims
// are merged where all strides allow it. Strides are in elements.
template <int Operands> struct MergedDims {
  static constexpr int most = 16;
  int count = 0;
  std::int64_t size[most], stride[Operands][most];

  void add(std::int64_t n, const std::int64_t (&step)[Operands]) {
    if (n == 1) return;
    bool merges = count > 0;
    for (int o = 0; o < Operands && merges; ++o) merges = stride[o][count - 1] == step[o] * n;
    if (!merges) {
      if (count == most) throw Error("[copy] more than 16 dimensions that do not merge");
      size[count++] = 1;
    }
    size[count - 1] *= n;
    for (int o = 0; o < Operands; ++o) stride[o][count - 1] = step[o];
  }
  void swap(int a, int b) {
    std::swap(size[a], size[b]);
    for (auto& steps : stride) std::swap(steps[a], steps[b]);
  }
  std::int64_t points(int first, int last) const {
    std::int64_t n = 1;
    for (int d = first; d < last; ++d) n *= size[d];
    return n;
  }
  // Returns the offset of operand o at flat index i over the dims [first, last).
  std::int64_t offset(int o, std::int64_t i, int first, int last) const {
    std::int64_t sum = 0;
    for (int d = last - 1; d >= first; --d) {
      sum += i % size[d] * stride[o][d];
      i /= size[d];
    }
    return sum;
  }
};

// Calls f with a value of the unsigned type of this size.
template <class F> auto with_bytes(int bytes, const F& f) {
  switch (bytes) {
    case 1:
      return f(std::uint8_t());
    case 2:
      return f(std::uint16_t());
    case 8:
      return f(std::uint64_t());
    default:
      return f(std::uint32_t());
  }
}

inline constexpr std::int64_t kCopyGrain = 1 << 17;  // bytes of a block that a worker copies

template <class T>
void copy_run(const T* from, T* to, std::int64_t n, std::int64_t fs, std::int64_t ts) {
  if (fs == 1 && ts == 1)
    std::memmove(to, from, static_cast<std::size_t>(n) * sizeof(T));
  else if (fs == 0 && ts == 1)
    std::fill_n(to, n, *from);
  else
    for (std::int64_t i = 0; i < n; ++i) to[i * ts] = from[i * fs];
}

// A prepared strided copy of one dtype.
class Copier {
 public:
  Copier() = default;
  Copier(const Dims& dims, const Dims& from, const Dims& to, int bytes);
  std::int64_t blocks() const { return blocks_; }
  // Copies one block of the elements. Blocks touch disjoint elements.
  void run(const std::byte* from, std::byte* to, std::int64_t block) const;

 private:
  int row_dim() const;  // the dim of the rows of a tile; the columns are the last dim
  bool find_pattern();
  MergedDims<2> dims_merged_;
  // dims [0, outer_) are iterated one element at a time, the last one or two dims by tiles
  int bytes_ = 4, outer_ = 0;
  std::int64_t outer_points_ = 1, per_block_ = 1, blocks_ = 0;
  bool non_temporal_ = false;  // long contiguous rows of a result that exceeds the caches
  std::vector<std::int64_t>
      pattern_;  // source offsets of a tile of short runs; empty: runs are long
};

}  // namespace haliax::cpu
