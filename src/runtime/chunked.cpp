// The public `chunked_reduce`: traces the function and checks it at the call, not later when the
// graph is compiled.
#include "transforms/chunked.h"

#include "compile/chunk/chunk.h"
#include "compile/pipeline.h"
#include "transforms/rewrite.h"

namespace haliax::detail {

Leaves chunked_reduce(const AxisSelection& axes, const ChunkOptions& options, const Leaves& xs,
                      LeafFunction f, SourceLocation at) {
  CallSite here(at);
  Tracing tracing;
  auto traced = trace_chunks(axes, options, xs, f);
  NodeDomainScope own;
  auto outs = copied(traced.outs);
  OutsideGraph outside;
  check_chunks(outs, traced.call, traced.boundaries, chunk_trial(nullptr));
  return traced.results;
}

}  // namespace haliax::detail
