// Point-wise ops of a tape that follow each other, as machine code made when a step is compiled: what lies between them stays in
// registers, where each op by itself would read and write a tile. For machines with AVX-512; elsewhere ops stay as they are.
//
// In: tapes as the planner leaves them. Out: tapes in which such ops are one, of kind `assembled`. Always: the bits of an element
// do not depend on where it lies in a tile.
#pragma once
#include "fused.h"

namespace haliax::cpu {

// What is made at a point. Values are numbered: the inputs come first, then the result of each op.
struct PointCode {
  struct Op {
    PointOp does;
    int args[4] = {-1, -1, -1, -1};
  };
  std::vector<bool> is_array;                // of each input: a value for each point, or one for all
  std::vector<Op> ops;
  std::vector<int> outputs;                  // each once
};
constexpr int most_arrays = 12, most_scalars = 24;
struct AssembledCall {
  std::int64_t bytes = 0;                    // of the points that fill whole registers
  std::int64_t rest = 0;                     // a bit for each point after them
  const void* soon = nullptr;                // fetched as it goes, as many bytes as an array has
  void* array[most_arrays];                  // inputs with a value for each point, then outputs
  std::uint32_t scalar[most_scalars];        // the other inputs
};
bool can_assemble();
bool can_assemble(const PointOp&);
// Null where registers do not suffice. The code is kept: equal ones are made once.
AssembledCode assembled(const PointCode&);

void assemble(FusedPlan&);

}  // namespace haliax::cpu
