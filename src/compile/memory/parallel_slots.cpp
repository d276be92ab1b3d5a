// Assigns parallel slots to loops whose iterations access disjoint memory, so that several
// iterations run concurrently.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>

#include "compile/memory/memory.h"
#include "program/stripes.h"
#include "program/timeline.h"
#include "haliax/error.h"

namespace haliax {
namespace {

using program::Home;
using program::Kind;
using program::Program;
using program::Step;

// The accesses to each slot, in a Program before or after plan_memory.
class SlotUses {
 public:
  explicit SlotUses(const Program& p) : p_(p), timeline_(p, true) {
    for (auto& span : timeline_.spans())
      spans_[&timeline_.step(span.begin)] = {span.begin + 1, span.end};
  }

  // Returns true if no iteration of the loop accesses memory that another iteration writes. Values
  // that live within an iteration are written before they are read; other values are written in
  // disjoint stripes.
  bool are_disjoint(const Step& loop, Trips around) const {
    auto [begin, end] = spans_.at(&loop);
    bool known = true;
    each_step(loop.body, [&](auto& s) { known &= touches_only_views(s.kind); });
    if (!known) return false;
    around[loop.loop.variable] = loop.loop.trips;
    add_trips(loop.body, around);
    for (int m = 0; m < int(p_.slots.size()); ++m) {
      auto mine = within(timeline_.accesses(m), begin, end);
      if (std::none_of(mine.begin(), mine.end(), [](auto& a) { return a.writes; })) continue;
      if (lives_in(m, begin, end)) {
        if (!mine.front().writes) return false;
        continue;
      }
      std::optional<Stripes> all;
      for (auto& a : mine) {
        auto its = a.view ? stripes_of(*a.step, *a.view, loop.loop.variable, around) : std::nullopt;
        if (!its || (all && *all != *its)) return false;
        all = its;
      }
    }
    return true;
  }
  // Returns the bytes of values that live within an iteration, if none share memory.
  std::int64_t bytes_in(const Step& loop) const {
    auto [begin, end] = spans_.at(&loop);
    std::int64_t bytes = 0;
    for (int m = 0; m < int(p_.slots.size()); ++m)
      if (!timeline_.accesses(m).empty() && lives_in(m, begin, end))
        bytes += program::aligned(p_.slot(m).bytes);
    return bytes;
  }

 private:
  static void add_trips(const std::vector<Step>& all, Trips& trips) {
    each_step(all, [&](auto& s) {
      if (s.kind == Kind::loop) trips[s.loop.variable] = s.loop.trips;
    });
  }
  static std::span<const Access> within(const std::vector<Access>& all, int begin, int end) {
    auto at = [&](int n) {
      return std::partition_point(all.begin(), all.end(), [&](auto& a) { return a.at < n; });
    };
    return {at(begin), at(end)};
  }
  bool lives_in(int m, int begin, int end) const {
    auto& all = timeline_.accesses(m);
    return p_.slot(m).home == Home::arena && all.front().at >= begin && all.back().at < end;
  }

  const Program& p_;
  Timeline timeline_;  // by memory
  std::map<const Step*, StepRange> spans_;
};

// Returns the inner loop if it is the only step of the body.
template <class S> S* only_loop(S& s) {
  auto& body = s.body;
  return body.size() == 1 && body[0].kind == Kind::loop ? &body[0] : nullptr;
}

}  // namespace

void assign_parallel_slots(Program& p, const program::Device& device, int workers) {
  SlotUses touches(p);
  auto visit = [&](auto& self, std::vector<Step>& steps, Trips around) -> void {
    for (auto& s : steps) {
      if (s.kind == program::Kind::conditional) self(self, s.body, around);
      if (s.kind != program::Kind::loop) continue;
      std::vector<Step*> nest;
      auto inner = around;
      for (auto* l = &s; l && touches.are_disjoint(*l, inner); l = only_loop(*l)) {
        nest.push_back(l);
        inner[l->loop.variable] = l->loop.trips;
      }
      std::int64_t count = 1;
      for (auto* l : nest) count *= l->loop.trips;
      int parallel_slots =
          nest.empty() ? 0
                       : device.parallel_slots(s, count, touches.bytes_in(*nest.back()), workers);
      for (auto* l : nest) l->loop.parallel_slots = parallel_slots;
      if (parallel_slots > 0) continue;
      around[s.loop.variable] = s.loop.trips;
      self(self, s.body, around);
    }
  };
  visit(visit, p.steps, {});
}

void check_parallel_slots(const Program& p, const char* after) {
  SlotUses touches(p);
  auto visit = [&](auto& self, const std::vector<Step>& steps, Trips around) -> void {
    for (auto& s : steps) {
      if (s.kind == program::Kind::conditional) self(self, s.body, around);
      if (s.kind != program::Kind::loop) continue;
      if (s.loop.parallel_slots > 0 && !touches.are_disjoint(s, around))
        throw Error(
            fmt::format("[verify] loop after {}: its iterations run in parallel, "
                        "but access memory of each other; {}",
                        after, s.where));
      auto inner = around;
      inner[s.loop.variable] = s.loop.trips;
      self(self, s.body, inner);
    }
  };
  visit(visit, p.steps, {});
}

}  // namespace haliax
