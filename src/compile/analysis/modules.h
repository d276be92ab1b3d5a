// The module that computes a node outside of a layer's call, for reports.
#pragma once
#include <unordered_map>

#include "graph/node.h"

namespace haliax::analysis {

// By node: the module. Lacks nodes of layers, which have a module already (`Origin::module`), and
// nodes whose module is not known.
using Modules = std::unordered_map<const Node*, Name>;

// Returns the innermost module that contains the layers which a node reads, and the layers that
// read the node, directly or through other nodes of this kind. For example, softmax of a matmul of
// `blocks.attention.query` and `blocks.attention.key` belongs to `blocks.attention`. The sum of
// the hidden states and `blocks.attention.out`, which `blocks.norm` reads, belongs to `blocks`.
// The update of a parameter from its gradient belongs to no module.
Modules modules_of(const Nodes& roots);

}  // namespace haliax::analysis
