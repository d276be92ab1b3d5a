// Run: gathers, which read a table at positions that ids select.
#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "backends/cpu/fused/non_temporal.h"
#include "backends/cpu/workspace.h"
#include "base/thread_pool.h"
#include "picked_lines.h"

namespace haliax::cpu {
namespace {

constexpr std::int64_t kVector = 16;  // words of a vector
constexpr std::int64_t kLines = 64;   // lines that are transposed together

// Moves a dim of a gather to the end.
void move_last(program::Gather& g, std::size_t dim) {
  auto move = [&](Dims& of_dims) {
    const auto at = of_dims.begin() + std::ptrdiff_t(dim);
    std::rotate(at, at + 1, of_dims.end());
  };
  for (Dims* of_dims : {&g.dims, &g.table.strides, &g.out.strides}) move(*of_dims);
  for (auto& indexed : g.indexed) move(indexed.ids.strides);
}
// Returns the gather with its lines along the ids in memory, if the kernel for words can read these
// lines, although the elements of a line are then far apart in the result. The result is
// contiguous along the dim before the line.
program::Gather with_dense_ids(program::Gather g) {
  if (g.indexed.size() != 1 || !kernels().gather_words) return g;
  if (haliax::bytes_of(g.out.dtype) != 4 || g.indexed[0].ids.dtype != DType::i32) return g;
  const Dims& ids = g.indexed[0].ids.strides;
  const auto is_line = [&](std::size_t d) {
    return ids[d] == 1 && g.table.strides[d] == 0 && g.dims[d] >= kVector;
  };
  const auto is_column = [&](std::size_t d) {
    return ids[d] > 1 && g.out.strides[d] == 1 && g.dims[d] >= kVector;
  };
  std::optional<std::size_t> line, column;
  for (std::size_t d = 0; d < g.dims.size(); ++d) {
    if (is_line(d)) line = d;
    if (is_column(d)) column = d;
  }
  if (!line || !column) return g;
  move_last(g, *column);
  move_last(g, *line - (*column < *line));
  return g;
}

class GatherStep final : public CompiledStep {
 public:
  explicit GatherStep(const program::Gather& gather)
      : gather_(with_dense_ids(gather)), table_(gather.table), out_(gather.out),
        ids_(gather_.indexed, gather.outside == program::Outside::clamp),
        lines_("gather", gather_.dims, gather_.out.strides, gather_.table.strides, ids_, false),
        bytes_(haliax::bytes_of(gather.out.dtype)) {
    const DType dtype = gather.out.dtype;
    scalar::Value absent = is_float(dtype)
                               ? scalar::Value{std::numeric_limits<double>::quiet_NaN(), 0}
                           : is_signed(dtype) ? scalar::lowest(dtype)
                                              : scalar::highest(dtype);
    if (gather.outside == program::Outside::zero) absent = {};
    scalar::store(dtype, absent_, absent);
    constexpr std::int64_t few_lines = 4;
    may_copy_ = lines_.has_shared_ids() && lines_.lines() >= few_lines &&
                lines_.line_size() >= kShortPiece && lines_.has_dense_positions();
    non_temporal_ = lines_.run_size() * bytes_ >= fewest_bytes_of_run &&
                    lines_.rows() * lines_.run_points() * bytes_ >= fewest_non_temporal_bytes;
    has_words_ = bytes_ == 4 && kernels().gather_words && lines_.run_points() == 1 &&
                 lines_.has_small_ids() && (lines_.line_size() >= kVector || !lines_.joins_lines());
  }
  void run(Frame& frame) override {
    ids_.set(frame);
    const std::byte* table = table_.at(frame);
    std::byte* out = out_.at(frame);
    const std::int64_t per_block = std::max<std::int64_t>(
        1, kCopyGrain / std::max<std::int64_t>(8, lines_.run_points() * bytes_));
    with_bytes(bytes_, [&](auto zero) {
      using T = decltype(zero);
      T absent;
      std::memcpy(&absent, absent_, sizeof absent);
      Pieces pieces;
      if (may_copy_ && find_pieces(pieces)) {
        const std::int64_t each = std::max<std::int64_t>(1, per_block / lines_.line_size());
        return parallel_for((lines_.lines() + each - 1) / each, threads(),
                            [&](std::int64_t block, int) {
                              const auto end = std::min(lines_.lines(), (block + 1) * each);
                              copy_pieces(pieces, reinterpret_cast<const T*>(table),
                                          reinterpret_cast<T*>(out), absent, block * each, end);
                            });
      }
      if constexpr (sizeof(T) == 4)
        if (has_words_ && lines_.line_stride() != 1)
          return gather_columns(reinterpret_cast<const T*>(table), reinterpret_cast<T*>(out),
                                absent);
      parallel_for(
          (lines_.rows() + per_block - 1) / per_block, threads(), [&](std::int64_t block, int) {
            gather_rows(reinterpret_cast<const T*>(table), reinterpret_cast<T*>(out), absent,
                        block * per_block, std::min(lines_.rows(), (block + 1) * per_block));
          });
    });
  }

 private:
  // Neighboring positions of a line that are neighbors in the table, or all out of range.
  struct Piece {
    std::int64_t first, count, offset;  // offset: in the table, or IdRun::outside
  };
  struct Pieces {
    static constexpr int most = 16;
    std::array<Piece, most> list;
    int count = 0;
  };
  static constexpr std::int64_t kShortPiece = 16;  // positions

  // Finds the pieces of a line. Returns false if they are too many or too short.
  bool find_pieces(Pieces& pieces) const {
    const std::int64_t size = lines_.line_size(), dense = lines_.run_points(),
                       most = std::min<std::int64_t>(Pieces::most, size / kShortPiece);
    bool few = true;
    for (std::int64_t first = 0; first < size && few; first += PickedLines::segment) {
      auto add = [&](auto, auto, const auto* offsets, auto n) {
        for (std::int64_t j = 0; j < n && few; ++j) {
          Piece* last = pieces.count > 0 ? &pieces.list[std::size_t(pieces.count - 1)] : nullptr;
          const bool extends = last && (last->offset == IdRun::outside
                                            ? offsets[j] == IdRun::outside
                                            : offsets[j] == last->offset + last->count * dense);
          if (extends)
            ++last->count;
          else if ((few = pieces.count < most))
            pieces.list[std::size_t(pieces.count++)] = {
                .first = first + j, .count = 1, .offset = offsets[j]};
        }
      };
      lines_.each(first, std::min(size, first + PickedLines::segment), add);
    }
    return few;
  }
  template <class T>
  void copy_pieces(const Pieces& pieces, const T* table, T* out, T absent, std::int64_t first,
                   std::int64_t last) const {
    const std::int64_t dense = lines_.run_points();
    lines_.each_line(first, last, [&](auto here, auto there) {
      for (int k = 0; k < pieces.count; ++k) {
        const Piece& p = pieces.list[std::size_t(k)];
        T* to = out + here + p.first * dense;
        if (p.offset == IdRun::outside)
          std::fill_n(to, p.count * dense, absent);
        else
          copy_run(table + there + p.offset, to, p.count * dense, 1, 1);
      }
    });
  }
  template <class T>
  void gather_rows(const T* table, T* out, T absent, std::int64_t first, std::int64_t last) const {
    const std::int64_t step = lines_.line_stride();
    if constexpr (sizeof(T) == 4)
      if (has_words_)
        return lines_.each_run_of_ids(
            first, last, [&](auto here, auto there, const IdRun& ids, auto n) {
              kernels().gather_words(out + here, table + there, ids, absent, n);
            });
    if (lines_.run_points() == 1)
      return lines_.each(first, last, [&](auto here, auto there, const auto* offsets, auto n) {
        gather_line(table + there, out + here, absent, offsets, n, step);
      });
    const std::int64_t n = lines_.run_size(), from = lines_.run_stride(1),
                       to = lines_.run_stride(0);
    if (n == lines_.run_points() && from == 1 && to == 1)
      return lines_.each(first, last, [&](auto here, auto there, const auto* offsets, auto count) {
        for (std::int64_t j = 0; j < count; ++j) {
          T* const run = out + here + j * step;
          if (offsets[j] == IdRun::outside)
            std::fill_n(run, n, absent);
          else
            copy_dense(table + there + offsets[j], run, n);
        }
      });
    lines_.each(first, last, [&](auto here, auto there, const auto* offsets, auto count) {
      for (std::int64_t j = 0; j < count; ++j) {
        const bool inside = offsets[j] != IdRun::outside;
        lines_.each_run(here + j * step, inside ? there + offsets[j] : 0, [&](auto h, auto t) {
          inside ? copy_run(table + t, out + h, n, from, to) : copy_run(&absent, out + h, n, 0, to);
        });
      }
    });
  }
  // Copies neighbors: short runs of full cache lines without a call.
  template <class T> void copy_dense(const T* from, T* to, std::int64_t n) const {
    if (non_temporal_)
      return copy_non_temporal(reinterpret_cast<std::byte*>(to),
                               reinterpret_cast<const std::byte*>(from), n * bytes_);
    constexpr std::int64_t line = 64 / sizeof(T), most_lines = 8;
    if (n % line != 0 || n > most_lines * line)
      return static_cast<void>(std::memcpy(to, from, std::size_t(n) * sizeof(T)));
    for (std::int64_t i = 0; i < n; i += line) std::memcpy(to + i, from + i, 64);
  }
  // Gathers lines whose elements are far apart in the result: parts of several neighboring lines
  // one after another, which are then transposed.
  void gather_columns(const std::uint32_t* table, std::uint32_t* out, std::uint32_t absent) const {
    const std::int64_t size = lines_.line_size(), segment = PickedLines::segment,
                       segments = (size + segment - 1) / segment,
                       blocks = (lines_.lines() + kLines - 1) / kLines;
    parallel_for(segments * blocks, threads(), [&](std::int64_t k, int) {
      const std::int64_t first = k / blocks * segment, line = k % blocks * kLines;
      const auto part = lines_.part_of_lines(first, std::min(first + segment, size));
      gather_columns_of(part, table, out, absent, line, std::min(lines_.lines(), line + kLines));
    });
  }
  void gather_columns_of(const PartOfDim& part, const std::uint32_t* table, std::uint32_t* out,
                         std::uint32_t absent, std::int64_t first, std::int64_t last) const {
    auto* const lines = reinterpret_cast<std::uint32_t*>(workspace());
    std::int64_t start = 0, count = 0, size = 0;
    auto store = [&] {
      kernels().copy_rows(4, out + start, {lines_.line_stride(), 1}, lines, {1, size}, size, count);
      count = 0;
    };
    const std::int64_t positions = part.last - part.first;
    lines_.each_run_of_ids(
        first * positions, last * positions,
        [&](auto here, auto there, const IdRun& ids, auto n) {
          const bool extends = here == start + count && n == size;
          if (count > 0 && !extends) store();
          if (count == 0) {
            start = here;
            size = n;
          }
          kernels().gather_words(lines + count++ * size, table + there, ids, absent, n);
        },
        part);
    if (count > 0) store();
  }
  template <class T>
  static void gather_line(const T* table, T* out, T absent, const std::int64_t* offsets,
                          std::int64_t n, std::int64_t step) {
    if (step == 1) return kernels().gather_values(sizeof(T), out, table, offsets, &absent, n);
    for (std::int64_t j = 0; j < n; ++j)
      out[j * step] = offsets[j] != IdRun::outside ? table[offsets[j]] : absent;
  }
  const program::Gather gather_;
  Place table_, out_;
  Ids ids_;
  PickedLines lines_;
  int bytes_;
  bool may_copy_ = false;      // long pieces of a line may be copied, if the ids have any
  bool has_words_ = false;     // the kernel for words reads the lines
  bool non_temporal_ = false;  // long runs of a result that exceeds the caches
  std::byte absent_[8] = {};
};

}  // namespace

std::unique_ptr<CompiledStep> make_gather(const program::Step& step, const Context&) {
  return std::make_unique<GatherStep>(step.gather);
}

}  // namespace haliax::cpu
