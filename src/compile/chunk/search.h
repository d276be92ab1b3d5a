// In what chunks a call of chunked_reduce is cut: decided by planned bytes, which are exact, and an
// estimate of time. A cut is tried by running the passes that follow on the regions alone. Always:
// what is chosen follows from the graph, the call and the kind of device, so it is the same in
// every run.
#pragma once
#include <functional>

#include "compile/chunk/cut.h"
#include "program/program.h"

namespace haliax {

// What the passes from `chunk` on make of a graph by itself; regions lie in so many loops.
struct TrialResult {
  Nodes graph;  // before it is lowered
  std::shared_ptr<program::Program> program;
  double saved_work = 0;          // of its multiplications, the share that is not done
  program::Machine machine = {};  // that it is for
};
using ChunkTrial = std::function<TrialResult(const Nodes& roots, const Nodes& inputs, int depth)>;

// rounds: see cut_chunks
CutPlan plan_cuts(const ChunkKey& call, const Nodes& roots, const Nodes& level, const ChunkTrial&,
                  bool rounds);
// raises if not even the smallest chunk fits
void check_budget(const ChunkKey& call, const Nodes& roots, const Nodes& level, const ChunkTrial&);

}  // namespace haliax
