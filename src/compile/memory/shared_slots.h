// Slots that share memory, while plan_memory decides which do.
#pragma once
#include <algorithm>
#include <map>
#include <vector>

#include "program/timeline.h"

namespace haliax {

class SharedSlots {
 public:
  static constexpr int kForever = 1 << 30;  // after all steps
  // The positions between which a memory is in use.
  struct Liveness {
    int first = kForever, last = -1;
  };
  // keeps_dropped: saves the dropped steps, for the check.
  SharedSlots(program::Program&, const std::vector<bool>& donated, bool keeps_dropped);

  program::Program& p;
  MutableTimeline timeline{p};
  std::map<program::Step*, program::Step> dropped = {};  // original steps

  int last() const { return timeline.last(); }
  void drop(program::Step&);  // the step computes nothing afterwards
  int find_root(int s) const {
    while (root_[std::size_t(s)] != s) s = root_[std::size_t(s)];
    return s;
  }
  // Returns when the memory of a root is in use, by all of its slots.
  const Liveness& liveness(int root) const { return liveness_[std::size_t(root)]; }
  bool is_donated(int slot) const {
    auto& s = p.slot(slot);
    return s.home == program::Home::argument && donated_[std::size_t(s.index)];
  }
  // Gathered values only share memory with gathered values, since they are not retained.
  bool equally_gathered(int a, int b) const {
    return p.slot(find_root(a)).gathered == p.slot(find_root(b)).gathered;
  }
  // Returns true for a slot of the arena and for a donated argument.
  bool is_overwritable(int slot) const {
    return p.slot(slot).home == program::Home::arena || is_donated(slot);
  }
  bool is_root(int slot) const { return find_root(slot) == slot; }
  // Places `slot`, which must be a root, and all slots of its memory in the memory of `with`.
  void share(int slot, int with) {
    int r = root_[std::size_t(slot)] = find_root(with);
    auto &a = liveness_[std::size_t(r)], &b = liveness_[std::size_t(slot)];
    a.first = std::min(a.first, b.first);
    a.last = std::max(a.last, b.last);
  }
  // Returns true if a term of the view reads this memory.
  bool has_offset_in(const program::View& v, int memory) const {
    return std::any_of(v.terms.begin(), v.terms.end(),
                       [&](auto& t) { return t.slot >= 0 && find_root(t.slot) == memory; });
  }
  // Returns true if the copy copies full slots, in the same order.
  bool copies_full_slots(const program::Copy&) const;
  // Returns true if the step reads `over` only at the places where it writes `created`.
  bool is_elementwise(const program::Step&, int created, int over) const;

 private:
  Liveness liveness_of(int slot) const;
  const std::vector<bool>& donated_;
  const bool keeps_dropped_;
  std::vector<Liveness> liveness_ = {};  // by root
  std::vector<int> root_ = {};           // by slot: a slot with the same memory; a root: itself
};

// Writes results over operands, returns donated arguments, and computes the next value of a carry
// in the memory of the carry.
void share_values(SharedSlots&);
// Shares memory between arrays that a loop reads and writes stripe by stripe.
void share_stripes(SharedSlots&);
// Assigns offsets in the arena. share_memory: see plan_memory.
void place_slots(SharedSlots&, bool share_memory);

}  // namespace haliax
