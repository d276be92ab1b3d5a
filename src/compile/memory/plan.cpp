// Plans the memory of a Program. Slots with disjoint live ranges share memory. An elementwise step
// writes over an operand with no later reader. Carries, and arrays that a loop updates block by
// block, are updated in place. A donated argument becomes the result that replaces it.
#include <algorithm>

#include "compile/memory/memory.h"
#include "compile/memory/shared_slots.h"
#include "program/stripes.h"

namespace haliax {
namespace {

using program::Home;
using program::Kind;
using program::Program;
using program::Step;

void drop_empty(std::vector<Step>& steps) {
  std::erase_if(steps, [](auto& s) { return s.kind == Kind::fused && s.fused.code.empty(); });
  for (auto& s : steps) drop_empty(s.body);
}
// Drops copies of the old value of a carry, which shares memory with the new value.
void drop_redundant_copies(SharedSlots& slots) {
  for (auto& [s, span] : slots.timeline.positions())
    if (s && s->kind == Kind::copy && same_place(s->copy.x, s->copy.out) &&
        slots.find_root(s->copy.x.slot) == slots.find_root(s->copy.out.slot))
      slots.drop(*s);
}
// Restores the dropped copies for the check: they show when a slot has the value of another slot of
// its memory.
void check_shared(SharedSlots& slots) {
  for (auto& [at, step] : slots.dropped) std::swap(*at, step);
  verify_shared(slots.p);
  for (auto& [at, step] : slots.dropped) std::swap(*at, step);
}

}  // namespace

void plan_memory(Program& p, const std::vector<bool>& donated, bool share_memory, bool checks) {
  SharedSlots slots(p, donated, checks);
  if (share_memory) {
    share_values(slots);
    share_stripes(slots);
    drop_redundant_copies(slots);
  }
  for (int s = 0; s < int(p.slots.size()); ++s)
    if (!slots.is_root(s)) p.slot(s).alias = slots.find_root(s);
  if (checks) check_shared(slots);
  place_slots(slots, share_memory);
  drop_empty(p.steps);
  check_gathered(p);
  p.donated.assign(std::size_t(p.arguments), -1);
  p.peak_bytes = p.arena_bytes;
  for (int r = 0; r < p.results; ++r) {
    auto& s = p.slot(p.result_slots[std::size_t(r)]);
    if (s.alias >= 0 && p.slot(s.alias).home == Home::argument)
      p.donated[std::size_t(p.slot(s.alias).index)] = r;
    else
      p.peak_bytes += s.bytes;
  }
}

std::int64_t argument_bytes(const Program& p) {
  std::int64_t n = 0;
  for (int s : p.argument_slots) n += p.slot(s).bytes;
  return n;
}

}  // namespace haliax
