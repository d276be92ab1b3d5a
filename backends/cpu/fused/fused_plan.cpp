// Plan: runs the passes of a fused step (analyzed_step.h), and translates its instructions into
// tapes over tiles.
#include <algorithm>
#include <set>

#include "backends/cpu/assemble/assemble.h"
#include "haliax/error.h"
#include "one_hot.h"
#include "packed_bools.h"
#include "tape_builder.h"
#include "tile_values.h"

namespace haliax::cpu {
namespace {

using program::Code;
using program::Fused;
using program::Instr;

// bytes of registers for tiles of several rows: well within the second-level cache
constexpr std::int64_t rows_bytes = 160 * 1024;
// elements of the inputs of an outer box that stay in the second-level cache
constexpr std::int64_t most_in_cache = 1 << 16;
// minimum number of columns for which a map runs row by row
constexpr std::int64_t min_columns = 64;
// elements of a tile: of a step with at most few_instructions, whose registers all fit into the
// first-level cache, and of other steps
constexpr std::size_t few_instructions = 10;
constexpr std::int64_t tile_of_few = 4096, usual_tile = 1024;

Code combining(Code store) {
  return store == Code::store_add ? Code::add : store == Code::store_max ? Code::max : Code::min;
}

// Emits single instructions.
class InstrEmitter {
 public:
  InstrEmitter(AnalyzedStep& step, FusedPlan& plan, TapeBuilder& tapes)
      : step_(step), plan_(plan), tapes_(tapes) {}

  void emit(int i) {
    InstrFacts& facts = step_.info(i);
    const Instr& in = step_.instr(i);
    const int tape = TapeBuilder::tape_of(facts, tapes_.level());
    if (program::is_leaf(in.code)) return emit_leaf(i, tape);
    if (is_reduction(in.code)) return emit_finish(i);
    const DType from = step_.instr(in.args[0]).dtype;
    const int first = step_.info(in.args[0]).value;
    if (in.code == Code::cast) {
      facts.value = tapes_.convert(first, facts.extent, from, in.dtype, tape);
    } else if (in.code == Code::bitcast) {
      facts.value = tapes_.recast_bits(first, facts.extent, from, in.dtype, tape);
    } else if (!is_float(from) && is_rounding(in.code)) {
      facts.value = first;
    } else if (is_element_op(in)) {
      emit_poke(i, tape);
    } else if (in.code == Code::exp && merge_exp_of_difference(in, tape)) {
      facts.value = tapes_.tape(tape).back().out;
    } else {
      emit_map(i, tape);
    }
  }

  // Emits the part of a reduction that reads all elements of a tile.
  void emit_reduce(int i) {
    const int tape = tapes_.level();
    const Instr& in = step_.instr(i);
    int value = tapes_.filled(in.args[0], Extent::full, tape);
    if (!finds_position(in.code))
      value = tapes_.convert(value, Extent::full, step_.instr(in.args[0]).dtype, in.dtype, tape);
    Op op;
    op.kind = is_element_op(in) ? Op::pick : Op::reduce;
    op.extent = Extent::full;
    op.in[0] = value;
    op.reduction = step_.info(i).reduction;
    if (step_.info(i).as_bytes) op.stored = Stored::boolean;
    if (is_element_op(in)) select_element(op, in.args[1], in.dim, 1);
    tapes_.inner_tape().push_back(op);
  }

  void emit_store(int i, int tape, Extent extent, Tape& into) {
    const Instr& in = step_.instr(i);
    const DType from = step_.instr(in.args[0]).dtype;
    int value = tapes_.filled(in.args[0], extent, tape);
    if (from != in.view.dtype) value = tapes_.convert(value, extent, from, in.view.dtype, tape);
    const bool outer_access = !step_.is_inner_store(i);
    const LaneType lane = lane_type_of(in.view.dtype);
    if (in.code != Code::store) {
      Op& load = tapes_.push(tape, Op::load, extent, lane);
      load.access = step_.info(i).access;
      load.outer_access = outer_access;
      load.load_rows = kernels().load_rows(in.view.dtype);
      const MapOperands args = {.n = 2, .values = {load.out, value, -1, -1}};
      value = tapes_.map(tape, combining(in.code), extent, lane, in.view.dtype, args);
    }
    Op op;
    op.kind = Op::store;
    op.extent = extent;
    op.in[0] = value;
    op.access = step_.info(i).access;
    op.outer_access = outer_access;
    op.store_rows = kernels().store_rows(in.view.dtype);
    into.push_back(op);
  }
  void emit_inner_store(int i, Tape& writes) {
    tapes_.filled(step_.instr(i).args[0], Extent::full, tapes_.level());
    Tape& tape = tapes_.inner_tape();
    const std::ptrdiff_t before = static_cast<std::ptrdiff_t>(tape.size());
    Tape store;
    emit_store(i, tapes_.level(), Extent::full, store);
    // Read-modify-write ops run together with the stores, after all other reads.
    if (step_.instr(i).code != Code::store) {
      writes.insert(writes.end(), tape.begin() + before, tape.end());
      tape.resize(static_cast<std::size_t>(before));
    }
    writes.insert(writes.end(), store.begin(), store.end());
  }

  // Emits the check that instruction i is 0 at the elements that masks hide (MaskedRows::zero).
  void emit_zero_check(int i) {
    Op op;
    op.kind = Op::check_zero;
    op.extent = Extent::full;
    op.lane = lane_type_of(step_.instr(i).dtype);
    op.in[0] = tapes_.filled(i, Extent::full, tapes_.level());
    tapes_.inner_tape().push_back(op);
  }

 private:
  Access& access_of(int i) {
    return plan_.accesses[static_cast<std::size_t>(step_.info(i).access)];
  }
  void emit_leaf(int i, int tape) {
    InstrFacts& facts = step_.info(i);
    const Instr& in = step_.instr(i);
    if (in.code == Code::constant) {
      facts.value = tapes_.constant(in);
      return;
    }
    Access& access = access_of(i);
    const bool is_iota = in.code == Code::iota;
    Op& op =
        tapes_.push(tape, is_iota ? Op::iota : Op::load, facts.extent, lane_type_of(access.dtype));
    op.access = facts.access;
    op.outer_access = !facts.varies;
    facts.value = op.out;
    if (facts.as_bytes) plan_.values[std::size_t(op.out)].stored = Stored::boolean;
    if (is_iota) return tapes_.wrap(tape, facts.value, facts.extent, in.dtype);
    op.load_rows = kernels().load_rows(in.view.dtype);
    access.direct = !is_widened(in.view.dtype) && !facts.fixed;
    if (in.view.dtype != in.dtype)
      facts.value = tapes_.convert(facts.value, facts.extent, in.view.dtype, in.dtype, tape);
  }

  void emit_finish(int i) {
    InstrFacts& facts = step_.info(i);
    const DType dtype = step_.instr(i).dtype;
    Op& op = tapes_.push(outer_tape, Op::finish, facts.extent, lane_type_of(dtype));
    op.reduction = facts.reduction;
    facts.value = op.out;
    tapes_.wrap(outer_tape, facts.value, facts.extent, dtype);
  }

  void emit_map(int i, int tape) {
    InstrFacts& facts = step_.info(i);
    const Instr& in = step_.instr(i);
    const DType first = step_.instr(in.args[0]).dtype;
    MapOperands args = operands_of(i, tape);
    Code code = in.code;
    if (code == Code::popcount && (first == DType::i8 || first == DType::i16))
      args.values[0] = tapes_.recast_bits(args.values[0], facts.extent, first,
                                          first == DType::i8 ? DType::u8 : DType::u16, tape);
    if (code == Code::bit_not && in.dtype == DType::boolean) code = Code::logical_not;
    if (!is_float(first) && is_float_test(code)) {
      code = code == Code::is_finite ? Code::equal : Code::not_equal;
      args.values[args.n++] = args.values[0];
    }
    // The condition of `select` always has the lane type of bool.
    const LaneType from = lane_type_of(in.code == Code::select ? in.dtype : first);
    facts.value = tapes_.map(tape, code, facts.extent, from, in.dtype, args);
  }
  // Returns the operands of a map, each in the form that the kernel reads:
  // - by row: the kernel runs once per row. An operand has one value per row, one row for all rows,
  //   or a tile.
  // - scalar: one of two operands is one value, which the kernel broadcasts.
  // - otherwise: each operand is broadcast to the extent of the map (`filled`).
  MapOperands operands_of(int i, int tape) {
    const InstrFacts& facts = step_.info(i);
    const auto operands = program::operands(step_.instr(i));
    MapOperands args;
    args.n = static_cast<int>(operands.size());
    int scalars = 0;  // operands of one value
    bool is_any_smaller = false;
    for (int a : operands) {
      scalars += step_.info(a).extent == Extent::one;
      is_any_smaller |= tapes_.points(step_.info(a).extent) < tapes_.points(facts.extent);
    }
    // Rows that are long enough run one by one, so that values per row need not be expanded.
    const std::int64_t columns = plan_.inner_major ? plan_.outer_box : plan_.inner_box;
    args.by_row = args.n == 2 && facts.extent == Extent::full && is_any_smaller &&
                  columns >= min_columns && scalars == 0;
    const bool takes_scalar = args.n == 2 && facts.extent != Extent::one && scalars < 2;
    for (std::size_t k = 0; k < operands.size(); ++k) {
      const InstrFacts& operand = step_.info(operands[k]);
      if (args.by_row) args.extents[k] = operand.extent;
      args.scalar[k] = args.by_row ? operand.extent == plan_.row()
                                   : takes_scalar && operand.extent == Extent::one;
      args.values[k] = args.scalar[k] || args.by_row
                           ? operand.value
                           : tapes_.filled(operands[k], facts.extent, tape);
    }
    return args;
  }

  // Merges exp into the preceding subtraction of a scalar, if exp is the only reader of the
  // difference. Returns true if the ops were merged.
  bool merge_exp_of_difference(const Instr& exp, int id) {
    const Instr& difference = step_.instr(exp.args[0]);
    const Tape& tape = tapes_.tape(id);
    if (exp.dtype != DType::f32 || difference.code != Code::sub || tape.empty()) return false;
    Op& last = tapes_.tape(id).back();
    const bool by_scalar =
        last.kernel == kernels().map(Code::sub, LaneType::f32, Shape::vector_scalar);
    const auto& code = step_.fused.code;
    const auto readers = std::count_if(code.begin(), code.end(), [&](const Instr& in) {
      return std::find(in.args, in.args + 4, exp.args[0]) != in.args + 4;
    });
    if (last.out != step_.info(exp.args[0]).value || !by_scalar || readers != 1) return false;
    last.fetching = kernels().exp_difference;
    last.map_op.kind = MapOp::exp_of_difference;
    return true;
  }

  // Sets the id and the iota that select one element of a row.
  void select_element(Op& op, int id, int iota, int operand) {
    op.in[operand] = step_.info(id).value;
    op.from[1] = step_.info(id).extent;
    op.access = step_.info(iota).access;
  }
  void emit_poke(int i, int tape) {
    InstrFacts& facts = step_.info(i);
    const Instr& in = step_.instr(i);
    const int value = tapes_.filled(in.args[0], Extent::full, tape);
    Op& op = tapes_.push(tape, Op::poke, Extent::full, lane_type_of(in.dtype));
    op.in[0] = value;
    op.in[1] = step_.info(in.args[1]).value;
    op.from[0] = step_.info(in.args[1]).extent;
    select_element(op, in.args[2], in.dim, 2);
    op.kernel = need(kernels().map(in.code, op.lane, Shape::vector_vector), "an operation");
    facts.value = op.out;
  }

  AnalyzedStep& step_;
  FusedPlan& plan_;
  TapeBuilder& tapes_;
};

// Emits the tapes, level by level.
class TapeEmitter {
 public:
  TapeEmitter(AnalyzedStep& step, FusedPlan& plan, const Context* context)
      : step_(step), plan_(plan), context_(context), tapes_(step, plan),
        instrs_(step, plan, tapes_) {}

  void run() {
    plan_.outer.resize(static_cast<std::size_t>(plan_.levels));
    plan_.inner.resize(static_cast<std::size_t>(plan_.levels));
    const int last_pass = step_.last_pass();
    const auto zero = hide_ends(last_pass);
    std::vector<bool> created(step_.fused.code.size(), false);
    for (int level = 0; level < plan_.levels; ++level) {
      tapes_.set_level(level);
      emit_outer(level);
      emit_inner(level, last_pass, zero, created);
    }
    for (int i = 0; i < step_.count(); ++i)
      if (step_.info(i).needed && is_store(step_.instr(i).code) && !step_.is_inner_store(i))
        instrs_.emit_store(i, outer_tape, plan_.outer_box == 1 ? Extent::one : Extent::outer,
                           plan_.outer_stores);
    copy_stored_loads();
  }

 private:
  // Returns true if a load may read memory of this slot.
  bool is_loaded(int slot) const {
    for (int i = 0; i < step_.count(); ++i)
      if (step_.info(i).needed && step_.instr(i).code == Code::load &&
          same_memory(context_, step_.instr(i).view.slot, slot))
        return true;
    return false;
  }

  // ---- a level ----

  void emit_outer(int level) {
    for (int i = 0; i < step_.count(); ++i) {
      const InstrFacts& facts = step_.info(i);
      if (facts.needed && !facts.inner && !is_store(step_.instr(i).code) && facts.level == level)
        instrs_.emit(i);
    }
  }
  // Emits the reductions and the stores of a pass, and the values that they need. `zero` are the
  // instructions that must be 0 where masks hide elements. `created` are the instructions whose
  // values an earlier pass keeps in registers.
  void emit_inner(int level, int last_pass, const std::vector<int>& zero,
                  std::vector<bool>& created) {
    std::vector<int> stores;
    const std::vector<bool> requested = request(level, last_pass, stores);
    if (!plan_.single_inner_box) tapes_.forget_filled();
    for (int i = 0; i < step_.count(); ++i) {
      const std::size_t at = static_cast<std::size_t>(i);
      const InstrFacts& facts = step_.info(i);
      const Code code = step_.instr(i).code;
      if (!facts.needed || is_store(code)) continue;
      const bool is_new = plan_.single_inner_box ? facts.level == level && !created[at]
                                                 : static_cast<bool>(requested[at]);
      if (facts.inner && is_new) {
        instrs_.emit(i);
        created[at] = true;
      }
      if (is_reduction(code) && facts.level == level + 1 && !step_.is_empty) instrs_.emit_reduce(i);
    }
    for (int i : zero)
      if (step_.info(i).level == level) instrs_.emit_zero_check(i);
    Tape writes;
    for (int i : stores) instrs_.emit_inner_store(i, writes);
    Tape& tape = tapes_.inner_tape();
    tape.insert(tape.end(), writes.begin(), writes.end());
  }
  // Returns the values that the reductions and stores of the pass need, and the stores in order.
  std::vector<bool> request(int level, int last_pass, std::vector<int>& stores) const {
    std::vector<bool> requested(step_.fused.code.size(), false);
    for (int i = step_.count() - 1; i >= 0; --i) {
      const Instr& in = step_.instr(i);
      const InstrFacts& facts = step_.info(i);
      if (!facts.needed) continue;
      bool here = is_reduction(in.code) && facts.level == level + 1;
      if (step_.is_inner_store(i)) {
        const bool waits = plan_.single_inner_box || is_loaded(in.view.slot);
        here = level == (waits ? last_pass : facts.level);
        if (here) stores.push_back(i);
      }
      if (here || (requested[static_cast<std::size_t>(i)] && facts.inner))
        for (int a : program::operands(in)) requested[static_cast<std::size_t>(a)] = true;
    }
    std::reverse(stores.begin(), stores.end());
    return requested;
  }

  // Limits each row to the elements that its masks leave visible. The checks of the hidden elements
  // must run before the pass that stores, including stores in place (Op::into). Returns the
  // instructions that must be 0 at hidden elements.
  std::vector<int> hide_ends(int last_pass) {
    if (!step_.masked || !plan_.single_inner_box || plan_.chunks > 1) return {};
    bool stores = false;
    for (auto& in : step_.fused.code) stores |= is_store(in.code) && in.inner;
    for (int i : step_.masked->zero)
      if (!step_.info(i).inner || (stores && step_.info(i).level >= last_pass)) return {};
    for (auto mask : step_.masked->masks) {
      for (auto& [iota, sign] : mask.positions) iota = step_.info(iota).access;
      plan_.row_masks.push_back(std::move(mask));
    }
    for (int i = 0; i < step_.count(); ++i)
      if (is_store(step_.instr(i).code) && step_.instr(i).inner)
        plan_.filled.push_back(step_.info(i).access);
    return step_.masked->zero;
  }

  // A register that aliases memory must be copied before it is stored elsewhere, because another
  // store may overwrite that memory first. The stored instruction may be a cast that changes no
  // bits, which has the register of the load.
  void copy_stored_loads() {
    std::vector<bool> is_stored(plan_.values.size(), false);
    for (int i = 0; i < step_.count(); ++i)
      if (step_.info(i).needed && is_store(step_.instr(i).code))
        is_stored[std::size_t(step_.info(step_.instr(i).args[0]).value)] = true;
    for (int i = 0; i < step_.count(); ++i) {
      const InstrFacts& facts = step_.info(i);
      if (facts.needed && step_.instr(i).code == Code::load && is_stored[std::size_t(facts.value)])
        plan_.accesses[std::size_t(facts.access)].direct = false;
    }
  }

  AnalyzedStep& step_;
  FusedPlan& plan_;
  const Context* context_;
  TapeBuilder tapes_;
  InstrEmitter instrs_;
};

// If a step in the lanes layout reads a single array and only reduces it, its tiles are read in
// place, without a copy to registers.
void mark_only_reduced(FusedPlan& plan) {
  // per value: an op other than a reduction reads it
  std::vector<bool> read_otherwise(plan.values.size(), false);
  std::vector<const Op*> loads;
  for (const Tape& tape : plan.inner)
    for (const Op& op : tape) {
      if (op.kind == Op::load) loads.push_back(&op);
      if (op.kind == Op::reduce) continue;
      for (int v : op.in)
        if (v >= 0) read_otherwise[static_cast<std::size_t>(v)] = true;
    }
  if (loads.size() != 1 || read_otherwise[static_cast<std::size_t>(loads[0]->out)]) return;
  Access& access = plan.accesses[static_cast<std::size_t>(loads[0]->access)];
  const bool in_place =
      access.direct || plan.values[std::size_t(loads[0]->out)].stored != Stored::word;
  access.only_reduced = in_place && !loads[0]->outer_access && loads[0]->extent == Extent::full;
}

// Lets assembled ops read and write rows of memory with gaps between them, if no other op reads
// these values.
void mark_gaps(FusedPlan& plan) {
  std::vector<int> reads(plan.values.size(), 0), assembled_reads(plan.values.size(), 0);
  std::set<int> with_gaps;  // loaded values
  for (const Tape& tape : plan.inner)
    for (const Op& op : tape) {
      each_read(plan, op, [&](int v) { ++reads[std::size_t(v)]; });
      if (op.kind != Op::assembled) continue;
      for (auto& in : plan.assembled[std::size_t(op.assembled_index)].in)
        assembled_reads[std::size_t(in.value)] += in.broadcast == AssembledOps::Broadcast::each;
    }
  for (Tape& tape : plan.inner)
    for (Op& op : tape) {
      if (op.kind != Op::load || op.outer_access || !plan.is_full(op.extent)) continue;
      const auto v = std::size_t(op.out);
      const bool in_place =
          plan.accesses[std::size_t(op.access)].direct || plan.values[v].stored != Stored::word;
      op.may_have_gaps =
          in_place && reads[v] == assembled_reads[v] && is_accessed_with_gaps(plan, op, op.access);
      if (op.may_have_gaps) with_gaps.insert(op.out);
    }
  for (Tape& tape : plan.inner)
    for (const Op& op : tape) {
      if (op.kind != Op::assembled) continue;
      auto& ops = plan.assembled[std::size_t(op.assembled_index)];
      for (auto& out : ops.out) {
        out.may_have_gaps = out.into >= 0 && reads[std::size_t(out.value)] == 1 &&
                            is_accessed_with_gaps(plan, op, out.into);
        ops.may_have_gaps |= out.may_have_gaps;
      }
      for (auto& in : ops.in) ops.may_have_gaps |= with_gaps.count(in.value) > 0;
    }
}

// Returns the plan of a step within these limits on tiles. The last stages depend on their order:
// mark_only_reduced and assemble read the tapes as emitted, store_in_place and assemble_variants
// change them, mark_gaps reads the result, and place_registers allocates the values that remain.
FusedPlan plan_within(const Fused& fused, const Context* context, const TileLimits& limits) {
  AnalyzedStep step = analyze(fused);
  FusedPlan plan;
  choose_tiles(step, plan, limits);
  find_masks(step, plan);
  classify(step, plan);
  plan.stays_in_cache = plan.levels > 1 && plan.inner_points * plan.outer_box <= most_in_cache;
  TapeEmitter(step, plan, context).run();
  if (plan.inner_major) mark_only_reduced(plan);
  mark_non_temporal(plan, context);
  if (context) assemble(plan);
  store_in_place(plan, context);
  assemble_variants(plan);
  mark_gaps(plan);
  place_registers(plan);
  return plan;
}

}  // namespace

FusedPlan plan_fused(const Fused& step, const Context* context) {
  const auto words = packed_bools(step);
  const Fused& fused = words ? *words : step;
  if (fused.outer < 0 || static_cast<std::size_t>(fused.outer) > fused.dims.size())
    throw Error("[fused] more outer dimensions than dimensions");
  const std::int64_t tile = fused.code.size() <= few_instructions ? tile_of_few : usual_tile;
  FusedPlan plan =
      plan_within(fused, context, {.elements = tile, .may_join = true, .may_keep = true});
  if (plan.register_bytes > rows_bytes)
    plan = plan_within(fused, context, {.elements = tile, .may_join = false, .may_keep = true});
  auto fits = [&] { return plan.register_bytes + TileValues::bytes(plan) + 64 <= workspace_bytes; };
  for (std::int64_t smaller = usual_tile; !fits() && smaller >= 1; smaller /= 2)
    plan = plan_within(fused, context, {.elements = smaller, .may_join = false, .may_keep = false});
  if (!fits()) throw Error("[fused] too many values are live at once");
  return plan;
}

}  // namespace haliax::cpu
