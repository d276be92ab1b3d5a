// What memory is for, for reports.
#pragma once
#include <set>
#include <unordered_set>

#include "graph/loop.h"

namespace haliax {

// Decided by what a graph does with a value, not by what the user calls it:
//   parameters   arguments that a gradient is taken by: it depends on them, and has their axes.
//   Without a gradient: of a module optimiser    arguments that meet gradients alone: no gradient
//   depends on them, nor a result that no gradient reaches inputs       other arguments gradients
//   made by the backward pass or of what it made, with the axes of a parameter, or those less one
//   that a loop walks gathered     came from other devices, for what reads it activations
//   everything else; results, if they are neither arguments nor gradients
class Purposes {
 public:
  Purposes(const Nodes& roots, const Nodes& inputs);
  const char* of(const Node&) const;
  const char* of_argument(const Node&) const;
  bool is_parameter(const Node& n) const { return parameters_.count(&n) > 0; }
  // made by the backward pass, or of what it made
  bool in_backward(const Node& n) const { return backward_.count(&n) > 0; }
  const char* of_result(const Node& n) const { return gradient(n) ? "gradients" : "results"; }
  static bool gathered(const Node&);

 private:
  bool gradient(const Node&) const;
  std::unordered_set<const Node*> backward_;  // made by the backward pass, or of what it made
  std::unordered_set<const Node*> parameters_, optimizer_;
  std::set<std::vector<const NameData*>> axes_;  // of parameters, sorted
};

}  // namespace haliax
