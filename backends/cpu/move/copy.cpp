// Plan and run: strided copies, in blocks for the workers.
#include "backends/cpu/fused/non_temporal.h"
#include "backends/cpu/kernels.h"
#include "base/thread_pool.h"
#include "strided_copy.h"

namespace haliax::cpu {
namespace {

// elements of a piece, below which its copy takes less time than the call of a kernel
constexpr std::int64_t fewest_for_kernel = 64;

// Copies rows x cols elements in squares, so that each cache line is used while it is cached.
void copy_tile(int bytes, void* to, RowStrides ts, const void* from, RowStrides fs,
               std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t side = 32;
  for (std::int64_t r = 0; r < rows; r += side)
    for (std::int64_t c = 0; c < cols; c += side)
      kernels().copy_rows(bytes, static_cast<char*>(to) + (r * ts.row + c * ts.column) * bytes, ts,
                          static_cast<const char*>(from) + (r * fs.row + c * fs.column) * bytes, fs,
                          std::min(side, rows - r), std::min(side, cols - c));
}

}  // namespace

Copier::Copier(const Dims& dims, const Dims& from, const Dims& to, int bytes) : bytes_(bytes) {
  Dims order;
  for (std::size_t d = 0; d < dims.size(); ++d) order.push_back(static_cast<std::int64_t>(d));
  // In the order of the target's memory, so that writes are sequential.
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return std::abs(to[static_cast<std::size_t>(a)]) > std::abs(to[static_cast<std::size_t>(b)]);
  });
  for (std::int64_t o : order) {
    const std::size_t d = static_cast<std::size_t>(o);
    dims_merged_.add(dims[d], {from[d], to[d]});
  }
  if (dims_merged_.count == 0) {
    dims_merged_.size[dims_merged_.count] = 1;
    dims_merged_.stride[0][0] = dims_merged_.stride[1][0] = 1;
    dims_merged_.count = 1;
  }

  const int last = dims_merged_.count - 1;
  const std::int64_t row_bytes = dims_merged_.size[last] * bytes;
  non_temporal_ = row_bytes >= fewest_bytes_of_run &&
                  dims_merged_.points(0, dims_merged_.count) * bytes >= fewest_non_temporal_bytes &&
                  dims_merged_.stride[0][last] == 1 && dims_merged_.stride[1][last] == 1;
  if (!find_pattern()) {
    // the last dim but one has the rows of tiles
    for (int e = row_dim(); e + 1 < last; ++e) dims_merged_.swap(e, e + 1);
    outer_ = std::max(0, dims_merged_.count - 2);
  }
  outer_points_ = dims_merged_.points(0, outer_);
  const std::int64_t tile_bytes = dims_merged_.points(outer_, dims_merged_.count) * bytes;
  const bool has_pattern = !pattern_.empty();
  if (!has_pattern && outer_points_ == 1 && dims_merged_.size[outer_] > 1) {  // splits the tile
    const std::int64_t row = std::max<std::int64_t>(1, tile_bytes / dims_merged_.size[outer_]);
    per_block_ = std::max<std::int64_t>(1, kCopyGrain / row);
    if (dims_merged_.count > 1) per_block_ = (per_block_ + 31) / 32 * 32;
    blocks_ = (dims_merged_.size[outer_] + per_block_ - 1) / per_block_;
  } else {
    per_block_ = std::max<std::int64_t>(1, kCopyGrain / std::max<std::int64_t>(1, tile_bytes));
    blocks_ = tile_bytes == 0 ? 0 : (outer_points_ + per_block_ - 1) / per_block_;
  }
}

// If the runs of the source are short, finds a tile of several dims that is contiguous in the
// target and sets the offsets of its elements in the source. For example, a copy of windows of 2 x
// 3 pixels of c channels has runs of 3 elements, and tiles of c x 2 x 3. Returns true if there is a
// tile.
bool Copier::find_pattern() {
  constexpr std::int64_t least = 24, most = 2048;  // elements of a tile
  const int last = dims_merged_.count - 1, row = row_dim();
  const std::int64_t *size = dims_merged_.size, *to = dims_merged_.stride[1];
  if (last < 2 || size[row] * size[last] >= fewest_for_kernel) return false;
  std::int64_t points = 1;
  int first = dims_merged_.count;
  while (first > 0 && to[first - 1] == points && points * size[first - 1] <= most)
    points *= size[--first];
  if (points < least || first > last - 1) return false;
  outer_ = first;
  for (std::int64_t i = 0; i < points; ++i)
    pattern_.push_back(dims_merged_.offset(0, i, first, dims_merged_.count));
  return true;
}

// Returns the dim along which the source is contiguous, for square tiles. If there is none, returns
// the innermost dim that has enough elements for a kernel, together with the last dim.
int Copier::row_dim() const {
  const int last = dims_merged_.count - 1;
  const std::int64_t *size = dims_merged_.size, *from = dims_merged_.stride[0];
  if (std::abs(from[last]) > 1)
    for (int d = 0; d < last; ++d)
      if (std::abs(from[d]) == 1) return d;
  for (int d = last - 1; d >= 0; --d)
    if (size[d] * size[last] >= fewest_for_kernel) return d;
  return std::max(0, last - 1);
}

void Copier::run(const std::byte* from, std::byte* to, std::int64_t block) const {
  with_bytes(bytes_, [&](auto zero) {
    using T = decltype(zero);
    const T* source = reinterpret_cast<const T*>(from);
    T* target = reinterpret_cast<T*>(to);
    const std::int64_t *f = dims_merged_.stride[0], *t = dims_merged_.stride[1];
    const int a = outer_, b = dims_merged_.count - 1;
    const std::int64_t columns = dims_merged_.size[b];
    const auto copy_rows = kernels().copy_rows;
    auto piece = [&](const T* s, T* d, std::int64_t rows) {
      if (!pattern_.empty()) {
        for (std::size_t k = 0; k < pattern_.size(); ++k) d[k] = s[pattern_[k]];
        return;
      }
      auto stream = [&](std::int64_t row, std::int64_t count) {
        copy_non_temporal(reinterpret_cast<std::byte*>(d + row * t[a]),
                          reinterpret_cast<const std::byte*>(s + row * f[a]), count * bytes_);
      };
      if (a == b && non_temporal_) return stream(0, rows);
      if (a == b) return copy_rows(bytes_, d, {0, t[a]}, s, {0, f[a]}, 1, rows);
      if (rows * columns < fewest_for_kernel) {
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t c = 0; c < columns; ++c)
            d[r * t[a] + c * t[b]] = s[r * f[a] + c * f[b]];
        return;
      }
      const RowStrides fs{f[a], f[b]}, ts{t[a], t[b]};
      if (non_temporal_) {
        for (std::int64_t r = 0; r < rows; ++r) stream(r, columns);
        return;
      }
      if (f[b] == 1 || f[b] == 0 || std::abs(f[a]) != 1)
        copy_rows(bytes_, d, ts, s, fs, rows, columns);
      else
        copy_tile(bytes_, d, ts, s, fs, rows, columns);
    };
    const std::int64_t first = block * per_block_;
    if (outer_points_ == 1)
      return piece(source + first * f[a], target + first * t[a],
                   std::min(per_block_, dims_merged_.size[a] - first));
    std::int64_t position[MergedDims<2>::most];  // along the dims [0, outer_)
    std::int64_t rest = first;
    for (int d = outer_ - 1; d >= 0; --d) {
      position[d] = rest % dims_merged_.size[d];
      rest /= dims_merged_.size[d];
    }
    source += dims_merged_.offset(0, first, 0, outer_);
    target += dims_merged_.offset(1, first, 0, outer_);
    for (std::int64_t p = std::min(outer_points_, first + per_block_) - first; p > 0; --p) {
      piece(source, target, dims_merged_.size[a]);
      for (int d = outer_ - 1; d >= 0; --d) {
        source += f[d];
        target += t[d];
        if (++position[d] < dims_merged_.size[d]) break;
        source -= f[d] * position[d];
        target -= t[d] * position[d];
        position[d] = 0;
      }
    }
  });
}

namespace {

class CopyStep final : public CompiledStep {
 public:
  CopyStep(const program::Copy& copy, const Context& context)
      : x_(copy.x), out_(copy.out),
        copier_(copy.dims, copy.x.strides, copy.out.strides, haliax::bytes_of(copy.x.dtype)) {
    if (copy.x.dtype != copy.out.dtype)
      throw Error("[copy] the dtypes of source and target differ");
    itself_ = copy.x == copy.out && context.overlap(copy.x.slot, copy.out.slot);
  }
  void run(Frame& frame) override {
    const std::byte* x = x_.at(frame);
    std::byte* out = out_.at(frame);
    if (itself_) return;
    parallel_for(copier_.blocks(), threads(),
                 [&](std::int64_t block, int) { copier_.run(x, out, block); });
  }

 private:
  Place x_, out_;
  Copier copier_;
  bool itself_ = false;
};

}  // namespace

std::unique_ptr<CompiledStep> make_copy(const program::Step& step, const Context& context) {
  return std::make_unique<CopyStep>(step.copy, context);
}

}  // namespace haliax::cpu
