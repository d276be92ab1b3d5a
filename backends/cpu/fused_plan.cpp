// From the instructions of a fused step to tapes over tiles.
#include <algorithm>
#include <map>
#include <numeric>

#include "assemble.h"
#include "base/scalar.h"
#include "fused.h"
#include "haliax/error.h"
#include "one_hot.h"

namespace haliax::cpu {
namespace {

using program::Code;
using program::Fused;
using program::Instr;
using program::View;

bool is_store(Code c) { return c >= Code::store; }
bool is_reduce(Code c) { return c >= Code::reduce_sum && c <= Code::reduce_argmin; }
bool is_leaf(Code c) { return c <= Code::iota; }
bool gives_bool(Code c) {
  return (c >= Code::less && c <= Code::not_equal) || (c >= Code::is_finite && c <= Code::is_inf) ||
         c == Code::logical_not;
}
// A narrow operand stays narrow: nothing to round.
bool stays_narrow(Code c, DType dtype) {
  bool floating = lane_type_of(dtype) == LaneType::f32;
  return c == Code::select || c == Code::max || c == Code::min || c == Code::bit_and ||
         c == Code::bit_or || c == Code::bit_xor || c == Code::shift_right ||
         (floating && (c == Code::neg || c == Code::abs || c == Code::sign)) || gives_bool(c);
}
// registers for several rows at once: well inside the second cache
constexpr std::int64_t rows_bytes = 160 * 1024;
constexpr std::int64_t long_row = 512;         // a part of it is worth more than it costs to find
constexpr std::int64_t near_points = 1 << 20;  // of what the step before has left in the caches
Code combining(Code store) {
  return store == Code::store_add ? Code::add : store == Code::store_max ? Code::max : Code::min;
}

class Planner {
 public:
  // tile: points of an inner box; may_join: several rows may go together.
  Planner(const Fused& fused, const Context* context, std::int64_t tile, bool may_join,
          bool may_keep)
      : fused_(fused), context_(context), tile_(tile), may_join_(may_join), may_keep_(may_keep) {}

  FusedPlan make() {
    fold_nothing();
    mark_needed();
    choose_rows();
    read_views();
    choose_order();
    find_masks();
    choose_boxes();
    classify();
    plan_.stays_in_cache = plan_.levels > 1 && plan_.inner_points * plan_.outer_box <= 1 << 16;
    emit();
    place_registers(plan_);
    return std::move(plan_);
  }

 private:
  struct Info {
    bool needed = false, uniform = false, constant = false;
    bool varies = false;    // with the inner point
    bool fixed = false;     // the same for all tiles
    bool inner = false;     // made in the inner tapes
    bool position = false;  // an iota that says which point
    Extent extent = Extent::one;
    int level = 0, access = -1, value = -1, reduction = -1;
  };
  // or the number of an inner tape
  enum Where : int { in_constants = -3, in_prologue = -2, in_outer = -1 };

  const Instr& instr(int i) const { return fused_.code[static_cast<std::size_t>(i)]; }
  Info& info(int i) { return info_[static_cast<std::size_t>(i)]; }
  int count() const { return static_cast<int>(fused_.code.size()); }
  static int operands(const Instr& in) {
    int n = 0;
    while (n < 4 && in.args[n] >= 0) ++n;
    return n;
  }

  // The max of nothing is the least of its dtype, which a lane of more bits would not start from.
  void fold_nothing() {
    no_inner_ =
        std::find(fused_.dims.begin() + fused_.outer, fused_.dims.end(), 0) != fused_.dims.end();
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
  void mark_needed() {
    info_.resize(fused_.code.size());
    for (int i = count() - 1; i >= 0; --i) {
      if (is_store(instr(i).code)) info(i).needed = !(no_inner_ && instr(i).inner);
      plan_.only_reduces &= !info(i).needed || !instr(i).inner || instr(i).code == Code::load;
      // a reduction of nothing reads nothing
      if (!info(i).needed || (no_inner_ && is_reduce(instr(i).code))) continue;
      for (int k = 0; k < operands(instr(i)); ++k) {
        const int a = instr(i).args[k];
        if (a >= i) throw Error("[fused] an instruction reads a later one");
        info(a).needed = true;
      }
      if (is_element_op(instr(i))) info(instr(i).dim).position = points_ = true;
    }
  }

  // Which dimensions are outer ones. Without reductions every point is like any other: all are
  // inner ones, and values live for one tile only; unless there are rows to whose points some
  // values are common.
  void choose_rows() {
    outer_ = fused_.outer;
    bool outer_stores = false;
    for (int i = 0; i < count(); ++i) {
      if (!info(i).needed) continue;
      if (is_reduce(instr(i).code)) {
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
      if (!info(i).needed || !(in.code == Code::load || is_store(in.code))) continue;
      const std::int64_t along = std::abs(stride_of(in, last - 1));
      if (along > 1) return;
      if (in.code != Code::load || along != 0) continue;
      for (std::size_t d = 0; d + 1 < last; ++d) shared |= stride_of(in, d) != 0;
    }
    if (!shared) return;
    outer_ = static_cast<int>(last) - 1;
    one_hot();
  }
  // Rows of one dimension, contiguous in what is read: code that matters at one point of them.
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
    info_.clear();
    mark_needed();
  }

  void read_views() {
    for (int i = 0; i < count(); ++i) {
      const Instr& in = instr(i);
      if (!(info(i).needed || info(i).position) ||
          !(in.code == Code::load || in.code == Code::iota || is_store(in.code)))
        continue;
      Access access;
      access.place = Place(in.view);
      access.view = in.view;
      access.dtype = in.code == Code::iota ? in.dtype : in.view.dtype;
      access.strides = in.view.strides;
      if (in.code == Code::iota) {
        access.iota = true;
        access.start = in.integer;
        access.strides.assign(fused_.dims.size(), 0);
        if (in.dim >= 0) access.strides.at(static_cast<std::size_t>(in.dim)) = in.stride;
      }
      access.strides.resize(fused_.dims.size(), 0);
      for (std::size_t d = 0; d < fused_.dims.size(); ++d)
        if (fused_.dims[d] == 1 || (!in.inner && static_cast<int>(d) >= fused_.outer))
          access.strides[d] = 0;
      info(i).access = static_cast<int>(plan_.accesses.size());
      plan_.accesses.push_back(std::move(access));
    }
  }

  void choose_order() {
    bool ordered = points_;  // positions are asked for: inner dims stay in order
    for (int i = 0; i < count(); ++i) {
      if (!info(i).needed) continue;
      ordered |= finds_position(instr(i).code);
      if (is_store(instr(i).code)) {
        const Access& access = plan_.accesses[static_cast<std::size_t>(info(i).access)];
        std::size_t end =
            every_ || instr(i).inner ? fused_.dims.size() : static_cast<std::size_t>(outer_);
        for (std::size_t d = 0; d < end; ++d)
          plan_.serial |= fused_.dims[d] > 1 && access.strides[d] == 0;
      }
    }
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
    std::vector<Dims> strides(plan_.accesses.size());
    Dims sizes;
    auto take = [&](const std::vector<std::size_t>& group) {
      std::size_t first = sizes.size();
      for (std::size_t d : group) {
        std::int64_t n = fused_.dims[d];
        bool merges = sizes.size() > first;
        for (std::size_t a = 0; a < strides.size() && merges; ++a)
          merges = strides[a].back() == plan_.accesses[a].strides[d] * n;
        if (merges)
          sizes.back() *= n;
        else
          sizes.push_back(n);
        for (std::size_t a = 0; a < strides.size(); ++a) {
          if (!merges) strides[a].push_back(0);
          strides[a].back() = plan_.accesses[a].strides[d];
        }
      }
    };
    take(outer);
    plan_.outer_dims = static_cast<int>(sizes.size());
    take(inner);
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
        if (!info(iota).needed) return masked_.reset();  // it has no access
  }

  // Lanes when more of what is read and written is contiguous along an outer dimension than along
  // an inner one; that dimension goes last.
  void choose_layout(std::vector<std::size_t>& outer, const std::vector<std::size_t>& inner) {
    if (outer.empty() || inner.empty() || plan_.serial || points_) return;
    std::int64_t rows = 0, best = 0;  // in points
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

  // The last dimensions, up to about `points` points.
  std::int64_t cut(int first, int last, std::int64_t points) {
    std::int64_t taken = 1;
    bool open = true;
    for (int d = last - 1; d >= first; --d) {
      std::int64_t n = plan_.size[d];
      std::int64_t parts =
          open && n > 0 ? std::max<std::int64_t>(1, (n + points / taken - 1) /
                                                        std::max<std::int64_t>(1, points / taken))
                        : 1;
      std::int64_t box = open ? std::max<std::int64_t>(1, (n + parts - 1) / parts) : 1;
      if (box >= 32 && box < n) box = std::min(n, (box + 15) / 16 * 16);  // whole vectors
      plan_.box[d] = box;
      taken *= box;
      if (box < n || taken >= points) open = false;
    }
    return taken;
  }
  // Where there are reductions, or values that all points of a row share, so that what a row has
  // but once costs little; not of rows that come from memory, which hides that cost, unless they
  // are folded at its pace.
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
      p.inner_box = cut(0, p.dims, tile_);
      square_tile();
    } else if (p.inner_major) {
      const std::int64_t lanes = p.outer_points <= tile_ / 2                   ? tile_
                                 : p.only_reduces && p.outer_points >= 1 << 14 ? 1024
                                                                               : 256;
      p.outer_box = cut(0, p.outer_dims, std::min<std::int64_t>(tile_, lanes));
      bool keep = may_keep_ && p.inner_points * p.outer_box <= 4 * tile_;
      const std::int64_t rows = may_keep_ && reduces_ ? 32 : 1;  // a sum is widened after so many
      p.inner_box =
          cut(p.outer_dims, p.dims, keep ? p.inner_points : std::max(rows, tile_ / p.outer_box));
    } else {
      bool keep = may_keep_ && p.inner_points <= 4 * tile_;
      p.inner_box =
          cut(p.outer_dims, p.dims, keep ? std::max<std::int64_t>(1, p.inner_points) : tile_);
      std::int64_t rows = p.inner_box * 4 <= tile_ ? tile_ / p.inner_box : 1;
      if (may_join_) rows = std::max(rows, std::min(rows_at_once(), p.outer_points / 16));
      p.outer_box = cut(0, p.outer_dims, p.inner_box < p.inner_points ? 1 : rows);
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
  // A view that runs along another dimension: a square tile, so that each cache line it brings is
  // used while it is there.
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
    constexpr std::int64_t grain = 1 << 17;  // of work: tens of microseconds
    std::int64_t points = std::max<std::int64_t>(1, p.outer_points * p.inner_points);
    std::int64_t wanted = std::clamp<std::int64_t>(
        points * std::max<std::int64_t>(work_per_point, 4) / grain, 1, 128);
    if (p.serial) wanted = 1;
    if (flat() || (p.outer_boxes < 16 && wanted > 2 * p.outer_boxes && !p.single_inner_box)) {
      p.chunks = std::clamp<std::int64_t>(wanted / std::max<std::int64_t>(1, p.outer_boxes), 1,
                                          std::max<std::int64_t>(1, p.inner_boxes));
      if (!flat()) p.chunks = std::min<std::int64_t>(p.chunks, 64);
    }
    p.boxes_per_block = std::max<std::int64_t>(1, (p.outer_boxes + wanted - 1) / wanted);
    p.blocks = (p.outer_boxes + p.boxes_per_block - 1) / p.boxes_per_block;
  }

  void classify() {
    const bool one_outer = plan_.outer_box == 1;
    for (int i = 0; i < count(); ++i) {
      Info& me = info(i);
      const Instr& in = instr(i);
      if (!me.needed) continue;
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
      for (int k = 0; k < operands(in); ++k) {
        const Info& arg = info(in.args[k]);
        me.uniform &= arg.uniform;
        me.constant &= arg.constant;
        me.fixed &= arg.fixed;
        me.varies |= arg.varies;
        me.level = std::max(me.level, arg.level);
        me.extent = me.extent | arg.extent;
      }
      if (is_element_op(in)) {
        me.uniform = me.constant = me.fixed = false;
        me.varies = true;
        me.extent = Extent::full;
      }

      me.inner = me.varies && !me.fixed;
      if (is_reduce(in.code)) {
        me.uniform = me.constant = me.fixed = me.varies = me.inner = false;
        me.extent = one_outer ? Extent::one : Extent::outer;
        me.reduction = static_cast<int>(plan_.reductions.size());
        plan_.reductions.push_back(kernels().reduce(
            in.code, lane_type_of(finds_position(in.code) ? instr(in.args[0]).dtype : in.dtype),
            in.dtype));
        plan_.reduction_level.push_back(me.level);
        ++me.level;
      }
      plan_.levels = std::max(plan_.levels, me.level + 1);
    }
  }

  // ---- emission ----

  Tape& tape(int where) {
    return where == in_constants  ? plan_.constants
           : where == in_prologue ? plan_.prologue
           : where == in_outer    ? plan_.outer[static_cast<std::size_t>(level_)]
                                  : plan_.inner[static_cast<std::size_t>(where)];
  }
  int new_value(int where, LaneType lane) {
    Register::Home home = where <= in_prologue ? Register::pool
                          : where == in_outer  ? Register::outer
                                               : Register::inner;
    plan_.values.push_back({home, lane});
    return static_cast<int>(plan_.values.size()) - 1;
  }
  Op& push(int where, Op::Kind kind, Extent extent, LaneType lane) {
    Op op;
    op.kind = kind;
    op.extent = extent;
    op.lane = lane;
    op.out = new_value(where, lane);
    plan_.values.back().extent = extent;
    tape(where).push_back(op);
    return tape(where).back();
  }
  int home_of(const Info& me, int inner_tape) const {
    return me.constant ? in_constants : me.fixed ? in_prologue : me.inner ? inner_tape : in_outer;
  }
  // The value of instruction i with all `extent` entries filled, made in the tape `where` unless it
  // is there already.
  int filled(int i, Extent extent, int where) {
    const Info& me = info(i);
    if (box_points(me.extent) == box_points(extent)) return me.value;
    // a tile, and then its pitch is another
    const bool may_be_shorter = plan_.inner_major || (masked_ && plan_.outer_box > 1);
    int home = me.uniform || (me.fixed && !may_be_shorter) ? home_of(me, where) : where;
    int& cached = filled_[{me.value, extent, home}];
    if (cached > 0) return cached;
    Op& op = push(home, me.extent == Extent::one ? Op::splat : Op::expand, extent,
                  lane_type_of(instr(i).dtype));
    op.in[0] = me.value;
    op.from[0] = me.extent;
    return cached = op.out;
  }
  std::int64_t box_points(Extent e) const { return points_of(e, plan_.outer_box, plan_.inner_box); }
  static Kernel need(Kernel kernel, const char* what) {
    if (!kernel) throw Error(std::string("[fused] no kernel for ") + what + " of this dtype");
    return kernel;
  }

  int map(int where, Code code, Extent extent, LaneType from, DType result, const int* args, int n,
          const bool* scalar) {
    Shape shape = n == 2 && scalar[0]   ? Shape::scalar_vector
                  : n == 2 && scalar[1] ? Shape::vector_scalar
                                        : Shape::vector_vector;
    Kernel kernel = need(kernels().map(code, from, shape), "an operation");
    Op& op = push(where, Op::map, extent, lane_type_of(result));
    std::copy(args, args + n, op.in);
    std::copy(scalar, scalar + n, op.one);
    op.kernel = kernel;
    op.point = {PointOp::code, code, from, result};
    int value = op.out;
    if (!stays_narrow(code, result)) wrap(where, value, extent, result);
    return value;
  }
  void wrap(int where, int value, Extent extent, DType dtype) {
    Kernel kernel = kernels().wrap(dtype);
    if (!kernel) return;
    Op op;
    op.extent = extent;
    op.lane = lane_type_of(dtype);
    op.in[0] = op.out = value;
    op.kernel = kernel;
    op.point = {PointOp::round, Code::cast, op.lane, dtype};
    tape(where).push_back(op);
  }

  void emit_leaf(int i, int where) {
    Info& me = info(i);
    const Instr& in = instr(i);
    if (in.code == Code::constant) {
      me.value = new_value(in_constants, lane_type_of(in.dtype));
      if (is_float(in.dtype))
        plan_.numbers.push_back({me.value, in.number});
      else
        plan_.integers.push_back(
            {me.value, in.dtype == DType::boolean ? in.integer != 0 : in.integer});
      wrap(in_constants, me.value, Extent::one, in.dtype);
      return;
    }
    Op& op = push(where, in.code == Code::iota ? Op::iota : Op::load, me.extent,
                  lane_type_of(plan_.accesses[static_cast<std::size_t>(me.access)].dtype));
    op.access = me.access;
    op.outer_access = !me.varies;
    me.value = op.out;
    int value = op.out;
    if (in.code == Code::iota) {
      wrap(where, value, me.extent, in.dtype);
    } else {
      op.load_run = kernels().load(in.view.dtype);
      plan_.accesses[static_cast<std::size_t>(me.access)].direct =
          !is_narrow(in.view.dtype) && !me.fixed;
      if (in.view.dtype != in.dtype)
        me.value = convert(value, me.extent, in.view.dtype, in.dtype, where);
    }
  }
  int convert(int value, Extent extent, DType from, DType to, int where) {
    if (from == to || (lane_type_of(from) == lane_type_of(to) && !is_narrow(to))) return value;
    Op& op = push(where, Op::map, extent, lane_type_of(to));
    op.in[0] = value;
    op.kernel = kernels().cast(lane_type_of(from), to);
    op.point = {PointOp::convert, Code::cast, lane_type_of(from), to};
    return op.out;
  }
  int recast_bits(int value, Extent extent, DType from, DType to, int where) {
    if (haliax::bytes_of(from) != haliax::bytes_of(to))
      throw Error("[fused] a bitcast between dtypes of different size");
    int temporary = new_value(where, LaneType::f64);
    plan_.values.back().extent = extent;
    Op& op = push(where, Op::recode, extent, lane_type_of(to));
    op.in[0] = value;
    op.in[1] = temporary;
    op.store_run = kernels().store(from);
    op.load_run = kernels().load(to);
    return op.out;
  }

  void emit_instr(int i, int inner_tape) {
    Info& me = info(i);
    const Instr& in = instr(i);
    int where = home_of(me, inner_tape);
    if (is_leaf(in.code)) return emit_leaf(i, where);
    if (is_reduce(in.code)) {
      Op& op = push(in_outer, Op::finish, me.extent, lane_type_of(in.dtype));
      op.reduction = me.reduction;
      me.value = op.out;
      wrap(in_outer, op.out, me.extent, in.dtype);
      return;
    }
    const Instr& first = instr(in.args[0]);
    if (in.code == Code::cast) {
      me.value = convert(info(in.args[0]).value, me.extent, first.dtype, in.dtype, where);
      return;
    }
    if (in.code == Code::bitcast) {
      me.value = recast_bits(info(in.args[0]).value, me.extent, first.dtype, in.dtype, where);
      return;
    }
    // integers are whole
    if (!is_float(first.dtype) && in.code >= Code::floor && in.code <= Code::trunc) {
      me.value = info(in.args[0]).value;
      return;
    }
    if (is_element_op(in)) return emit_poke(i, where);
    if (in.code == Code::exp && of_difference(in, where)) {
      me.value = tape(where).back().out;
      return;
    }
    int n = operands(in), args[4] = {-1, -1, -1, -1};
    bool scalar[4] = {};
    bool shapes =
        n == 2 && me.extent != Extent::one &&
        (info(in.args[0]).extent != Extent::one || info(in.args[1]).extent != Extent::one);
    // Rows that are long enough to go one by one: what a row has but once need not be filled in.
    const std::int64_t columns = plan_.inner_major ? plan_.outer_box : plan_.inner_box;
    bool partial = false;
    for (int k = 0; k < n; ++k)
      partial |= box_points(info(in.args[k]).extent) < box_points(me.extent);
    const bool by_row = n == 2 && me.extent == Extent::full && partial && columns >= 64 &&
                        info(in.args[0]).extent != Extent::one &&
                        info(in.args[1]).extent != Extent::one;
    for (int k = 0; k < n; ++k) {
      scalar[k] = by_row ? info(in.args[k]).extent == plan_.row()
                         : shapes && info(in.args[k]).extent == Extent::one;
      args[k] = scalar[k] || by_row ? info(in.args[k]).value : filled(in.args[k], me.extent, where);
    }
    // The lane of the operands; a condition's is always that of bool.
    LaneType from = lane_type_of(in.code == Code::select ? in.dtype : first.dtype);
    if (in.code == Code::popcount && (first.dtype == DType::i8 || first.dtype == DType::i16))
      args[0] = recast_bits(args[0], me.extent, first.dtype,
                            first.dtype == DType::i8 ? DType::u8 : DType::u16, where);
    Code code =
        in.code == Code::bit_not && in.dtype == DType::boolean ? Code::logical_not : in.code;
    if (!is_float(first.dtype) && code >= Code::is_finite && code <= Code::is_inf) {
      code = code == Code::is_finite ? Code::equal : Code::not_equal;
      args[n++] = args[0];
    }
    me.value = map(where, code, me.extent, from, in.dtype, args, n, scalar);
    if (!by_row) return;
    for (Op& op : tape(where)) {
      if (op.kind != Op::map || op.out != me.value || op.in[0] == op.out) continue;
      op.kind = Op::map_rows;
      for (int k = 0; k < n; ++k) op.from[k] = info(in.args[k]).extent;
    }
  }

  // Makes the exp of what the last op subtracts from a row in that op, if that is what it is for.
  bool of_difference(const Instr& exp, int where) {
    const Instr& difference = instr(exp.args[0]);
    if (exp.dtype != DType::f32 || difference.code != Code::sub || tape(where).empty())
      return false;
    Op& last = tape(where).back();
    const bool by_scalar =
        last.kernel == kernels().map(Code::sub, LaneType::f32, Shape::vector_scalar);
    const auto readers =
        std::count_if(fused_.code.begin(), fused_.code.end(), [&](const Instr& in) {
          return std::find(in.args, in.args + 4, exp.args[0]) != in.args + 4;
        });
    if (last.out != info(exp.args[0]).value || !by_scalar || readers != 1) return false;
    last.fetching = kernels().exp_difference;
    last.point.action = PointOp::exp_of_difference;
    return true;
  }

  // Which point of a row.
  void set_point(Op& op, int id, int iota, int slot) {
    op.in[slot] = info(id).value;
    op.from[1] = info(id).extent;
    op.access = info(iota).access;
  }
  void emit_poke(int i, int where) {
    Info& me = info(i);
    const Instr& in = instr(i);
    const int value = filled(in.args[0], Extent::full, where);
    Op& op = push(where, Op::poke, Extent::full, lane_type_of(in.dtype));
    op.in[0] = value;
    op.in[1] = info(in.args[1]).value;
    op.from[0] = info(in.args[1]).extent;
    set_point(op, in.args[2], in.dim, 2);
    op.kernel = need(kernels().map(in.code, op.lane, Shape::vector_vector), "an operation");
    me.value = op.out;
  }

  // Reads a value for each point of the tile: reductions, stores.
  void emit_reduce(int i, int where) {
    const Instr& in = instr(i);
    int value = filled(in.args[0], Extent::full, where);
    if (!finds_position(in.code))
      value = convert(value, Extent::full, instr(in.args[0]).dtype, in.dtype, where);
    Op op;
    op.kind = is_element_op(in) ? Op::pick : Op::reduce;
    op.extent = Extent::full;
    op.in[0] = value;
    op.reduction = info(i).reduction;
    if (is_element_op(in)) set_point(op, in.args[1], in.dim, 1);
    tape(where).push_back(op);
  }
  void emit_store(int i, int where, Extent extent, Tape& into) {
    const Instr& in = instr(i);
    const Instr& source = instr(in.args[0]);
    int value = filled(in.args[0], extent, where);
    if (source.dtype != in.view.dtype)
      value = convert(value, extent, source.dtype, in.view.dtype, where);
    const bool outer_access = !every_ && !in.inner;
    if (in.code != Code::store) {
      Op& load = push(where, Op::load, extent, lane_type_of(in.view.dtype));
      load.access = info(i).access;
      load.outer_access = outer_access;
      load.load_run = kernels().load(in.view.dtype);
      int args[2] = {load.out, value};
      const bool scalar[2] = {};
      value = map(where, combining(in.code), extent, lane_type_of(in.view.dtype), in.view.dtype,
                  args, 2, scalar);
    }
    Op op;
    op.kind = Op::store;
    op.extent = extent;
    op.in[0] = value;
    op.access = info(i).access;
    op.outer_access = outer_access;
    op.store_run = kernels().store(in.view.dtype);
    into.push_back(op);
  }
  // Rows are walked as far as their masks show them, if nothing is stored (in place, say: Op::into)
  // before the last sweep, when it is known what lies behind. What must be 0 there.
  std::vector<int> hide_ends(int last_sweep) {
    FusedPlan& p = plan_;
    if (!masked_ || !p.single_inner_box || p.chunks > 1) return {};
    bool stores = false;
    for (auto& in : fused_.code) stores |= is_store(in.code) && in.inner;
    for (int i : masked_->zero)
      if (!info(i).inner || (stores && info(i).level >= last_sweep)) return {};
    p.row_masks = masked_->masks;
    for (auto& mask : p.row_masks)
      for (auto& [iota, sign] : mask.positions) iota = info(iota).access;
    for (int i = 0; i < count(); ++i)
      if (is_store(instr(i).code) && instr(i).inner) p.filled.push_back(info(i).access);
    return masked_->zero;
  }
  void emit_zero(int i) {
    Op op;
    op.kind = Op::zero;
    op.extent = Extent::full;
    op.lane = lane_type_of(instr(i).dtype);
    op.in[0] = filled(i, Extent::full, level_);
    plan_.inner[static_cast<std::size_t>(level_)].push_back(op);
  }
  bool is_loaded(int slot) {  // may any load see what is written to this slot?
    for (int i = 0; i < count(); ++i)
      if (info(i).needed && instr(i).code == Code::load &&
          same_memory(context_, instr(i).view.slot, slot))
        return true;
    return false;
  }

  void emit() {
    FusedPlan& p = plan_;
    p.outer.resize(static_cast<std::size_t>(p.levels));
    p.inner.resize(static_cast<std::size_t>(p.levels));
    int last_sweep = 0;
    for (int i = 0; i < count(); ++i) {
      if (!info(i).needed) continue;
      if (is_reduce(instr(i).code)) last_sweep = std::max(last_sweep, info(i).level - 1);
      if (is_store(instr(i).code) && (every_ || instr(i).inner))
        last_sweep = std::max(last_sweep, info(i).level);
    }
    const auto zero = hide_ends(last_sweep);
    std::vector<bool> made(fused_.code.size(), false);
    for (level_ = 0; level_ < p.levels; ++level_) {
      for (int i = 0; i < count(); ++i)
        if (info(i).needed && !info(i).inner && !is_store(instr(i).code) && info(i).level == level_)
          emit_instr(i, level_);
      // What this sweep is for, and what that needs.
      std::vector<bool> wanted(fused_.code.size(), false);
      std::vector<int> stores;
      for (int i = count() - 1; i >= 0; --i) {
        const Instr& in = instr(i);
        if (!info(i).needed) continue;
        bool here = is_reduce(in.code) && info(i).level == level_ + 1;
        if (is_store(in.code) && (every_ || in.inner)) {
          here = p.single_inner_box || is_loaded(in.view.slot) ? level_ == last_sweep
                                                               : level_ == info(i).level;
          if (here) stores.push_back(i);
        }
        if (here || (wanted[static_cast<std::size_t>(i)] && info(i).inner))
          for (int k = 0; k < operands(in); ++k)
            wanted[static_cast<std::size_t>(in.args[k])] = true;
      }
      if (!p.single_inner_box) filled_.clear();
      for (int i = 0; i < count(); ++i) {
        const Instr& in = instr(i);
        std::size_t at = static_cast<std::size_t>(i);
        if (!info(i).needed || is_store(in.code)) continue;
        bool mine = info(i).inner && (p.single_inner_box ? info(i).level == level_ && !made[at]
                                                         : static_cast<bool>(wanted[at]));
        if (mine) {
          emit_instr(i, level_);
          made[at] = true;
        }
        if (is_reduce(in.code) && info(i).level == level_ + 1 && !no_inner_) emit_reduce(i, level_);
      }
      for (int i : zero)
        if (info(i).level == level_) emit_zero(i);
      std::reverse(stores.begin(), stores.end());
      Tape writes;
      for (int i : stores) emit_inner_store(i, writes);
      Tape& tape = p.inner[static_cast<std::size_t>(level_)];
      tape.insert(tape.end(), writes.begin(), writes.end());
    }
    level_ = p.levels - 1;
    for (int i = 0; i < count(); ++i)
      if (info(i).needed && is_store(instr(i).code) && !(every_ || instr(i).inner))
        emit_store(i, in_outer, p.outer_box == 1 ? Extent::one : Extent::outer, p.outer_stores);
    // A register that is the memory itself must be copied where it is stored elsewhere: another
    // store may come before.
    for (const Instr& in : fused_.code)
      if (is_store(in.code) && instr(in.args[0]).code == Code::load)
        p.accesses[static_cast<std::size_t>(info(in.args[0]).access)].direct = false;
    if (p.inner_major) mark_folded();
    if (context_) assemble(p);
    store_in_place(p, context_);
    assemble_bf16(p);
  }
  // If a step of lanes reads one array, and does nothing with it but fold it, no tile of it need be
  // copied into a register.
  void mark_folded() {
    std::vector<bool> other(plan_.values.size(), false);
    std::vector<const Op*> loads;
    for (const Tape& tape : plan_.inner)
      for (const Op& op : tape) {
        if (op.kind == Op::load) loads.push_back(&op);
        if (op.kind != Op::reduce)
          for (int v : op.in)
            if (v >= 0) other[static_cast<std::size_t>(v)] = true;
      }
    if (loads.size() != 1 || other[static_cast<std::size_t>(loads[0]->out)]) return;
    Access& access = plan_.accesses[static_cast<std::size_t>(loads[0]->access)];
    access.only_reduced =
        access.direct && !loads[0]->outer_access && loads[0]->extent == Extent::full;
  }
  void emit_inner_store(int i, Tape& writes) {
    filled(instr(i).args[0], Extent::full, level_);
    Tape& tape = plan_.inner[static_cast<std::size_t>(level_)];
    const std::ptrdiff_t before = static_cast<std::ptrdiff_t>(tape.size());
    Tape store;
    emit_store(i, level_, Extent::full, store);
    // Read-modify-write happens among the writes: everything else has been read by then.
    if (instr(i).code != Code::store) {
      writes.insert(writes.end(), tape.begin() + before, tape.end());
      tape.resize(static_cast<std::size_t>(before));
    }
    writes.insert(writes.end(), store.begin(), store.end());
  }

  Fused fused_;
  const Context* context_;
  std::int64_t tile_;
  bool may_join_, may_keep_, no_inner_ = false;
  bool every_ = false;  // every instruction is made at every point
  bool reduces_ = false;
  bool points_ = false;  // some matter at one point of a row
  bool flat() const { return every_ && outer_ == 0; }
  int outer_ = 0, level_ = 0;
  std::optional<MaskedRows> masked_;
  FusedPlan plan_;
  std::vector<Info> info_;
  std::map<std::tuple<int, Extent, int>, int> filled_;
};

}  // namespace

FusedPlan plan_fused(const Fused& fused, const Context* context) {
  if (fused.outer < 0 || static_cast<std::size_t>(fused.outer) > fused.dims.size())
    throw Error("[fused] more outer dimensions than dimensions");
  const std::int64_t tile = fused.code.size() <= 10 ? 4096 : 1024;  // a few registers: all in L1
  FusedPlan plan = Planner(fused, context, tile, true, true).make();
  if (plan.register_bytes > rows_bytes) plan = Planner(fused, context, tile, false, true).make();
  auto fits = [&] {
    return plan.register_bytes + static_cast<std::int64_t>(plan.values.size()) * 8 <=
           workspace_bytes;
  };
  for (std::int64_t tile = 1024; !fits() && tile >= 1; tile /= 2)
    plan = Planner(fused, context, tile, false, false).make();
  if (!fits()) throw Error("[fused] too many values live at once");
  return plan;
}

}  // namespace haliax::cpu
