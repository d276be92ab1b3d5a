// Gathers: reads of a table at positions that ids select.
#include <array>
#include <limits>

#include "base/thread_pool.h"
#include "picked_lines.h"

namespace haliax::cpu {
namespace {

class GatherStep final : public CompiledStep {
 public:
  explicit GatherStep(const program::Gather& gather)
      : table_(gather.table), out_(gather.out),
        ids_(gather.indexed, gather.outside == program::Outside::clamp),
        lines_("gather", gather.dims, gather.out.strides, gather.table.strides, ids_, false),
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
            pieces.list[std::size_t(pieces.count++)] = {first + j, 1, offsets[j]};
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
      if (kernels().gather_words && lines_.run_points() == 1 && step == 1 &&
          lines_.has_small_ids() && (lines_.line_size() >= kVector || !lines_.joins_lines()))
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
    lines_.each(first, last, [&](auto here, auto there, const auto* offsets, auto count) {
      for (std::int64_t j = 0; j < count; ++j) {
        const bool inside = offsets[j] != IdRun::outside;
        lines_.each_run(here + j * step, inside ? there + offsets[j] : 0, [&](auto h, auto t) {
          inside ? copy_run(table + t, out + h, n, from, to) : copy_run(&absent, out + h, n, 0, to);
        });
      }
    });
  }
  template <class T>
  static void gather_line(const T* table, T* out, T absent, const std::int64_t* offsets,
                          std::int64_t n, std::int64_t step) {
    if (step == 1) return kernels().gather_values(sizeof(T), out, table, offsets, &absent, n);
    for (std::int64_t j = 0; j < n; ++j)
      out[j * step] = offsets[j] != IdRun::outside ? table[offsets[j]] : absent;
  }
  static constexpr std::int64_t kVector = 16;  // words of a vector
  Place table_, out_;
  Ids ids_;
  PickedLines lines_;
  int bytes_;
  bool may_copy_ = false;  // long pieces of a line may be copied, if the ids have any
  std::byte absent_[8] = {};
};

}  // namespace

std::unique_ptr<CompiledStep> make_gather(const program::Step& step, const Context&) {
  return std::make_unique<GatherStep>(step.gather);
}

}  // namespace haliax::cpu
