// The planner of fused steps: translates instructions into tapes over tiles.
#include "fused_analysis.h"
#include "packed_bools.h"

namespace haliax::cpu {
namespace {

using namespace fused_planning;

class Planner : FusedAnalysis {
 public:
  using FusedAnalysis::FusedAnalysis;

  FusedPlan make() {
    fold_nothing();
    fold_single();
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
  // Returns the value of instruction i with all `extent` entries filled in. Adds an op for it to
  // the tape `where`, unless the value exists already.
  int filled(int i, Extent extent, int where) {
    const Info& me = info(i);
    if (box_points(me.extent) == box_points(extent)) return me.value;
    // a tile may be smaller than a box, and then its row pitch differs
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
    if (!needs_no_rounding(code, result)) wrap(where, value, extent, result);
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
      op.load_rows = kernels().load_rows(in.view.dtype);
      plan_.accesses[static_cast<std::size_t>(me.access)].direct =
          !is_16_bit(in.view.dtype) && !me.fixed;
      if (in.view.dtype != in.dtype)
        me.value = convert(value, me.extent, in.view.dtype, in.dtype, where);
    }
  }
  int convert(int value, Extent extent, DType from, DType to, int where) {
    if (from == to || (lane_type_of(from) == lane_type_of(to) && !is_16_bit(to))) return value;
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
    op.store_rows = kernels().store_rows(from);
    op.load_rows = kernels().load_rows(to);
    return op.out;
  }

  void emit_instr(int i, int inner_tape) {
    Info& me = info(i);
    const Instr& in = instr(i);
    int where = home_of(me, inner_tape);
    if (program::is_leaf(in.code)) return emit_leaf(i, where);
    if (is_reduction(in.code)) {
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
    // integers need no rounding
    if (!is_float(first.dtype) && is_rounding(in.code)) {
      me.value = info(in.args[0]).value;
      return;
    }
    if (is_element_op(in)) return emit_poke(i, where);
    if (in.code == Code::exp && of_difference(in, where)) {
      me.value = tape(where).back().out;
      return;
    }
    int n = static_cast<int>(program::operands(in).size()), args[4] = {-1, -1, -1, -1};
    bool scalar[4] = {};
    bool shapes =
        n == 2 && me.extent != Extent::one &&
        (info(in.args[0]).extent != Extent::one || info(in.args[1]).extent != Extent::one);
    // Rows that are long enough run one by one, so that values per row need not be expanded.
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
    // Lane type of the operands. The condition of `select` always has the lane type of bool.
    LaneType from = lane_type_of(in.code == Code::select ? in.dtype : first.dtype);
    if (in.code == Code::popcount && (first.dtype == DType::i8 || first.dtype == DType::i16))
      args[0] = recast_bits(args[0], me.extent, first.dtype,
                            first.dtype == DType::i8 ? DType::u8 : DType::u16, where);
    Code code =
        in.code == Code::bit_not && in.dtype == DType::boolean ? Code::logical_not : in.code;
    if (!is_float(first.dtype) && is_float_test(code)) {
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

  // Merges exp into the preceding subtraction of a scalar, if exp is the only reader of the
  // difference. Returns true if the ops were merged.
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

  // Sets the id and the iota that select one element of a row.
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

  // Emits the part of a reduction that reads all elements of a tile.
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
      load.load_rows = kernels().load_rows(in.view.dtype);
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
    op.store_rows = kernels().store_rows(in.view.dtype);
    into.push_back(op);
  }
  // Limits each row to the elements that its masks leave visible. The checks of the hidden elements
  // must run before the pass that stores, including stores in place (Op::into). Returns the
  // instructions that must be 0 at hidden elements.
  std::vector<int> hide_ends(int last_pass) {
    FusedPlan& p = plan_;
    if (!masked_ || !p.single_inner_box || p.chunks > 1) return {};
    bool stores = false;
    for (auto& in : fused_.code) stores |= is_store(in.code) && in.inner;
    for (int i : masked_->zero)
      if (!info(i).inner || (stores && info(i).level >= last_pass)) return {};
    for (auto mask : masked_->masks) {
      for (auto& [iota, sign] : mask.positions) iota = info(iota).access;
      p.row_masks.push_back(std::move(mask));
    }
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
  // Returns true if a load may read memory of this slot.
  bool is_loaded(int slot) {
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
    int last_pass = 0;
    for (int i = 0; i < count(); ++i) {
      if (!info(i).needed) continue;
      if (is_reduction(instr(i).code)) last_pass = std::max(last_pass, info(i).level - 1);
      if (is_store(instr(i).code) && (every_ || instr(i).inner))
        last_pass = std::max(last_pass, info(i).level);
    }
    const auto zero = hide_ends(last_pass);
    std::vector<bool> created(fused_.code.size(), false);
    for (level_ = 0; level_ < p.levels; ++level_) {
      for (int i = 0; i < count(); ++i)
        if (info(i).needed && !info(i).inner && !is_store(instr(i).code) && info(i).level == level_)
          emit_instr(i, level_);
      // The reductions and stores of this pass, and the values that they need.
      std::vector<bool> requested(fused_.code.size(), false);
      std::vector<int> stores;
      for (int i = count() - 1; i >= 0; --i) {
        const Instr& in = instr(i);
        if (!info(i).needed) continue;
        bool here = is_reduction(in.code) && info(i).level == level_ + 1;
        if (is_store(in.code) && (every_ || in.inner)) {
          here = p.single_inner_box || is_loaded(in.view.slot) ? level_ == last_pass
                                                               : level_ == info(i).level;
          if (here) stores.push_back(i);
        }
        if (here || (requested[static_cast<std::size_t>(i)] && info(i).inner))
          for (int a : program::operands(in)) requested[static_cast<std::size_t>(a)] = true;
      }
      if (!p.single_inner_box) filled_.clear();
      for (int i = 0; i < count(); ++i) {
        const Instr& in = instr(i);
        std::size_t at = static_cast<std::size_t>(i);
        if (!info(i).needed || is_store(in.code)) continue;
        bool mine = info(i).inner && (p.single_inner_box ? info(i).level == level_ && !created[at]
                                                         : static_cast<bool>(requested[at]));
        if (mine) {
          emit_instr(i, level_);
          created[at] = true;
        }
        if (is_reduction(in.code) && info(i).level == level_ + 1 && !no_inner_)
          emit_reduce(i, level_);
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
    // A register that aliases memory must be copied before it is stored elsewhere, because another
    // store may overwrite that memory first.
    for (const Instr& in : fused_.code)
      if (is_store(in.code) && instr(in.args[0]).code == Code::load)
        p.accesses[static_cast<std::size_t>(info(in.args[0]).access)].direct = false;
    if (p.inner_major) mark_folded();
    if (context_) assemble(p);
    store_in_place(p, context_);
    assemble_bf16(p);
  }
  // If a step in the lanes layout reads a single array and only reduces it, its tiles are read in
  // place, without a copy to registers.
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
    // Read-modify-write ops run together with the stores, after all other reads.
    if (instr(i).code != Code::store) {
      writes.insert(writes.end(), tape.begin() + before, tape.end());
      tape.resize(static_cast<std::size_t>(before));
    }
    writes.insert(writes.end(), store.begin(), store.end());
  }
};

}  // namespace

FusedPlan plan_fused(const Fused& step, const Context* context) {
  const auto words = packed_bools(step);
  const Fused& fused = words ? *words : step;
  if (fused.outer < 0 || static_cast<std::size_t>(fused.outer) > fused.dims.size())
    throw Error("[fused] more outer dimensions than dimensions");
  // few registers: all of them fit into L1
  const std::int64_t tile = fused.code.size() <= 10 ? 4096 : 1024;
  FusedPlan plan = Planner(fused, context, tile, true, true).make();
  if (plan.register_bytes > rows_bytes) plan = Planner(fused, context, tile, false, true).make();
  auto fits = [&] {
    return plan.register_bytes + static_cast<std::int64_t>(plan.values.size()) * 8 <=
           workspace_bytes;
  };
  for (std::int64_t tile = 1024; !fits() && tile >= 1; tile /= 2)
    plan = Planner(fused, context, tile, false, false).make();
  if (!fits()) throw Error("[fused] too many values are live at once");
  return plan;
}

}  // namespace haliax::cpu
