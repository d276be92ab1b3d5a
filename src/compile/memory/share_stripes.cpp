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
        update_outer_carry(*s, s_.timeline.spans()[std::size_t(span)]);
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
    const int root_x = s_.find_root(x);
    const auto home = s_.p.slot(o).home, home_of_x = s_.p.slot(root_x).home;
    const bool has_memory =
        root_x != o && s_.is_root(o) && home != Home::argument && s_.is_overwritable(root_x) &&
        s_.equally_gathered(root_x, o) &&
        (home == Home::arena || s_.is_donated(root_x) || home_of_x == Home::arena);
    const bool has_same_size = s_.p.slot(root_x).bytes == s_.p.slot(o).bytes;
    if (!has_memory || !has_same_size) return false;
    const bool end_in_loop = s_.liveness(root_x).last <= loop.end &&
                             s_.liveness(o).first >= loop.begin &&
                             s_.timeline.accesses(o).front().at > loop.begin;
    return end_in_loop && reads_first(root_x, o, loop, trips);
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
  // Slots that a loop accesses at offsets: the results that it writes, and the values that it reads
  // last.
  struct StripeCandidates {
    std::vector<int> written, read;
  };
  StripeCandidates candidates(const BodySpan& loop) const {
    auto has_strided_access = [&](int slot, bool writes) {
      auto& all = s_.timeline.accesses(slot);
      return std::any_of(all.begin(), all.end(), [&](auto& a) {
        return a.at > loop.begin && a.at < loop.end && a.writes == writes && a.view &&
               !a.view->terms.empty();
      });
    };
    StripeCandidates out;
    for (int s = 0; s < int(s_.p.slots.size()); ++s) {
      const int root = s_.find_root(s);
      if (root == s && s_.p.slot(s).home != Home::argument && has_strided_access(s, true))
        out.written.push_back(s);
      if (has_strided_access(s, false) && s_.is_overwritable(root) &&
          s_.liveness(root).last <= loop.end)
        out.read.push_back(s);
    }
    return out;
  }
  void share_arrays() {
    for (auto& loop : s_.timeline.spans()) {
      if (!loop.is_loop) continue;
      const auto [written, read] = candidates(loop);
      if (written.empty() || read.empty()) continue;
      const auto trips = trips_at(loop);
      for (int o : written) {
        auto x = std::find_if(read.begin(), read.end(), [&, &loop = loop](int s) {
          return may_share_stripes(s, o, loop, trips);
        });
        if (x == read.end()) continue;
        // A result keeps its place, unless it replaces a donated argument.
        const int old = s_.find_root(*x);
        const bool moves_to_old = s_.p.slot(o).home == Home::arena || s_.is_donated(old);
        if (moves_to_old)
          share_memory(o, old);
        else
          share_memory(old, o);
      }
    }
  }
  // Handles the next value of a carry that an inner loop computes block by block from the old
  // value, such as a cache that each step of a loop passes to a loop over layers. It is computed in
  // the memory of the carry, if no step reads the old value from the inner loop on.
  void update_outer_carry(const Step& step, const BodySpan& outer) {
    const int x = step.copy.x.slot, old = s_.find_root(step.copy.out.slot);
    bool may = s_.copies_full_slots(step.copy) && s_.find_root(x) == x && x != old &&
               s_.p.slot(x).home == Home::arena && s_.equally_gathered(x, old) &&
               s_.p.slot(x).bytes == s_.p.slot(old).bytes;
    if (!may) return;
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
      return share_memory(x, old);
    }
  }

  SharedSlots& s_;
  std::vector<std::vector<int>> members_;  // slots in each memory, by its root
};

}  // namespace

void share_stripes(SharedSlots& s) { StripeSharing(s).run(); }

}  // namespace haliax
