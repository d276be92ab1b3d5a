// The purpose of each array, for memory reports.
#pragma once
#include <set>
#include <unordered_set>

#include "graph/loop.h"

namespace haliax::analysis {

// The purpose follows from the use of a value in the graph, not from its name:
//
//   parameters   arguments that a gradient is taken with respect to: it depends on them and has
//                their axes. Without a gradient: arrays of a module.
//   optimizer    arguments that only meet gradients: no gradient depends on them, and no result
//                that is independent of gradients does
//   inputs       other arguments
//   gradients    values of the backward pass, or computed from it, with the axes of a parameter or
//                these axes less a loop axis
//   gathered     values of other devices, for the steps that read them
//   activations  all other values; results, if they are neither arguments nor gradients
class Purposes {
 public:
  Purposes(const Nodes& roots, const Nodes& inputs);
  const char* of(const Node&) const;
  const char* of_argument(const Node&) const;
  bool is_parameter(const Node& n) const { return parameters_.count(&n) > 0; }
  // Returns true for values of the backward pass, and for values computed from them.
  bool in_backward(const Node& n) const { return backward_.count(&n) > 0; }
  const char* of_result(const Node& n) const { return gradient(n) ? "gradients" : "results"; }
  static bool gathered(const Node&);

 private:
  using NameSets = std::set<std::vector<const NameData*>>;
  bool gradient(const Node&) const;
  void find_backward(const Nodes& all);
  // Adds the axes of a parameter, and these axes less a loop axis.
  void add_parameter_axes(const std::vector<const NameData*>& axes,
                          const std::unordered_set<const NameData*>& loop_axes);
  std::unordered_set<const Node*> backward_;  // computed by the backward pass, or from its values
  std::unordered_set<const Node*> parameters_, optimizer_;
  NameSets parameter_axes_;  // sorted
};

}  // namespace haliax::analysis
