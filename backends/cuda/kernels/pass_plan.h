// The plan of a fused step with reductions: the threads of a row, its passes, and the values that
// stay in registers or in shared memory from pass to pass.
#pragma once
#include "fused_points.h"

namespace haliax::cuda {

inline constexpr int kTerms = 8;  // terms of a thread's partial sum, before it is added to the sum
inline constexpr int kFoldBytes = 16;  // bytes of shared memory of a reduction per warp
// with this many rows, one thread per row occupies the GPU
inline constexpr std::int64_t kManyRows = 8192;

struct PassPlan {
  int chunk_size = 1;                 // elements per chunk
  int group = 1, chunks_at_once = 1;  // threads per row; chunks loaded together
  bool in_registers = false;          // a row is loaded at once, and some values stay in registers
  Marks saved = {};                   // values that stay in registers or in shared memory
  std::vector<Marks> passes = {};
  std::int64_t shared_bytes = 0;  // bytes of shared memory, if rows are stored there
  std::vector<std::int64_t> shared_offsets = {};  // by load
};
// shared_limit: bytes of shared memory that a block may use.
PassPlan plan_rows(const FusedFacts&, std::int64_t shared_limit);
// Returns true for reductions along adjacent lines, a few lines per thread.
bool are_columns(const FusedFacts&);
PassPlan plan_columns(const FusedFacts&);

// The split of the inner elements for the first of two passes: `count` parts of `length` elements.
struct RowSplit {
  std::int64_t count = 1, length = 0;
};
std::optional<RowSplit> row_split_of(const FusedFacts&);  // nullopt: one pass is faster

}  // namespace haliax::cuda
