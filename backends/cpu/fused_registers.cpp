// Plan: register allocation assigns an offset to each value of the tapes.
#include <algorithm>
#include <map>

#include "fused.h"

namespace haliax::cpu {
namespace {

struct Registers {
  FusedPlan& plan;

  std::int64_t bytes_for(int value) const {
    std::size_t v = static_cast<std::size_t>(value);
    std::int64_t n = points_of(plan.values[v].extent, plan.outer_box, plan.inner_box);
    std::int64_t bytes = (n * cpu::bytes_of(plan.values[v].lane) + 63) / 64 * 64;
    return n >= 512 ? bytes + 192 : bytes;  // avoids equal page offsets
  }
  void run() {
    FusedPlan& p = plan;
    for (std::size_t v = 0; v < p.values.size(); ++v) {
      Register& r = p.values[v];
      if (r.home == Register::inner) continue;
      std::int64_t& end = r.home == Register::pool ? p.pool_bytes : p.register_bytes;
      r.offset = end;
      end += bytes_for(static_cast<int>(v));
    }
    for (const Reduction& r : p.reductions) {
      p.accumulator_offset.push_back(p.register_bytes);
      p.register_bytes += (p.outer_box * r.bytes + 63) / 64 * 64;
      p.partial_offset.push_back(p.scratch_bytes);
      if (p.chunks > 1)
        p.scratch_bytes += (p.chunks * p.outer_boxes * p.outer_box * r.bytes + 63) / 64 * 64;
    }
    const std::int64_t base = p.register_bytes;
    if (p.single_inner_box) {
      Tape all;
      for (const Tape& t : p.inner) all.insert(all.end(), t.begin(), t.end());
      scan(all, base);
    } else {
      for (const Tape& t : p.inner) scan(t, base);
    }
  }
  // Returns true if a map may overwrite this operand, because each element has the same offset in
  // both. Equal sizes in bytes alone do not imply this: short runs are padded.
  bool may_replace(int operand, int out) const {
    const auto lane = [&](int v) { return plan.values[static_cast<std::size_t>(v)].lane; };
    return operand != out && cpu::bytes_of(lane(operand)) == cpu::bytes_of(lane(out)) &&
           bytes_for(operand) == bytes_for(out);
  }
  // Linear scan: a register is free after its last reader.
  void scan(const Tape& tape, std::int64_t base) {
    std::vector<std::size_t> last(plan.values.size(), 0);
    for (std::size_t t = 0; t < tape.size(); ++t) {
      each_read(plan, tape[t], [&](int v) { last[static_cast<std::size_t>(v)] = t; });
      each_created(plan, tape[t], [&](int v) { last[static_cast<std::size_t>(v)] = t; });
    }
    std::map<std::int64_t, std::vector<std::int64_t>> free;
    std::vector<bool> placed(plan.values.size(), false);
    std::int64_t end = base;
    auto place = [&](int v) {
      if (v < 0 || plan.values[static_cast<std::size_t>(v)].home != Register::inner ||
          placed[static_cast<std::size_t>(v)])
        return;
      std::int64_t bytes = bytes_for(v);
      auto& list = free[bytes];
      if (list.empty()) {
        list.push_back(end);
        end += bytes;
      }
      plan.values[static_cast<std::size_t>(v)].offset = list.back();
      list.pop_back();
      placed[static_cast<std::size_t>(v)] = true;
    };
    for (std::size_t t = 0; t < tape.size(); ++t) {
      const Op& op = tape[t];
      std::vector<int> dying;
      auto ends = [&](int v) {
        if (v >= 0 && placed[static_cast<std::size_t>(v)] &&
            last[static_cast<std::size_t>(v)] == t &&
            std::find(dying.begin(), dying.end(), v) == dying.end())
          dying.push_back(v);
      };
      auto release = [&] {
        for (int v : dying)
          free[bytes_for(v)].push_back(plan.values[static_cast<std::size_t>(v)].offset);
        dying.clear();
      };
      bool over =
          (op.kind == Op::map || op.kind == Op::map_rows || op.kind == Op::poke) && op.out >= 0;
      if (over) {
        for (int v : op.in)
          if (v >= 0 && may_replace(v, op.out)) ends(v);
        release();
      }
      each_created(plan, op, place);
      if (op.kind == Op::recode) place(op.in[1]);
      each_read(plan, op, [&](int v) {
        if (!(over && may_replace(v, op.out))) ends(v);
      });
      each_created(plan, op, ends);
      release();
    }
    plan.register_bytes = std::max(plan.register_bytes, end);
  }
};

}  // namespace

void place_registers(FusedPlan& plan) { Registers{plan}.run(); }

}  // namespace haliax::cpu
