// Fusion: chooses the nodes of a scope (the top, or one loop body) that are computed together, and
// their order. A unit becomes one step of the Program, or a few steps.
//
// In      the targets of a scope.
// Out     its units.
// Always  a value that is read from memory is computed by exactly one unit. Other values are
//         computed by each kernel that reads them; they are cheap or have one reader (Anchors). A
//         unit runs after all units in `Unit::after`.
#pragma once
#include <unordered_map>
#include <unordered_set>

#include "graph/emit.h"
#include "graph/loop.h"
#include "graph/traversal.h"

namespace haliax {

using Places = std::unordered_map<const Node*, Place>;  // key: a node that is stored in memory

// A result of a scope and its location. A node may have several targets.
struct Target {
  NodePtr node;
  Place place;
  bool accumulate = false;
  Monoid monoid = Monoid::sum;
};

struct Unit {
  enum class Type : std::uint8_t { kernel, single, copy } type = Type::single;
  // kernel: the nodes that it computes, in order. single: one node. copy: one node, already
  // computed, which is copied into the target.
  Nodes nodes;
  const Target* target = nullptr;
  // kernel: the axes of its iteration space; its reductions sum over the inner axes
  Axes outer, inner;
  std::unordered_set<int> after;  // units that run before this unit
  std::int64_t age = 0;           // creation order of the newest node
};

struct Scope {
  std::vector<Unit> units;
  std::unordered_map<const Node*, int> unit_of;  // node -> the unit that computes it
  std::unordered_set<const Node*> in_memory;     // nodes that are read from memory
  std::unordered_map<const Node*, std::vector<const Target*>> targets;
  // The location of a node inside `reader`, whose operand `operand` is a view of the node.
  struct InReader {
    NodePtr reader, operand;
    std::int64_t start;
  };
  // Nodes that are computed directly in the place of their only reader, because the reader
  // concatenates or reorders them.
  std::unordered_map<const Node*, InReader> in_reader;
};

// Divides a scope into units. `placed`: nodes that are stored in memory already. With `fuse` false,
// each node is a unit of its own.
Scope make_scope(const std::vector<Target>& targets, const Places& placed, bool fuse);

// Returns the order in which the units run. Every order that respects `Unit::after` is correct;
// this one keeps little memory live. `by_age`: creation order.
std::vector<int> schedule(const Scope&, const Places& placed, bool by_age);

// Returns the smallest plan number (`CollectiveSpec::number`) of the collectives that a node runs,
// including collectives in the bodies of a loop. 0: the node runs no collective.
int first_collective(const Node&);
// Returns true if the node has the value of another node: wraps, and results of custom gradients.
bool is_alias(const Node&);
const NodePtr& aliased(const Node&);  // that other node; for a view, the node that is viewed
// Returns the node at the end of a chain of views and wraps. It must be in memory for the view to
// exist.
const NodePtr& base_of(const NodePtr&);

}  // namespace haliax
