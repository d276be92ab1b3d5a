// Arrays that a loop reads and writes stripe by stripe. They share memory if each iteration reads
// its stripe before it writes there.
#include <algorithm>
#include <optional>

#include "compile/memory/shared_slots.h"
#include "program/stripes.h"

namespace haliax {
namespace {

using program::Home;
using program::Kind;
using program::Step;

class StripeSharing {
 public:
  explicit StripeSharing(SharedSlots& s) : s_(s), members_(s.p.slots.size()) {
    for (int k = 0; k < int(members_.size()); ++k)
      members_[std::size_t(s.find_root(k))].push_back(k);
  }
  void run() {
    share_arrays();
    for (auto& [s, span] : s_.timeline.positions())
      if (s && s->kind == Kind::copy && span >= 0)
        joins_iterations(*s, s_.timeline.spans()[std::size_t(span)]);
  }

 private:
  // The accesses of a loop to all slots of one memory.
  struct Striped {
    Stripes stripes;
    int first_write = SharedSlots::kForever, last_read = -1;
  };
  Trips trips_at(const BodySpan& loop) const {
    Trips trips;
    for (auto& s : s_.timeline.spans())  // enclosing and inner loops
      if (s.is_loop && ((s.begin <= loop.begin && s.end >= loop.end) ||
                        (s.begin > loop.begin && s.end < loop.end)))
        trips[s_.timeline.step(s.begin).loop.variable] = s_.timeline.step(s.begin).loop.trips;
    return trips;
  }
  // None: an access is not to a stripe.
  std::optional<Striped> striped(int memory, const BodySpan& loop, const Trips& trips) const {
    const int variable = s_.timeline.step(loop.begin).loop.variable;
    Striped out;
    for (int slot : members_[std::size_t(memory)]) {
      for (auto& a : s_.timeline.accesses(slot)) {
        if (a.at <= loop.begin || a.at >= loop.end) continue;
        auto its = a.view ? stripes_of(*a.step, *a.view, variable, trips) : std::nullopt;
        if (!its || (out.stripes.count > 0 && out.stripes != *its)) return {};
        out.stripes = *its;
        if (a.writes)
          out.first_write = std::min(out.first_write, a.at);
        else
          out.last_read = std::max(out.last_read, a.at);
      }
    }
    return out.stripes.count > 0 ? std::optional(out) : std::nullopt;
  }
  // Returns true if the step reads `over` only where it writes `created`, in any stripe.
  bool writes_over(const Step& s, int created, int over) const {
    if (s.kind != Kind::copy) return s_.is_elementwise(s, created, over);
    return s_.find_root(s.copy.out.slot) == s_.find_root(created) &&
           s_.find_root(s.copy.x.slot) == over && same_place(s.copy.x, s.copy.out);
  }
  bool may_share_stripes(int x, int o, const BodySpan& loop, const Trips& trips) const {
    int rx = s_.find_root(x);
    auto home = s_.p.slot(o).home;
    bool may = rx != o && s_.has_own_memory(o) && home != Home::argument && s_.shareable(rx) &&
               s_.may_share_memory(rx, o) &&
               (home == Home::arena || s_.is_donated(rx) || s_.p.slot(rx).home == Home::arena);
    if (!may || s_.p.slot(rx).bytes != s_.p.slot(o).bytes || s_.liveness_in(rx).last > loop.end ||
        s_.liveness_in(o).first < loop.begin || s_.timeline.accesses(o).front().at <= loop.begin)
      return false;
    return reads_first(rx, o, loop, trips);
  }
  // Returns true if each iteration has read its stripe of the memory `old` when it computes this
  // stripe of `o`.
  bool reads_first(int old, int o, const BodySpan& loop, const Trips& trips) const {
    auto from = striped(old, loop, trips), to = striped(o, loop, trips);
    if (!from || !to || from->stripes != to->stripes) return false;
    if (from->first_write != SharedSlots::kForever || from->last_read > to->first_write)
      return false;
    auto write = to->first_write;
    // An inner loop would return to the stripe.
    bool inner = std::any_of(s_.timeline.spans().begin(), s_.timeline.spans().end(), [&](auto& s) {
      return s.is_loop && s.begin > loop.begin && s.end < loop.end && s.begin < write &&
             s.end > write && from->last_read > s.begin;
    });
    return !inner && (from->last_read < write || writes_over(s_.timeline.step(write), o, old));
  }
  void share_memory(int slot, int with) {  // with the members of both
    s_.share(slot, with);
    auto &mine = members_[std::size_t(slot)], &its = members_[std::size_t(with)];
    its.insert(its.end(), mine.begin(), mine.end());
    mine.clear();
  }
  void share_arrays() {
    for (auto& loop : s_.timeline.spans()) {
      if (!loop.is_loop) continue;
      auto touched = [&](int slot, bool writes) {
        auto& all = s_.timeline.accesses(slot);
        return std::any_of(all.begin(), all.end(), [&](auto& a) {
          return a.at > loop.begin && a.at < loop.end && a.writes == writes && a.view &&
                 !a.view->terms.empty();
        });
      };
      std::vector<int> created, read;
      for (int s = 0; s < int(s_.p.slots.size()); ++s) {
        if (s_.has_own_memory(s) && s_.p.slot(s).home != Home::argument && touched(s, true))
          created.push_back(s);
        if (touched(s, false) && s_.shareable(s_.find_root(s)) &&
            s_.liveness_in(s_.find_root(s)).last <= loop.end)
          read.push_back(s);
      }
      if (created.empty() || read.empty()) continue;
      auto trips = trips_at(loop);
      for (int o : created) {
        auto x = std::find_if(read.begin(), read.end(),
                              [&](int s) { return may_share_stripes(s, o, loop, trips); });
        if (x == read.end()) continue;
        bool into = s_.p.slot(o).home == Home::arena || s_.is_donated(s_.find_root(*x));
        into ? share_memory(o, s_.find_root(*x)) : share_memory(s_.find_root(*x), o);
      }
    }
  }
  // Handles the next value of a carry that an inner loop computes block by block from the old
  // value, such as a cache that each step of a loop passes to a loop over layers. It is computed in
  // the memory of the carry, if no step reads the old value from the inner loop on.
  bool joins_iterations(const Step& step, const BodySpan& outer) {
    const int x = step.copy.x.slot, old = s_.find_root(step.copy.out.slot);
    bool may = s_.covers(step.copy) && s_.find_root(x) == x && x != old &&
               s_.p.slot(x).home == Home::arena && s_.may_share_memory(x, old) &&
               s_.p.slot(x).bytes == s_.p.slot(old).bytes;
    if (!may) return false;
    auto all = [&](int memory, auto good) {
      auto& slots = members_[std::size_t(memory)];
      return std::all_of(slots.begin(), slots.end(), [&](int slot) {
        return std::all_of(s_.timeline.accesses(slot).begin(), s_.timeline.accesses(slot).end(),
                           good);
      });
    };
    for (auto& inner : s_.timeline.spans()) {
      if (!inner.is_loop || inner.begin <= outer.begin || inner.end >= outer.end) continue;
      bool created_there = all(x, [&](const Access& a) {
        return a.at > inner.begin && a.at < outer.end && (!a.writes || a.at < inner.end);
      });
      bool read_before = all(old, [&](const Access& a) {
        return a.at < inner.end || a.at >= outer.end || a.step == &step;
      });
      if (!created_there || !read_before || !reads_first(old, x, inner, trips_at(inner))) continue;
      share_memory(x, old);
      return true;
    }
    return false;
  }

  SharedSlots& s_;
  std::vector<std::vector<int>> members_;  // slots in each memory, by its root
};

}  // namespace

void share_stripes(SharedSlots& s) { StripeSharing(s).run(); }

}  // namespace haliax
