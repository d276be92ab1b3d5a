// The memory that a step reads and writes: the one list by kind that planning, sharing, reports and
// checks go by. And what people call a collective.
#pragma once
#include "program/program.h"

namespace haliax {

inline const char* name_of(program::CollectiveKind w) {
  const char* const names[] = {"all-reduce", "reduce-scatter", "all-gather", "exchange"};
  return names[int(w)];
}

// behind a message
inline std::string location_suffix(const program::Step& s) {
  return s.where.empty() ? "" : "; " + s.where;
}

// Does a step of that kind touch just the elements that its views reach? Others reach whole slots,
// wait for what others touch, or run code that is not seen here.
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
    case Kind::skip:
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
// f(view, writes) of each view of the step, what it reads first (a fused step: in the order of its
// code). A view that is added to comes twice: as read, then as written. Of a loop nothing: its body
// holds steps of its own. A Step, const or not.
template <class S, class F> void each_view(S& s, F f) {
  using program::Code;
  using program::Kind;
  auto ids = [&](auto& indexed) {
    for (auto& i : indexed) f(i.ids, false);
  };
  switch (s.kind) {
    case Kind::fused:
      for (auto& i : s.fused.code) {
        if (i.code == Code::load || i.code == Code::iota || i.code > Code::store) f(i.view, false);
        if (i.code >= Code::store) f(i.view, true);
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
    case Kind::skip:
      f(s.skip.unless, false);
      break;
    case Kind::collective:
      for (auto& o : s.collective.x) f(o.view, false);
      for (auto& o : s.collective.out) f(o.view, true);
      break;
    case Kind::finish:  // what it waits for was written where it was started
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
// f(slot, writes, view) in the same order; of a slot that a term reads there is no view.
template <class F> void each_access(const program::Step& s, F f) {
  each_view(s, [&](const program::View& v, bool writes) {
    for (auto& t : v.terms)
      if (t.slot >= 0) f(t.slot, false, nullptr);
    if (v.slot >= 0) f(v.slot, writes, &v);
  });
}
// f(step) of all steps, those of loops behind the loop.
template <class Steps, class F> void each_step(Steps& steps, const F& f) {
  for (auto& s : steps) {
    f(s);
    each_step(s.loop.body, f);
  }
}

// An access to a slot, `at` a step by its number. view: none where a term of another view reads it.
struct Access {
  int at;
  const program::Step* step;
  bool writes;
  const program::View* view;
};
using Accesses = std::vector<std::vector<Access>>;  // by slot, in order
// Steps by their numbers: those of a loop, or of the liveness of a slot.
struct StepRange {
  int begin, end;
};
inline void note(Accesses& all, const program::Step& s, int at) {
  each_access(s, [&](int slot, bool writes, const program::View* v) {
    all[std::size_t(slot)].push_back({at, &s, writes, v});
  });
}

}  // namespace haliax
