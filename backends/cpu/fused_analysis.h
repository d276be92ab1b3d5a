// The analysis of fused steps that precedes the choice of tapes: which instructions are needed, in
// which order dimensions are traversed, and how large tiles are.
#pragma once
#include <algorithm>
#include <map>
#include <numeric>

#include "assemble.h"
#include "base/scalar.h"
#include "fused.h"
#include "haliax/error.h"
#include "one_hot.h"
#include "program/fused.h"

namespace haliax::cpu::fused_planning {

using program::Code;
using program::Fused;
using program::Instr;
using program::View;

// Returns true if a result needs no rounding when all operands have this dtype.
inline bool needs_no_rounding(Code c, DType dtype) {
  bool floating = lane_type_of(dtype) == LaneType::f32;
  return c == Code::select || c == Code::max || c == Code::min || c == Code::bit_and ||
         c == Code::bit_or || c == Code::bit_xor || c == Code::shift_right ||
         (floating && (c == Code::neg || c == Code::abs || c == Code::sign)) || yields_bool(c);
}
// bytes of registers for tiles of several rows: well within the second-level cache
constexpr std::int64_t rows_bytes = 160 * 1024;
constexpr std::int64_t long_row = 512;  // minimum row length for which a masked tail is searched
// elements that the previous step leaves in the caches
constexpr std::int64_t near_points = 1 << 20;
inline Code combining(Code store) {
  return store == Code::store_add ? Code::add : store == Code::store_max ? Code::max : Code::min;
}

class FusedAnalysis {
 public:
  // tile: elements of an inner box. may_join: a tile may hold several rows. may_keep: a full row
  // may stay in registers across levels.
  FusedAnalysis(const Fused& fused, const Context* context, std::int64_t tile, bool may_join,
                bool may_keep)
      : fused_(fused), context_(context), tile_(tile), may_join_(may_join), may_keep_(may_keep) {}

 protected:
  struct Info {
    bool needed = false;
    bool uniform = false;   // same for all elements
    bool constant = false;  // known at compile time
    bool varies = false;    // depends on the inner element
    bool fixed = false;     // same for all tiles
    bool inner = false;     // computed in the inner tapes
    bool position = false;  // an iota that identifies an element of a row
    Extent extent = Extent::one;
    int level = 0;
    int access = -1, value = -1, reduction = -1;  // indices into the lists of FusedPlan
  };
  // tapes other than the inner ones; values from 0 on are levels of inner tapes
  enum Where : int { in_constants = -3, in_prologue = -2, in_outer = -1 };

  const Instr& instr(int i) const { return fused_.code[static_cast<std::size_t>(i)]; }
  Info& info(int i) { return info_[static_cast<std::size_t>(i)]; }
  int count() const { return static_cast<int>(fused_.code.size()); }

  // Replaces max and min reductions over zero elements by their result. A narrow dtype has a
  // smaller range than its lane type, so the start value of the lane would be wrong.
  void fold_nothing() {
    no_inner_ = !program::has_inner_points(fused_);
    if (!no_inner_) return;
    for (auto& in : fused_.code) {
      const bool max = in.code == Code::reduce_max,
                 narrow = in.dtype == DType::i8 || in.dtype == DType::i16;
      if (!narrow || !(max || in.code == Code::reduce_min)) continue;
      const auto least = scalar::lowest(in.dtype).integer;
      in = {.code = Code::constant,
            .dtype = in.dtype,
            .number = double(max ? least : ~least),
            .integer = max ? least : ~least};
    }
  }
  // Replaces reductions over exactly one element by that element.
  void fold_single() {
    std::int64_t points = 1;
    for (std::size_t d = static_cast<std::size_t>(fused_.outer); d < fused_.dims.size(); ++d)
      points *= fused_.dims[d];
    if (points != 1) return;
    for (auto& in : fused_.code)
      if (is_reduction(in.code) && !finds_position(in.code)) in.code = Code::cast;
  }
  void mark_needed() {
    info_.assign(fused_.code.size(), {});
    const auto needed = program::needed_instructions(fused_);
    for (int i = 0; i < count(); ++i) {
      if (!(info(i).needed = needed[static_cast<std::size_t>(i)])) continue;
      plan_.only_reduces &= !instr(i).inner || instr(i).code == Code::load;
      if (is_element_op(instr(i))) info(instr(i).dim).position = points_ = true;
    }
  }

  // Chooses the outer dims. Without reductions all dims are inner ones, and values live for one
  // tile only. Rows remain if all elements of a row share some value.
  void choose_rows() {
    outer_ = fused_.outer;
    bool outer_stores = false;
    for (int i = 0; i < count(); ++i) {
      if (!info(i).needed) continue;
      if (is_reduction(instr(i).code)) {
        reduces_ = true;
        return one_hot();
      }

      outer_stores |= is_store(instr(i).code) && !instr(i).inner;
    }
    std::int64_t inner_points = 1;
    for (std::size_t d = static_cast<std::size_t>(outer_); d < fused_.dims.size(); ++d)
      inner_points *= fused_.dims[d];
    every_ = !outer_stores || inner_points == 1;
    if (!every_) return one_hot();
    outer_ = 0;
    std::size_t last = fused_.dims.size();
    while (last > 0 && fused_.dims[last - 1] == 1) --last;
    if (last < 2 || fused_.dims[last - 1] < 64) return;
    bool shared = false;
    for (int i = 0; i < count(); ++i) {
      const Instr& in = instr(i);
      if (!info(i).needed || !accesses_memory(in.code)) continue;
      const std::int64_t along = std::abs(stride_of(in, last - 1));
      if (along > 1) return;
      if (in.code != Code::load || along != 0) continue;
      for (std::size_t d = 0; d + 1 < last; ++d) shared |= stride_of(in, d) != 0;
    }
    if (!shared) return;
    outer_ = static_cast<int>(last) - 1;
    one_hot();
  }
  // Rewrites ops that affect one element per row (one_hot.h). Rows must have a single dim, and some
  // input must be contiguous along it.
  void one_hot() {
    if (points_) return;
    int dim = -1;
    for (int d = outer_; d < static_cast<int>(fused_.dims.size()); ++d) {
      if (fused_.dims[static_cast<std::size_t>(d)] == 1) continue;
      if (dim >= 0) return;
      dim = d;
    }
    if (dim < 0 || std::none_of(fused_.code.begin(), fused_.code.end(), [&](const Instr& in) {
          return in.code == Code::load && stride_of(in, static_cast<std::size_t>(dim)) == 1;
        }))
      return;
    fused_ = with_element_ops(fused_, dim);
    mark_needed();
  }

  void read_views() {
    for (int i = 0; i < count(); ++i) {
      const Instr& in = instr(i);
      if (!(info(i).needed || info(i).position) ||
          !(accesses_memory(in.code) || in.code == Code::iota))
        continue;
      Access access;
      access.place = Place(in.view);
      access.view = in.view;
      access.dtype = in.code == Code::iota ? in.dtype : in.view.dtype;
      access.strides = program::access_strides(fused_, in);
      access.iota = in.code == Code::iota;
      access.start = in.integer;
      info(i).access = static_cast<int>(plan_.accesses.size());
      plan_.accesses.push_back(std::move(access));
    }
  }

  void choose_order() {
    bool ordered = points_;  // element ops need the inner dims in order
    for (int i = 0; i < count(); ++i) ordered |= info(i).needed && finds_position(instr(i).code);
    plan_.serial = program::writes_repeatedly(fused_);
    std::vector<std::int64_t> weight(fused_.dims.size(), 0);
    for (int i = 0; i < count(); ++i) {
      if (info(i).access < 0 || instr(i).code == Code::iota) continue;
      const Access& access = plan_.accesses[static_cast<std::size_t>(info(i).access)];
      for (std::size_t d = 0; d < weight.size(); ++d)
        weight[d] += std::abs(access.strides[d]) * (is_store(instr(i).code) ? 2 : 1);
    }
    std::vector<std::size_t> outer, inner;
    for (std::size_t d = 0; d < fused_.dims.size(); ++d)
      if (fused_.dims[d] != 1) (static_cast<int>(d) < outer_ ? outer : inner).push_back(d);
    auto heavier = [&](std::size_t a, std::size_t b) { return weight[a] > weight[b]; };
    if (!plan_.serial) {
      std::stable_sort(outer.begin(), outer.end(), heavier);
      if (!ordered) std::stable_sort(inner.begin(), inner.end(), heavier);
    }
    if (!flat()) choose_layout(outer, inner);
    // in iteration order
    std::size_t outer_dims = outer.size();
    outer.insert(outer.end(), inner.begin(), inner.end());
    Dims sizes;
    std::vector<Dims> strides(plan_.accesses.size());
    for (std::size_t d : outer) {
      sizes.push_back(fused_.dims[d]);
      for (std::size_t a = 0; a < strides.size(); ++a)
        strides[a].push_back(plan_.accesses[a].strides[d]);
    }
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

  void find_masks() {
    if (plan_.inner_major || plan_.serial || points_ || !reduces_ ||
        plan_.dims != plan_.outer_dims + 1 || plan_.inner_points < long_row)
      return;
    int row = outer_;
    while (fused_.dims[static_cast<std::size_t>(row)] == 1) ++row;
    masked_ = masked_rows(fused_, row);
    if (!masked_) return;
    for (auto& mask : masked_->masks)
      for (auto [iota, sign] : mask.positions)
        if (!info(iota).needed) return masked_.reset();  // iota without an access
  }

  // Selects the lanes layout if more elements are contiguous along an outer dim than along an inner
  // one. That outer dim becomes the last one.
  void choose_layout(std::vector<std::size_t>& outer, const std::vector<std::size_t>& inner) {
    if (outer.empty() || inner.empty() || plan_.serial || points_) return;
    std::int64_t rows = 0, best = 0;  // number of elements
    std::size_t best_dim = 0;
    Dims votes(fused_.dims.size(), 0);
    for (int i = 0; i < count(); ++i) {
      if (info(i).access < 0 || !instr(i).inner || instr(i).code == Code::iota) continue;
      const Access& access = plan_.accesses[static_cast<std::size_t>(info(i).access)];
      std::int64_t points = 1;
      for (std::size_t d = 0; d < fused_.dims.size(); ++d)
        if (access.strides[d] != 0) points *= fused_.dims[d];
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

  // Splits the dims [first, last) into boxes of about `points` elements, starting at the last dim.
  // Returns the number of elements of a box.
  std::int64_t split(int first, int last, std::int64_t points) {
    std::int64_t taken = 1;
    bool open = true;
    for (int d = last - 1; d >= first; --d) {
      std::int64_t n = plan_.size[d];
      std::int64_t parts =
          open && n > 0 ? std::max<std::int64_t>(1, (n + points / taken - 1) /
                                                        std::max<std::int64_t>(1, points / taken))
                        : 1;
      std::int64_t box = open ? std::max<std::int64_t>(1, (n + parts - 1) / parts) : 1;
      if (box >= 32 && box < n) box = std::min(n, (box + 15) / 16 * 16);  // full vectors
      plan_.box[d] = box;
      taken *= box;
      if (box < n || taken >= points) open = false;
    }
    return taken;
  }
  // Returns the number of rows per tile. With reductions, or with values that a row shares, several
  // rows amortize the cost per row. Rows that stream from memory keep to one row, because memory
  // latency hides this cost, unless they are only reduced.
  std::int64_t rows_at_once() const {
    if (!reduces_ && outer_ == 0) return 1;
    if (!plan_.only_reduces && plan_.outer_points * plan_.inner_points > near_points) return 1;
    int once = 0, inner = 0;
    for (std::size_t i = 0; i < info_.size(); ++i)
      if (info_[i].needed) ++(fused_.code[i].inner ? inner : once);
    return (once > 2 * inner ? 16 : 4) * tile_ / plan_.inner_box;
  }
  void choose_boxes() {
    FusedPlan& p = plan_;
    if (p.serial) {
      std::fill(p.box, p.box + p.dims, 1);
    } else if (flat()) {
      p.inner_box = split(0, p.dims, tile_);
      square_tile();
    } else if (p.inner_major) {
      const std::int64_t lanes = p.outer_points <= tile_ / 2                   ? tile_
                                 : p.only_reduces && p.outer_points >= 1 << 14 ? 1024
                                                                               : 256;
      p.outer_box = split(0, p.outer_dims, std::min<std::int64_t>(tile_, lanes));
      bool keep = may_keep_ && p.inner_points * p.outer_box <= 4 * tile_;
      // number of rows after which a sum is widened
      const std::int64_t rows = may_keep_ && reduces_ ? 32 : 1;
      p.inner_box =
          split(p.outer_dims, p.dims, keep ? p.inner_points : std::max(rows, tile_ / p.outer_box));
    } else {
      bool keep = may_keep_ && p.inner_points <= 4 * tile_;
      p.inner_box =
          split(p.outer_dims, p.dims, keep ? std::max<std::int64_t>(1, p.inner_points) : tile_);
      std::int64_t rows = p.inner_box * 4 <= tile_ ? tile_ / p.inner_box : 1;
      if (may_join_) rows = std::max(rows, std::min(rows_at_once(), p.outer_points / 16));
      p.outer_box = split(0, p.outer_dims, p.inner_box < p.inner_points ? 1 : rows);
    }
    p.inner_box = p.outer_box = 1;
    for (int d = 0; d < p.dims; ++d) {
      std::int64_t boxes = (p.size[d] + p.box[d] - 1) / p.box[d];
      (d < p.outer_dims ? p.outer_boxes : p.inner_boxes) *= boxes;
      (d < p.outer_dims ? p.outer_box : p.inner_box) *= p.box[d];
    }
    p.single_inner_box = p.inner_boxes <= 1;
    choose_blocks();
  }
  // Chooses a square tile if a view is contiguous along another dim, so that each cache line is
  // used while it is cached.
  void square_tile() {
    FusedPlan& p = plan_;
    int last = p.dims - 1;
    for (const Access& access : p.accesses) {
      if (last < 1 || access.iota || std::abs(access.strides[static_cast<std::size_t>(last)]) <= 1)
        continue;
      for (int d = 0; d < last; ++d) {
        if (std::abs(access.strides[static_cast<std::size_t>(d)]) != 1 || p.size[d] < 8 ||
            p.size[last] < 8)
          continue;
        std::fill(p.box, p.box + p.dims, 1);
        p.box[last] = std::min<std::int64_t>(p.size[last], 32);
        p.box[d] =
            std::min<std::int64_t>(p.size[d], std::max<std::int64_t>(1, tile_ / p.box[last]));
        return;
      }
    }
  }
  void choose_blocks() {
    FusedPlan& p = plan_;
    std::int64_t work_per_point = 0;
    for (int i = 0; i < count(); ++i) work_per_point += info(i).needed;
    constexpr std::int64_t grain = 1 << 17;  // work per block: tens of microseconds
    std::int64_t points = std::max<std::int64_t>(1, p.outer_points * p.inner_points);
    std::int64_t requested = std::clamp<std::int64_t>(
        points * std::max<std::int64_t>(work_per_point, 4) / grain, 1, 128);
    if (p.serial) requested = 1;
    if (flat() || (p.outer_boxes < 16 && requested > 2 * p.outer_boxes && !p.single_inner_box)) {
      p.chunks = std::clamp<std::int64_t>(requested / std::max<std::int64_t>(1, p.outer_boxes), 1,
                                          std::max<std::int64_t>(1, p.inner_boxes));
      if (!flat()) p.chunks = std::min<std::int64_t>(p.chunks, 64);
    }
    p.boxes_per_block = std::max<std::int64_t>(1, (p.outer_boxes + requested - 1) / requested);
    p.blocks = (p.outer_boxes + p.boxes_per_block - 1) / p.boxes_per_block;
  }

  void classify() {
    const bool one_outer = plan_.outer_box == 1;
    const auto levels = program::reduction_levels(fused_);
    for (int i = 0; i < count(); ++i) {
      Info& me = info(i);
      const Instr& in = instr(i);
      if (!me.needed) continue;
      me.level = levels[static_cast<std::size_t>(i)];
      me.uniform = me.constant = me.fixed = true;
      if (in.code == Code::load || in.code == Code::iota) {
        const Access& access = plan_.accesses[static_cast<std::size_t>(me.access)];
        me.constant = false;
        bool outer = false;
        for (int d = 0; d < plan_.dims; ++d) {
          if (access.strides[static_cast<std::size_t>(d)] == 0) continue;
          (d < plan_.outer_dims ? outer : me.varies) = true;
          if (plan_.box[d] > 1)
            me.extent = me.extent | (d < plan_.outer_dims ? Extent::outer : Extent::inner);
        }
        me.uniform = !me.varies && !outer;
        me.fixed = !outer && (!me.varies || (!flat() && plan_.inner_boxes <= 1));
      }
      for (int a : program::operands(in)) {
        const Info& arg = info(a);
        me.uniform &= arg.uniform;
        me.constant &= arg.constant;
        me.fixed &= arg.fixed;
        me.varies |= arg.varies;
        me.extent = me.extent | arg.extent;
      }
      if (is_element_op(in)) {
        me.uniform = me.constant = me.fixed = false;
        me.varies = true;
        me.extent = Extent::full;
      }

      me.inner = me.varies && !me.fixed;
      if (is_reduction(in.code)) {
        me.uniform = me.constant = me.fixed = me.varies = me.inner = false;
        me.extent = one_outer ? Extent::one : Extent::outer;
        me.reduction = static_cast<int>(plan_.reductions.size());
        plan_.reductions.push_back(kernels().reduce(
            in.code, lane_type_of(finds_position(in.code) ? instr(in.args[0]).dtype : in.dtype),
            in.dtype));
        plan_.reduction_level.push_back(me.level - 1);
      }
      plan_.levels = std::max(plan_.levels, me.level + 1);
    }
  }

  Fused fused_;
  const Context* context_;
  std::int64_t tile_;
  bool may_join_, may_keep_, no_inner_ = false;
  bool every_ = false;  // every instruction is computed at every element
  bool reduces_ = false;
  bool points_ = false;  // some ops affect one element of a row
  bool flat() const { return every_ && outer_ == 0; }
  int outer_ = 0, level_ = 0;
  std::optional<MaskedRows> masked_;
  FusedPlan plan_;
  std::vector<Info> info_;
  std::map<std::tuple<int, Extent, int>, int> filled_;
};

}  // namespace haliax::cpu::fused_planning
