// The memory that a step reads and writes.
#pragma once
#include "program/program.h"

namespace haliax {

// f(view, writes) of each view of the step; of a loop nothing: its body holds steps of its own.
template <class S, class F> void each_view(S& s, F f) {   // a Step, const or not
  using program::Code;
  switch (s.kind) {
    case program::Kind::fused:
      for (auto& i : s.fused.code) {
        if (i.code == Code::load || i.code == Code::iota) f(i.view, false);
        if (i.code >= Code::store) f(i.view, true);
      }
      break;
    case program::Kind::contract: f(s.contract.a, false), f(s.contract.b, false), f(s.contract.out, true); break;
    case program::Kind::gather:
      f(s.gather.table, false), f(s.gather.out, true);
      for (auto& i : s.gather.indexed) f(i.ids, false);
      break;
    case program::Kind::scatter:
      f(s.scatter.updates, false), f(s.scatter.target, true);
      for (auto& i : s.scatter.indexed) f(i.ids, false);
      break;
    case program::Kind::sort: f(s.sort.x, false), f(s.sort.out, true), f(s.sort.indices, true); break;
    case program::Kind::cumulative: f(s.cumulative.x, false), f(s.cumulative.out, true); break;
    case program::Kind::copy: f(s.copy.x, false), f(s.copy.out, true); break;
    case program::Kind::custom:
      for (auto& x : s.custom.arrays) f(x, &x == &s.custom.arrays.back());
      break;
    case program::Kind::skip: f(s.skip.unless, false); break;
    case program::Kind::collective:
      for (auto& o : s.collective.x) f(o.view, false);
      for (auto& o : s.collective.out) f(o.view, true);
      break;
    case program::Kind::loop: break;
  }
}

}  // namespace haliax
