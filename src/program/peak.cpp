// The peak of a planned Program, explained slot by slot.
#include "program/peak.h"

namespace haliax {
namespace {

using program::Home;
using program::Program;
using program::Step;

std::string described(const Step& s) {
  return s.where.empty() ? std::string(s.op) : std::string(s.op) + " (" + s.where + ")";
}
// Returns the number of copies of a slot that is live only at these positions: one per parallel
// slot of the enclosing loop.
std::int64_t copies(const Timeline& timeline, StepRange live) {
  for (auto& span : timeline.spans()) {
    const auto& loop = timeline.step(span.begin).loop;
    if (loop.parallel_slots > 0 && live.begin > span.begin && live.end < span.end)
      return loop.parallel_slots;
  }
  return 1;
}

}  // namespace

std::vector<LiveSlot> live_slots(const Program& p, const Timeline& timeline) {
  std::vector<LiveSlot> all(p.slots.size());
  for (int k = 0; k < int(p.slots.size()); ++k) {
    const auto& uses = timeline.accesses(k);
    if (uses.empty()) continue;
    const int memory = p.memory(k);
    auto& live = all[std::size_t(memory)];
    const bool first = live.slot < 0;
    const auto range = timeline.live(k);
    live.slot = memory;
    live.bytes = p.slot(memory).bytes;
    live.purpose = p.slot(memory).purpose;
    if (first || range.begin < live.live.begin) {
      live.live.begin = range.begin;
      const auto write = std::find_if(uses.begin(), uses.end(), [](auto& a) { return a.writes; });
      if (write != uses.end()) live.first_write = described(*write->step);
    }
    if (first || range.end > live.live.end) {
      live.live.end = range.end;
      live.last_use = described(*uses.back().step);
    }
  }
  std::erase_if(all, [&](auto& s) { return s.slot < 0 || p.slot(s.slot).home != Home::arena; });
  for (auto& s : all) s.bytes *= copies(timeline, s.live);
  return all;
}

Peak peak_of(const Program& p) {
  const Timeline timeline(p);
  const auto slots = live_slots(p, timeline);
  std::vector<std::int64_t> bytes(std::size_t(timeline.last()) + 1);
  for (auto& s : slots)
    for (int at = s.live.begin; at <= s.live.end; ++at) bytes[std::size_t(at)] += s.bytes;
  auto scratch = [&](int at) {
    if (timeline.ends_loop(at)) return std::int64_t(0);
    return timeline.step(at).scratch_bytes * copies(timeline, {at, at});
  };
  for (int at = 1; at <= timeline.last(); ++at) bytes[std::size_t(at)] += scratch(at);
  Peak peak;
  peak.position = int(std::max_element(bytes.begin(), bytes.end()) - bytes.begin());
  peak.bytes = bytes[std::size_t(peak.position)];
  if (peak.position == 0) return peak;
  const auto& step = timeline.step(peak.position);
  peak.step = described(step);
  for (auto& s : slots)
    if (s.live.begin <= peak.position && s.live.end >= peak.position) peak.slots.push_back(s);
  if (auto n = scratch(peak.position); n > 0)
    peak.slots.push_back(
        {-1, n, "scratch", {peak.position, peak.position}, described(step), described(step)});
  std::stable_sort(peak.slots.begin(), peak.slots.end(),
                   [](auto& a, auto& b) { return a.bytes > b.bytes; });
  return peak;
}

}  // namespace haliax
