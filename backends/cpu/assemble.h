// Point-wise ops of a tape that follow each other, as machine code made when a step is compiled:
// what lies between them stays in registers, where each op by itself would read and write a tile.
// For machines with AVX2 or AVX-512; elsewhere ops stay as they are.
//
// In: tapes as the planner leaves them. Out: tapes in which such ops are one, of kind `assembled`.
// Always: the bits of an element do not depend on where it lies in a tile.
#pragma once
#include "fused.h"

namespace haliax::cpu {

constexpr int most_arrays = 12, most_scalars = 24, most_ops = 48;
struct AssembledCall {
  std::int64_t points = 0;             // those that fill whole registers
  std::int64_t rest = 0;               // a bit for each point after them
  const void* prefetch = nullptr;      // fetched as it goes, as many bytes as an array of f32 has
  void* array[most_arrays];            // inputs with a value for each point, then outputs
  std::uint32_t scalar[most_scalars];  // the other inputs
};
bool can_assemble();
bool can_assemble_bf16();  // what reads and writes bf16 where it lies
bool can_assemble(const PointOp&);
// Null where registers do not suffice. The code is kept: equal ones are made once.
AssembledCode assembled(const PointCode&);

void assemble(FusedPlan&);
// Arrays of bf16 that assembled ops alone read, or make, are read and written by them where they
// lie. After stores are in place.
void assemble_bf16(FusedPlan&);

}  // namespace haliax::cpu
