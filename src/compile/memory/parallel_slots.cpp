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
    bool only_views = true;
    each_step(loop.body, [&](auto& s) { only_views &= touches_only_views(s.kind); });
    if (!only_views) return false;
    around[loop.loop.variable] = loop.loop.trips;
    add_trips(loop.body, around);
    for (int slot = 0; slot < int(p_.slots.size()); ++slot) {
      auto in_loop = within(timeline_.accesses(slot), begin, end);
      if (std::none_of(in_loop.begin(), in_loop.end(), [](auto& a) { return a.writes; })) continue;
      if (lives_in(slot, begin, end)) {
        if (!in_loop.front().writes) return false;
        continue;
      }
      std::optional<Stripes> all;
      for (auto& a : in_loop) {
        auto stripes =
            a.view ? stripes_of(*a.step, *a.view, loop.loop.variable, around) : std::nullopt;
        if (!stripes || (all && *all != *stripes)) return false;
        all = stripes;
      }
    }
    return true;
  }
  // Returns the bytes of values that live within an iteration, if none share memory.
  std::int64_t bytes_in(const Step& loop) const {
    auto [begin, end] = spans_.at(&loop);
    std::int64_t bytes = 0;
    for (int slot = 0; slot < int(p_.slots.size()); ++slot)
      if (!timeline_.accesses(slot).empty() && lives_in(slot, begin, end))
        bytes += program::aligned(p_.slot(slot).bytes);
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
  bool lives_in(int slot, int begin, int end) const {
    auto& all = timeline_.accesses(slot);
    return p_.slot(slot).home == Home::arena && all.front().at >= begin && all.back().at < end;
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

// Calls f(loop, trip counts of the loops around it) for each loop, outer ones first. Enters its
// body if f returns true.
template <class Steps, class F> void each_loop(Steps& steps, const Trips& around, const F& f) {
  for (auto& s : steps) {
    if (s.kind == Kind::conditional) each_loop(s.body, around, f);
    if (s.kind != Kind::loop || !f(s, around)) continue;
    auto inside = around;
    inside[s.loop.variable] = s.loop.trips;
    each_loop(s.body, inside, f);
  }
}

}  // namespace

void assign_parallel_slots(Program& p, const program::Device& device, int workers) {
  SlotUses uses(p);
  each_loop(p.steps, {}, [&](Step& loop, Trips around) {
    std::vector<Step*> nest;
    for (auto* l = &loop; l && uses.are_disjoint(*l, around); l = only_loop(*l)) {
      nest.push_back(l);
      around[l->loop.variable] = l->loop.trips;
    }
    std::int64_t count = 1;
    for (auto* l : nest) count *= l->loop.trips;
    const int parallel_slots =
        nest.empty() ? 0 : device.parallel_slots(loop, count, uses.bytes_in(*nest.back()), workers);
    for (auto* l : nest) l->loop.parallel_slots = parallel_slots;
    return parallel_slots == 0;
  });
}

void check_parallel_slots(const Program& p, const char* after) {
  SlotUses uses(p);
  each_loop(p.steps, {}, [&](const Step& loop, const Trips& around) {
    if (loop.loop.parallel_slots > 0 && !uses.are_disjoint(loop, around))
      throw Error(
          fmt::format("[verify] loop after {}: its iterations run in parallel, "
                      "but access memory of each other; {}",
                      after, loop.where));
    return true;
  });
}

}  // namespace haliax
