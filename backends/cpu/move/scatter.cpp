// Run: scatters, which update a target at positions that ids select.
#include "base/thread_pool.h"
#include "picked_lines.h"
#include "scatter_updates.h"

namespace haliax::cpu {
namespace {

// Each worker iterates over rows in order, but writes only its own elements: its columns of all
// runs, its part of a dim of the target, or some of the runs of each position. This avoids races
// and fixes the order of sums.
class ScatterStep final : public CompiledStep {
 public:
  explicit ScatterStep(const program::Scatter& scatter)
      : updates_(scatter.updates), target_(scatter.target), ids_(scatter.indexed, scatter.clamp),
        dtype_(scatter.target.dtype), update_(scatter.update), kernel_16_bit_(kernel_of_16_bits()),
        lines_("scatter", scatter.dims, scatter.updates.strides, scatter.target.strides, ids_,
               updates_dense_runs()),
        part_(lines_.disjoint()), runs_per_block_(lines_.disjoint_runs()) {
    choose_kernel();
    choose_blocks();
  }
  void run(Frame& frame) override {
    ids_.set(frame);
    std::byte *updates = updates_.at(frame), *target = target_.at(frame);
    with_update(dtype_, update_, [&](auto zero, const auto& f) {
      using T = decltype(zero);
      const T* from = reinterpret_cast<const T*>(updates);
      T* to = reinterpret_cast<T*>(target);
      parallel_for(blocks_, threads(),
                   [&](std::int64_t block, int) { scatter_block(from, to, block_of(block), f); });
    });
  }

 private:
  // Copies of strided runs of updates as dense rows. Several runs of the target may share them.
  template <class T> class PackedUpdates {
   public:
    static constexpr std::int64_t most_columns = 128, most_rows = 32;
    // `step` and `from`: the distances of rows and of columns.
    PackedUpdates(const T* updates, std::int64_t step, std::int64_t from)
        : updates_(updates), step_(step), from_(from) {}
    // Copies the rows of the updates from element `first` on.
    void set(std::int64_t first, std::int64_t rows, std::int64_t columns) {
      if (at_ == first && rows_ >= rows && columns_ == columns) return;
      kernels().copy_rows(sizeof(T), values_, {columns, 1}, updates_ + first, {step_, from_}, rows,
                          columns);
      at_ = first;
      rows_ = rows;
      columns_ = columns;
    }
    const T* row(std::int64_t k) const { return values_ + k * columns_; }

   private:
    const T* updates_;
    std::int64_t step_, from_;
    std::int64_t at_ = -1, rows_ = 0, columns_ = 0;
    alignas(64) T values_[most_columns * most_rows];
  };

  // Chooses a vector kernel for dense runs of the target, for which updates may be packed.
  void choose_kernel() {
    if (lines_.run_size() < kShortest || lines_.run_stride(1) != 1) return;
    const std::int64_t stride = lines_.run_stride(0);
    packs_ = updates_dense_runs() && stride != 1 && (stride != 0 || kernel_16_bit_);
    if (!is_widened(dtype_)) combine_ = kernel_of(packs_ ? 1 : stride);
  }
  // Splits the columns of the runs, or a dim of the target, or the runs.
  void choose_blocks() {
    const std::int64_t n = lines_.run_size(), points = lines_.rows() * lines_.run_points(),
                       most = points / kUpdatesPerBlock;
    const bool are_columns_distinct = lines_.run_stride(1) != 0;  // distinct elements of the target
    columns_ = std::max<std::int64_t>(n, 1);
    if (are_columns_distinct && n >= 2 * kPartColumns && most > 1) {
      part_ = {};
      const std::int64_t parts = std::min(n / kPartColumns, most),
                         columns = (n + parts - 1) / parts;
      columns_ = std::min(n, (columns + kPartColumns - 1) / kPartColumns * kPartColumns);
      blocks_ = (n + columns_ - 1) / columns_;
    } else if (part_.last > 1 && most > 1) {
      const std::int64_t parts = std::min({part_.last, most, kMostBlocks});
      positions_ = (part_.last + parts - 1) / parts;
      blocks_ = (part_.last + positions_ - 1) / positions_;
    } else {
      part_ = {};
      // each block packs all updates
      const std::int64_t runs = lines_.disjoint_runs(),
                         most_blocks = packs_ ? kPackingBlocks * threads() : kMostBlocks,
                         parts = std::clamp<std::int64_t>(most, 1, std::min(runs, most_blocks));
      runs_per_block_ = (runs + parts - 1) / parts;
      splits_runs_ = runs_per_block_ < runs;
      blocks_ = (runs + runs_per_block_ - 1) / runs_per_block_;
    }
    if (points == 0) blocks_ = 0;
  }
  // The rows and columns of a block.
  struct Block {
    std::int64_t rows, first_column, columns, first_run, last_run;
    PartOfDim part;
  };
  Block block_of(std::int64_t block) const {
    Block b{.rows = lines_.rows(),
            .first_column = 0,
            .columns = lines_.run_size(),
            .first_run = 0,
            .last_run = lines_.runs(),
            .part = {}};
    if (part_.last > 0) {
      b.part = {part_.dim, block * positions_, std::min(part_.last, (block + 1) * positions_)};
      b.rows = b.rows / part_.last * (b.part.last - b.part.first);
    } else if (splits_runs_) {
      b.first_run = block * runs_per_block_;
      b.last_run = std::min(lines_.disjoint_runs(), b.first_run + runs_per_block_);
    } else {
      b.first_column = block * columns_;
      b.columns = std::min(columns_, b.columns - b.first_column);
    }
    return b;
  }
  template <class T, class F>
  void scatter_block(const T* updates, T* target, const Block& b, const F& f) const {
    const std::int64_t step = lines_.line_stride();
    if (lines_.run_points() == 1)
      return lines_.each(
          0, b.rows,
          [&](auto here, auto there, const auto* offsets, auto n) {
            update_elements(updates + here, step, target + there, offsets, n, f);
          },
          b.part);
    packs_ ? scatter_packed(updates, target, b, f) : scatter_runs(updates, target, b, f);
  }
  template <class T, class F>
  void scatter_runs(const T* updates, T* target, const Block& b, const F& f) const {
    const std::int64_t step = lines_.line_stride(), from = lines_.run_stride(0),
                       to = lines_.run_stride(1);
    auto on_run = [&](auto h, auto t) {
      update_run(updates + h, target + t, b.columns, from, to, f);
    };
    auto on_segment = [&](auto here, auto there, const auto* offsets, auto count) {
      for (std::int64_t j = 0; j < count; ++j)
        if (offsets[j] != IdRun::outside)
          lines_.each_run(here + j * step + b.first_column * from,
                          there + offsets[j] + b.first_column * to, b.first_run, b.last_run,
                          on_run);
    };
    lines_.each(0, b.rows, on_segment, b.part);
  }
  // Like scatter_runs, for strided updates: copies a tile of positions x columns to dense rows,
  // then updates the target row by row with a vector kernel.
  template <class T, class F>
  void scatter_packed(const T* updates, T* target, const Block& b, const F& f) const {
    using Packed = PackedUpdates<T>;
    const std::int64_t step = lines_.line_stride(), from = lines_.run_stride(0);
    Packed packed(updates, step, from);
    // The order of runs and positions does not matter if the runs have no element in common.
    const std::int64_t tile = lines_.has_distinct_runs() ? Packed::most_rows : 1,
                       end = b.first_column + b.columns;
    auto on_segment = [&](auto here, auto there, const auto* offsets, auto count) {
      for (std::int64_t c = b.first_column; c < end; c += Packed::most_columns)
        for (std::int64_t j = 0; j < count; j += tile) {
          const std::int64_t columns = std::min(end - c, Packed::most_columns),
                             rows = std::min(count - j, tile);
          auto on_run = [&](auto h, auto t) {
            packed.set(h, rows, columns);
            for (std::int64_t k = 0; k < rows; ++k)
              if (offsets[j + k] != IdRun::outside)
                update_run(packed.row(k), target + t + offsets[j + k], columns, 1, 1, f);
          };
          lines_.each_run(here + j * step + c * from, there + c, b.first_run, b.last_run, on_run);
        }
    };
    lines_.each(0, b.rows, on_segment, b.part);
  }
  template <class T, class F>
  void update_run(const T* from, T* to, std::int64_t n, std::int64_t fs, std::int64_t ts,
                  const F& f) const {
    if (update_ == program::Update::set) return copy_run(from, to, n, fs, ts);
    if (combine_) {
      const void* in[] = {to, from};
      return combine_(to, in, n);
    }
    if (kernel_16_bit_ && fs == 1 && ts == 1) return update_16_bits(from, to, n);
    for (std::int64_t i = 0; i < n; ++i) to[i * ts] = f(to[i * ts], from[i * fs]);
  }
  // Updates neighbors of 16 bits by the vector kernels, with bitwise identical results.
  void update_16_bits(const void* from, void* to, std::int64_t n) const {
    constexpr std::int64_t most = 256;
    alignas(64) float a[most], b[most];
    const std::int64_t bytes = haliax::bytes_of(dtype_);
    const auto load = kernels().load(dtype_);
    const auto store = kernels().store(dtype_);
    for (std::int64_t i = 0; i < n; i += most) {
      const auto some = std::min(most, n - i);
      std::byte* at = static_cast<std::byte*>(to) + i * bytes;
      load(a, at, 1, some);
      load(b, static_cast<const std::byte*>(from) + i * bytes, 1, some);
      const void* in[] = {a, b};
      kernel_16_bit_(a, in, some);
      store(at, a, 1, some);
    }
  }
  // Returns true if there is a vector kernel for dense runs.
  bool updates_dense_runs() const {
    return update_ == program::Update::set || kernel_16_bit_ ||
           (!is_widened(dtype_) && kernel_of(1) != nullptr);
  }
  // Returns the kernel for updates of 16-bit floats, which are combined in f32, or null.
  Kernel kernel_of_16_bits() const {
    const bool is_16_bit = dtype_ == DType::bf16 || dtype_ == DType::f16;
    return is_16_bit && update_ != program::Update::set
               ? kernels().map(code_of(update_), LaneType::f32, Shape::vector_vector)
               : nullptr;
  }
  static program::Code code_of(program::Update update) {
    using program::Code;
    using program::Update;
    return update == Update::add   ? Code::add
           : update == Update::mul ? Code::mul
           : update == Update::min ? Code::min
                                   : Code::max;
  }
  // Returns the vector kernel that combines a run of the target with updates of this stride. Null:
  // there is none.
  Kernel kernel_of(std::int64_t stride) const {
    if ((stride != 0 && stride != 1) || update_ == program::Update::set) return nullptr;
    return kernels().map(code_of(update_), lane_type_of(dtype_),
                         stride == 0 ? Shape::vector_scalar : Shape::vector_vector);
  }
  static constexpr std::int64_t kShortest = 8;  // elements of a run that a kernel combines
  static constexpr std::int64_t kUpdatesPerBlock = 16384;
  static constexpr std::int64_t kPartColumns = 64;   // columns of a block are a multiple of it
  static constexpr std::int64_t kMostBlocks = 64;    // that split a dim, or runs
  static constexpr std::int64_t kPackingBlocks = 2;  // blocks per thread, if each packs updates
  Place updates_, target_;
  Ids ids_;
  DType dtype_;
  program::Update update_;
  Kernel kernel_16_bit_;
  PickedLines lines_;
  PartOfDim part_;  // the dim that is split over the workers; last = 0: the columns are split
  std::int64_t positions_ = 1, columns_ = 1, blocks_ = 1;
  std::int64_t runs_per_block_ = 1;
  bool splits_runs_ = false;  // blocks are runs of each position
  Kernel combine_ = nullptr;
  bool packs_ = false;  // updates of runs are copied to dense ones
};

}  // namespace

std::unique_ptr<CompiledStep> make_scatter(const program::Step& step, const Context&) {
  if (updates_few(step.scatter)) return make_scatter_to_few(step.scatter);
  return std::make_unique<ScatterStep>(step.scatter);
}

}  // namespace haliax::cpu
