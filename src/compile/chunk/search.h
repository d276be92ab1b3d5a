// Chooses the tile sizes of a call of chunked_reduce by its planned bytes, which are exact, and by
// an estimate of time. For each candidate, the search compiles the regions of the call alone with
// the passes that follow.
//
// Always  the choice depends only on the graph, the call and the kind of device. It is the same in
//         every run, with any number of threads.
#pragma once
#include <functional>

#include "compile/chunk/tile_plan.h"
#include "program/program.h"

namespace haliax {

// A graph that was compiled alone with the passes from `chunk` on. depth: the number of loops
// around its regions.
struct TrialResult {
  Nodes graph;  // before lowering
  std::shared_ptr<program::Program> program;
  double saved_work = 0;          // share of its multiplications that reuse_matmuls saves
  program::Machine machine = {};  // cost model of the device of the program
};
using CompileTrial = std::function<TrialResult(const Nodes& roots, const Nodes& inputs, int depth)>;

// Returns the plan of a call. ring: see tile_regions.
TilePlan plan_tiles(const ChunkKey& call, const Nodes& roots, const Nodes& level,
                    const CompileTrial&, bool ring);
// Raises if the call has a budget, and even the smallest tiles exceed it.
void check_budget(const ChunkKey& call, const Nodes& roots, const Nodes& level,
                  const CompileTrial&);

}  // namespace haliax
