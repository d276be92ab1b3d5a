// Plans the memory of a Program. Slots with disjoint live ranges share memory. An elementwise step
// writes over an operand with no later reader. Carries, and arrays that a loop updates block by
// block, are updated in place. A donated argument becomes the result that replaces it.
#include <algorithm>
#include <map>
#include <string_view>

#include "compile/memory/memory.h"
#include "program/stripes.h"
#include "program/timeline.h"
#include "graph/node.h"

namespace haliax {
namespace {

using program::Code;
using program::Home;
using program::Instr;
using program::Kind;
using program::Program;
using program::Step;
using program::View;
using program::aligned;

constexpr int kForever = 1 << 30;

void drop_empty(std::vector<Step>& steps) {
  std::erase_if(steps, [](auto& s) { return s.kind == Kind::fused && s.fused.code.empty(); });
  for (auto& s : steps) drop_empty(s.body);
}

struct MemoryPlanner {
  Program& p;
  const std::vector<bool>& donated;
  bool optional;
  bool verified;
  MutableTimeline timeline{p};
  std::map<Step*, Step> dropped = {};  // original steps, for check_shared

  int last() const { return timeline.last(); }

  void drop(Step& s) {  // drop_empty removes the step later
    if (verified) dropped.emplace(&s, s);
    s.kind = Kind::fused;
    s.fused = {};
  }

  // ---- liveness: of a slot and all slots that share its memory ----
  struct Liveness {
    int first = kForever, last = -1;
  };
  std::vector<Liveness> liveness = {};
  std::vector<int> root = {};
  int find_root(int s) const {
    while (root[std::size_t(s)] != s) s = root[std::size_t(s)];
    return s;
  }
  Liveness& liveness_in(int r) { return liveness[std::size_t(r)]; }
  Liveness liveness_of(int slot) const {
    if (timeline.accesses(slot).empty()) return {};
    const auto home = p.slot(slot).home;
    const bool given = home == Home::argument;
    // Each iteration may compute a part of a result, and an argument exists before all steps.
    const auto live = timeline.live(slot, given || home == Home::result);
    Liveness l{given ? 0 : live.begin, live.end};
    if ((given && !is_donated(slot)) || home == Home::result) l.last = kForever;
    return l;
  }
  bool is_donated(int slot) const {
    auto& s = p.slot(slot);
    return s.home == Home::argument && donated[std::size_t(s.index)];
  }
  // Gathered values only share memory with gathered values, since they are not retained.
  bool may_share_memory(int a, int b) const {
    return p.slot(find_root(a)).gathered == p.slot(find_root(b)).gathered;
  }
  bool shareable(int slot) const { return p.slot(slot).home == Home::arena || is_donated(slot); }
  bool has_own_memory(int slot) const { return find_root(slot) == slot; }
  void share(int slot, int with) {  // places `slot` in the memory of `with`
    int r = root[std::size_t(slot)] = find_root(with);
    auto &a = liveness_in(r), &b = liveness_in(slot);
    a.first = std::min(a.first, b.first);
    a.last = std::max(a.last, b.last);
  }
  bool counts_by(const View& v, int memory) const {  // a term of the view reads this memory
    return std::any_of(v.terms.begin(), v.terms.end(),
                       [&](auto& t) { return t.slot >= 0 && find_root(t.slot) == memory; });
  }

  static bool writes_once(const program::Fused& f, int slot) {
    auto writes = [&](auto& i) { return is_store(i.code) && i.view.slot == slot; };
    return std::count_if(f.code.begin(), f.code.end(), writes) == 1;
  }
  // Writes the result of an elementwise step over an operand that this step reads last.
  void in_place(const program::Fused& f, int position) {
    for (auto& store : f.code) {
      if (store.code != Code::store) continue;
      int o = store.view.slot;
      auto& out = p.slot(o);
      if (out.home == Home::argument || !has_own_memory(o) || liveness_in(o).first != position)
        continue;
      if (!writes_once(f, o)) continue;
      auto over = std::find_if(f.code.begin(), f.code.end(),
                               [&](auto& load) { return ends_in(f, load, store, position); });
      if (over != f.code.end()) share(o, over->view.slot);
    }
  }
  // Returns true if the result may overwrite the memory of this load.
  bool ends_in(const program::Fused& f, const Instr& load, const Instr& store, int position) {
    if (load.code != Code::load) return false;
    int i = load.view.slot, r = find_root(i), o = store.view.slot;
    auto home = p.slot(o).home;
    bool may = (home == Home::result && is_donated(r)) || (home == Home::arena && shareable(r));
    if (i == o || !may_share_memory(i, o) || !may || liveness_in(r).last != position) return false;
    auto bytes = p.slot(o).bytes;
    if (p.slot(i).bytes != bytes || p.slot(r).bytes != bytes || !same_place(load.view, store.view))
      return false;
    if (load.inner != store.inner && f.outer < int(f.dims.size())) return false;
    // Every read of this memory in the step is at the same place, and the only write is this store.
    return std::all_of(f.code.begin(), f.code.end(), [&](auto& other) {
      bool touches = accesses_memory(other.code) && find_root(other.view.slot) == r;
      return !counts_by(other.view, r) &&
             (!touches || (other.code == Code::load && same_place(other.view, store.view)));
    });
  }

  bool covers(const program::Copy& c) const {  // copies full slots, in the same order
    auto n = bytes_of(c.x.dtype) * program::points(c.dims);
    return same_place(c.x, c.out) && c.x.offset == 0 && c.x.terms.empty() &&
           n == p.slot(c.x.slot).bytes && n == p.slot(c.out.slot).bytes;
  }
  // A donated argument that is returned unchanged: the result is placed in its memory, and no other
  // value is written there.
  void return_donated() {
    for (auto& [s, loop] : timeline.positions()) {
      if (!s || s->kind != Kind::copy || loop >= 0 || !covers(s->copy)) continue;
      int x = s->copy.x.slot, o = s->copy.out.slot;
      auto& all = timeline.accesses(o);
      bool is_written_once =
          std::count_if(all.begin(), all.end(), [](auto& a) { return a.writes; }) == 1;
      // the first result that returns this argument
      bool first = is_donated(x) && liveness_in(x).last != kForever;
      bool may = first && is_written_once && p.slot(o).home == Home::result && has_own_memory(o) &&
                 may_share_memory(x, o);
      if (may) {
        share(o, x);
        drop(*s);
      }
    }
  }
  // Places both sides of a copy in one memory, if this is legal. Returns true if they are.
  bool joins(const Step& step, int position, int loop) {
    auto& copy = step.copy;
    int x = copy.x.slot, o = copy.out.slot, rx = find_root(x), ro = find_root(o);
    if (!covers(copy) || !may_share_memory(x, o)) return false;
    if (rx == ro) return true;
    auto home = p.slot(o).home;
    if (home == Home::argument) return false;
    // x has its last read and o its first write at this copy, so they become one slot. In this way,
    // the start of a carry becomes the carry, and a result is computed in its own memory.
    if (liveness_in(rx).last == position && liveness_in(ro).first == position &&
        has_own_memory(o) && shareable(rx)) {
      home == Home::arena || is_donated(rx) ? share(o, x) : share(rx, o);
      return true;
    }
    if (!may_be_next(x, loop) || !ends_before(rx, o, step, loop).in_time) return false;
    share(rx, o);
    return true;
  }
  // ---- the next value of a carry, computed in the memory of the carry ----
  // This is legal only if the old value has no later reader.
  bool may_be_next(int x, int loop) const {
    if (loop < 0 || p.slot(find_root(x)).home != Home::arena) return false;
    auto span = timeline.spans()[std::size_t(loop)];
    auto created = liveness[std::size_t(find_root(x))].first;
    return created > span.begin && created < span.end;
  }
  struct Ends {
    bool in_time, where_created;
  };
  // in_time: the last read of the old value is before x is computed, or in the step that computes
  // x, at the place of the write. where_created: the latter step reads the old value.
  Ends ends_before(int x, int carry, const Step& move, int loop) const {
    auto span = timeline.spans()[std::size_t(loop)];
    auto created = liveness[std::size_t(x)].first;
    Ends ends{true, false};
    for (int slot = 0; slot < int(p.slots.size()); ++slot) {
      if (find_root(slot) != find_root(carry)) continue;
      for (auto& a : timeline.accesses(slot)) {
        if (a.at <= span.begin || a.at >= span.end || a.step == &move || a.at < created) continue;
        ends.in_time &= a.at == created && is_elementwise(*a.step, x, find_root(carry));
        ends.where_created |= a.at == created;
      }
    }
    return ends;
  }
  // Returns true if x is computed over the old value, or over another such value with no later
  // reader: h + a, and (h + a) + b. `chain`: the values on the way.
  bool leads_to(int x, int carry, const Step& move, int loop, std::vector<int>& chain) {
    if (!has_own_memory(x) || !may_be_next(x, loop)) return false;
    auto [in_time, where_created] = ends_before(x, carry, move, loop);
    chain.push_back(x);
    if (in_time && where_created) return true;
    int created = liveness_in(x).first;
    auto& f = timeline.step(created).fused;
    auto store = std::find_if(f.code.begin(), f.code.end(),
                              [&](auto& i) { return i.code == Code::store && i.view.slot == x; });
    if (in_time && store != f.code.end() && writes_once(f, x))
      for (auto& load : f.code)
        if (ends_in(f, load, *store, created) && leads_to(load.view.slot, carry, move, loop, chain))
          return true;
    chain.pop_back();
    return false;
  }
  void update_carries() {
    for (auto& [s, loop] : timeline.positions()) {
      if (!s || s->kind != Kind::copy || loop < 0 || !covers(s->copy)) continue;
      int x = s->copy.x.slot, o = s->copy.out.slot;
      std::vector<int> chain;
      if (p.slot(o).home == Home::argument || !may_share_memory(x, o) ||
          !leads_to(x, o, *s, loop, chain))
        continue;
      for (int slot : chain) share(slot, o);
      drop(*s);
    }
  }
  // Returns true if the step reads `over` only at the places where it writes `created`.
  bool is_elementwise(const Step& s, int created, int over) const {
    if (s.kind == Kind::copy) return covers(s.copy) && s.copy.out.slot == created;
    if (s.kind != Kind::fused) return false;
    const Instr* store = nullptr;
    for (auto& i : s.fused.code)
      if (is_store(i.code) && find_root(i.view.slot) == find_root(created)) {
        if (store || i.code != Code::store) return false;
        store = &i;
      }
    return store && std::none_of(s.fused.code.begin(), s.fused.code.end(), [&](auto& i) {
             bool reads = i.code == Code::load && find_root(i.view.slot) == over;
             return counts_by(i.view, over) ||
                    (reads && (!same_place(i.view, store->view) || i.inner != store->inner));
           });
  }

  // ---- arrays that a loop reads and writes stripe by stripe ----
  // They share memory if each iteration reads its stripe before it writes there.
  //
  // The accesses of a loop to all slots of one memory.
  struct Striped {
    Stripes stripes;
    int first_write = kForever, last_read = -1;
  };
  std::vector<std::vector<int>> members = {};  // slots in each memory, by its root
  Trips trips_at(int loop) const {
    Trips trips;
    auto span = timeline.spans()[std::size_t(loop)];
    for (auto& s : timeline.spans())  // enclosing and inner loops
      if (s.is_loop && ((s.begin <= span.begin && s.end >= span.end) ||
                        (s.begin > span.begin && s.end < span.end)))
        trips[timeline.step(s.begin).loop.variable] = timeline.step(s.begin).loop.trips;
    return trips;
  }
  // None: an access is not to a stripe.
  std::optional<Striped> striped(int memory, int loop, const Trips& trips) const {
    auto span = timeline.spans()[std::size_t(loop)];
    const int variable = timeline.step(span.begin).loop.variable;
    Striped out;
    for (int slot : members[std::size_t(memory)]) {
      for (auto& a : timeline.accesses(slot)) {
        if (a.at <= span.begin || a.at >= span.end) continue;
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
    if (s.kind != Kind::copy) return is_elementwise(s, created, over);
    return find_root(s.copy.out.slot) == find_root(created) && find_root(s.copy.x.slot) == over &&
           same_place(s.copy.x, s.copy.out);
  }
  bool may_share_stripes(int x, int o, int loop, const Trips& trips) const {
    auto span = timeline.spans()[std::size_t(loop)];
    int rx = find_root(x);
    auto home = p.slot(o).home;
    bool may = rx != o && has_own_memory(o) && home != Home::argument && shareable(rx) &&
               may_share_memory(rx, o) &&
               (home == Home::arena || is_donated(rx) || p.slot(rx).home == Home::arena);
    if (!may || p.slot(rx).bytes != p.slot(o).bytes || liveness[std::size_t(rx)].last > span.end ||
        liveness[std::size_t(o)].first < span.begin ||
        timeline.accesses(o).front().at <= span.begin)
      return false;
    return reads_first(rx, o, loop, trips);
  }
  // Returns true if each iteration has read its stripe of the memory `old` when it computes this
  // stripe of `o`.
  bool reads_first(int old, int o, int loop, const Trips& trips) const {
    auto span = timeline.spans()[std::size_t(loop)];
    auto from = striped(old, loop, trips), to = striped(o, loop, trips);
    if (!from || !to || from->stripes != to->stripes) return false;
    if (from->first_write != kForever || from->last_read > to->first_write) return false;
    auto write = to->first_write;
    // An inner loop would return to the stripe.
    bool inner = std::any_of(timeline.spans().begin(), timeline.spans().end(), [&](auto& s) {
      return s.is_loop && s.begin > span.begin && s.end < span.end && s.begin < write &&
             s.end > write && from->last_read > s.begin;
    });
    return !inner && (from->last_read < write || writes_over(timeline.step(write), o, old));
  }
  void share_memory(int slot, int with) {  // with the members of both
    share(slot, with);
    auto &mine = members[std::size_t(slot)], &its = members[std::size_t(with)];
    its.insert(its.end(), mine.begin(), mine.end());
    mine.clear();
  }
  void share_stripes() {
    members.resize(p.slots.size());
    for (int s = 0; s < int(p.slots.size()); ++s) members[std::size_t(find_root(s))].push_back(s);
    for (int loop = 0; loop < int(timeline.spans().size()); ++loop) {
      auto span = timeline.spans()[std::size_t(loop)];
      if (!span.is_loop) continue;
      auto touched = [&](int slot, bool writes) {
        auto& all = timeline.accesses(slot);
        return std::any_of(all.begin(), all.end(), [&](auto& a) {
          return a.at > span.begin && a.at < span.end && a.writes == writes && a.view &&
                 !a.view->terms.empty();
        });
      };
      std::vector<int> created, read;
      for (int s = 0; s < int(p.slots.size()); ++s) {
        if (has_own_memory(s) && p.slot(s).home != Home::argument && touched(s, true))
          created.push_back(s);
        if (touched(s, false) && shareable(find_root(s)) &&
            liveness_in(find_root(s)).last <= span.end)
          read.push_back(s);
      }
      if (created.empty() || read.empty()) continue;
      auto trips = trips_at(loop);
      for (int o : created) {
        auto x = std::find_if(read.begin(), read.end(),
                              [&](int s) { return may_share_stripes(s, o, loop, trips); });
        if (x == read.end()) continue;
        bool into = p.slot(o).home == Home::arena || is_donated(find_root(*x));
        into ? share_memory(o, find_root(*x)) : share_memory(find_root(*x), o);
      }
    }
  }
  // Handles the next value of a carry that an inner loop computes block by block from the old
  // value, such as a cache that each step of a loop passes to a loop over layers. It is computed in
  // the memory of the carry, if no step reads the old value from the inner loop on.
  bool joins_iterations(const Step& step, int loop) {
    const int x = step.copy.x.slot, old = find_root(step.copy.out.slot);
    bool may = covers(step.copy) && find_root(x) == x && x != old &&
               p.slot(x).home == Home::arena && may_share_memory(x, old) &&
               p.slot(x).bytes == p.slot(old).bytes;
    if (!may) return false;
    auto all = [&](int memory, auto good) {
      auto& slots = members[std::size_t(memory)];
      return std::all_of(slots.begin(), slots.end(), [&](int slot) {
        return std::all_of(timeline.accesses(slot).begin(), timeline.accesses(slot).end(), good);
      });
    };
    auto outer = timeline.spans()[std::size_t(loop)];
    for (int inside = 0; inside < int(timeline.spans().size()); ++inside) {
      auto span = timeline.spans()[std::size_t(inside)];
      if (!span.is_loop || span.begin <= outer.begin || span.end >= outer.end) continue;
      bool created_there = all(x, [&](const Access& a) {
        return a.at > span.begin && a.at < outer.end && (!a.writes || a.at < span.end);
      });
      bool read_before = all(old, [&](const Access& a) {
        return a.at < span.end || a.at > outer.end || a.step == &step;
      });
      if (!created_there || !read_before || !reads_first(old, x, inside, trips_at(inside)))
        continue;
      share_memory(x, old);
      return true;
    }
    return false;
  }

  void share_all() {
    return_donated();
    update_carries();
    for (int at = 1; at <= last(); ++at)
      if (auto& s = timeline.step(at); s.kind == Kind::fused) in_place(s.fused, at);
    for (int at = 1; at <= last(); ++at)
      if (auto [s, loop] = timeline.positions()[std::size_t(at)];
          s->kind == Kind::copy && joins(*s, at, loop))
        drop(*s);
    share_stripes();
    for (auto& [s, loop] : timeline.positions())
      if (s && s->kind == Kind::copy && loop >= 0) joins_iterations(*s, loop);
    // Drops copies of the old value of a carry, which shares memory with the new value.
    for (auto& [s, loop] : timeline.positions())
      if (s && s->kind == Kind::copy && same_place(s->copy.x, s->copy.out) &&
          find_root(s->copy.x.slot) == find_root(s->copy.out.slot))
        drop(*s);
  }

  // Restores the dropped copies for the check: they show when a slot has the value of another slot
  // of its memory.
  void check_shared() {
    for (auto& [at, step] : dropped) std::swap(*at, step);
    verify_shared(p);
    for (auto& [at, step] : dropped) std::swap(*at, step);
  }

  // ---- offsets in the arena ----
  struct ArenaItem {
    std::int64_t bytes;
    Liveness liveness;
    std::int64_t* offset;
    const char* purpose;
  };
  using Items = std::vector<ArenaItem>;
  // Assigns an offset to each item. Returns the total bytes.
  std::int64_t place(Items& items) const {
    if (optional)
      std::stable_sort(items.begin(), items.end(),
                       [](auto& a, auto& b) { return a.bytes > b.bytes; });
    using ByOffset = std::vector<const ArenaItem*>;
    // Number of intervals of the timeline. An item that lives in one interval only compares with
    // the items of this interval.
    constexpr int kParts = 64;
    std::vector<ByOffset> parts(kParts);
    ByOffset all;
    auto part_at = [&](int at) {
      return std::size_t(std::clamp(at, 0, last()) / (last() / kParts + 1));
    };
    auto lower = [](auto* a, auto* b) { return *a->offset < *b->offset; };
    auto insert = [&](ByOffset& to, const ArenaItem& item) {
      to.insert(std::upper_bound(to.begin(), to.end(), &item, lower), &item);
    };
    std::int64_t bytes = 0;
    for (auto& item : items) {
      const auto from = part_at(item.liveness.first), to = part_at(item.liveness.last);
      std::int64_t best = -1, best_gap = 0, end = 0;
      for (auto* o : from == to ? parts[from] : all) {
        if (o->liveness.last < item.liveness.first || o->liveness.first > item.liveness.last)
          continue;
        auto gap = *o->offset - end;
        if (gap >= aligned(item.bytes) && (best < 0 || gap < best_gap)) {
          best = end;
          best_gap = gap;
        }

        end = std::max(end, *o->offset + aligned(o->bytes));
      }
      *item.offset = best < 0 ? end : best;
      bytes = std::max(bytes, *item.offset + aligned(item.bytes));
      insert(all, item);
      for (auto k = from; k <= to; ++k) insert(parts[k], item);
    }
    return bytes;
  }
  Items items() {
    Items out;
    auto add = [&](std::int64_t bytes, Liveness l, std::int64_t& offset, const char* purpose) {
      out.push_back({bytes, optional ? l : Liveness{0, last()}, &offset, purpose});
    };
    for (int s = 0; s < int(p.slots.size()); ++s)
      if (auto& slot = p.slot(s);
          has_own_memory(s) && slot.home == Home::arena && liveness_in(s).last >= 0)
        add(slot.bytes, liveness_in(s), slot.offset, slot.purpose);
    for (int at = 1; at <= last(); ++at)
      if (auto& s = timeline.step(at); s.scratch_bytes > 0)
        add(s.scratch_bytes, {at, at}, s.scratch, "scratch");
    return out;
  }
  // Places values that live within iterations of a loop with parallel slots in one slot, and the
  // slots one after another.
  void place_all() {
    auto all = items();
    std::map<program::Loop*, Items> parallel_slots;
    int done = 0;
    for (auto& span : timeline.spans()) {
      auto& loop = timeline.step(span.begin).loop;
      if (loop.parallel_slots == 0 || span.begin < done) continue;
      done = span.end;
      auto inside = [&](auto& i) {
        return i.liveness.first > span.begin && i.liveness.last < span.end;
      };
      auto& mine = parallel_slots[&loop];
      std::copy_if(all.begin(), all.end(), std::back_inserter(mine), inside);
      std::erase_if(all, inside);
      loop.parallel_slot_bytes = place(mine);
      if (loop.parallel_slot_bytes > 0)
        all.push_back({loop.parallel_slot_bytes * loop.parallel_slots,
                       {span.begin, span.end},
                       &loop.parallel_slot_start,
                       "scratch"});
    }
    p.arena_bytes = place(all);
    for (auto& [loop, mine] : parallel_slots)
      for (auto& i : mine) *i.offset += loop->parallel_slot_start;
    report_peak(all);
  }
  // Reports the live bytes by purpose at the position with the most live bytes. The rest of the
  // arena is gaps.
  void report_peak(const Items& items) {
    std::vector<std::int64_t> grows(timeline.positions().size() + 1);
    for (auto& i : items) {
      grows[std::size_t(i.liveness.first)] += i.bytes;
      grows[std::size_t(std::min(i.liveness.last, last())) + 1] -= i.bytes;
    }

    std::int64_t now = 0, most = 0;
    int at = 0;
    for (int t = 0; t <= last(); ++t)
      if (now += grows[std::size_t(t)]; now > most) {
        most = now;
        at = t;
      }

    std::int64_t gaps = p.arena_bytes;
    for (auto& i : items) {
      if (i.liveness.first > at || i.liveness.last < at) continue;
      auto same = [&](auto& u) { return std::string_view(u.purpose) == i.purpose; };
      auto known = std::find_if(p.at_peak.begin(), p.at_peak.end(), same);
      if (known == p.at_peak.end()) known = p.at_peak.insert(known, {i.purpose});
      known->bytes += i.bytes;
      gaps -= i.bytes;
    }
    if (gaps > 0) p.at_peak.push_back({"gaps", gaps});
  }

  void run() {
    for (int s = 0; s < int(p.slots.size()); ++s) {
      root.push_back(s);
      liveness.push_back(liveness_of(s));
    }

    if (optional) share_all();
    for (int s = 0; s < int(p.slots.size()); ++s)
      if (!has_own_memory(s)) p.slot(s).alias = find_root(s);
    if (verified) check_shared();
    place_all();
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
};

}  // namespace

void plan_memory(Program& p, const std::vector<bool>& donated, bool optional, bool verify) {
  MemoryPlanner{p, donated, optional, verify}.run();
}

}  // namespace haliax
