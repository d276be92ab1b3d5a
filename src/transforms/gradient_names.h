// Which values are gradients of which parameters, noted while a function is traced, for reports.
#pragma once
#include <optional>
#include <unordered_map>

#include "graph/loop.h"

namespace haliax {

void add_names(Names& to, const Names&);  // those that are not there yet

// A parameter is what a gradient is taken by and has a path. What is made of parameters alone (a
// sum of two, a cast, a product with an adapter) stands for all of them: its cotangent is (a step
// to) the gradient of each. Passes may put other nodes in place of those that are noted:
// Origin::traced tells.
class Gradients {
 public:
  void add_parameter(Name parameter) { add_names(parameters_, {parameter}); }
  bool is_parameter(Name n) const { return n && has(parameters_, n); }
  void note(const NodePtr& of, const NodePtr& cotangent);  // a term, or all of it
  const Names& parameters(const Node& cotangent) const;    // none: it is no gradient

 private:
  // parameters alone (and numbers); null: something else too
  const std::optional<Names>& made_of(const NodePtr&);
  std::unordered_map<std::uint64_t, std::optional<Names>> made_of_;  // by id
  std::unordered_map<std::uint64_t, Names> of_;                      // by id, as traced
  Names parameters_;  // some of which may be reached by none
};

}  // namespace haliax
