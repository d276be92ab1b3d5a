// The nodes of one level (the top of a graph, or one loop body) and their dependencies, for passes
// that move nodes of the level into new loops.
//
// In      the roots of the level.
// Out     the order in which loops may compute the nodes.
// Always  operands come first in the order, and the nodes of a new loop are adjacent: they count as
//         one group, because a loop runs after all of its operands.
#pragma once
#include <span>

#include "graph/node.h"

namespace haliax {

using NodeGroup = std::span<const int>;  // nodes that one new loop computes, or one node
// A set of nodes of the level.
class Marks {
 public:
  explicit Marks(int size) : marked_(std::size_t(size)) {}
  bool operator[](int k) const { return marked_[std::size_t(k)]; }
  int size() const { return int(marked_.size()); }
  void add(int k) { marked_[std::size_t(k)] = true; }
  void add(NodeGroup group) {
    for (int k : group) add(k);
  }
  void add(const Marks& other) {
    for (int k = 0; k < size(); ++k)
      if (other[k]) add(k);
  }

 private:
  std::vector<bool> marked_;
};
struct LevelNode {
  NodePtr node;
  std::vector<int> in = {}, readers = {};
  int loop = -1;             // index of the new loop that computes it; -1: none
  bool is_root = false;      // a result of the level
  int first_collective = 0;  // plan number of its first collective; 0: none
};

class LevelGraph {
 public:
  // index: of the loop whose body is the level; null: the top. has_collectives: false if the graph
  // has no collectives.
  LevelGraph(const Nodes& roots, const Node* index, bool has_collectives);

  int size() const { return int(all_.size()); }
  LevelNode& at(int k) { return all_[std::size_t(k)]; }
  const LevelNode& at(int k) const { return all_[std::size_t(k)]; }
  const Node& node(int k) const { return *at(k).node; }

  // Calls f(group) for each group, operands first; backward: readers first.
  template <class F> void forward(const F& f) const {
    for (std::size_t i = 0, end = 0; i < order_.size(); i = end) f(from(i, end));
  }
  template <class F> void backward(const F& f) const {
    std::vector<NodeGroup> all;
    forward([&](NodeGroup group) { all.push_back(group); });
    for (auto t = all.rbegin(); t != all.rend(); ++t) f(*t);
  }
  // Returns true if a node of the group has a marked operand.
  bool reads(NodeGroup, const Marks&) const;
  // Returns true if a node of the group has a marked reader.
  bool is_read(NodeGroup, const Marks& by) const;
  bool is_free(NodeGroup group) const { return at(group[0]).loop < 0; }

  // Return the nodes that depend on the nodes `inside`, or that these depend on, without them.
  Marks dependents(const Marks& inside) const;
  Marks dependencies(const Marks& inside) const;
  // Returns true if a loop over the nodes `inside` preserves the order of collectives, which must
  // be equal on all devices. All collectives that the loop depends on must have smaller numbers
  // than all collectives that depend on the loop. Another device with smaller shards may have no
  // loop here.
  bool keeps_collective_order(const Marks& inside) const;
  // Forms loop number `loop`: its nodes become adjacent in the order, and nodes that depend on them
  // follow.
  void form_loop(const Marks& inside, int loop);

 private:
  NodeGroup from(std::size_t i, std::size_t& end) const;

  std::vector<LevelNode> all_;
  std::vector<int> order_;
};

}  // namespace haliax
