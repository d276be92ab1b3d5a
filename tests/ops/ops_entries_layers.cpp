// Entries of primitives that only passes create.
#include "ops/first_positions.h"
#include "ops_entries.h"

namespace ops_test {

Entries layer_entries() {
  return {
      {"prim first positions",
       {"b2n9"},
       [](In x) { return NamedArray(prim::first_positions(x[0].node(), "n", 3)); },
       "b2n3",
       DType::i32},
  };
}

}  // namespace ops_test
