// Plan: register allocation assigns an offset to each value of the tapes.
#include <algorithm>
#include <map>

#include "fused.h"

namespace haliax::cpu {
namespace {

std::int64_t round_up_64(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

std::int64_t bytes_for(const FusedPlan& plan, int value) {
  const Register& r = plan.values[static_cast<std::size_t>(value)];
  const std::int64_t n = points_of(r.extent, plan.outer_box, plan.inner_box);
  const std::int64_t bytes = round_up_64(n * cpu::bytes_of(r.lane));
  return n >= 512 ? bytes + 192 : bytes;  // avoids equal page offsets
}

// Linear scan over one inner tape: a register is free after its last reader. For example, in
//   a = load; b = exp(a); c = load; d = b * c
// b overwrites a, and d overwrites c, so that two registers suffice.
class LinearScan {
 public:
  LinearScan(FusedPlan& plan, const Tape& tape, std::int64_t start)
      : plan_(plan), tape_(tape), last_use_(plan.values.size(), 0),
        placed_(plan.values.size(), false), end_(start) {
    for (std::size_t t = 0; t < tape.size(); ++t) {
      const auto use = [&](int v) { last_use_[static_cast<std::size_t>(v)] = t; };
      each_read(plan, tape[t], use);
      each_created(plan, tape[t], use);
    }
  }
  // Places the values. Returns the end of their registers.
  std::int64_t run() {
    for (std::size_t t = 0; t < tape_.size(); ++t) {
      const Op& op = tape_[t];
      for (int v : op.in)
        if (may_overwrite(op, v)) release_after_last_use(v, t);
      each_created(plan_, op, [&](int v) { place(v); });
      if (op.kind == Op::recode) place(op.in[1]);
      each_read(plan_, op, [&](int v) {
        if (!may_overwrite(op, v)) release_after_last_use(v, t);
      });
      each_created(plan_, op, [&](int v) { release_after_last_use(v, t); });
    }
    return end_;
  }

 private:
  // Returns true if the result of a map may overwrite this operand, because each element has the
  // same offset in both. Equal sizes in bytes alone do not imply this: short runs are padded.
  bool may_overwrite(const Op& op, int operand) const {
    const bool is_map = op.kind == Op::map || op.kind == Op::map_rows || op.kind == Op::poke;
    if (!is_map || op.out < 0 || operand < 0 || operand == op.out) return false;
    const auto width = [&](int v) {
      return cpu::bytes_of(plan_.values[static_cast<std::size_t>(v)].lane);
    };
    return width(operand) == width(op.out) && bytes_for(plan_, operand) == bytes_for(plan_, op.out);
  }
  void place(int value) {
    const auto v = static_cast<std::size_t>(value);
    if (value < 0 || plan_.values[v].home != Register::inner || placed_[v]) return;
    const std::int64_t bytes = bytes_for(plan_, value);
    auto& free = free_[bytes];
    if (free.empty()) {
      free.push_back(end_);
      end_ += bytes;
    }
    plan_.values[v].offset = free.back();
    free.pop_back();
    placed_[v] = true;
  }
  void release_after_last_use(int value, std::size_t t) {
    const auto v = static_cast<std::size_t>(value);
    if (!placed_[v] || last_use_[v] != t) return;
    free_[bytes_for(plan_, value)].push_back(plan_.values[v].offset);
    placed_[v] = false;
  }

  FusedPlan& plan_;
  const Tape& tape_;
  std::vector<std::size_t> last_use_;                       // per value: index in the tape
  std::vector<bool> placed_;                                // per value: it occupies a register
  std::map<std::int64_t, std::vector<std::int64_t>> free_;  // offsets by size in bytes
  std::int64_t end_;
};

// Places the values that live for more than one inner tape.
void place_long_lived(FusedPlan& plan) {
  for (std::size_t v = 0; v < plan.values.size(); ++v) {
    Register& r = plan.values[v];
    if (r.home == Register::inner) continue;
    std::int64_t& end = r.home == Register::pool ? plan.pool_bytes : plan.register_bytes;
    r.offset = end;
    end += bytes_for(plan, static_cast<int>(v));
  }
}
void place_reductions(FusedPlan& plan) {
  for (const Reduction& r : plan.reductions) {
    plan.accumulator_offset.push_back(plan.register_bytes);
    plan.register_bytes += round_up_64(plan.outer_box * r.bytes);
    plan.partial_offset.push_back(plan.scratch_bytes);
    if (plan.chunks > 1)
      plan.scratch_bytes += round_up_64(plan.chunks * plan.outer_boxes * plan.outer_box * r.bytes);
  }
}

}  // namespace

void place_registers(FusedPlan& plan) {
  place_long_lived(plan);
  place_reductions(plan);
  const std::int64_t start = plan.register_bytes;
  auto scan = [&](const Tape& tape) {
    plan.register_bytes = std::max(plan.register_bytes, LinearScan(plan, tape, start).run());
  };
  if (!plan.single_inner_box) {
    for (const Tape& tape : plan.inner) scan(tape);
    return;
  }
  Tape all_levels;  // values stay in registers across levels
  for (const Tape& tape : plan.inner) all_levels.insert(all_levels.end(), tape.begin(), tape.end());
  scan(all_levels);
}

}  // namespace haliax::cpu
