// Plan: stores without a copy, in which the op that computes a value writes it directly to memory,
// rather than to a register first.
#include <algorithm>

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
    auto& out = plan.assembled[static_cast<std::size_t>(op.which)].out;
    const auto created =
        std::find_if(out.begin(), out.end(), [&](auto& o) { return o.value == value; });
    return created == out.end() ? nullptr : &*created;
  }
  void store(Tape& tape, std::size_t at) {
    const Access& to = access(tape[at].access);
    if ((is_widened(to.dtype) && to.dtype != DType::bf16) || tape[at].extent != Extent::full)
      return;
    // ops that modify the value at an element, and last the op that computes it
    std::vector<std::size_t> makers;
    int value = tape[at].in[0];
    for (std::size_t t = at; t-- > 0;) {
      if (auto* created = created_by(tape[t], value); created && makers.empty()) {
        // no other op reads the f32 value
        const bool alone = reads[static_cast<std::size_t>(value)] == 1;
        if (created->into < 0 && (!is_widened(to.dtype) || alone) && !is_read(tape, t, to)) {
          created->into = tape[at].access;
          created->bf16 = is_widened(to.dtype);
        }

        return;
      }
      if (is_widened(to.dtype)) {
        if (tape[t].out == value) return;
        continue;
      }
      if (tape[t].out != value || tape[t].in[0] == value) continue;  // rounded in place
      const bool changes = tape[t].kind == Op::poke;
      if ((!changes && tape[t].kind != Op::map && tape[t].kind != Op::map_rows) ||
          tape[t].into >= 0)
        return;
      makers.push_back(t);
      if (!changes) break;
      value = tape[t].in[0];
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
