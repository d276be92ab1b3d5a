// The unsharded graph that a plan is for. The preferred sharding of each value follows from its
// readers.
#pragma once
#include <map>
#include <memory>
#include <unordered_map>

#include "graph/loop.h"
#include "transforms/sharding.h"

namespace haliax {
class Gradients;
}

namespace haliax::partitioning {

// The unsharded graph, with the facts about it that do not depend on a plan. It grows when an op is
// expanded into other ops (OpPlanner::plan_replacement).
struct GlobalGraph {
  // The top level or a body: its nodes, operands first, and their readers there. Reader -1: the
  // value is a result of the level.
  struct Level {
    std::vector<int> order;
    std::unordered_map<int, std::vector<int>> users;
  };
  struct GlobalValue {
    NodePtr node;
    std::vector<int> in = {};  // operands; -1: none
    bool generated = false;    // computed from scalars and positions, locally in any sharding
    // an input of any kind, or computed from inputs alone by views and elementwise ops
    bool of_inputs = false;
    // the loops on whose carries the value depends; a loop is identified by its first index
    std::vector<const Node*> carried = {};
    int expansion_of = -1;    // the op that it helps to expand; -1: an op of the user
    Sharding preferred = {};  // sharding that later readers prefer
  };
  std::vector<GlobalValue> values;
  std::vector<int> roots;
  const Mesh& mesh;
  // The parameters of the traced function; null: unknown.
  std::shared_ptr<const Gradients> gradients = {};

  GlobalGraph(const Nodes& roots, const std::vector<Sharding>& requested, const Mesh&);
  // Returns the number of the node. Adds it and its operands if they are new.
  int add(const NodePtr&);
  GlobalValue& at(int n) { return values[std::size_t(n)]; }
  const GlobalValue& at(int n) const { return values[std::size_t(n)]; }
  const NodePtr& ptr(int n) const { return at(n).node; }
  const Node& node(int n) const { return *ptr(n); }
  int find(const Node* n) const;      // -1: not in this graph
  const Node& user_op(int n) const {  // the user's op that it is, or helps to expand
    while (at(n).expansion_of >= 0) n = at(n).expansion_of;
    return node(n);
  }
  bool is_weight(int n) const { return at(n).of_inputs && is_float(node(n).dtype); }
  // Returns the input that it is, or one that it is computed from (of_inputs). Null: there is none.
  const Node* input(int n) const;
  double bytes(int n, const Sharding& sharding) const {  // bytes on one device
    return local_size(node(n).axes, sharding, mesh) * bytes_of(node(n).dtype);
  }
  const Level& level(int loop, std::size_t body);  // loop -1: the top level
  // Returns true if the node changes between iterations of this body. A value that an inner loop
  // carries changes if the inner loop does.
  bool changes_in(const Node&, const Loop&, std::size_t body) const;
  // Returns true if the loop has a flag, and runs no iteration if the flag is false.
  bool is_conditional(int loop) const;
  // Propagates the preferred sharding of n to its operands with numbers of at least `first`.
  void propagate_preferred(int n, int first = 0);

 private:
  std::unordered_map<const Node*, int> ids_;
  std::unordered_map<const Node*, const Node*> loops_;  // by their first indices
  std::map<std::pair<int, std::size_t>, Level> levels_;
  void prefer(int n, const Sharding&);
  void init_preferred(const std::vector<Sharding>& requested);
};

// Returns the sharding that a sharding constraint requires. Errors refer to the line of the
// constraint.
Sharding constraint(const Node&, const Mesh&);

}  // namespace haliax::partitioning
