// Checks that slots with shared memory have the values that they would have in memory of their own,
// as long as they are read.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/verify_error.h"
#include "compile/memory/memory.h"
#include "program/fused.h"
#include "program/stripes.h"
#include "program/views.h"

namespace haliax {
namespace {

using program::Kind;
using program::Program;
using program::Step;
using program::View;

// Traverses the steps in order, with two iterations per loop: the second one may read writes of the
// first one.
struct SharedCheck {
  const Program& p;
  struct Write {
    int at, slot;
    const Step* step;
    const View* view;
    bool fills_slot;
  };
  // An enclosing loop: its variable, the step before the loop, the step before the iteration.
  struct LoopAround {
    int variable, begin, iteration_start;
  };
  // By memory.
  std::vector<std::vector<Write>> writes = std::vector<std::vector<Write>>(p.slots.size());
  std::vector<int> wrote = std::vector<int>(p.slots.size(), -1);  // by slot: step of the last write
  std::vector<int> members = std::vector<int>(p.slots.size());    // number of slots per memory
  std::vector<LoopAround> around = {};                            // outermost first
  Trips trips = {};
  int now = 0;

  std::size_t memory(int slot) const { return std::size_t(p.memory(slot)); }
  // Returns true if the write was in an earlier iteration of a loop whose iterations each access a
  // stripe of their own.
  bool elsewhere(const Write& w, const Step& s, const View* v) const {
    for (auto l = around.rbegin(); l != around.rend(); ++l) {
      if (w.at <= l->begin) continue;
      return w.at <= l->iteration_start && v && elsewhere(w, s, v, l->variable);
    }
    return false;
  }
  bool elsewhere(const Write& w, const Step& s, const View* v, int variable) const {
    auto written = stripes_of(*w.step, *w.view, variable, trips);
    return written && written == stripes_of(s, *v, variable, trips);
  }
  [[noreturn]] static void bad(const Step& s, const std::string& why) {
    throw VerifyError(
        fmt::format("[verify] {} after plan_memory: {}{}", s.op, why, location_suffix(s)));
  }
  void read(const Step& s, int slot, const View* v) const {
    for (auto& w : writes[memory(slot)])
      if (w.slot != slot && w.at > wrote[std::size_t(slot)] && !elsewhere(w, s, v))
        bad(s, fmt::format("slot {} is read after slot {} overwrote it", slot, w.slot));
  }
  // Checks that values that earlier iterations wrote to another slot persist: this iteration writes
  // to a stripe of its own.
  void write(const Step& s, int slot, const View& v) const {
    for (auto& w : writes[memory(slot)])
      for (auto& l : around) {
        bool before = w.slot != slot && w.at > l.begin && w.at <= l.iteration_start,
             per_iteration = before && varies_with(*w.view, l.variable) &&
                             !is_filled(w.slot, l.iteration_start);
        if (per_iteration && !elsewhere(w, s, &v, l.variable))
          bad(s, fmt::format("slot {} overwrites values of other iterations in slot {}", slot,
                             w.slot));
      }
  }
  // Returns true if a step after `begin` wrote the full slot, so that earlier values are dead.
  bool is_filled(int slot, int begin) const {
    const auto& all = writes[memory(slot)];
    return std::any_of(all.begin(), all.end(),
                       [&](auto& w) { return w.slot == slot && w.at > begin && w.fills_slot; });
  }
  // Returns true for a dense fused store of all elements of a slot.
  bool fills_slot(const Step& s, const View& v) const {
    if (s.kind != Kind::fused || v.offset != 0 || !v.terms.empty()) return false;
    const auto& code = s.fused.code;
    const auto store = std::find_if(code.begin(), code.end(), [&](auto& in) {
      return &in.view == &v && in.code == program::Code::store;
    });
    if (store == code.end()) return false;
    const auto strides = program::access_strides(s.fused, *store);
    std::int64_t points = 1;
    for (std::size_t d = strides.size(); d-- > 0;) {
      if (s.fused.dims[d] == 1) continue;
      if (strides[d] != points) return false;
      points *= s.fused.dims[d];
    }
    return points * bytes_of(v.dtype) == p.slots[std::size_t(v.slot)].bytes;
  }
  static bool varies_with(const View& v, int variable) {
    return std::any_of(v.terms.begin(), v.terms.end(), [&](auto& t) { return t.loop == variable; });
  }
  // Returns true for a copy between two slots at the same place: both have the value afterwards.
  bool stays(const Step& s) const {
    return s.kind == Kind::copy && same_place(s.copy.x, s.copy.out) &&
           memory(s.copy.x.slot) == memory(s.copy.out.slot);
  }
  void steps(const std::vector<Step>& all) {
    for (auto& s : all) {
      ++now;
      // A device may have an empty part of an array.
      auto shares = [&](int slot) {
        return members[memory(slot)] > 1 && p.slots[std::size_t(slot)].bytes > 0;
      };
      // The start of a collective counts as its accesses, so its finish has none.
      if (s.kind != Kind::finish)
        for (bool written : {false, true})  // reads first: a step may overwrite what it reads
          each_access(s, [&](int slot, bool writes_it, const View* v) {
            if (writes_it != written || !shares(slot)) return;
            if (!writes_it) return read(s, slot, v);
            write(s, slot, *v);
            wrote[std::size_t(slot)] = now;
            if (!stays(s))
              writes[memory(slot)].push_back({now, slot, &s, v, v && fills_slot(s, *v)});
          });
      if (s.kind == Kind::conditional) steps(s.body);
      if (s.kind != Kind::loop) continue;
      around.push_back({s.loop.variable, now, now});
      for (int iteration = 0; iteration < std::min<std::int64_t>(s.loop.trips, 2); ++iteration) {
        around.back().iteration_start = now;
        steps(s.body);
      }
      around.pop_back();
    }
  }
  void run() {
    for (int k = 0; k < int(p.slots.size()); ++k) ++members[memory(k)];
    each_step(p.steps, [&](auto& s) {
      if (s.kind == Kind::loop) trips[s.loop.variable] = s.loop.trips;
    });
    steps(p.steps);
  }
};

}  // namespace

void verify_shared(const Program& p) { SharedCheck{p}.run(); }

}  // namespace haliax
