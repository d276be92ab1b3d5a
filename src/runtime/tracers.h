// Arrays that have no value outside of a trace or a vmap, and the errors for reading them.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "graph/node.h"

namespace haliax {

// The function or the loop in which an array without a value has one: a traced function, or a
// `vmap` whose hidden axis the array has.
struct Tracer {
  std::string inside;           // "jit (train.cpp:12)", "vmap over batch (train.cpp:12)"
  bool has_ended = false;       // the trace of that function has ended
  bool has_shape_only = false;  // created by `eval_shape`, so that no function has a value for it
  std::uint64_t last = 0;       // id of the newest node that was created in it; 0: not known
};
std::optional<Tracer> tracer_below(const NodePtr&);  // the tracer that the array depends on, if any
// Raises if a root depends on tracers. `nodes`: all nodes that the roots depend on, down to nodes
// with values. Requires a GraphReader.
void require_values(const Nodes& roots, const std::vector<const Node*>& nodes);
// Raises if a root depends on a tracer of another trace than the inputs.
void refuse_tracers(const Nodes& roots, const Nodes& inputs);

}  // namespace haliax
