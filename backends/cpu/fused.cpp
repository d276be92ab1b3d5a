// Executes the tapes of a fused step.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "assemble.h"
#include "base/thread_pool.h"

namespace haliax::cpu {
namespace {

struct Tile {
  std::int64_t at[max_dims] = {}, size[max_dims] = {};
  std::int64_t outer = 1, inner = 1;  // number of elements
  std::int64_t position = 0;          // index of the first inner element

  // Sets the tile to box number `box` of the dims [first, last). Returns its number of elements.
  static std::int64_t set(const FusedPlan& plan, Tile& tile, int first, int last,
                          std::int64_t box) {
    std::int64_t points = 1;
    for (int d = last - 1; d >= first; --d) {
      std::int64_t boxes = (plan.size[d] + plan.box[d] - 1) / plan.box[d];
      tile.at[d] = box % boxes * plan.box[d];
      tile.size[d] = std::min(plan.box[d], plan.size[d] - tile.at[d]);
      points *= tile.size[d];
      box /= boxes;
    }
    return points;
  }
  void set_outer(const FusedPlan& plan, std::int64_t box) {
    outer = set(plan, *this, 0, plan.outer_dims, box);
  }
  void set_inner(const FusedPlan& plan, std::int64_t box) {
    inner = set(plan, *this, plan.outer_dims, plan.dims, box);
    position = 0;
    for (int d = plan.outer_dims; d < plan.dims; ++d) position = position * plan.size[d] + at[d];
  }
};

// The layout of a tile in memory: nested runs with constant strides, innermost last, merged where
// possible.
struct Runs {
  int count = 0;
  std::int64_t size[max_dims + 1], stride[max_dims + 1];

  void add(std::int64_t n, std::int64_t step) {
    if (n == 1) return;
    if (count > 0 && stride[count - 1] == step * n) {
      size[count - 1] *= n;
      stride[count - 1] = step;
    } else {
      size[count] = n;
      stride[count++] = step;
    }
  }
  // Calls f(offset in memory, position in the register, stride, n) for each innermost run.
  template <class F> void each(const F& f) const {
    if (count == 0) return f(std::int64_t{0}, std::int64_t{0}, std::int64_t{1}, std::int64_t{1});
    const int last = count - 1;
    std::int64_t index[max_dims + 1] = {}, memory = 0, position = 0;
    for (;;) {
      f(memory, position, stride[last], size[last]);
      position += size[last];
      int d = last - 1;
      for (; d >= 0; --d) {
        memory += stride[d];
        if (++index[d] < size[d]) break;
        memory -= stride[d] * size[d];
        index[d] = 0;
      }
      if (d < 0) return;
    }
  }
};

// Broadcasts one value per row, or one row to all rows.
template <class T>
void expand(void* out, const void* in, std::int64_t rows, std::int64_t columns, bool by_row) {
  T* d = static_cast<T*>(out);
  const T* s = static_cast<const T*>(in);
  for (std::int64_t r = 0; r < rows; ++r) {
    if (by_row)
      std::fill_n(d + r * columns, columns, s[r]);
    else
      std::memcpy(d + r * columns, s, static_cast<std::size_t>(columns) * sizeof(T));
  }
}
class FusedStep final : public CompiledStep {
 public:
  FusedStep(const program::Step& step, const Context& context)
      : plan_(plan_fused(step.fused, &context)),
        scratch_(step, context.arena_slot, plan_.scratch_bytes) {
    pool_memory_ = std::make_unique<std::byte[]>(static_cast<std::size_t>(plan_.pool_bytes) + 64);
    pool_ =
        pool_memory_.get() + (64 - reinterpret_cast<std::uintptr_t>(pool_memory_.get()) % 64) % 64;
    bases_.resize(plan_.accesses.size());
    set_constants();
    Worker(*this).once(plan_.constants);
  }

  void run(Frame& frame) override {
    if (plan_.outer_boxes == 0 ||
        (plan_.inner_boxes == 0 && plan_.reductions.empty() && plan_.outer_stores.empty()))
      return;
    for (std::size_t a = 0; a < bases_.size(); ++a) {
      const Access& access = plan_.accesses[a];
      bases_[a] =
          access.iota
              ? Base{nullptr, access.start + access.view.offset + access.place.loop_offset(frame)}
              : Base{access.place.at(frame), 0};
    }
    if (!plan_.prologue.empty()) Worker(*this).once(plan_.prologue);
    partials_ = plan_.scratch_bytes ? scratch_.at(frame) : nullptr;
    const int workers = threads();
    if (plan_.chunks == 1) {
      parallel_for(plan_.blocks, workers, [this](std::int64_t block, int) {
        Worker worker(*this);
        const std::int64_t first = block * plan_.boxes_per_block,
                           end = std::min(plan_.outer_boxes, first + plan_.boxes_per_block);
        for (std::int64_t box = first; box < end; ++box) worker.process_box(box, first, end);
      });
      return;
    }
    for (int level = 0; level < plan_.levels; ++level) {
      if (plan_.inner[static_cast<std::size_t>(level)].empty()) continue;
      parallel_for(plan_.outer_boxes * plan_.chunks, workers,
                   [this, level](std::int64_t block, int) {
                     Worker(*this).part(level, block / plan_.chunks, block % plan_.chunks);
                   });
    }
    if (plan_.outer_stores.empty()) return;
    Worker worker(*this);
    for (std::int64_t box = 0; box < plan_.outer_boxes; ++box) worker.last(box);
  }

 private:
  struct Base {
    std::byte* memory;
    std::int64_t start;  // iota
  };

  // The state of one thread while it processes boxes.
  class Worker {
   public:
    explicit Worker(const FusedStep& step)
        : step_(step), plan_(step.plan_), registers_(workspace()) {
      values_ = reinterpret_cast<void**>(registers_ + (plan_.register_bytes + 63) / 64 * 64);
      for (std::size_t v = 0; v < plan_.values.size(); ++v) values_[v] = home_of(v);
    }
    // Runs a tape that writes to the pool, for a full tile.
    void once(const Tape& tape) {
      tile_.outer = tile_.inner = 1;
      for (int d = 0; d < plan_.dims; ++d)
        (d < plan_.outer_dims ? tile_.outer : tile_.inner) *= tile_.size[d] = plan_.box[d];
      play(tape);
    }
    // Processes one of the boxes [first, end).
    void process_box(std::int64_t box, std::int64_t first, std::int64_t end) {
      tile_.set_outer(plan_, box);
      if (box + 1 < end) next_.set_outer(plan_, box + 1);
      // If a hidden element of one box was nonzero, hidden elements of later boxes are assumed to
      // be nonzero, too.
      visible_points_ = plan_.row_masks.empty() || masks_more_ ? 0 : count_visible_points();
      walk(box, first, end);
      if (visible_points_ == 0) return;
      if (!masks_more_) return fill_ends();
      visible_points_ = 0;
      walk(box, first, end);
    }
    void walk(std::int64_t box, std::int64_t first, std::int64_t end) {
      for (std::size_t r = 0; r < plan_.reductions.size(); ++r)
        plan_.reductions[r].init(accumulator(r), tile_.outer);
      const std::size_t last_pass = plan_.last_pass();
      for (std::size_t level = 0; level < static_cast<std::size_t>(plan_.levels); ++level) {
        play(plan_.outer[level]);
        // A row that several passes read stays in the second-level cache. The next row joins it,
        // prefetched during the last pass.
        if (plan_.single_inner_box || plan_.stays_in_cache)
          soon_ = box + 1 < end && (plan_.single_inner_box || level == last_pass) ? next_row
                  : level == 0 && box == first                                    ? next_tile
                                                                                  : nothing;
        sweep(level, 0, plan_.inner_boxes);
        if (visible_points_ > 0 && masks_more_) return;
      }
      play(plan_.outer_stores);
    }
    // Processes one chunk of the inner space of a box, for one level. Stores its partial reductions
    // in the scratch memory.
    void part(int level, std::int64_t box, std::int64_t chunk) {
      tile_.set_outer(plan_, box);
      play_outer(level, box);
      for (std::size_t r = 0; r < plan_.reductions.size(); ++r)
        if (plan_.reduction_level[r] == level)
          plan_.reductions[r].init(accumulator(r), tile_.outer);
      const std::int64_t boxes = (plan_.inner_boxes + plan_.chunks - 1) / plan_.chunks;
      sweep(static_cast<std::size_t>(level), chunk * boxes,
            std::min(plan_.inner_boxes, (chunk + 1) * boxes));
      for (std::size_t r = 0; r < plan_.reductions.size(); ++r)
        if (plan_.reduction_level[r] == level)
          std::memcpy(partial(r, chunk, box), accumulator(r),
                      static_cast<std::size_t>(tile_.outer * plan_.reductions[r].bytes));
    }
    void last(std::int64_t box) {
      tile_.set_outer(plan_, box);
      play_outer(plan_.levels - 1, box);
      play(plan_.outer_stores);
    }

   private:
    void* home_of(std::size_t v) const {
      const Register& r = plan_.values[v];
      return (r.home == Register::pool ? step_.pool_ : registers_) + r.offset;
    }
    std::byte* accumulator(std::size_t r) const { return registers_ + plan_.accumulator_offset[r]; }
    std::byte* partial(std::size_t r, std::int64_t chunk, std::int64_t box) const {
      return step_.partials_ + plan_.partial_offset[r] +
             (chunk * plan_.outer_boxes + box) * plan_.outer_box * plan_.reductions[r].bytes;
    }
    // Runs the outer tapes up to a level. Merges the reductions that they need, in the order of the
    // chunks.
    void play_outer(int level, std::int64_t box) {
      for (std::size_t r = 0; r < plan_.reductions.size(); ++r) {
        if (plan_.reduction_level[r] >= level) continue;
        plan_.reductions[r].init(accumulator(r), tile_.outer);
        for (std::int64_t chunk = 0; chunk < plan_.chunks; ++chunk)
          plan_.reductions[r].merge(accumulator(r), partial(r, chunk, box), tile_.outer);
      }
      for (int l = 0; l <= level; ++l) play(plan_.outer[static_cast<std::size_t>(l)]);
    }
    void sweep(std::size_t level, std::int64_t first, std::int64_t last) {
      const Tape& tape = plan_.inner[level];
      if (tape.empty()) return;
      for (std::int64_t box = first; box < last; ++box) {
        tile_.set_inner(plan_, box);
        if (visible_points_ > 0) tile_.inner = tile_.size[plan_.dims - 1] = visible_points_;
        ahead_.drop();
        play(tape);
      }
    }
    // Returns the number of elements to compute per row: all elements that a mask leaves visible in
    // some row of the tile, and at least one more. The last computed element represents the hidden
    // ones. Returns 0 if full rows must be computed.
    std::int64_t count_visible_points() const {
      constexpr std::int64_t unit = 16;
      std::int64_t most = 0;
      for (const PositionMask& mask : plan_.row_masks) {
        std::int64_t value = mask.constant;  // at the first element of the first row
        std::int64_t step = 0;               // decrease per element
        std::int64_t grows[max_dims] = {};   // increase per row, along each dim
        std::int64_t magnitude = mask.magnitude;
        for (auto [number, sign] : mask.positions) {
          const Access& iota = plan_.accesses[static_cast<std::size_t>(number)];
          std::int64_t at = step_.bases_[static_cast<std::size_t>(number)].start, reach = 0;
          for (int d = 0; d < plan_.outer_dims; ++d) {
            const std::int64_t stride = iota.strides[static_cast<std::size_t>(d)];
            at += tile_.at[d] * stride;
            reach += (tile_.size[d] - 1) * std::abs(stride);
            grows[d] += sign * stride;
          }
          const std::int64_t stride = iota.strides[static_cast<std::size_t>(plan_.dims - 1)];
          magnitude += std::abs(at) + reach + std::abs(stride) * plan_.inner_points;
          value += sign * at;
          step -= sign * stride;
        }
        if (magnitude >= mask.limit) return 0;
        for (int d = 0; d < plan_.outer_dims; ++d)
          value += (tile_.size[d] - 1) * std::max<std::int64_t>(0, grows[d]);
        const std::int64_t points = mask.or_equal ? value / step + 1 : (value + step - 1) / step;
        most = std::max(most, value < 0 ? 0 : points);
      }
      const std::int64_t shown = (most / unit + 1) * unit;
      return shown < plan_.inner_points ? shown : 0;
    }
    void fill_ends() {
      const std::int64_t left = plan_.inner_points - visible_points_;
      for (int number : plan_.filled) {
        const Access& access = plan_.accesses[static_cast<std::size_t>(number)];
        const std::int64_t bytes = haliax::bytes_of(access.dtype),
                           step = access.strides[static_cast<std::size_t>(plan_.dims - 1)];
        std::int64_t last = (visible_points_ - 1) * step;
        Runs rows;
        for (int d = 0; d < plan_.outer_dims; ++d) {
          last += tile_.at[d] * access.strides[static_cast<std::size_t>(d)];
          rows.add(tile_.size[d], access.strides[static_cast<std::size_t>(d)]);
        }
        std::byte* const memory =
            step_.bases_[static_cast<std::size_t>(number)].memory + last * bytes;
        rows.each([&](std::int64_t offset, std::int64_t, std::int64_t stride, std::int64_t n) {
          for (std::int64_t r = 0; r < n; ++r)
            repeat(memory + (offset + r * stride) * bytes, bytes, step, left);
        });
      }
    }
    // Copies x to the n positions after it.
    static void repeat(std::byte* x, std::int64_t bytes, std::int64_t step, std::int64_t n) {
      auto as = [&](auto type) {
        using T = decltype(type);
        T* to = reinterpret_cast<T*>(x);
        if (step == 1 && *to == 0)
          std::memset(to + 1, 0, static_cast<std::size_t>(n) * sizeof(T));
        else
          for (std::int64_t k = 1; k <= n; ++k) to[k * step] = *to;
      };
      bytes == 1   ? as(std::uint8_t())
      : bytes == 2 ? as(std::uint16_t())
      : bytes == 4 ? as(std::uint32_t())
                   : as(std::uint64_t());
    }
    void play(const Tape& tape) {
      for (const Op& op : tape) play(op);
    }
    void play(const Op& op) {
      const std::int64_t n = points_of(op.extent, tile_.outer, tile_.inner);
      if (!op.fetching && op.kind != Op::assembled) ahead_.fetch(n / 64);
      switch (op.kind) {
        case Op::map: {
          aim(op, n);
          const void* in[4];
          for (int k = 0; k < 4; ++k) in[k] = op.in[k] >= 0 ? value(op.in[k]) : nullptr;
          return call(op, value(op.out), in, n);
        }
        case Op::map_rows:
          aim(op, n);
          return map_rows(op);
        case Op::assembled:
          return run_assembled(op, n);
        case Op::load:
          return load(op, n);
        case Op::iota:
          return iota(op);
        case Op::store:
          return store(op);
        case Op::reduce: {
          const std::size_t r = static_cast<std::size_t>(op.reduction);
          if (plan_.inner_major)
            plan_.reductions[r].lanes(accumulator(r), value(op.in[0]), tile_.inner, tile_.outer,
                                      pitch_of(op.in[0]), tile_.position);
          else
            plan_.reductions[r].rows(accumulator(r), value(op.in[0]), tile_.outer, tile_.inner,
                                     tile_.position);
          return;
        }
        case Op::pick: {
          const auto& reduction = plan_.reductions[static_cast<std::size_t>(op.reduction)];
          const char* x = static_cast<const char*>(value(op.in[0]));
          const int width = width_of(op.in[0]);
          return each_point(op, op.in[1], [&](std::int64_t row, std::int64_t at) {
            reduction.rows(
                accumulator(static_cast<std::size_t>(op.reduction)) + row * reduction.bytes,
                x + (row * tile_.inner + at) * width, 1, 1, tile_.position + at);
          });
        }
        case Op::poke: {
          aim(op, n);
          char* out = static_cast<char*>(value(op.out));
          const char *x = static_cast<const char*>(value(op.in[0])),
                     *change = static_cast<const char*>(value(op.in[1]));
          const int width = width_of(op.out);
          if (x != out) std::memcpy(out, x, static_cast<std::size_t>(n * width));
          return each_point(op, op.in[2], [&](std::int64_t row, std::int64_t at) {
            char* here = out + (row * tile_.inner + at) * width;
            const void* in[4] = {here, change + (op.from[0] == Extent::one ? 0 : row) * width};
            op.kernel(here, in, 1);
          });
        }
        case Op::finish: {
          const std::size_t r = static_cast<std::size_t>(op.reduction);
          return plan_.reductions[r].finish(value(op.out), accumulator(r), tile_.outer);
        }
        case Op::expand:
          if (cpu::bytes_of(op.lane) == 4)
            expand<std::uint32_t>(value(op.out), value(op.in[0]), rows(), columns(),
                                  op.from[0] == plan_.row());
          else
            expand<std::uint64_t>(value(op.out), value(op.in[0]), rows(), columns(),
                                  op.from[0] == plan_.row());
          return;
        case Op::splat:
          return splat(op, value(op.out), value(op.in[0]), n);
        case Op::zero:
          return expect_zero(op);
        case Op::recode:
          op.store_run(value(op.in[1]), value(op.in[0]), 1, n);
          op.load_run(value(op.out), value(op.in[1]), 1, n);
          return;
      }
    }
    // Checks the elements that represent the hidden ones. Sets masks_more_ if one of them is
    // nonzero.
    void expect_zero(const Op& op) {
      if (visible_points_ == 0) return;
      const void* x = value(op.in[0]);
      const bool wide = cpu::bytes_of(op.lane) == 8;
      for (auto last = tile_.inner - 1; last < tile_.outer * tile_.inner; last += tile_.inner)
        masks_more_ |= wide ? static_cast<const double*>(x)[last] != 0
                            : static_cast<const float*>(x)[last] != 0;
    }
    void call(const Op& op, void* out, const void* const* in, std::int64_t n) {
      if (op.fetching)
        op.fetching(out, in, n, ahead_);
      else
        op.kernel(out, in, n);
    }
    void*& value(int v) { return values_[v]; }
    // Returns the distance between rows of a tile in the lanes layout.
    std::int64_t pitch_of(int v) const {
      return v == pitched_ && values_[v] != home_of(static_cast<std::size_t>(v)) ? pitch_
                                                                                 : tile_.outer;
    }
    int width_of(int v) const {
      return cpu::bytes_of(plan_.values[static_cast<std::size_t>(v)].lane);
    }
    // Calls f(row, column) for each row whose id is within the tile.
    template <class F> void each_point(const Op& op, int ids, const F& f) {
      const Access& access = plan_.accesses[static_cast<std::size_t>(op.access)];
      std::int64_t start = step_.bases_[static_cast<std::size_t>(op.access)].start;
      for (int d = 0; d < plan_.dims; ++d)
        start += tile_.at[d] * access.strides[static_cast<std::size_t>(d)];
      const void* id = value(ids);
      const bool wide = width_of(ids) == 8;
      for (std::int64_t row = 0; row < tile_.outer; ++row) {
        const std::int64_t k = op.from[1] == Extent::one ? 0 : row;
        const std::int64_t at = (wide ? static_cast<const std::int64_t*>(id)[k]
                                      : static_cast<const std::int32_t*>(id)[k]) -
                                start;
        if (at >= 0 && at < tile_.inner) f(row, at);
      }
    }
    std::int64_t rows() const { return plan_.inner_major ? tile_.inner : tile_.outer; }
    std::int64_t columns() const { return plan_.inner_major ? tile_.outer : tile_.inner; }
    // Applies a binary kernel row by row. An operand has one value per row, one row for all rows,
    // or a full tile.
    void map_rows(const Op& op) {
      std::int64_t step[2];
      const void* in[4] = {};
      for (int k = 0; k < 2; ++k) {
        in[k] = value(op.in[k]);
        const Register& r = plan_.values[static_cast<std::size_t>(op.in[k])];
        step[k] = cpu::bytes_of(r.lane) * (op.from[k] == plan_.row()    ? 1
                                           : op.from[k] == Extent::full ? columns()
                                                                        : 0);
      }
      char* out = static_cast<char*>(value(op.out));
      const std::int64_t n = columns(), out_step = n * cpu::bytes_of(op.lane);
      for (std::int64_t r = rows(); r > 0; --r, out += out_step) {
        call(op, out, in, n);
        for (int k = 0; k < 2; ++k) in[k] = static_cast<const char*>(in[k]) + step[k];
      }
    }

    // Schedules a prefetch. The next tile usually follows this one in memory.
    void expect(const Access& access, const std::byte* memory, std::int64_t bytes) {
      if (plan_.only_reduces) return;
      if (soon_ == next_tile) ahead_.set(memory + bytes, bytes);
      if (soon_ != next_row) return;
      std::int64_t offset = 0;
      for (int d = 0; d < plan_.outer_dims; ++d)
        offset += (next_.at[d] - tile_.at[d]) * access.strides[static_cast<std::size_t>(d)];
      ahead_.set(memory + offset * haliax::bytes_of(access.dtype), bytes);
    }

    // Returns the offset of the tile in a view, in elements, and adds its layout to `runs`.
    std::int64_t begin(const Op& op, const Access& access, Runs& runs) const {
      std::int64_t offset = 0;
      const int end = op.outer_access ? plan_.outer_dims : plan_.dims;
      for (int d = 0; d < end; ++d)
        offset += tile_.at[d] * access.strides[static_cast<std::size_t>(d)];
      if (op.extent == Extent::one) return offset;
      auto add = [&](int first, int last) {
        for (int d = first; d < last; ++d)
          runs.add(tile_.size[d], access.strides[static_cast<std::size_t>(d)]);
      };
      const bool outer = static_cast<int>(op.extent) & 1,
                 inner = !op.outer_access && static_cast<int>(op.extent) & 2;
      if (plan_.inner_major && inner) add(plan_.outer_dims, plan_.dims);
      if (outer) add(0, plan_.outer_dims);
      if (!plan_.inner_major && inner) add(plan_.outer_dims, plan_.dims);
      return offset;
    }
    // Returns true if the runs are n contiguous values, or one value.
    static bool dense(const Runs& runs, std::int64_t n) {
      return runs.count == 0 ? n == 1 : runs.count == 1 && runs.size[0] == n && runs.stride[0] == 1;
    }
    std::byte* memory_of(const Op& op, int number, Runs& runs) const {
      const Access& access = plan_.accesses[static_cast<std::size_t>(number)];
      return step_.bases_[static_cast<std::size_t>(number)].memory +
             begin(op, access, runs) * haliax::bytes_of(access.dtype);
    }
    // Lets an op write its result directly to the memory of its store, if that memory is dense.
    void aim(const Op& op, std::int64_t n) { aim(op, op.out, op.into, n); }
    void aim(const Op& op, int out, int into, std::int64_t n) {
      if (into < 0) return;
      Runs runs;
      std::byte* memory = memory_of(op, into, runs);
      value(out) = dense(runs, n) ? memory : home_of(static_cast<std::size_t>(out));
    }
    // Returns true if all values that may be bf16 in memory are dense there. Otherwise loads the
    // dense inputs into registers as f32.
    bool are_16_bit(const Op& op, const AssembledOps& ops, std::int64_t points) {
      bool all = ops.bf16_code != nullptr;
      for (auto& in : ops.in)
        all &= !in.narrow || value(in.value) != home_of(static_cast<std::size_t>(in.value));
      for (auto& out : ops.out) {
        if (!out.narrow) continue;
        aim(op, out.value, out.into, points);
        all &= value(out.value) != home_of(static_cast<std::size_t>(out.value));
      }
      if (all) return true;
      for (auto& in : ops.in) {
        void*& x = value(in.value);
        const auto home = home_of(static_cast<std::size_t>(in.value));
        if (!in.narrow || x == home) continue;
        const auto extent = plan_.values[static_cast<std::size_t>(in.value)].extent;
        kernels().load(DType::bf16)(home, x, 1, points_of(extent, tile_.outer, tile_.inner));
        x = home;
      }
      for (auto& out : ops.out)
        if (out.narrow) value(out.value) = home_of(static_cast<std::size_t>(out.value));
      return false;
    }
    void run_assembled(const Op& op, std::int64_t points) {
      using Broadcast = AssembledOps::Broadcast;
      const AssembledOps& ops = plan_.assembled[static_cast<std::size_t>(op.which)];
      const std::int64_t count = ops.by_row ? rows() : 1, n = ops.by_row ? columns() : points;
      AssembledCall call;
      call.points = n / 16 * 16;
      call.rest = (1 << n % 16) - 1;
      const bool narrow = are_16_bit(op, ops, points);
      int arrays = 0, scalars = 0;
      std::int64_t step[most_arrays];
      const std::uint32_t* of_row[most_scalars];
      for (auto& in : ops.in) {
        auto* x = static_cast<std::uint32_t*>(value(in.value));
        if (in.broadcast == Broadcast::each || in.broadcast == Broadcast::along_row) {
          call.array[arrays] = x;
          step[arrays++] = in.broadcast == Broadcast::each ? (narrow && in.narrow ? 2 : 4) * n : 0;
        } else {
          call.scalar[scalars] = *x;
          of_row[scalars++] = in.broadcast == Broadcast::of_row ? x : nullptr;
        }
      }
      for (auto& out : ops.out)  // after the inputs, because a value may be both
        if (!out.narrow) aim(op, out.value, out.into, points);
      for (auto& out : ops.out) {
        call.array[arrays] = value(out.value);
        step[arrays++] = (narrow && out.narrow ? 2 : 4) * n;
      }

      for (std::int64_t r = 0;;) {
        if (!ops.point.fetches_inputs) {
          const void* prefetch = ahead_.next_lines(n / 16);
          call.prefetch = prefetch ? prefetch : call.array[0];
        }
        (narrow ? ops.bf16_code : ops.code)(&call);
        if (++r == count) return;
        for (int k = 0; k < arrays; ++k)
          call.array[k] = static_cast<char*>(call.array[k]) + step[k];
        for (int k = 0; k < scalars; ++k)
          if (of_row[k]) call.scalar[k] = of_row[k][r];
      }
    }
    void load(const Op& op, std::int64_t n) {
      const Access& access = plan_.accesses[static_cast<std::size_t>(op.access)];
      Runs runs;
      const std::int64_t bytes = haliax::bytes_of(access.dtype);
      std::byte* memory = memory_of(op, op.access, runs);
      if ((access.direct && (runs.count == 0 || dense(runs, n))) ||
          (plan_.values[static_cast<std::size_t>(op.out)].narrow && dense(runs, n))) {
        value(op.out) = memory;
        expect(access, memory, n * bytes);
        return;
      }
      if (access.only_reduced && runs.count == 2 && runs.stride[1] == 1 &&
          runs.size[1] == tile_.outer) {
        value(op.out) = memory;
        pitched_ = op.out;
        pitch_ = runs.stride[0];
        return;
      }
      char* reg = static_cast<char*>(values_[op.out] = home_of(static_cast<std::size_t>(op.out)));
      const int width = cpu::bytes_of(op.lane);
      runs.each(
          [&](std::int64_t offset, std::int64_t position, std::int64_t stride, std::int64_t count) {
            op.load_run(reg + position * width, memory + offset * bytes, stride, count);
          });
    }
    void store(const Op& op) {
      const Access& access = plan_.accesses[static_cast<std::size_t>(op.access)];
      Runs runs;
      const std::int64_t bytes = haliax::bytes_of(access.dtype);
      std::byte* memory = memory_of(op, op.access, runs);
      const char* reg = static_cast<const char*>(value(op.in[0]));
      if (static_cast<const void*>(reg) == memory) return;  // written there directly
      const int width = cpu::bytes_of(lane_type_of(access.dtype));
      runs.each(
          [&](std::int64_t offset, std::int64_t position, std::int64_t stride, std::int64_t count) {
            op.store_run(memory + offset * bytes, reg + position * width, stride, count);
          });
    }
    void iota(const Op& op) {
      const Access& access = plan_.accesses[static_cast<std::size_t>(op.access)];
      Runs runs;
      const std::int64_t start =
          step_.bases_[static_cast<std::size_t>(op.access)].start + begin(op, access, runs);
      runs.each(
          [&](std::int64_t offset, std::int64_t position, std::int64_t stride, std::int64_t count) {
            char* reg = static_cast<char*>(value(op.out)) + position * cpu::bytes_of(op.lane);
            kernels().count(op.lane, reg, start + offset, stride, count);
          });
    }

    const FusedStep& step_;
    const FusedPlan& plan_;
    std::byte* registers_;
    void** values_;
    int pitched_ = -1;  // the value that aliases memory with a row pitch
    std::int64_t pitch_ = 0;
    Tile tile_, next_;
    std::int64_t visible_points_ = 0;  // elements per row; 0: all
    bool masks_more_ = false;          // some hidden element was nonzero
    enum { nothing, next_tile, next_row } soon_ = next_tile;
    Prefetcher ahead_;
  };

  static void splat(const Op& op, void* out, const void* in, std::int64_t n) {
    if (cpu::bytes_of(op.lane) == 4)
      std::fill_n(static_cast<std::uint32_t*>(out), n, *static_cast<const std::uint32_t*>(in));
    else
      std::fill_n(static_cast<std::uint64_t*>(out), n, *static_cast<const std::uint64_t*>(in));
  }
  void* pool_value(int v) { return pool_ + plan_.values[static_cast<std::size_t>(v)].offset; }
  void set_constants() {
    for (auto [v, x] : plan_.numbers) {
      if (plan_.values[static_cast<std::size_t>(v)].lane == LaneType::f64)
        *static_cast<double*>(pool_value(v)) = x;
      else
        *static_cast<float*>(pool_value(v)) = static_cast<float>(x);
    }
    for (auto [v, x] : plan_.integers) {
      if (cpu::bytes_of(plan_.values[static_cast<std::size_t>(v)].lane) == 8)
        *static_cast<std::int64_t*>(pool_value(v)) = x;
      else
        *static_cast<std::uint32_t*>(pool_value(v)) = static_cast<std::uint32_t>(x);
    }
  }

  FusedPlan plan_;
  Scratch scratch_;
  std::unique_ptr<std::byte[]> pool_memory_;
  std::byte* pool_ = nullptr;
  std::byte* partials_ = nullptr;
  std::vector<Base> bases_;
};

// A step with masks, and its variant without masks for runs in which all masks hold.
class MaskedStep final : public CompiledStep {
 public:
  MaskedStep(const program::Step& step, const Context& context, Unmasked unmasked)
      : unmasked_(std::move(unmasked)), masked_(step, context),
        plain_(with(step, unmasked_.fused()), context) {}
  void run(Frame& frame) override { (unmasked_.holds(frame) ? plain_ : masked_).run(frame); }

 private:
  static program::Step with(program::Step step, program::Fused fused) {
    step.fused = std::move(fused);
    return step;
  }
  Unmasked unmasked_;
  FusedStep masked_, plain_;
};

}  // namespace

std::unique_ptr<CompiledStep> make_fused(const program::Step& step, const Context& context) {
  if (Unmasked unmasked(step.fused); unmasked.exists())
    return std::make_unique<MaskedStep>(step, context, std::move(unmasked));
  return std::make_unique<FusedStep>(step, context);
}
std::int64_t fused_scratch(const program::Step& step) {
  auto bytes = plan_fused(step.fused, nullptr).scratch_bytes;
  if (Unmasked unmasked(step.fused); unmasked.exists())
    bytes = std::max(bytes, plan_fused(unmasked.fused(), nullptr).scratch_bytes);
  return bytes;
}

}  // namespace haliax::cpu
