// Which nodes of a scope (the top, or one loop body) are computed together, and in which order. A
// unit becomes one step of the Program, or a few.
//
// In: the targets of a scope. Out: its units. Always: what is read from memory is made by one unit,
// and by no other; the rest is made where it is read, in each kernel that reads it; a unit comes
// after all in Unit::after.
#pragma once
#include <unordered_map>
#include <unordered_set>

#include "graph/emit.h"
#include "graph/loop.h"
#include "graph/traversal.h"

namespace haliax {

using Places = std::unordered_map<const Node*, Place>;  // of nodes that lie in memory

// A result of a scope: where it goes. A node may have several.
struct Target {
  NodePtr node;
  Place place;
  bool accumulate = false;
  Monoid monoid = Monoid::sum;
};

struct Unit {
  enum class Type : std::uint8_t { kernel, single, copy } type = Type::single;
  // kernel: what it makes, in order; single: one; copy: one, already made, into the target
  Nodes nodes;
  const Target* target = nullptr;
  Axes outer, inner;  // kernel: its points; inner axes are those that its reductions fold
  std::unordered_set<int> after;  // units that come first
  std::int64_t order = 0;         // age: creation order of the newest node
};

struct Scope {
  std::vector<Unit> units;
  std::unordered_map<const Node*, int> unit_of;  // node -> the unit that makes it
  std::unordered_set<const Node*> in_memory;     // nodes that somebody reads from memory
  std::unordered_map<const Node*, std::vector<const Target*>> targets;
  // in `whole`, which shows it as `operand`
  struct Joined {
    NodePtr whole, operand;
    std::int64_t start;
  };
  // made in its place: what only it reads, if it joins or reorders
  std::unordered_map<const Node*, Joined> joined;
};

// `known`: nodes that lie in memory already. `fuse` off: each node is a unit of its own.
Scope make_scope(const std::vector<Target>& targets, const Places& known, bool fuse);

// In which order the units run. Any that keeps Unit::after is right; this one keeps little live.
// `by_age`: as they were made.
std::vector<int> schedule(const Scope&, const Places& known, bool by_age);

// When the first call that a node makes was planned, its own or one of a loop's bodies; 0: it makes
// none.
int first_collective(const Node&);
// Wraps and results of custom gradients are the value of another node: which one.
bool is_alias(const Node&);
const NodePtr& aliased(const Node&);  // of a view too: what it shows
// The node that a chain of views and wraps shows: what has to be in memory for the view to be
// there.
const NodePtr& base_of(const NodePtr&);

}  // namespace haliax
