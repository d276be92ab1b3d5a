// Which slots fill the memory of a planned Program at its peak, and why each of them is there.
#pragma once
#include <string>
#include <vector>

#include "program/timeline.h"

namespace haliax {

// Memory that is live at the peak: of a slot and all that share its memory.
struct LiveSlot {
  int slot = -1;  // -1: scratch of the step at the peak
  std::int64_t bytes = 0;
  const char* purpose = "";
  StepRange live = {0, -1};  // first and last position in the Timeline
  std::string first_write;   // op and place of the step that writes it first; empty: an argument
  std::string last_use;      // op and place of the step that uses it last
};
struct Peak {
  int position = 0;             // in the Timeline
  std::string step;             // op and place
  std::int64_t bytes = 0;       // bytes of the arena in use
  std::vector<LiveSlot> slots;  // slots of the arena, largest first
};
// Returns the first position at which most bytes of the arena are in use. In: a Program after
// plan_memory.
Peak peak_of(const program::Program&);

// Memory of each slot of the arena that has its own: live range, first write and last use.
std::vector<LiveSlot> live_slots(const program::Program&, const Timeline&);

}  // namespace haliax
