#include "compile/memory/shared_slots.h"

#include <algorithm>

#include "program/stripes.h"

namespace haliax {

SharedSlots::SharedSlots(program::Program& program, const std::vector<bool>& donated,
                         bool keeps_dropped)
    : p(program), donated_(donated), keeps_dropped_(keeps_dropped) {
  for (int s = 0; s < int(p.slots.size()); ++s) {
    root_.push_back(s);
    liveness_.push_back(liveness_of(s));
  }
}
void SharedSlots::drop(program::Step& s) {
  if (keeps_dropped_) dropped.emplace(&s, s);
  s.kind = program::Kind::fused;
  s.fused = {};
}
SharedSlots::Liveness SharedSlots::liveness_of(int slot) const {
  if (timeline.accesses(slot).empty()) return {};
  const auto home = p.slot(slot).home;
  const bool given = home == program::Home::argument;
  // Each iteration may compute a part of a result, and an argument exists before all steps.
  const auto live = timeline.live(slot, given || home == program::Home::result);
  Liveness l{given ? 0 : live.begin, live.end};
  if ((given && !is_donated(slot)) || home == program::Home::result) l.last = kForever;
  return l;
}
bool SharedSlots::copies_full_slots(const program::Copy& c) const {
  auto n = bytes_of(c.x.dtype) * program::points(c.dims);
  return same_place(c.x, c.out) && c.x.offset == 0 && c.x.terms.empty() &&
         n == p.slot(c.x.slot).bytes && n == p.slot(c.out.slot).bytes;
}
bool SharedSlots::is_elementwise(const program::Step& s, int created, int over) const {
  if (s.kind == program::Kind::copy) return copies_full_slots(s.copy) && s.copy.out.slot == created;
  if (s.kind != program::Kind::fused) return false;
  const program::Instr* store = nullptr;
  for (auto& i : s.fused.code)
    if (is_store(i.code) && find_root(i.view.slot) == find_root(created)) {
      if (store || i.code != program::Code::store) return false;
      store = &i;
    }
  return store && std::none_of(s.fused.code.begin(), s.fused.code.end(), [&](auto& i) {
           bool reads = i.code == program::Code::load && find_root(i.view.slot) == over;
           return has_offset_in(i.view, over) ||
                  (reads && (!same_place(i.view, store->view) || i.inner != store->inner));
         });
}

}  // namespace haliax
