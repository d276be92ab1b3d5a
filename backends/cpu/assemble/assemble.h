// Plan: compiles consecutive elementwise ops of a tape into one function of machine code when a
// step is compiled. Intermediates stay in vector registers, where separate ops would read and write
// a tile. Requires AVX2 or AVX-512; on other machines the ops stay separate.
//
// In: tapes from the planner. Out: tapes in which such ops are one op of kind `assembled`. Always:
// the bits of an element do not depend on its position in a tile.
#pragma once
#include "backends/cpu/fused/fused.h"

namespace haliax::cpu {

constexpr int most_arrays = 12, most_scalars = 24, most_ops = 48;
struct AssembledCall {
  std::int64_t points = 0;             // number of elements that fill whole registers
  std::int64_t rest = 0;               // bit mask of the remaining elements
  const void* prefetch = nullptr;      // memory to prefetch, as many bytes as one f32 array
  void* array[most_arrays];            // arrays with one value per element: inputs, then outputs
  std::uint32_t scalar[most_scalars];  // all other inputs
};
bool can_assemble();
bool can_assemble_as_stored();  // reads and writes bf16 and bools directly in memory
bool can_assemble(const MapOp&);
std::string key_of(const MapCode&);  // equal for equal code
// Returns null if the registers do not suffice. The code is cached: equal MapCodes share one
// function.
AssembledCode assembled(const MapCode&);

void assemble(FusedPlan&);
// Lets assembled ops read and write arrays of bf16 and of bools directly in memory, if no other op
// reads or writes these arrays, and use non-temporal stores. Runs after store_in_place.
void assemble_variants(FusedPlan&);

}  // namespace haliax::cpu
