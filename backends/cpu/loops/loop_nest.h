// Plan: a small step of a loop body as counted loops around vector registers, for loop_code.h.
#pragma once
#include <optional>
#include <vector>

#include "backends/cpu/kernels.h"
#include "backends/cpu/step.h"
#include "program/fused.h"

namespace haliax::cpu {

// The memory of a load or a store, or the values of an iota.
struct NestAccess {
  program::View view;  // iota: only the terms
  Dims strides = {};   // along the dims of the nest, in elements; iota: in values
  bool iota = false;
  std::int64_t start = 0;  // iota: the value at the origin
  // true for a load of elements that the nest stores, since all loads come before all stores
  bool overwritten = false;
};

// The dims are outer dims, then inner dims, over which reductions run. The positions along dim
// `vector` are the lanes of a register; all other dims are counted loops.
struct Nest {
  Dims dims;
  int outer = 0;
  int vector = -1;                   // -1: a single position
  std::vector<program::Instr> code;  // in the order of the step; the needed ones
  std::vector<int> level;            // per instruction: reductions that precede it
  std::vector<int> access;           // per instruction: index in `accesses`, or -1
  std::vector<NestAccess> accesses;
  bool reduces(int dim) const { return dim >= outer; }
  // Returns the stride of an access along the dim of the lanes.
  std::int64_t lane_stride(int access) const;
};

// Returns the nest of a fused step or a copy, or nothing if NestCode has no code for it: for dtypes
// other than f32, i32, u32, bf16 and bool in registers, for large steps, and for views that
// overlap. `any_stride`: lanes may be far apart in memory.
std::optional<Nest> nest_of(const program::Step&, const Context&, bool any_stride);

// Returns the kernel that computes an instruction on the elements of a register, or null: the
// assembler has code for it, or there is none.
Kernel kernel_of(const std::vector<program::Instr>&, const program::Instr&);

// A small matmul: out (batch, m, n) = a (batch, m, k) x b (batch, k, n). The lanes are positions
// along n or k. If they are along n, `row` is a dim of m: several rows share registers
// of b.
struct MatmulNest {
  Dims dims;  // outer dims: all but k; then the k dims
  int outer = 0, vector = 0, row = -1;
  NestAccess a, b, out;  // a has stride 0 along a vector dim of n
  bool accumulate = false;
  bool is_exact = true;  // terms are added in f64; false: short groups of them in f32
  // Returns true if each element of the result is a sum over the lanes of a register.
  bool sums_lanes() const { return vector >= outer; }
};
std::optional<MatmulNest> matmul_nest_of(const program::Contract&);

}  // namespace haliax::cpu
