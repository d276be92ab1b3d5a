// Plan: stores without a copy, in which the op that computes a value writes it directly to memory,
// rather than to a register first.
#include <algorithm>

#include "backends/cpu/assemble/assemble.h"
#include "fused.h"

namespace haliax::cpu {
namespace {

struct InPlace {
  FusedPlan& plan;
  const Context* context;
  std::vector<int> access_of_value = {};  // the access that a value is loaded from; -1: none
  std::vector<int> reads = {};            // number of ops that read a value

  const Access& access(int a) const { return plan.accesses[static_cast<std::size_t>(a)]; }
  void survey() {
    access_of_value.assign(plan.values.size(), -1);
    reads.assign(plan.values.size(), 0);
    for (const auto* tapes : {&plan.outer, &plan.inner})
      for (const Tape& tape : *tapes)
        for (const Op& op : tape) {
          if (op.kind == Op::load) access_of_value[static_cast<std::size_t>(op.out)] = op.access;
          each_read(plan, op, [&](int v) { ++reads[static_cast<std::size_t>(v)]; });
        }
  }
  // Returns true if an op from `maker` on reads memory that will be stored to. Exception: `maker`
  // itself may read the element that it overwrites.
  bool is_read(const Tape& tape, std::size_t maker, const Access& to) const {
    bool found = false;
    for (std::size_t t = maker; t < tape.size(); ++t)
      each_read(plan, tape[t], [&](int v) {
        const int from = access_of_value[static_cast<std::size_t>(v)];
        if (from < 0 || !same_memory(context, access(from).view.slot, to.view.slot)) return;
        found |= t != maker || !same_place(access(from), to);
      });
    return found;
  }
  bool same_place(const Access& a, const Access& b) const {
    program::View view = a.view;
    if (context && context->same(view.slot, b.view.slot)) view.slot = b.view.slot;
    return view == b.view && a.strides == b.strides;
  }
  // Returns the output of an assembled op that is this value, or null.
  AssembledOps::Output* created_by(const Op& op, int value) const {
    if (op.kind != Op::assembled) return nullptr;
    auto& out = plan.assembled[static_cast<std::size_t>(op.assembled_index)].out;
    const auto created =
        std::find_if(out.begin(), out.end(), [&](auto& o) { return o.value == value; });
    return created == out.end() ? nullptr : &*created;
  }
  // Stores the value of the store `at` in place, if possible.
  void store(Tape& tape, std::size_t at) {
    const Access& to = access(tape[at].access);
    const bool as_stored = stored_as(to.dtype) != Stored::word && can_assemble_as_stored();
    if ((is_widened(to.dtype) && !as_stored) || tape[at].extent != Extent::full) return;
    const int value = tape[at].in[0];
    for (std::size_t t = at; t-- > 0;) {
      if (auto* output = created_by(tape[t], value)) return store_assembled(tape, t, *output, at);
      if (tape[t].out != value || rounds_in_place(tape[t], to.dtype)) continue;
      if (!is_widened(to.dtype)) store_map(tape, at);
      return;
    }
  }
  // Returns true for an op that only rounds a value in its register. The op before it computes the
  // value.
  static bool rounds_in_place(const Op& op, DType dtype) {
    return op.in[0] == op.out && !is_widened(dtype);
  }
  // Lets output `output` of the assembled op `maker` be written by that op.
  void store_assembled(Tape& tape, std::size_t maker, AssembledOps::Output& output,
                       std::size_t at) const {
    const Access& to = access(tape[at].access);
    // a bf16 or bool in memory replaces the value of a lane, so no other op may read it
    const bool is_alone = reads[static_cast<std::size_t>(output.value)] == 1;
    if (output.into >= 0 || (is_widened(to.dtype) && !is_alone) || is_read(tape, maker, to)) return;
    output.into = tape[at].access;
    output.stored = tape[at].stored = stored_as(to.dtype);
  }
  // The same for a map, and for the pokes after it, which change single elements.
  void store_map(Tape& tape, std::size_t at) const {
    const Access& to = access(tape[at].access);
    std::vector<std::size_t> makers;  // pokes, last one first, then the map
    int value = tape[at].in[0];
    for (std::size_t t = at; t-- > 0;) {
      const Op& op = tape[t];
      if (op.out != value || rounds_in_place(op, to.dtype)) continue;
      const bool is_map = op.kind == Op::map || op.kind == Op::map_rows;
      if ((!is_map && op.kind != Op::poke) || op.into >= 0) return;
      makers.push_back(t);
      if (is_map) break;
      value = op.in[0];
      if (reads[static_cast<std::size_t>(value)] > 1) return;
    }
    if (makers.empty() || tape[makers.back()].kind == Op::poke || is_read(tape, makers.back(), to))
      return;
    for (std::size_t t : makers) tape[t].into = tape[at].access;
  }
};

}  // namespace

void store_in_place(FusedPlan& plan, const Context* context) {
  InPlace p{plan, context};
  p.survey();
  for (Tape& tape : plan.inner)
    for (std::size_t t = 0; t < tape.size(); ++t)
      if (tape[t].kind == Op::store) p.store(tape, t);
}

}  // namespace haliax::cpu
