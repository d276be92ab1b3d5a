// Chooses tile sizes by planned bytes and estimated time.
#include "compile/chunk/search.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "compile/chunk/cost.h"
#include "compile/chunk/isolated_subgraph.h"
#include "compile/chunk/region_axes.h"
#include "haliax/chunked.h"
#include "haliax/error.h"
#include "ops/prim.h"
#include "program/matmul_blocks.h"

namespace haliax {
namespace {

using program::kPanelColumns;

constexpr std::int64_t kFullRowQueries = 64;  // queries per iteration, if it has all keys
// queries and keys of a tile, if kFullRowQueries rows of scores exceed the memory of a parallel
// slot
constexpr std::int64_t kTileQueries = 256, kTileKeys = 384;
// queries per iteration, if keys cannot be tiled: halved until the scores fit in a slot
constexpr std::int64_t kMostFewQueries = 32;
constexpr std::int64_t kLeastQueries = 8;       // per iteration, with or without tiles of keys
constexpr std::int64_t kRequestedKeyTiles = 3;  // tiles of keys, if the call requests tiles of keys
// rows of a tile of (rows, columns): all, then these, halved; a fit with few rows ends the search
constexpr std::int64_t kMostTileRows = 4096, kEnoughTileRows = 256;
// positions of the first tile that the search for the largest tile tries
constexpr std::int64_t kFirstTile = 64;
// The search for the largest tile ends if the next one would be larger by less than this factor.
constexpr double kMinGrowth = 1.06;
constexpr int kFewerTiles = 3;  // smaller tiles that are tried, each half of the one before
// Tile sizes are multiples of `unit`, for tiles of at least `from` positions. The first entry that
// applies is used. Matmul kernels compute a divisor of kPanelColumns columns at once.
struct SizeUnit {
  std::int64_t from, unit;  // positions
};
constexpr SizeUnit kSizeUnits[] = {
    {512, 2 * kPanelColumns}, {2 * kPanelColumns, kPanelColumns}, {64, 16}, {16, 8}, {0, 1}};
// Tiles of equal sizes are preferred if their size is a multiple of kEqualUnit positions, and if
// their count exceeds the smallest count by at most 1 / kMoreTiles of it.
constexpr std::int64_t kEqualUnit = 8, kMoreTiles = 5;
// largest block of keys and values that a device receives from another device, in bytes
constexpr std::int64_t kMaxRingBlockBytes = 4 << 20;

// ---- the search ----

// Returns the largest tile size up to `positions` that divides the block of a device, so that each
// device can iterate over its own block of the axis. For example, given 10 positions of an axis of
// 96 on 4 devices, returns 8. Returns `positions` if the axis has one block or unequal blocks, or
// if one tile holds the full axis.
std::int64_t size_in_block(const ChunkKey& k, std::int64_t positions) {
  if (k.blocks == 1 || positions >= k.size || k.size % k.blocks) return positions;
  auto own = k.size / k.blocks;
  positions = std::min(positions, own);
  while (own % positions) --positions;
  return positions;
}
// Returns size_in_block, or the next larger divisor of the block if size_in_block has less than a
// quarter of the positions. For example, given 10 positions and blocks of 31, returns 31, not 1.
std::int64_t size_near_block(const ChunkKey& k, std::int64_t positions) {
  const auto own = k.size / k.blocks;
  if (auto fewer = size_in_block(k, positions); 4 * fewer >= std::min(positions, own)) return fewer;
  while (own % positions) ++positions;
  return positions;
}
// Returns tile sizes of these axes that have about `positions` positions together. The last axis
// is filled first: given 128 positions of axes (8, 64), returns tiles of (2, 64).
TileSizes sizes_of(const std::vector<ChunkKey>& axes, std::int64_t positions) {
  TileSizes sizes;
  std::int64_t inner = 1;
  for (auto k = axes.rbegin(); k != axes.rend(); ++k) {
    sizes.insert(
        sizes.begin(),
        {*k, size_near_block(*k, std::clamp<std::int64_t>(positions / inner, 1, k->size))});
    inner *= k->size;
  }
  return sizes;
}
// Returns the product of the sizes.
std::int64_t position_count(const std::vector<ChunkKey>& axes) {
  std::int64_t n = 1;
  for (auto& k : axes) n *= k.size;
  return n;
}
// Returns a tile size of at most c with tiles of equal or nearly equal sizes. Large sizes are
// multiples of block sizes that suit the machine, if the tiles cannot be equal.
std::int64_t round_size(std::int64_t c, std::int64_t size) {
  if (c >= size) return size;
  const auto unit = std::find_if(std::begin(kSizeUnits), std::end(kSizeUnits), [&](auto& u) {
                      return c >= u.from;
                    })->unit;
  auto iterations = (size + c - 1) / c;
  for (auto t = iterations; t <= iterations + iterations / kMoreTiles; ++t)
    if (size % t == 0 && size / t % kEqualUnit == 0) return size / t;  // no smaller last tile
  auto even = ((size + iterations - 1) / iterations + unit - 1) / unit * unit;
  return even <= c ? even : std::max<std::int64_t>(1, c / unit * unit);
}
// The largest tile size known to fit a budget, and the smallest one known not to.
struct SizeBounds {
  std::int64_t low = 0, high = 0;
  double low_bytes = 0, high_bytes = 0;

  void add(std::int64_t size, std::int64_t bytes, std::int64_t budget) {
    const bool fits = bytes <= budget;
    (fits ? low : high) = size;
    (fits ? low_bytes : high_bytes) = double(bytes);
  }
  // Returns the next size to try. Bytes grow about linearly with the size, so it is interpolated
  // between the bounds. most: the size of the axis.
  std::int64_t next(std::int64_t most, std::int64_t budget) const {
    const double guess = high > most
                             ? double(low) * double(budget) / std::max(low_bytes, 1.0)
                             : double(low) + double(high - low) * (double(budget) - low_bytes) /
                                                 (high_bytes - low_bytes);
    return round_size(std::clamp(std::int64_t(std::min(guess, double(most))), low + 1, high - 1),
                      most);
  }
};
std::string text_of(const TileSizes& sizes) {
  std::string s;
  for (auto& [k, c] : sizes)
    if (c < k.size)
      s += (s.empty() ? "chunks of " : " by ") + std::to_string(c) + " along " +
           to_string(Axis(k.axis, k.size));
  return s.empty() ? "untiled" : s;
}
std::string text_of(std::int64_t bytes) {
  bool large = bytes >= (1 << 20);
  std::int64_t unit = large ? 1 << 20 : 1 << 10, tenths = (bytes * 10 + unit / 2) / unit;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) +
         (large ? " MiB" : " KiB");
}

// Returns the number of contractions per position. Only the first body of a loop is counted, since
// the body of a smaller last tile has the same contractions for other positions.
int contractions_of(const Nodes& roots, const Node* index) {
  int count = 0;
  for (auto& n : without_bodies(level_of(roots, index))) {
    count += n->op->kind == Kind::contract;
    if (n->op != &kLoop) continue;
    auto& l = loop_of(*n);
    count += contractions_of(values_of(l, 0), l.index[0].get());
  }
  return count;
}

std::int64_t parallel_slot_bytes_of(const std::vector<program::Step>& steps) {
  std::int64_t most = 0;
  for (auto& s : steps)
    most = std::max({most, s.loop.parallel_slot_bytes, parallel_slot_bytes_of(s.body)});
  return most;
}

struct Trial {
  TilePlan plan;
  std::int64_t bytes = 0, parallel_slot_bytes = 0;  // total; of one slot, or 0
  double cost = 0;
  double contractions = 0;  // per position; not an integer if matmuls are saved
  program::Machine machine = {};
};

// Returns the contractions per position as text, rounded to a tenth: some iterations may reuse
// matmuls that other iterations recompute.
std::string contractions_text(const Trial& t) {
  auto tenths = std::lround(10 * t.contractions);
  auto part = tenths % 10 ? "." + std::to_string(tenths % 10) : "";
  return std::to_string(tenths / 10) + part + (tenths == 10 ? " contraction" : " contractions");
}
// Returns why the plan of `t` was chosen. other: the next best plan.
std::string reason_of(const Trial& t, const std::optional<Trial>& other, const ChunkKey& call,
                      std::int64_t budget) {
  auto& sizes = t.plan.sizes;
  std::string why = t.plan.is_untiled() ? "the full region fits" : text_of(sizes);
  why += ": " + contractions_text(t) + ", " + text_of(t.bytes) + " of " + text_of(budget);
  if (t.parallel_slot_bytes > 0) why += ", parallel iterations";
  if (call.scores && call.size % call.blocks)
    why += "; keys are gathered, because " + to_string(Axis(call.axis, call.size)) +
           " is not divisible by " + std::to_string(call.blocks) + " devices";
  if (other && text_of(other->plan.sizes) != text_of(sizes)) {
    auto percent = std::to_string(std::int64_t(std::lround(100 * (other->cost / t.cost - 1))));
    why += "; " + text_of(other->plan.sizes) + " would require " + contractions_text(*other) +
           " and take about " + percent + "% longer";
  } else if (!sizes.empty() && ChunkForm(call.form) != ChunkForm::automatic) {
    why += "; the form was requested";
  }
  return why;
}

// Returns the message for a call whose smallest chunk exceeds its budget.
std::string too_large(const std::vector<ChunkKey>& axes, std::int64_t bytes, std::int64_t budget,
                      bool backward) {
  std::string names;
  for (auto& k : axes) names += (names.empty() ? "" : ", ") + to_string(Axis(k.axis, k.size));
  return "one position of " + names + " needs " + std::to_string(bytes) + " bytes, more than the " +
         std::to_string(budget) + " allowed" + (backward ? "" : "; its gradient may need more");
}

// Returns the form of a plan over rows.
const char* rows_form(const ChunkKey& call, bool backward) {
  return !backward                                      ? "forward"
         : ChunkForm(call.form) == ChunkForm::recompute ? "recompute"
                                                        : "sweep";
}

// Searches for the plan of a call. Rows are positions of `outer_axes_`, such as tokens. Columns are
// positions of `inner_axes_`, such as a vocabulary. `best` returns the first of these plans that
// applies:
//
// 1. the refusal of a region;
// 2. the chunk sizes that the call requests;
// 3. no tiles, if that fits the budget, except for scores with a budget of their own;
// 4. for scores: no tiles, if that fits the raised budget (`raise_budget`), otherwise iterations in
//    parallel slots;
// 5. the faster one of tiles of rows, and tiles of rows and columns;
// 6. the smallest tiles, which may be refused.
class TileSearch {
 public:
  TileSearch(const ChunkKey& call, const Nodes& roots, const Nodes& level,
             const CompileTrial& compile_trial, bool ring)
      : call_(call), compile_trial_(compile_trial), regions_(call, roots, level),
        origin_(level[0]->origin) {
    for (auto& n : level)
      if (regions_.contain(n)) backward_ |= n->origin.backward;
    for (auto& n : level)
      if (n->op == &prim::kEnter && ChunkKey::of(n->attr).same_call(call)) {
        origin_ = n->origin;
        break;
      }
    if (!call.chunks.empty() && !call.scores) return;
    isolated_ = isolated(roots, level, regions_, call.scores);
    axes_.emplace(call, isolated_.roots);
    budget_ = call.memory > 0 ? call.memory : default_budget(isolated_.input_bytes);
    auto form = ChunkForm(call.form);
    if (ring && call.scores && call.blocks > 1) ring_keys_ = axes_->longest_keys(call.blocks);
    sort_axes(!ring_keys_ && (form == ChunkForm::automatic || form == ChunkForm::tile));
  }
  TilePlan best() {
    for (auto& r : regions_.list)
      if (!r.refusal().empty()) return {.call = call_, .refusal = r.refusal()};
    if (!call_.chunks.empty()) return requested();
    auto form = ChunkForm(call_.form);
    auto untiled = try_plan({call_, {}, "untiled"});
    const bool has_budget = call_.scores && call_.memory > 0;  // such scores are always tiled
    if (untiled.bytes <= budget_ && !has_budget) return with_reason(untiled, {});
    if (call_.scores)
      if (auto plan = plan_scores(untiled, has_budget)) return *plan;
    std::optional<Trial> rows, tiles;
    if (form != ChunkForm::tile) rows = search_rows();
    if (!inner_axes_.empty()) tiles = search_rows_and_columns();
    if (!rows && !tiles) rows = smallest_ ? *smallest_ : smallest();
    // Each device stores a part of a row. A tile would move the part between devices.
    bool splits_rows = added_axis_ && added_axis_->blocks > 1;
    bool use_rows = rows && (!tiles || splits_rows || rows->cost <= tiles->cost);
    return use_rows ? with_reason(*rows, tiles) : with_reason(*tiles, rows);
  }

  // Returns the plan with the smallest tiles. It is refused if it exceeds the budget, unless the
  // call is one of scores.
  Trial smallest() const {
    auto t = try_plan(inner_axes_.empty() ? plan_rows(sizes_of(outer_axes_, 1))
                                          : plan_rows_and_columns(1, 1));
    // A sum over rows that has a wider dtype than its result is materialized in full while the loop
    // iterates over single rows. Tiles of all rows and one column may need less memory.
    if (!inner_axes_.empty())
      if (auto all = try_plan(plan_rows_and_columns(position_count(outer_axes_), 1));
          all.bytes < t.bytes)
        t = std::move(all);
    if (t.plan.refusal.empty() && t.bytes > budget_ && !call_.scores)
      t.plan.refusal = failure_at(origin_, "chunked_reduce",
                                  too_large(regions_.axes, t.bytes, budget_, backward_));
    return t;
  }

 private:
  // Returns the plan of scores by rules 4 and 6, or nothing if tiles of rows must be searched.
  std::optional<TilePlan> plan_scores(const Trial& untiled, bool has_budget) {
    auto parallel = search_parallel_slots(untiled.machine);
    // Skips `raise_budget`, which compiles the smallest plan. That plan has at most the bytes of
    // the parallel one, so the raised budget would be too small for the untiled region.
    const bool never_untiled =
        has_budget || (parallel && untiled.bytes > parallel->bytes + ChunkOptions::default_memory);
    if (parallel && never_untiled) return with_reason(*parallel, {});
    raise_budget();
    if (!smallest_->plan.refusal.empty()) return smallest_->plan;
    if (untiled.bytes <= budget_ && !has_budget) return with_reason(untiled, {});
    return parallel ? std::optional(with_reason(*parallel, {})) : std::nullopt;
  }
  // A plan that is refused fits no budget.
  Trial try_plan(TilePlan plan) const {
    Trial t;
    const auto roots = apply(plan, isolated_.roots, nullptr);
    t.plan = std::move(plan);
    t.bytes = std::numeric_limits<std::int64_t>::max();
    if (!t.plan.refusal.empty()) return t;
    auto tried = compile_trial_(with_barriers(roots), isolated_.inputs, call_.depth);
    t.bytes = tried.program->arena_bytes + isolated_.root_bytes;
    t.parallel_slot_bytes = parallel_slot_bytes_of(tried.program->steps);
    t.cost = cost_of(tried.program->steps, tried.machine);
    t.machine = tried.machine;
    t.contractions = contractions_of(tried.graph, nullptr) * (1 - tried.saved_work);
    return t;
  }
  // Returns the plan with the chunk sizes of the call: of queries and, if there are two, of keys.
  TilePlan requested() {
    if (call_.scores) {
      auto independent = axes_->independent();
      if (auto keys =
              call_.chunks.size() > 1 && !ring_keys_ ? axes_->longest_keys(1) : std::nullopt)
        if (auto t = try_in_parallel(
                with_tiled_keys(plan_single_heads(independent, call_.chunks[0]), *keys,
                                (keys->size + kRequestedKeyTiles - 1) / kRequestedKeyTiles)))
          return with_reason(*t, {});
      if (auto t = try_plan(plan_single_heads(independent, call_.chunks[0]));
          t.parallel_slot_bytes > 0)
        return with_reason(t, {});
    }
    TileSizes sizes;
    for (auto& k : regions_.axes) {
      auto at = std::find(call_.tiled_axes.begin(), call_.tiled_axes.end(), k.axis) -
                call_.tiled_axes.begin();
      sizes.push_back({k, size_in_block(k, std::min(k.size, call_.chunks[std::size_t(at)]))});
    }
    auto p = plan_rows(std::move(sizes));
    p.why =
        (p.is_untiled() ? "one chunk holds the full axis" : text_of(p.sizes)) + ", as requested";
    return p;
  }
  // Sorts the axes into outer and inner loops. Axes that need the fewest passes over the data are
  // outer axes. An axis that needs more passes is an inner axis: a vocabulary needs several, since
  // its logsumexp must be known first. may_add_axis: may add an axis that the call did not request,
  // `added_axis_`.
  void sort_axes(bool may_add_axis) {
    std::vector<int> passes;
    for (auto& r : regions_.list) passes.push_back(r.passes());
    auto min_passes = *std::min_element(passes.begin(), passes.end());
    for (std::size_t i = 0; i < passes.size(); ++i)
      (passes[i] == min_passes ? outer_axes_ : inner_axes_).push_back(regions_.axes[i]);
    if (may_add_axis) added_axis_ = axes_->longest_untiled_axis();
    if (!added_axis_) return;
    auto region = axes_->along(*added_axis_);
    if (!region)
      added_axis_.reset();
    else if (region->passes() < min_passes)
      inner_axes_ = std::exchange(outer_axes_, {*added_axis_});
    else
      inner_axes_.push_back(*added_axis_);
  }
  TilePlan plan_rows_and_columns(std::int64_t rows, std::int64_t columns) const {
    auto sizes = sizes_of(outer_axes_, rows), more = sizes_of(inner_axes_, columns);
    sizes.insert(sizes.end(), more.begin(), more.end());
    return {call_, sizes, backward_ ? "recompute" : "forward"};
  }

  // Raises the budget of scores by the bytes of the smallest plan, since sums and saved values of
  // rows, which every plan needs, do not count against it.
  void raise_budget() {
    if (smallest_) return;
    smallest_ = smallest();
    if (!smallest_->plan.refusal.empty()) return;
    const auto memory = call_.memory > 0 ? call_.memory : ChunkOptions::default_memory;
    budget_ = std::max(budget_, smallest_->bytes + memory);
  }
  // Compiles the smallest plan only if the budget without its bytes is too small.
  bool fits_raised_budget(std::int64_t bytes) {
    if (bytes > budget_ && call_.scores) raise_budget();
    return bytes <= budget_;
  }

  // Returns the plan with the most positions that fits the budget, or a faster one with fewer
  // positions.
  template <class Plan>
  std::optional<Trial> largest_fit(std::int64_t size, const Plan& plan_of) const {
    std::optional<Trial> best;
    SizeBounds bounds{.high = size + 1};
    for (std::int64_t c = std::min(size, kFirstTile);;) {
      auto t = try_plan(plan_of(c));
      bounds.add(c, t.bytes, budget_);
      if (t.bytes <= budget_) best = std::move(t);
      if (bounds.low + 1 >= bounds.high) break;  // not even one position fits, or none is between
      const auto next = bounds.next(size, budget_);
      if (next <= bounds.low || (best && double(next) < kMinGrowth * double(bounds.low))) break;
      c = next;
    }
    // fewer positions may be faster, since their data fits in a faster cache
    auto fewer = bounds.low;
    for (int halves = 0; halves < kFewerTiles && fewer > 1; ++halves) {
      fewer = round_size(fewer / 2, size);
      auto t = try_plan(plan_of(fewer));
      if (t.bytes <= budget_ && t.cost < best->cost) best = std::move(t);
    }
    return best;
  }
  std::optional<Trial> search_rows() const {
    auto axes = added_axis_ ? regions_.axes : outer_axes_;
    return largest_fit(position_count(axes),
                       [&](std::int64_t c) { return plan_rows(sizes_of(axes, c)); });
  }
  // Returns a plan over rows with these tile sizes. If the keys rotate around a ring
  // (`ring_keys_`), adds a loop over blocks of keys around the loop over queries. It is the
  // outermost loop if a block has at most kMaxRingBlockBytes bytes. Otherwise, it is inside of as
  // many loops over axes that the call did not request as that needs.
  TilePlan plan_rows(TileSizes sizes) const {
    if (!ring_keys_) return {call_, std::move(sizes), rows_form(call_, backward_)};
    const auto block = ring_keys_->size / call_.blocks;
    std::int64_t bytes = 0;  // size of one block of all inputs with keys
    for (auto& n : isolated_.inputs)
      if (find(*n, ring_keys_->axis)) bytes += n->bytes() / ring_keys_->size * block;
    std::size_t at = 0;
    for (; at + regions_.axes.size() < sizes.size() && bytes > kMaxRingBlockBytes; ++at)
      bytes /= sizes[at].first.size;
    sizes.insert(sizes.begin() + std::ptrdiff_t(at), {*ring_keys_, block});
    return {.call = call_,
            .sizes = std::move(sizes),
            .form = rows_form(call_, backward_),
            .key_loop = TilePlan::KeyLoop::ring,
            .keys_at = at};
  }
  // Returns the bytes of the widest scores of an iteration with this number of queries and one
  // position of each axis in `independent`.
  std::int64_t scores_bytes(const std::vector<ChunkKey>& independent, std::int64_t queries) const {
    auto* widest = axes_->widest();
    if (!widest) return 0;
    auto all = position_count(independent) * position_count(regions_.axes) *
               (ring_keys_ ? call_.blocks : 1);
    return widest->bytes() / all * std::min(queries, position_count(regions_.axes));
  }
  // Returns a plan whose iterations process a few queries of one head of one example, so that the
  // scores of an iteration stay in the cache of a core, and iterations can run in parallel.
  TilePlan plan_single_heads(const std::vector<ChunkKey>& independent, std::int64_t queries) const {
    TileSizes sizes;
    for (auto& k : independent) sizes.push_back({k, 1});
    auto mine = sizes_of(regions_.axes, queries);
    sizes.insert(sizes.end(), mine.begin(), mine.end());
    return plan_rows(std::move(sizes));
  }
  // Returns the plan with keys tiled as well, so that no full row of scores is materialized. Not
  // used if keys rotate around a ring.
  TilePlan with_tiled_keys(TilePlan plan, const ChunkKey& keys, std::int64_t size) const {
    plan.sizes.push_back({keys, size});
    plan.key_loop = TilePlan::KeyLoop::inside_queries;
    return plan;
  }
  // Returns the trial if its iterations run in parallel slots and fit the budget, or if the call
  // requests chunk sizes. Nothing otherwise.
  std::optional<Trial> try_in_parallel(TilePlan plan) {
    auto t = try_plan(std::move(plan));
    const bool good = call_.chunks.empty()
                          ? t.parallel_slot_bytes > 0 && fits_raised_budget(t.bytes)
                          : t.plan.refusal.empty();
    return good ? std::optional(std::move(t)) : std::nullopt;
  }
  // Returns the number of queries of a tile. It is smaller if a query has several scores with a
  // key, such as those of heads that are mixed.
  std::int64_t tile_rows(const std::vector<ChunkKey>& independent, const ChunkKey& keys) const {
    auto* widest = axes_->widest();
    auto together = widest ? widest->size() / (position_count(independent) *
                                               position_count(regions_.axes) * keys.size)
                           : 1;
    return std::max<std::int64_t>(kLeastQueries,
                                  kTileQueries / std::max<std::int64_t>(1, together));
  }
  std::optional<Trial> search_parallel_slots(const program::Machine& machine) {
    const auto max_parallel_slot_bytes = std::int64_t(machine.max_parallel_slot_bytes);
    if (max_parallel_slot_bytes == 0) return {};
    auto independent = axes_->independent();
    // full rows fit in a slot
    if (scores_bytes(independent, kFullRowQueries) <= max_parallel_slot_bytes)
      if (auto t = try_in_parallel(plan_single_heads(independent, kFullRowQueries));
          t && t->parallel_slot_bytes <= max_parallel_slot_bytes)
        return t;
    if (auto keys = ring_keys_ || machine.tiles_score_rows ? std::nullopt : axes_->longest_keys(1))
      if (auto t = try_in_parallel(with_tiled_keys(
              plan_single_heads(independent, tile_rows(independent, *keys)), *keys, kTileKeys)))
        return t;
    std::optional<Trial> best;  // fewer queries, until an iteration fits in a slot
    for (auto queries = kMostFewQueries; queries >= kLeastQueries; queries /= 2) {
      if (auto t = try_in_parallel(plan_single_heads(independent, queries))) best = std::move(t);
      if (best && best->parallel_slot_bytes <= max_parallel_slot_bytes) break;
    }
    return best;
  }
  // Returns the fastest of these trials: for all rows, then for kMostTileRows rows and its halves,
  // the most columns that fit the budget.
  std::optional<Trial> search_rows_and_columns() const {
    std::optional<Trial> best;
    for (std::int64_t rows = position_count(outer_axes_); rows >= 1;
         rows = rows > kMostTileRows ? kMostTileRows : rows / 2) {
      auto t = largest_fit(position_count(inner_axes_), [&](std::int64_t columns) {
        return plan_rows_and_columns(rows, columns);
      });
      if (t && (!best || t->cost < best->cost)) best = t;
      if (rows <= kEnoughTileRows && best) break;
    }
    return best;
  }

  TilePlan with_reason(const Trial& t, const std::optional<Trial>& other) const {
    auto plan = t.plan;
    if (plan.refusal.empty()) plan.why = reason_of(t, other, call_, budget_);
    return plan;
  }
  ChunkKey call_;
  const CompileTrial& compile_trial_;
  Regions regions_;
  Origin origin_;
  IsolatedSubgraph isolated_;
  std::optional<RegionAxes> axes_;      // none: the call requests its tile sizes
  std::optional<ChunkKey> added_axis_;  // an axis that the call did not request
  std::optional<ChunkKey> ring_keys_;   // an axis that rotates around a ring
  std::vector<ChunkKey> outer_axes_, inner_axes_;
  bool backward_ = false;
  std::int64_t budget_ = 0;
  std::optional<Trial> smallest_;  // set by raise_budget
};

}  // namespace

void check_budget(const ChunkKey& call, const Nodes& roots, const Nodes& level,
                  const CompileTrial& compile_trial) {
  if (call.memory == 0 || !call.chunks.empty()) return;
  auto smallest = TileSearch(call, roots, level, compile_trial, false).smallest();
  if (!smallest.plan.refusal.empty()) throw Error(smallest.plan.refusal);
}
TilePlan plan_tiles(const ChunkKey& call, const Nodes& roots, const Nodes& level,
                    const CompileTrial& compile_trial, bool ring) {
  return TileSearch(call, roots, level, compile_trial, ring).best();
}

}  // namespace haliax
