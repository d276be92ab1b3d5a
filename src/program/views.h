// The memory that a step reads and writes. Planning, sharing, reports and checks all use this one
// list by kind.
#pragma once
#include "program/program.h"

namespace haliax {

// Returns the usual name of a collective.
inline const char* name_of(program::CollectiveKind w) {
  const char* const names[] = {"all-reduce", "reduce-scatter", "all-gather", "exchange"};
  return names[int(w)];
}

// Returns the location of a step, as the end of an error message.
inline std::string location_suffix(const program::Step& s) {
  return s.where.empty() ? "" : "; " + s.where;
}

// Returns true if a step of this kind accesses only the elements that its views reach. Other kinds
// access entire slots, wait for other accesses, or run code that is unknown here.
inline bool touches_only_views(program::Kind k) {
  using program::Kind;
  switch (k) {
    case Kind::fused:
    case Kind::contract:
    case Kind::gather:
    case Kind::scatter:
    case Kind::sort:
    case Kind::cumulative:
    case Kind::copy:
    case Kind::conditional:
    case Kind::loop:
      return true;
    case Kind::custom:
    case Kind::collective:
    case Kind::finish:
    case Kind::host:
      break;
  }
  return false;
}
// Calls f(view, writes) for each view of a step (const or not), reads first. The views of a fused
// step are in the order of its code. A view that a step adds to is passed twice: as read, then as
// written. The steps in the body of a loop or a conditional are not included.
template <class S, class F> void each_view(S& s, F f) {
  using program::Code;
  using program::Kind;
  auto ids = [&](auto& indexed) {
    for (auto& i : indexed) f(i.ids, false);
  };
  switch (s.kind) {
    case Kind::fused:
      for (auto& i : s.fused.code) {
        const bool writes = is_store(i.code), combines = writes && i.code != Code::store;
        if (i.code == Code::load || i.code == Code::iota || combines) f(i.view, false);
        if (writes) f(i.view, true);
      }
      break;
    case Kind::contract:
      f(s.contract.a, false);
      f(s.contract.b, false);
      if (s.contract.block_mask.flags.slot >= 0) f(s.contract.block_mask.flags, false);
      if (s.contract.accumulate) f(s.contract.out, false);
      f(s.contract.out, true);
      break;
    case Kind::gather:
      ids(s.gather.indexed);
      f(s.gather.table, false);
      f(s.gather.out, true);
      break;
    case Kind::scatter:
      ids(s.scatter.indexed);
      f(s.scatter.updates, false);
      f(s.scatter.target, false);
      f(s.scatter.target, true);
      break;
    case Kind::sort:
      f(s.sort.x, false);
      f(s.sort.out, true);
      f(s.sort.indices, true);
      break;
    case Kind::cumulative:
      f(s.cumulative.x, false);
      f(s.cumulative.out, true);
      break;
    case Kind::copy:
      f(s.copy.x, false);
      f(s.copy.out, true);
      break;
    case Kind::custom:
      for (auto& x : s.custom.arrays) f(x, &x == &s.custom.arrays.back());
      break;
    case Kind::conditional:
      f(s.conditional.flag, false);
      break;
    case Kind::collective:
      for (auto& o : s.collective.x) f(o.view, false);
      for (auto& o : s.collective.out) f(o.view, true);
      break;
    case Kind::finish:  // the start of the collective counts as the write
      for (auto* views : {&s.finish.x, &s.finish.out})
        for (auto& v : *views) f(v, false);
      break;
    case Kind::host:
      for (auto& o : s.host.arrays) f(o.view, false);
      break;
    case Kind::loop:
      break;
  }
}
// Calls f(slot, writes, view) in the same order. A slot that a term reads has a null view.
template <class F> void each_access(const program::Step& s, F f) {
  each_view(s, [&](const program::View& v, bool writes) {
    for (auto& t : v.terms)
      if (t.slot >= 0) f(t.slot, false, nullptr);
    if (v.slot >= 0) f(v.slot, writes, &v);
  });
}
// Calls f(step) for all steps, in order; the body of a step follows the step.
template <class Steps, class F> void each_step(Steps& steps, const F& f) {
  for (auto& s : steps) {
    f(s);
    each_step(s.body, f);
  }
}

// An access to a slot. `at` is the position of the step. `view` is null if a term of another view
// reads the slot.
struct Access {
  int at;
  const program::Step* step;
  bool writes;
  const program::View* view;
};
using Accesses = std::vector<std::vector<Access>>;  // by slot, each in order
// A range of positions: those of a loop, or of the live range of a slot.
struct StepRange {
  int begin, end;
};
// Adds the accesses of a step at position `at`.
inline void note(Accesses& all, const program::Step& s, int at) {
  each_access(s, [&](int slot, bool writes, const program::View* v) {
    all[std::size_t(slot)].push_back({at, &s, writes, v});
  });
}

}  // namespace haliax
