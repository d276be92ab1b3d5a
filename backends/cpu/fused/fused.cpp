// Run: fused steps, that is, boxes on several threads, their levels, and masked rows.
#include "fused.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "backends/cpu/matmul/stencil.h"
#include "base/thread_pool.h"
#include "tape_player.h"

namespace haliax::cpu {
namespace {

// Copies x to the n positions after it.
void repeat(std::byte* x, std::int64_t bytes, std::int64_t step, std::int64_t n) {
  auto as = [&](auto type) {
    using T = decltype(type);
    T* to = reinterpret_cast<T*>(x);
    if (step == 1 && *to == 0)
      std::memset(to + 1, 0, std::size_t(n) * sizeof(T));
    else
      for (std::int64_t k = 1; k <= n; ++k) to[k * step] = *to;
  };
  bytes == 1   ? as(std::uint8_t())
  : bytes == 2 ? as(std::uint16_t())
  : bytes == 4 ? as(std::uint32_t())
               : as(std::uint64_t());
}
// Returns the number of elements that a mask leaves visible in the row of the tile that sees most
// of them, or nothing if its sums may overflow. For example, given the mask key <= query and a tile
// of the queries 10 to 13, query 13 sees keys 0 to 13: returns 14.
std::optional<std::int64_t> seen_by_mask(const PositionMask& mask, const FusedRun& run,
                                         const Tile& tile) {
  const FusedPlan& plan = run.plan;
  std::int64_t value = mask.constant;  // at the first element of the row that sees most
  std::int64_t step = 0;               // decrease per element
  std::int64_t growth[max_dims] = {};  // increase per row, along each dim
  std::int64_t magnitude = mask.magnitude;
  for (auto [number, sign] : mask.positions) {
    const Access& iota = plan.accesses[std::size_t(number)];
    std::int64_t start = run.bases[std::size_t(number)].start, reach = 0;
    for (int d = 0; d < plan.outer_dims; ++d) {
      const std::int64_t stride = iota.strides[std::size_t(d)];
      start += tile.at[d] * stride;
      reach += (tile.size[d] - 1) * std::abs(stride);
      growth[d] += sign * stride;
    }
    const std::int64_t stride = iota.strides[std::size_t(plan.dims - 1)];
    magnitude += std::abs(start) + reach + std::abs(stride) * plan.inner_points;
    value += sign * start;
    step -= sign * stride;
  }
  if (magnitude >= mask.limit) return {};
  for (int d = 0; d < plan.outer_dims; ++d)
    value += (tile.size[d] - 1) * std::max<std::int64_t>(0, growth[d]);
  if (value < 0) return 0;
  return mask.or_equal ? value / step + 1 : (value + step - 1) / step;
}
// Returns the number of elements to compute per row: those that some mask leaves visible, and at
// least one more, which represents the hidden ones, up to a multiple of 16. In the example above:
// 16. Returns 0 if full rows must be computed.
std::int64_t visible_points_of(const FusedRun& run, const Tile& tile) {
  std::int64_t most = 0;
  for (const PositionMask& mask : run.plan.row_masks) {
    const auto seen = seen_by_mask(mask, run, tile);
    if (!seen) return 0;
    most = std::max(most, *seen);
  }
  constexpr std::int64_t unit = 16;
  const std::int64_t computed = (most / unit + 1) * unit;
  return computed < run.plan.inner_points ? computed : 0;
}
// Fills the hidden elements of the rows of a tile with the last visible one.
void fill_ends(const FusedRun& run, const Tile& tile, std::int64_t visible_points) {
  const FusedPlan& plan = run.plan;
  const std::int64_t left = plan.inner_points - visible_points;
  for (int number : plan.filled) {
    const Access& access = plan.accesses[std::size_t(number)];
    const std::int64_t bytes = haliax::bytes_of(access.dtype),
                       step = access.strides[std::size_t(plan.dims - 1)];
    std::int64_t last = (visible_points - 1) * step;
    Runs rows;
    for (int d = 0; d < plan.outer_dims; ++d) {
      last += tile.at[d] * access.strides[std::size_t(d)];
      rows.add(tile.size[d], access.strides[std::size_t(d)]);
    }
    std::byte* const memory = run.bases[std::size_t(number)].memory + last * bytes;
    rows.each_rows([&](std::int64_t offset, std::int64_t, RowStrides strides, std::int64_t outer,
                       std::int64_t inner) {
      for (std::int64_t o = 0; o < outer; ++o)
        for (std::int64_t r = 0; r < inner; ++r)
          repeat(memory + (offset + o * strides.row + r * strides.column) * bytes, bytes, step,
                 left);
    });
  }
}

// The state of one thread while it processes boxes. process_box runs all levels of a box. If the
// inner space is split into chunks, reduce_chunk runs in parallel, level by level, and
// store_results follows.
class Worker {
 public:
  explicit Worker(const FusedRun& run) : run_(run), plan_(run.plan) {}
  // Runs a tape that writes to the pool, for a full tile.
  void run_once(const Tape& tape) {
    tile_.outer = tile_.inner = 1;
    for (int d = 0; d < plan_.dims; ++d)
      (d < plan_.outer_dims ? tile_.outer : tile_.inner) *= tile_.size[d] = plan_.box[d];
    player_.play(tape);
  }
  // Processes one of the boxes [first, end).
  void process_box(std::int64_t box, std::int64_t first, std::int64_t end) {
    tile_.set_outer(plan_, box);
    if (box + 1 < end) player_.next.set_outer(plan_, box + 1);
    // If a hidden element of one box was nonzero, hidden elements of later boxes are assumed to
    // be nonzero, too.
    player_.visible_points =
        plan_.row_masks.empty() || player_.hides_nonzero ? 0 : visible_points_of(run_, tile_);
    run_levels(box, first, end);
    if (player_.visible_points == 0) return;
    if (!player_.hides_nonzero) return fill_ends(run_, tile_, player_.visible_points);
    player_.visible_points = 0;
    run_levels(box, first, end);
  }
  void run_levels(std::int64_t box, std::int64_t first, std::int64_t end) {
    for (std::size_t r = 0; r < plan_.reductions.size(); ++r)
      plan_.reductions[r].init(player_.values.accumulator(r), tile_.outer);
    const std::size_t last_pass = plan_.last_pass();
    for (std::size_t level = 0; level < std::size_t(plan_.levels); ++level) {
      player_.play(plan_.outer[level]);
      // A row that several passes read stays in the second-level cache. The next row joins it,
      // prefetched during the last pass.
      if (plan_.single_inner_box || plan_.stays_in_cache)
        player_.prefetched = box + 1 < end && (plan_.single_inner_box || level == last_pass)
                                 ? TapePlayer::next_row
                             : level == 0 && box == first ? TapePlayer::next_tile
                                                          : TapePlayer::nothing;
      run_inner_boxes(level, 0, plan_.inner_boxes);
      if (player_.visible_points > 0 && player_.hides_nonzero) return;
    }
    player_.play(plan_.outer_stores);
  }
  // Processes one chunk of the inner space of a box, for one level. Stores its partial reductions
  // in the scratch memory.
  void reduce_chunk(int level, std::int64_t box, std::int64_t chunk) {
    tile_.set_outer(plan_, box);
    play_outer(level, box);
    for (std::size_t r = 0; r < plan_.reductions.size(); ++r)
      if (plan_.reduction_level[r] == level)
        plan_.reductions[r].init(player_.values.accumulator(r), tile_.outer);
    const std::int64_t boxes = (plan_.inner_boxes + plan_.chunks - 1) / plan_.chunks;
    run_inner_boxes(std::size_t(level), chunk * boxes,
                    std::min(plan_.inner_boxes, (chunk + 1) * boxes));
    for (std::size_t r = 0; r < plan_.reductions.size(); ++r)
      if (plan_.reduction_level[r] == level)
        std::memcpy(partial(r, chunk, box), player_.values.accumulator(r),
                    std::size_t(tile_.outer * plan_.reductions[r].bytes));
  }
  void store_results(std::int64_t box) {
    tile_.set_outer(plan_, box);
    play_outer(plan_.levels - 1, box);
    player_.play(plan_.outer_stores);
  }

 private:
  std::byte* partial(std::size_t r, std::int64_t chunk, std::int64_t box) const {
    return run_.partials + plan_.partial_offset[r] +
           (chunk * plan_.outer_boxes + box) * plan_.outer_box * plan_.reductions[r].bytes;
  }
  // Runs the outer tapes up to a level. Merges the reductions that they need, in the order of the
  // chunks.
  void play_outer(int level, std::int64_t box) {
    for (std::size_t r = 0; r < plan_.reductions.size(); ++r) {
      if (plan_.reduction_level[r] >= level) continue;
      plan_.reductions[r].init(player_.values.accumulator(r), tile_.outer);
      for (std::int64_t chunk = 0; chunk < plan_.chunks; ++chunk)
        plan_.reductions[r].merge(player_.values.accumulator(r), partial(r, chunk, box),
                                  tile_.outer);
    }
    for (int l = 0; l <= level; ++l) player_.play(plan_.outer[std::size_t(l)]);
  }
  void run_inner_boxes(std::size_t level, std::int64_t first, std::int64_t last) {
    const Tape& tape = plan_.inner[level];
    if (tape.empty()) return;
    for (std::int64_t box = first; box < last; ++box) {
      tile_.set_inner(plan_, box);
      if (player_.visible_points > 0)
        tile_.inner = tile_.size[plan_.dims - 1] = player_.visible_points;
      player_.start_tile();
      player_.play(tape);
    }
  }

  const FusedRun& run_;
  const FusedPlan& plan_;
  TapePlayer player_{run_};
  Tile& tile_ = player_.values.tile;
};

class FusedStep final : public CompiledStep {
 public:
  FusedStep(const program::Step& step, const Context& context)
      : plan_(plan_fused(step.fused, &context)),
        scratch_(step, context.arena_slot, plan_.scratch_bytes) {
    pool_memory_ = std::make_unique<std::byte[]>(std::size_t(plan_.pool_bytes) + 64);
    run_.pool =
        pool_memory_.get() + (64 - reinterpret_cast<std::uintptr_t>(pool_memory_.get()) % 64) % 64;
    run_.bases.resize(plan_.accesses.size());
    set_constants();
    Worker(run_).run_once(plan_.constants);
  }

  void run(Frame& frame) override {
    if (plan_.outer_boxes == 0 ||
        (plan_.inner_boxes == 0 && plan_.reductions.empty() && plan_.outer_stores.empty()))
      return;
    for (std::size_t a = 0; a < run_.bases.size(); ++a) {
      const Access& access = plan_.accesses[a];
      if (access.iota)
        run_.bases[a] = {.start =
                             access.start + access.view.offset + access.place.loop_offset(frame)};
      else
        run_.bases[a] = {.memory = access.place.at(frame)};
    }
    if (!plan_.prologue.empty()) Worker(run_).run_once(plan_.prologue);
    run_.partials = plan_.scratch_bytes ? scratch_.at(frame) : nullptr;
    const int workers = threads();
    if (plan_.chunks == 1) {
      parallel_for(plan_.blocks, workers, [this](std::int64_t block, int) {
        Worker worker(run_);
        const std::int64_t first = block * plan_.boxes_per_block,
                           end = std::min(plan_.outer_boxes, first + plan_.boxes_per_block);
        for (std::int64_t box = first; box < end; ++box) worker.process_box(box, first, end);
        // non-temporal stores are visible to other threads only after a full fence
        std::atomic_thread_fence(std::memory_order_seq_cst);
      });
      return;
    }
    for (int level = 0; level < plan_.levels; ++level) {
      if (plan_.inner[std::size_t(level)].empty()) continue;
      parallel_for(plan_.outer_boxes * plan_.chunks, workers,
                   [this, level](std::int64_t block, int) {
                     Worker(run_).reduce_chunk(level, block / plan_.chunks, block % plan_.chunks);
                   });
    }
    if (plan_.outer_stores.empty()) return;
    Worker worker(run_);
    for (std::int64_t box = 0; box < plan_.outer_boxes; ++box) worker.store_results(box);
  }

 private:
  void set_constants() {
    for (auto [v, x] : plan_.float_constants) {
      if (plan_.values[std::size_t(v)].lane == LaneType::f64)
        *static_cast<double*>(run_.pool_value(v)) = x;
      else
        *static_cast<float*>(run_.pool_value(v)) = static_cast<float>(x);
    }
    for (auto [v, x] : plan_.integer_constants) {
      if (cpu::bytes_of(plan_.values[std::size_t(v)].lane) == 8)
        *static_cast<std::int64_t*>(run_.pool_value(v)) = x;
      else
        *static_cast<std::uint32_t*>(run_.pool_value(v)) = static_cast<std::uint32_t>(x);
    }
  }

  FusedPlan plan_;
  Scratch scratch_;
  std::unique_ptr<std::byte[]> pool_memory_;
  FusedRun run_{plan_};
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
  if (auto created = make_stencil(step, context)) return created;
  if (Unmasked unmasked(step.fused); unmasked.exists())
    return std::make_unique<MaskedStep>(step, context, std::move(unmasked));
  return std::make_unique<FusedStep>(step, context);
}
std::int64_t fused_scratch(const program::Step& step) {
  const auto& code = step.fused.code;
  if (std::none_of(code.begin(), code.end(), [](auto& in) { return is_reduction(in.code); }))
    return 0;  // only reductions have partial results
  auto bytes = plan_fused(step.fused, nullptr).scratch_bytes;
  if (Unmasked unmasked(step.fused); unmasked.exists())
    bytes = std::max(bytes, plan_fused(unmasked.fused(), nullptr).scratch_bytes);
  return bytes;
}

}  // namespace haliax::cpu
