// The steps of a Program in order: positions, accesses to each slot, and live ranges.
//
// In: a Program. Out: a position for each step, the bodies of loops and conditionals by their
// positions, the accesses to each slot in order, and live ranges. Always: a loop has two positions,
// one before its body and one after it, so that a value that is live throughout the loop ends at no
// step of the body. A conditional has one position, before its body.
#pragma once
#include <algorithm>

#include "program/views.h"

namespace haliax {

// The body of a loop or a conditional.
struct BodySpan {
  int begin, end;  // position of the step; first position after the body
  bool is_loop;
};

// StepType is Step or const Step.
template <class StepType> class TimelineOf {
 public:
  struct StepPosition {
    StepType* step = nullptr;
    int span = -1;  // innermost body around, as an index of spans(); -1: none
  };

  // With `by_memory`, an access counts for the slot that owns the memory (Slot::alias).
  template <class ProgramType>
  explicit TimelineOf(ProgramType& p, bool by_memory = false) : accesses_(p.slots.size()) {
    std::vector<int> memory(p.slots.size());
    for (int k = 0; k < int(memory.size()); ++k)
      memory[std::size_t(k)] = by_memory ? p.memory(k) : k;
    number(p.steps, -1, memory);
  }

  // Positions run from 1 to last(); 0 is before all steps.
  int last() const { return int(positions_.size()) - 1; }
  const std::vector<StepPosition>& positions() const { return positions_; }
  StepType& step(int at) const { return *positions_[std::size_t(at)].step; }
  const std::vector<BodySpan>& spans() const { return spans_; }
  // Returns true if `at` is the position after a loop.
  bool ends_loop(int at) const { return ends_[std::size_t(at)]; }
  // Returns the position of the outermost loop around, or -1.
  int outermost_loop(int at) const {
    int outermost = -1;
    for (int span = positions_[std::size_t(at)].span; span >= 0;) {
      auto& around = spans_[std::size_t(span)];
      if (around.is_loop) outermost = around.begin;
      span = positions_[std::size_t(around.begin)].span;
    }
    return outermost;
  }
  const std::vector<Access>& accesses(int slot) const { return accesses_[std::size_t(slot)]; }

  // Returns the first and the last position, both included, at which an access needs the memory;
  // {0, -1} without accesses. Memory that a loop shares with steps outside of it is live during all
  // iterations. With `always`, memory is live during all iterations of every loop that accesses it.
  StepRange live(const std::vector<Access>& all, bool always = false) const {
    if (all.empty()) return {0, -1};
    StepRange live{all.front().at, all.back().at};
    for (auto& s : spans_) {
      if (!s.is_loop) continue;
      auto inside = std::count_if(all.begin(), all.end(),
                                  [&](auto& a) { return a.at > s.begin && a.at < s.end; });
      if (inside == 0 || (!always && std::size_t(inside) == all.size())) continue;
      live.begin = std::min(live.begin, s.begin);
      live.end = std::max(live.end, s.end);
    }
    return live;
  }
  StepRange live(int slot, bool always = false) const { return live(accesses(slot), always); }

 private:
  template <class Steps> void number(Steps& steps, int around, const std::vector<int>& memory) {
    for (auto& s : steps) {
      add(s, around, false);
      each_access(s, [&](int slot, bool writes, const program::View* v) {
        accesses_[std::size_t(memory[std::size_t(slot)])].push_back({last(), &s, writes, v});
      });
      const bool is_loop = s.kind == program::Kind::loop;
      if (!is_loop && s.kind != program::Kind::conditional) continue;
      const auto mine = spans_.size();
      spans_.push_back({last(), 0, is_loop});
      number(s.body, int(mine), memory);
      spans_[mine].end = last() + 1;
      if (is_loop) add(s, around, true);
    }
  }
  void add(StepType& s, int around, bool ends_loop) {
    positions_.push_back({&s, around});
    ends_.push_back(ends_loop);
  }

  std::vector<StepPosition> positions_ = {{}};
  std::vector<bool> ends_ = {false};
  std::vector<BodySpan> spans_;
  Accesses accesses_;  // by slot
};
using Timeline = TimelineOf<const program::Step>;
using MutableTimeline = TimelineOf<program::Step>;

}  // namespace haliax
