// Plan: chooses the tiles of a fused step: the order of its dims, and the sizes of boxes and
// blocks.
#include <algorithm>

#include "analyzed_step.h"
#include "haliax/error.h"
#include "one_hot.h"

namespace haliax::cpu {
namespace {

using program::Code;
using program::Instr;

// elements that the previous step leaves in the caches
constexpr std::int64_t near_points = 1 << 20;
// work in nanoseconds per 16 elements (work_of)
constexpr std::int64_t least_shared_work = 1 << 17;  // that several threads share
constexpr std::int64_t work_per_block = 1 << 15, work_per_chunk = 1 << 17;
constexpr std::int64_t min_work_per_point = 4;
constexpr std::int64_t most_blocks = 128, most_chunks = 64;
constexpr std::int64_t long_row_of_tile = 1024;  // minimum row length for a tile of one row
constexpr std::int64_t few_lanes = 32;  // minimum number of lanes of a tile with all inner elements
constexpr std::int64_t few_outer_boxes = 16;  // with fewer, the inner space is split as well
// lanes of a tile, if all lanes exceed half a tile: of a step that only reduces and has many lanes,
// and of other steps
constexpr std::int64_t many_lanes = 2048, lanes_of_reduction = 1024, usual_lanes = 256;
constexpr std::int64_t rows_of_sum = 32;  // rows of lanes after which a sum is widened
// size of the largest tile that stays in registers, in tiles of TileLimits::elements
constexpr std::int64_t most_resident_tiles = 4;
// A tile may be contiguous if it has at least 1 / 4 of TileLimits::elements.
constexpr std::int64_t contiguous_share = 4;
constexpr std::int64_t fewest_rows_of_tile = 4;   // a tile with room for fewer has one row
constexpr std::int64_t fewest_joined_boxes = 16;  // outer boxes that remain if rows are joined
// size of joined rows, in tiles: of a step with more than row_ops_ratio instructions per row for
// each instruction per element, and of other steps
constexpr int row_ops_ratio = 2;
constexpr std::int64_t joined_tiles_of_row_ops = 16, joined_tiles = 4;
constexpr std::int64_t vector_elements = 16;      // elements of a vector of f32 with AVX-512
constexpr std::int64_t shortest_in_vectors = 32;  // elements; longer boxes consist of full vectors
// elements of a square tile along the last dim, and of the shortest dims that have one
constexpr std::int64_t square_side = 32, shortest_square_dim = 8;

// Returns the time of an instruction in nanoseconds per 16 elements, for f32 with AVX-512.
std::int64_t work_of(const Instr& in) {
  const bool is_64_bit = bytes_of(lane_type_of(in.dtype)) == 8;
  if (program::is_leaf(in.code) && in.code != Code::load) return 0;
  if (is_threefry(in.code)) return 24;
  if (is_expensive(in.code)) return is_64_bit ? 128 : 8;
  if (in.code == Code::floor_div || in.code == Code::mod || in.code == Code::rem) return 16;
  if (in.code == Code::div || in.code == Code::sqrt || in.code == Code::rsqrt) return 4;
  return 1;
}

class TileChooser {
 public:
  TileChooser(AnalyzedStep& step, FusedPlan& plan, const TileLimits& limits)
      : step_(step), plan_(plan), limits_(limits) {}

  void read_views() {
    for (int i = 0; i < step_.count(); ++i) {
      const Instr& in = step_.instr(i);
      if (!(step_.info(i).needed || step_.info(i).position) ||
          !(accesses_memory(in.code) || in.code == Code::iota))
        continue;
      Access access;
      access.place = Place(in.view);
      access.view = in.view;
      access.dtype = in.code == Code::iota ? in.dtype : in.view.dtype;
      access.strides = program::access_strides(step_.fused, in);
      access.iota = in.code == Code::iota;
      access.start = in.integer;
      step_.info(i).access = static_cast<int>(plan_.accesses.size());
      plan_.accesses.push_back(std::move(access));
    }
  }

  // Sorts the outer dims, and the inner dims, by decreasing strides, and merges dims.
  void choose_order() {
    std::vector<std::size_t> outer, inner;
    for (std::size_t d = 0; d < step_.fused.dims.size(); ++d)
      if (step_.fused.dims[d] != 1)
        (static_cast<int>(d) < step_.outer ? outer : inner).push_back(d);
    plan_.serial = program::writes_repeatedly(step_.fused);
    if (!plan_.serial) {
      const auto weight = memory_spans();
      auto heavier = [&](std::size_t a, std::size_t b) { return weight[a] > weight[b]; };
      std::stable_sort(outer.begin(), outer.end(), heavier);
      if (!needs_inner_order()) std::stable_sort(inner.begin(), inner.end(), heavier);
    }
    if (!step_.flat()) choose_layout(outer, inner);
    merge(outer, inner);
  }

  void choose_boxes() {
    FusedPlan& p = plan_;
    if (p.serial) {
      std::fill(p.box, p.box + p.dims, 1);
    } else if (step_.flat()) {
      split(0, p.dims, has_gaps_between_rows() ? p.size[p.dims - 1] : limits_.elements);
      square_tile();
    } else if (p.inner_major) {
      choose_lanes();
    } else {
      choose_rows_of_tile();
      if (p.outer_dims == 0) square_tile();
    }
    p.inner_box = p.outer_box = 1;
    for (int d = 0; d < p.dims; ++d) {
      std::int64_t boxes = (p.size[d] + p.box[d] - 1) / p.box[d];
      (d < p.outer_dims ? p.outer_boxes : p.inner_boxes) *= boxes;
      (d < p.outer_dims ? p.outer_box : p.inner_box) *= p.box[d];
    }
    p.single_inner_box = p.inner_boxes <= 1;
  }

  // Returns true if some array has gaps between its rows, which are long enough for a tile each.
  // Ops that are not assembled would copy a tile of several such rows.
  bool has_gaps_between_rows() const {
    const FusedPlan& p = plan_;
    if (p.dims < 2) return false;
    const auto last = static_cast<std::size_t>(p.dims - 1);
    const std::int64_t row = p.size[last];
    if (row < long_row_of_tile || row > limits_.elements) return false;
    return std::any_of(p.accesses.begin(), p.accesses.end(), [&](const Access& access) {
      return !access.iota && access.strides[last] == 1 && access.strides[last - 1] != 0 &&
             access.strides[last - 1] != row;
    });
  }

  // Divides the step into parts that threads run in parallel, of a few microseconds each. A part is
  // a block of adjacent outer boxes. If there are too few outer boxes, the inner space of each is
  // split into chunks. Chunks of reductions take longer than blocks, because their partial results
  // are merged afterwards. For example, a sum of 2^24 elements has one outer box and runs as 64
  // chunks.
  void choose_blocks() {
    FusedPlan& p = plan_;
    const bool flat = step_.flat();
    const std::int64_t work = work_of_step();
    auto parts = [&](std::int64_t work_per_part) {
      if (p.serial || work < least_shared_work) return std::int64_t(1);
      return std::clamp<std::int64_t>(work / work_per_part, 1, most_blocks);
    };
    const std::int64_t blocks = parts(work_per_block);
    const std::int64_t chunks = flat ? blocks : parts(work_per_chunk);
    if (flat ||
        (p.outer_boxes < few_outer_boxes && chunks > 2 * p.outer_boxes && !p.single_inner_box)) {
      p.chunks = std::clamp<std::int64_t>(chunks / std::max<std::int64_t>(1, p.outer_boxes), 1,
                                          std::max<std::int64_t>(1, p.inner_boxes));
      if (!flat) p.chunks = std::min(p.chunks, most_chunks);
    }
    p.boxes_per_block = std::max<std::int64_t>(1, (p.outer_boxes + blocks - 1) / blocks);
    p.blocks = (p.outer_boxes + p.boxes_per_block - 1) / p.boxes_per_block;
  }

 private:
  // Returns true if an instruction depends on the order of the inner dims.
  bool needs_inner_order() const {
    if (step_.has_element_ops) return true;
    for (int i = 0; i < step_.count(); ++i)
      if (step_.info(i).needed && finds_position(step_.instr(i).code)) return true;
    return false;
  }

  std::int64_t work_of_step() const {
    std::int64_t per_row = 0, per_point = 0;
    for (int i = 0; i < step_.count(); ++i) {
      const Instr& in = step_.instr(i);
      if (step_.info(i).needed)
        (step_.elementwise || in.inner ? per_point : per_row) += work_of(in);
    }
    const std::int64_t points = plan_.outer_points * plan_.inner_points;
    return plan_.outer_points * per_row + points * std::max(per_point, min_work_per_point);
  }

  // Returns the sum of strides of all accesses per dim. Stores count twice.
  Dims memory_spans() const {
    Dims spans(step_.fused.dims.size(), 0);
    for (int i = 0; i < step_.count(); ++i) {
      if (step_.info(i).access < 0 || step_.instr(i).code == Code::iota) continue;
      const Access& access = access_of(i);
      for (std::size_t d = 0; d < spans.size(); ++d)
        spans[d] += std::abs(access.strides[d]) * (is_store(step_.instr(i).code) ? 2 : 1);
    }
    return spans;
  }

  // Selects the lanes layout if more elements are contiguous along an outer dim than along an inner
  // one. That outer dim becomes the last one.
  void choose_layout(std::vector<std::size_t>& outer, const std::vector<std::size_t>& inner) {
    if (outer.empty() || inner.empty() || plan_.serial || step_.has_element_ops) return;
    std::int64_t rows = 0, best = 0;  // number of elements
    std::size_t best_dim = 0;
    Dims votes(step_.fused.dims.size(), 0);
    for (int i = 0; i < step_.count(); ++i) {
      const Instr& in = step_.instr(i);
      if (step_.info(i).access < 0 || !in.inner || in.code == Code::iota) continue;
      const Access& access = access_of(i);
      std::int64_t points = 1;
      for (std::size_t d = 0; d < step_.fused.dims.size(); ++d)
        if (access.strides[d] != 0) points *= step_.fused.dims[d];
      if (std::abs(access.strides[inner.back()]) == 1) rows += points;
      for (std::size_t d : outer)
        if (std::abs(access.strides[d]) == 1) votes[d] += points;
    }
    for (std::size_t d : outer)
      if (votes[d] > best) {
        best = votes[d];
        best_dim = d;
      }
    if (best <= rows) return;
    plan_.inner_major = true;
    outer.erase(std::find(outer.begin(), outer.end(), best_dim));
    outer.push_back(best_dim);
  }

  // Sets the dims of the plan and the strides of its accesses: outer dims, then inner ones.
  void merge(const std::vector<std::size_t>& outer, const std::vector<std::size_t>& inner) {
    std::size_t outer_dims = outer.size();
    Dims sizes;
    std::vector<Dims> strides(plan_.accesses.size());
    auto append = [&](std::size_t d) {
      sizes.push_back(step_.fused.dims[d]);
      for (std::size_t a = 0; a < strides.size(); ++a)
        strides[a].push_back(plan_.accesses[a].strides[d]);
    };
    std::for_each(outer.begin(), outer.end(), append);
    std::for_each(inner.begin(), inner.end(), append);
    program::merge_dims(sizes, outer_dims, strides);
    plan_.outer_dims = static_cast<int>(outer_dims);
    if (sizes.size() > max_dims) throw Error("[fused] more than 16 dimensions that do not merge");
    plan_.dims = static_cast<int>(sizes.size());
    std::copy(sizes.begin(), sizes.end(), plan_.size);
    for (std::size_t a = 0; a < strides.size(); ++a)
      plan_.accesses[a].strides = std::move(strides[a]);
    for (int d = 0; d < plan_.dims; ++d)
      (d < plan_.outer_dims ? plan_.outer_points : plan_.inner_points) *= plan_.size[d];
  }

  void choose_lanes() {
    FusedPlan& p = plan_;
    const std::int64_t tile = limits_.elements;
    const std::int64_t lanes = p.outer_points <= tile / 2                       ? tile
                               : p.only_reduces && p.outer_points >= many_lanes ? lanes_of_reduction
                                                                                : usual_lanes;
    p.outer_box = split(0, p.outer_dims, std::min({tile, lanes, lanes_of_tile()}));
    const bool keep =
        limits_.may_keep && p.inner_points * p.outer_box <= most_resident_tiles * tile;
    const std::int64_t rows = limits_.may_keep && step_.reduces ? rows_of_sum : 1;
    split(p.outer_dims, p.dims, keep ? p.inner_points : std::max(rows, tile / p.outer_box));
  }
  // Returns the number of lanes of a tile that is contiguous, so that it is not copied: it has one
  // element of the outer dims before the last one. If there are several passes, the tile has all
  // inner elements and stays in registers, so that later passes neither read nor compute its values
  // again. If there is no such tile, returns the maximum.
  std::int64_t lanes_of_tile() const {
    const FusedPlan& p = plan_;
    const std::int64_t tile = limits_.elements, points = std::max<std::int64_t>(1, p.inner_points);
    auto fits = [&](std::int64_t lanes) { return lanes * points <= most_resident_tiles * tile; };
    const std::int64_t last = p.size[p.outer_dims - 1];
    const bool all_in_one = last == p.outer_points && last <= tile;
    if (!limits_.may_keep || all_in_one) return tile;
    const bool contiguous = last >= few_lanes && last * points >= tile / contiguous_share;
    if (step_.last_pass() == 0) return contiguous ? last : tile;
    if (!fits(few_lanes)) return tile;
    if (contiguous && fits(last)) return last;
    return fits(2 * few_lanes) ? std::max(2 * few_lanes, tile / points) : few_lanes;
  }
  void choose_rows_of_tile() {
    FusedPlan& p = plan_;
    const std::int64_t tile = limits_.elements;
    const bool keep = limits_.may_keep && p.inner_points <= most_resident_tiles * tile;
    p.inner_box =
        split(p.outer_dims, p.dims, keep ? std::max<std::int64_t>(1, p.inner_points) : tile);
    std::int64_t rows = p.inner_box * fewest_rows_of_tile <= tile ? tile / p.inner_box : 1;
    if (limits_.may_join)
      rows = std::max(rows, std::min(rows_at_once(), p.outer_points / fewest_joined_boxes));
    split(0, p.outer_dims, p.inner_box < p.inner_points ? 1 : rows);
  }
  // Returns the number of rows per tile. With reductions, or with values that a row shares, several
  // rows amortize the cost per row. Rows that stream from memory keep to one row, because memory
  // latency hides this cost, unless they are only reduced.
  std::int64_t rows_at_once() const {
    if (!step_.reduces && step_.outer == 0) return 1;
    if (!plan_.only_reduces && plan_.outer_points * plan_.inner_points > near_points) return 1;
    int once = 0, inner = 0;
    for (int i = 0; i < step_.count(); ++i)
      if (step_.info(i).needed) ++(step_.instr(i).inner ? inner : once);
    const std::int64_t tiles =
        once > row_ops_ratio * inner ? joined_tiles_of_row_ops : joined_tiles;
    return tiles * limits_.elements / plan_.inner_box;
  }

  // Splits the dims [first, last) into boxes of about `points` elements, starting at the last dim.
  // Returns the number of elements of a box. For example, a space of (100, 300) and 4096 points
  // give boxes of (13, 300).
  std::int64_t split(int first, int last, std::int64_t points) {
    std::int64_t taken = 1;
    bool is_full = false;  // the box has enough elements, and one position of the dims that remain
    for (int d = last - 1; d >= first; --d) {
      const std::int64_t n = plan_.size[d];
      std::int64_t box = 1;
      if (!is_full && n > 0) {
        const std::int64_t most = std::max<std::int64_t>(1, points / taken),
                           parts = std::max<std::int64_t>(1, (n + most - 1) / most);
        box = std::max<std::int64_t>(1, (n + parts - 1) / parts);
      }
      if (box >= shortest_in_vectors && box < n)
        box = std::min(n, (box + vector_elements - 1) / vector_elements * vector_elements);
      plan_.box[d] = box;
      taken *= box;
      is_full |= box < n || taken >= points;
    }
    return taken;
  }
  // Chooses a square tile if a view is contiguous along another dim, so that each cache line is
  // used while it is cached.
  void square_tile() {
    FusedPlan& p = plan_;
    int last = p.dims - 1;
    if (last < 1 || p.size[last] < shortest_square_dim) return;
    for (const Access& access : p.accesses) {
      if (access.iota || std::abs(access.strides[static_cast<std::size_t>(last)]) <= 1) continue;
      for (int d = 0; d < last; ++d) {
        if (std::abs(access.strides[static_cast<std::size_t>(d)]) != 1) continue;
        if (p.size[d] < shortest_square_dim) continue;
        std::fill(p.box, p.box + p.dims, 1);
        p.box[last] = std::min<std::int64_t>(p.size[last], square_side);
        p.box[d] = std::min<std::int64_t>(
            p.size[d], std::max<std::int64_t>(1, limits_.elements / p.box[last]));
        return;
      }
    }
  }

  const Access& access_of(int i) const {
    return plan_.accesses[static_cast<std::size_t>(step_.info(i).access)];
  }

  AnalyzedStep& step_;
  FusedPlan& plan_;
  const TileLimits& limits_;
};

}  // namespace

void choose_tiles(AnalyzedStep& step, FusedPlan& plan, const TileLimits& limits) {
  plan.only_reduces = step.only_reduces;
  TileChooser chooser(step, plan, limits);
  chooser.read_views();
  chooser.choose_order();
  chooser.choose_boxes();
  chooser.choose_blocks();
}

}  // namespace haliax::cpu
