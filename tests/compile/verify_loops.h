// A small loop whose parts tests of the verifier damage.
#pragma once
#include "graph/loop.h"
#include "ops/prim.h"

namespace haliax::verify_loops {

inline const Axis A{"a", 4}, B{"b", 3};
// Returns the result of a loop over a with one body and one result.
inline NodePtr loop_of_one(LoopResult r, const NodePtr& index) {
  Loop l;
  l.axis = A;
  l.index = {index};
  l.drop = true;
  l.results = {std::move(r)};
  return loop_result(make_loop(std::move(l)), 0);
}
inline const NodePtr& loop_index() {
  static const NodePtr index = prim::index(A, 0, 1, 0);
  return index;
}

}  // namespace haliax::verify_loops
