// chunked_reduce, as users call it: traced, and checked where it is written, not when the graph is cut.
#include "transforms/chunked.h"

#include "compile/chunk/chunk.h"
#include "compile/pipeline.h"

namespace haliax::detail {

Leaves chunked_reduce(const AxisSelection& axes, const ChunkOptions& options, const Leaves& xs, LeafFunction f,
                      SourceLocation at) {
  Here here(at);
  Tracing tracing;
  auto traced = trace_chunks(axes, options, xs, f);
  check_chunks(traced.outs, traced.call, traced.borders, chunk_trial(nullptr));
  return traced.results;
}

}  // namespace haliax::detail
