// Computes the bytes of the arena that are in use while each step of a planned Program runs.
#include <algorithm>

#include "compile/memory/memory.h"
#include "program/timeline.h"

namespace haliax {
namespace {

using program::Home;
using program::Kind;
using program::Program;
using program::Step;

constexpr double kMostSteps = 4096;

double steps_run(const std::vector<Step>& steps) {
  double n = 0;
  program::each_step_run(steps, [&](const Step& s, std::int64_t runs) {
    if (s.kind != Kind::loop) n += double(runs);
  });
  return n;
}

// Returns the bytes in use at each position of the timeline of the Program.
std::vector<std::int64_t> bytes_by_position(const Program& p, const Timeline& timeline) {
  std::vector<std::int64_t> bytes(std::size_t(timeline.last()) + 1);
  std::vector<StepRange> of_memory(p.slots.size(), {timeline.last() + 1, -1});
  for (int s = 0; s < int(p.slots.size()); ++s) {
    if (timeline.accesses(s).empty()) continue;
    auto live = timeline.live(s);
    auto& all = of_memory[std::size_t(p.memory(s))];
    all = {std::min(all.begin, live.begin), std::max(all.end, live.end)};
  }
  for (int s = 0; s < int(p.slots.size()); ++s) {
    if (p.slot(s).home != Home::arena || p.slot(s).alias >= 0) continue;
    auto live = of_memory[std::size_t(s)];
    for (int at = live.begin; at <= live.end; ++at) bytes[std::size_t(at)] += p.slot(s).bytes;
  }
  for (int at = 1; at <= timeline.last(); ++at)
    if (!timeline.ends_loop(at)) bytes[std::size_t(at)] += timeline.step(at).scratch_bytes;
  return bytes;
}

// Appends the bytes of each step in execution order, with all iterations of a loop or one. `at`:
// the position before the first step, and afterwards the position of the last one.
void in_order(const std::vector<Step>& steps, const std::vector<std::int64_t>& bytes,
              bool all_iterations, int& at, std::vector<std::int64_t>& out) {
  for (auto& s : steps) {
    const int begin = ++at;
    if (s.kind != Kind::loop) {
      out.push_back(bytes[std::size_t(begin)]);
      in_order(s.body, bytes, all_iterations, at, out);
      continue;
    }
    const auto iterations = all_iterations ? std::max<std::int64_t>(s.loop.trips, 1) : 1;
    for (std::int64_t k = 0; k < iterations; ++k) {
      at = begin;
      in_order(s.body, bytes, all_iterations, at, out);
    }
    ++at;
  }
}

}  // namespace

std::vector<std::int64_t> arena_in_use(const Program& p) {
  auto bytes = bytes_by_position(p, Timeline(p));
  std::vector<std::int64_t> out;
  int at = 0;
  in_order(p.steps, bytes, steps_run(p.steps) <= kMostSteps, at, out);
  return out;
}

}  // namespace haliax
