// Records, while a function is traced, which values are gradients of which parameters. Used by
// reports.
#pragma once
#include <optional>
#include <unordered_map>

#include "graph/loop.h"

namespace haliax {

void add_names(Names& to, const Names&);  // adds the names that are missing

// A parameter is a leaf with a path that a gradient is taken with respect to. A value that is
// computed from parameters alone (a sum of two, a cast, a matmul with an adapter) represents all of
// them: its cotangent is the gradient of each, or an intermediate of it. Passes may replace the
// recorded nodes; Origin::traced maps a replacement to the recorded node.
class Gradients {
 public:
  void add_parameter(Name parameter) { add_names(parameters_, {parameter}); }
  bool is_parameter(Name n) const { return n && has(parameters_, n); }
  void note(NodeRef of, NodeRef cotangent);              // a term of the gradient, or all of it
  const Names& parameters(const Node& cotangent) const;  // empty: not a gradient

 private:
  // Returns the parameters that the value is computed from, if it reads only parameters and
  // numbers; null otherwise.
  const std::optional<Names>& computed_from(NodeRef);
  std::unordered_map<std::uint64_t, std::optional<Names>> computed_from_;  // by id
  std::unordered_map<std::uint64_t, Names> of_;  // by id of the traced node
  Names parameters_;                             // parameters; some may have no gradient
};

}  // namespace haliax
