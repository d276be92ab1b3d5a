// Assigns offsets in the arena: values with disjoint live ranges share bytes.
#include <algorithm>
#include <map>
#include <string_view>

#include "compile/memory/shared_slots.h"

namespace haliax {
namespace {

using program::Home;
using program::aligned;

class ArenaPlacement {
 public:
  ArenaPlacement(SharedSlots& s, bool share_memory) : s_(s), share_memory_(share_memory) {}
  // Places all items. Items that live within an iteration of a loop with parallel slots are placed
  // first, relative to the start of a parallel slot. All parallel slots of the loop are then one
  // item of the arena, which lives as long as the loop; its offset is added to theirs. For example,
  // given 4 parallel slots, iterations with values of 64 and 128 bytes that are live together are
  // one item of 768 bytes.
  void run() {
    auto all = items();
    std::map<program::Loop*, Items> parallel_slots;
    int done = 0;
    for (auto& span : s_.timeline.spans()) {
      auto& loop = s_.timeline.step(span.begin).loop;
      // an inner loop uses the parallel slots of the outer one
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
    s_.p.arena_bytes = place(all);
    for (auto& [loop, mine] : parallel_slots)
      for (auto& i : mine) *i.offset += loop->parallel_slot_start;
    report_peak(all);
  }

 private:
  struct ArenaItem {
    std::int64_t bytes;
    SharedSlots::Liveness liveness;
    std::int64_t* offset;
    const char* purpose;
  };
  using Items = std::vector<ArenaItem>;
  // Assigns an offset to each item. Returns the total bytes.
  std::int64_t place(Items& items) const {
    if (share_memory_)
      std::stable_sort(items.begin(), items.end(),
                       [](auto& a, auto& b) { return a.bytes > b.bytes; });
    using Sorted = std::vector<const ArenaItem*>;
    // Number of intervals of the timeline. An item that lives in one interval only compares with
    // the items of this interval.
    constexpr int kParts = 64;
    std::vector<Sorted> parts(kParts);
    Sorted all;
    auto part_at = [&](int at) {
      return std::size_t(std::clamp(at, 0, s_.last()) / (s_.last() / kParts + 1));
    };
    auto by_offset = [](auto* a, auto* b) { return *a->offset < *b->offset; };
    auto insert = [&](Sorted& to, const ArenaItem& item) {
      to.insert(std::upper_bound(to.begin(), to.end(), &item, by_offset), &item);
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
    auto add = [&](std::int64_t bytes, SharedSlots::Liveness l, std::int64_t& offset,
                   const char* purpose) {
      out.push_back(
          {bytes, share_memory_ ? l : SharedSlots::Liveness{0, s_.last()}, &offset, purpose});
    };
    for (int s = 0; s < int(s_.p.slots.size()); ++s)
      if (auto& slot = s_.p.slot(s);
          s_.is_root(s) && slot.home == Home::arena && s_.liveness(s).last >= 0)
        add(slot.bytes, s_.liveness(s), slot.offset, slot.purpose);
    for (int at = 1; at <= s_.last(); ++at)
      if (auto& s = s_.timeline.step(at); s.scratch_bytes > 0)
        add(s.scratch_bytes, {at, at}, s.scratch, "scratch");
    return out;
  }
  // Reports the live bytes by purpose at the position with the most live bytes. The rest of the
  // arena is gaps.
  void report_peak(const Items& items) {
    std::vector<std::int64_t> grows(s_.timeline.positions().size() + 1);
    for (auto& i : items) {
      grows[std::size_t(i.liveness.first)] += i.bytes;
      grows[std::size_t(std::min(i.liveness.last, s_.last())) + 1] -= i.bytes;
    }
    std::int64_t now = 0, most = 0;
    int at = 0;
    for (int t = 0; t <= s_.last(); ++t)
      if (now += grows[std::size_t(t)]; now > most) {
        most = now;
        at = t;
      }
    std::int64_t gaps = s_.p.arena_bytes;
    for (auto& i : items) {
      if (i.liveness.first > at || i.liveness.last < at) continue;
      auto same = [&](auto& u) { return std::string_view(u.purpose) == i.purpose; };
      auto known = std::find_if(s_.p.at_peak.begin(), s_.p.at_peak.end(), same);
      if (known == s_.p.at_peak.end()) known = s_.p.at_peak.insert(known, {i.purpose});
      known->bytes += i.bytes;
      gaps -= i.bytes;
    }
    if (gaps > 0) s_.p.at_peak.push_back({"gaps", gaps});
  }

  SharedSlots& s_;
  const bool share_memory_;
};

}  // namespace

void place_slots(SharedSlots& s, bool share_memory) { ArenaPlacement(s, share_memory).run(); }

}  // namespace haliax
