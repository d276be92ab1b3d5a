// Plan: merges elementwise ops of a tape into assembled ops; see assemble.h.
#include "assemble.h"

#include <algorithm>
#include <map>
#include <set>

#include "backends/cpu/fused/tile_values.h"

namespace haliax::cpu {
namespace {

using Broadcast = AssembledOps::Broadcast;
using Input = AssembledOps::Input;

bool is_array(const Input& i) {
  return i.broadcast == Broadcast::each || i.broadcast == Broadcast::along_row;
}

class AssemblePass {
 public:
  explicit AssemblePass(FusedPlan& plan)
      : plan_(plan), uses_(plan.values.size(), 0), scalar_of_(plan.values.size()) {
    for (std::size_t v = 0; v < scalar_of_.size(); ++v) scalar_of_[v] = int(v);
    each_tape([&](Tape& tape) {
      for (const Op& op : tape) {
        each_read(plan_, op, [&](int v) { ++uses_[std::size_t(v)]; });
        // A splat equals its scalar operand.
        if (op.kind == Op::splat) scalar_of_[std::size_t(op.out)] = op.in[0];
        const bool is_word =
            op.access < 0 ||
            stored_as(plan_.accesses[std::size_t(op.access)].dtype) == Stored::word;
        if (!is_word && op.kind == Op::load) in_less_than_words_.insert(op.out);
        if (!is_word && op.kind == Op::store) in_less_than_words_.insert(op.in[0]);
        if (op.kind == Op::store && plan_.accesses[std::size_t(op.access)].non_temporal)
          non_temporal_.insert(op.in[0]);
        if ((op.kind == Op::load || op.kind == Op::store) &&
            is_accessed_with_gaps(plan_, op, op.access))
          with_gaps_.insert(op.kind == Op::load ? op.out : op.in[0]);
      }
    });
  }
  void run() {
    for (auto* tapes : {&plan_.outer, &plan_.inner})
      for (Tape& tape : *tapes) assemble_tape(tape);
    drop_unread();
  }

 private:
  template <class F> void each_tape(const F& f) {
    f(plan_.constants);
    f(plan_.prologue);
    for (auto* tapes : {&plan_.outer, &plan_.inner})
      for (Tape& tape : *tapes) f(tape);
    f(plan_.outer_stores);
  }
  static bool may_join(const Op& op) {
    return (op.kind == Op::map || op.kind == Op::map_rows) && op.into < 0 &&
           can_assemble(op.map_op) && cpu::bytes_of(op.lane) == 4;
  }
  // Groups ops that are adjacent, or can be moved next to each other. An op between them that reads
  // none of their results moves before the group.
  void assemble_tape(Tape& tape) {
    Tape out;
    std::vector<Op> group;
    auto end_group = [&] {
      emit_group(group, out);
      group.clear();
    };
    auto computes = [&](int v) {
      return std::any_of(group.begin(), group.end(), [&](const Op& o) { return o.out == v; });
    };
    for (const Op& op : tape) {
      if (may_join(op)) {
        if (!group.empty() && group[0].extent != op.extent) end_group();
        group.push_back(op);
        if (!fits(group)) {
          group.pop_back();
          end_group();
          group.push_back(op);
        }
        continue;
      }
      bool depends = op.kind == Op::store;  // other ops may read the stored memory
      each_read(plan_, op, [&](int v) { depends |= computes(v); });
      if (depends) end_group();
      out.push_back(op);
    }
    end_group();
    tape = std::move(out);
  }

  Input input_of(const Op& op, int k) const {
    const int v = op.in[k];
    if (op.kind == Op::map_rows) {
      const auto from = op.from[k];
      return {v, from == plan_.row()    ? Broadcast::of_row
                 : from == Extent::full ? Broadcast::each
                                        : Broadcast::along_row};
    }
    if (scalar_of_[std::size_t(v)] != v) return {scalar_of_[std::size_t(v)], Broadcast::one};
    return {v, op.scalar[k] ? Broadcast::one : Broadcast::each};
  }
  // Returns the values that a group reads from outside.
  std::vector<Input> inputs_of(const std::vector<Op>& group) const {
    std::vector<Input> in;
    for (std::size_t n = 0; n < group.size(); ++n)
      for (int k = 0; k < 4; ++k) {
        const int v = group[n].in[k];
        const auto end = group.begin() + std::ptrdiff_t(n);
        if (v < 0 || std::any_of(group.begin(), end, [&](const Op& o) { return o.out == v; }))
          continue;
        const auto input = input_of(group[n], k);
        if (std::find(in.begin(), in.end(), input) == in.end()) in.push_back(input);
      }
    return in;
  }
  // Returns the values of a group that other ops read, in increasing order.
  std::vector<int> outputs_of(const std::vector<Op>& group) const {
    std::vector<int> out;
    for (const Op& op : group) {
      int reads = 0;  // within the group
      for (const Op& o : group) reads += int(std::count(o.in, o.in + 4, op.out));
      if (uses_[std::size_t(op.out)] > reads) out.push_back(op.out);
    }
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());  // a value may be rounded in place
    return out;
  }
  AssembledOps assembled_ops(const std::vector<Op>& group) const {
    AssembledOps ops;
    // if rows stay in the cache across levels, the call prefetches the next row instead
    ops.code.fetches_inputs = !plan_.single_inner_box && !plan_.stays_in_cache;
    auto& in = ops.in;
    in = inputs_of(group);
    for (auto& i : in) ops.code.inputs.push_back({is_array(i)});
    // current number of each value, because some values are rounded in place
    std::map<int, int> last;
    int number = int(in.size());
    for (const Op& op : group) {
      MapCode::Op one{op.map_op};
      for (int k = 0; k < 4; ++k) {
        if (op.in[k] < 0) continue;
        auto known = last.find(op.in[k]);
        one.args[k] = known != last.end()
                          ? known->second
                          : int(std::find(in.begin(), in.end(), input_of(op, k)) - in.begin());
      }
      ops.code.ops.push_back(one);
      last[op.out] = number++;
    }
    for (int value : outputs_of(group)) {
      ops.code.outputs.push_back({last[value]});
      ops.out.push_back({value});
    }
    ops.by_row = std::any_of(in.begin(), in.end(), [](auto& i) {
      return i.broadcast == Broadcast::of_row || i.broadcast == Broadcast::along_row;
    });
    return ops;
  }
  bool fits(const std::vector<Op>& group) const {
    if (group.size() > most_ops) return false;
    const auto in = inputs_of(group);
    const auto arrays = std::count_if(in.begin(), in.end(), is_array),
               numbers = std::ptrdiff_t(in.size()) - arrays;
    return arrays + std::ptrdiff_t(outputs_of(group).size()) <= most_arrays &&
           numbers <= most_scalars;
  }
  // Returns true if the op reads or writes an array that code reads and writes directly in memory:
  // of bf16 or bools (assemble_variants), or with gaps between rows (mark_gaps).
  bool gains_from_code(const Op& op) const {
    const auto gains = [&](int v) {
      return v >= 0 &&
             ((can_assemble_as_stored() && in_less_than_words_.count(v)) || with_gaps_.count(v));
    };
    return gains(op.out) || std::any_of(op.in, op.in + 4, gains);
  }
  // Returns true if a kernel serves as well as assembled code.
  bool stays_alone(const std::vector<Op>& group) const {
    return group.size() == 1 && !gains_from_code(group[0]) && !non_temporal_.count(group[0].out);
  }
  // Replaces the group by one op, or by several if the registers do not suffice.
  void emit_group(const std::vector<Op>& group, Tape& out) {
    if (group.empty() || stays_alone(group)) {
      out.insert(out.end(), group.begin(), group.end());
      return;
    }
    auto ops = assembled_ops(group);
    ops.variants.plain = assembled(ops.code);
    if (!ops.variants.plain && group.size() == 1) return out.push_back(group[0]);
    if (!ops.variants.plain) {
      const auto half = group.begin() + std::ptrdiff_t(group.size() / 2);
      emit_group({group.begin(), half}, out);
      emit_group({half, group.end()}, out);
      return;
    }
    Op op;
    op.kind = Op::assembled;
    op.extent = group[0].extent;
    op.assembled_index = int(plan_.assembled.size());
    for (const Op& o : group)
      for (int v : o.in)
        if (v >= 0) --uses_[std::size_t(v)];
    for (auto& i : ops.in) ++uses_[std::size_t(i.value)];
    plan_.assembled.push_back(std::move(ops));
    out.push_back(op);
  }
  // Removes splats and expansions without readers.
  void drop_unread() {
    each_tape([&](Tape& tape) {
      std::erase_if(tape, [&](const Op& op) {
        return (op.kind == Op::splat || op.kind == Op::expand) && uses_[std::size_t(op.out)] == 0;
      });
    });
  }

  FusedPlan& plan_;
  std::vector<int> uses_;             // number of ops that read a value
  std::vector<int> scalar_of_;        // the scalar that a splat repeats, else the value itself
  std::set<int> in_less_than_words_;  // values that arrays of bf16 or bools hold
  std::set<int> non_temporal_;        // values of non-temporal stores
  std::set<int> with_gaps_;           // values whose rows in memory have gaps between them
};

// Marks the values that registers hold as memory does, as bf16 or bools: those that are loaded so,
// and read by assembled ops alone.
void mark_stored(FusedPlan& plan) {
  auto value = [&](int v) -> Register& { return plan.values[std::size_t(v)]; };
  auto each_op = [&](const auto& f) {
    for (auto* tapes : {&plan.outer, &plan.inner})
      for (Tape& tape : *tapes)
        for (Op& op : tape) f(op);
    for (Op& op : plan.outer_stores) f(op);
  };
  each_op([&](const Op& op) {
    if (op.kind == Op::load)
      value(op.out).stored = stored_as(plan.accesses[std::size_t(op.access)].dtype);
  });
  each_op([&](const Op& op) {
    const bool reads_bytes = op.kind == Op::reduce && op.stored == Stored::boolean;
    if (op.kind != Op::assembled && !reads_bytes)
      for (int v : op.in)
        if (v >= 0) value(v).stored = Stored::word;
  });
  for (auto& ops : plan.assembled) {
    for (auto& in : ops.in)
      if (!is_array(in)) value(in.value).stored = Stored::word;
    for (auto& out : ops.out) value(out.value).stored = Stored::word;  // rounded in place
  }
}
AssembledCode with_non_temporal_stores(const AssembledOps& ops, MapCode code) {
  bool any = false;
  for (std::size_t k = 0; k < ops.out.size(); ++k)
    any |= code.outputs[k].non_temporal = ops.out[k].non_temporal;
  return any ? assembled(code) : nullptr;
}
// Sets the code of the ops, which read and write their arrays as these are stored. Returns false if
// the registers do not suffice.
bool assemble_as_stored(const FusedPlan& plan, AssembledOps& ops) {
  for (std::size_t k = 0; k < ops.in.size(); ++k)
    ops.code.inputs[k].stored = ops.in[k].stored = plan.values[std::size_t(ops.in[k].value)].stored;
  for (std::size_t k = 0; k < ops.out.size(); ++k) ops.code.outputs[k].stored = ops.out[k].stored;
  ops.variants.plain = assembled(ops.code);
  ops.variants.non_temporal = with_non_temporal_stores(ops, ops.code);
  return ops.variants.plain != nullptr;
}
// Lets all ops read and write words.
void store_words(FusedPlan& plan) {
  for (auto& ops : plan.assembled) {
    for (auto& in : ops.in) plan.values[std::size_t(in.value)].stored = Stored::word;
    for (auto& out : ops.out) out.stored = Stored::word;
  }
  for (Tape& tape : plan.inner)
    for (Op& op : tape)
      if (op.kind == Op::store) op.stored = Stored::word;
}

}  // namespace

void assemble_variants(FusedPlan& plan) {
  for (auto& ops : plan.assembled)
    for (auto& out : ops.out)
      out.non_temporal = out.into >= 0 && plan.accesses[std::size_t(out.into)].non_temporal;
  if (can_assemble_as_stored()) mark_stored(plan);
  const auto assemble_ops = [&](AssembledOps& ops) { return assemble_as_stored(plan, ops); };
  if (std::all_of(plan.assembled.begin(), plan.assembled.end(), assemble_ops)) return;
  store_words(plan);
  std::for_each(plan.assembled.begin(), plan.assembled.end(), assemble_ops);
}

void assemble(FusedPlan& plan) {
  if (can_assemble()) AssemblePass(plan).run();
}

}  // namespace haliax::cpu
