// A cache of Programs for graphs outside of `jit`. A graph with the same ops at the same source
// lines reuses the Program of an earlier graph with other arrays.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/run.h"

namespace haliax {

// A graph encoded as integers: everything its Program depends on, except for the backend. Equal
// graphs have equal words.
struct GraphKey {
  std::vector<std::uint64_t> words = {};  // empty: the graph cannot be encoded
  std::vector<BufferPtr> arrays = {};  // arrays that the graph reads, without duplicates, in order
};
// Returns the key of a graph. `nodes`: all nodes that the roots depend on, down to nodes with
// values. Requires a GraphReader.
GraphKey graph_key_of(const Nodes& roots, const std::vector<const Node*>& nodes);
// Computes the values of the roots on this backend and returns them in order. `began`: see `call`.
std::vector<BufferPtr> run_cached(const Nodes& roots, GraphKey, const std::string& backend_name,
                                  bool* began);
std::uint64_t planned_evaluations();  // number of Programs that were compiled, not found, so far

}  // namespace haliax
