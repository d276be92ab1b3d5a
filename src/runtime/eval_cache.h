// Programs of graphs that were evaluated before: one that is made of the same ops, at the same
// lines, is planned once, and called again with other arrays.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/run.h"

namespace haliax {

// A graph as words: what its Program depends on beside the backend, and nothing else. Equal graphs
// have equal words.
struct GraphKey {
  std::vector<std::uint64_t> words = {};  // none: they cannot say what the graph holds
  std::vector<BufferPtr> arrays = {};     // that it reads, each once, in order
};
// `nodes`: all that the roots are made of, down to values. In a GraphReader.
GraphKey graph_key_of(const Nodes& roots, const std::vector<const Node*>& nodes);
// The values of the roots, in order, on this backend. began: as for call.
std::vector<BufferPtr> run_cached(const Nodes& roots, GraphKey, const std::string& backend_name,
                                  bool* began);
std::uint64_t planned_evaluations();  // so far; others were found

}  // namespace haliax
