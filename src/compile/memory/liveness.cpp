// What of the arena is in use while each step of a planned Program runs.
#include <algorithm>

#include "compile/memory/memory.h"
#include "program/views.h"

namespace haliax {
namespace {

using program::Home;
using program::Kind;
using program::Program;
using program::Step;

constexpr double kMostSteps = 4096;

double steps_run(const std::vector<Step>& steps) {
  double n = 0;
  for (auto& s : steps)
    n += s.kind == Kind::loop ? double(s.loop.trips) * steps_run(s.loop.body) : 1;
  return n;
}

struct ArenaUse {
  const Program& p;
  int steps = 0;                      // loops are steps, too, before their bodies
  std::vector<StepRange> spans = {};  // of loops: numbers of the steps in them
  Accesses access = {};
  std::vector<std::int64_t> bytes = {};  // by step

  void number(const std::vector<Step>& all) {
    for (auto& s : all) {
      const int at = steps++;
      note(access, s, at);
      if (s.kind != Kind::loop) continue;
      number(s.loop.body);
      spans.push_back({at + 1, steps});
    }
  }
  // From the first step that touches it to the last; of a loop that is not alone in touching it,
  // all turns.
  StepRange liveness(const std::vector<Access>& all) const {
    StepRange l{all.front().at, all.back().at + 1};
    for (auto& s : spans) {
      auto inside = std::count_if(all.begin(), all.end(),
                                  [&](auto& a) { return a.at >= s.begin && a.at < s.end; });
      if (inside > 0 && std::size_t(inside) < all.size())
        l = {std::min(l.begin, s.begin), std::max(l.end, s.end)};
    }
    return l;
  }
  void add(std::int64_t size, StepRange l) {
    for (int at = l.begin; at < l.end; ++at) bytes[std::size_t(at)] += size;
  }
  void add_scratch(const std::vector<Step>& all, int& at) {
    for (auto& s : all) {
      bytes[std::size_t(at++)] += s.scratch_bytes;
      add_scratch(s.loop.body, at);
    }
  }
  void walk(const std::vector<Step>& all, bool all_turns, int& at,
            std::vector<std::int64_t>& out) const {
    for (auto& s : all) {
      const int begin = ++at;
      if (s.kind != Kind::loop) out.push_back(bytes[std::size_t(begin - 1)]);
      const auto turns = s.kind != Kind::loop ? 0
                         : all_turns          ? std::max<std::int64_t>(s.loop.trips, 1)
                                              : 1;
      for (std::int64_t turn = 0; turn < turns; ++turn) {
        at = begin;
        walk(s.loop.body, all_turns, at, out);
      }
    }
  }
  std::vector<std::int64_t> run() {
    access.resize(p.slots.size());
    number(p.steps);
    bytes.resize(std::size_t(steps));
    std::vector<StepRange> of_memory(p.slots.size(), {steps, 0});
    for (int s = 0; s < int(p.slots.size()); ++s) {
      if (access[std::size_t(s)].empty()) continue;
      auto l = liveness(access[std::size_t(s)]);
      auto& all = of_memory[std::size_t(p.memory(s))];
      all = {std::min(all.begin, l.begin), std::max(all.end, l.end)};
    }
    for (int s = 0; s < int(p.slots.size()); ++s)
      if (p.slot(s).home == Home::arena && p.slot(s).alias < 0)
        add(p.slot(s).bytes, of_memory[std::size_t(s)]);
    int at = 0;
    add_scratch(p.steps, at);
    std::vector<std::int64_t> out;
    at = 0;
    walk(p.steps, steps_run(p.steps) <= kMostSteps, at, out);
    return out;
  }
};

}  // namespace

std::vector<std::int64_t> arena_in_use(const Program& p) { return ArenaUse{p}.run(); }

std::int64_t argument_bytes(const Program& p) {
  std::int64_t n = 0;
  for (int s : p.argument_slots) n += p.slot(s).bytes;
  return n;
}

}  // namespace haliax
