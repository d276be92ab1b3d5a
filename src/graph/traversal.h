// Traversals of a graph, without recursion, so that the depth of the graph is unlimited.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "graph/node.h"

namespace haliax {

// Numbers nodes in the order of their first use. The first 16 nodes are found by linear search and
// need no allocation, since most evaluated arrays depend on few nodes. Further nodes are in a hash
// table, which the next traversals of the thread use again.
class Numbering {
 public:
  struct Number {
    std::uint32_t number;
    bool is_new;
  };
  Numbering() = default;
  Numbering(const Numbering&) = delete;
  Numbering& operator=(const Numbering&) = delete;
  ~Numbering() {
    if (!table_.entries.empty()) keep_table();
  }
  Number operator()(const Node* n) {
    if (table_.entries.empty()) {
      const auto end = few_.begin() + size_;
      if (auto at = std::find(few_.begin(), end, n); at != end)
        return {std::uint32_t(at - few_.begin()), false};
      if (size_ < few_.size()) {
        few_[size_] = n;
        return Number{size_++, true};
      }
      start_table();
    } else if (4 * size_ > 3 * table_.entries.size()) {
      grow();
    }
    auto& there = place(n);
    const bool is_new = there.use != table_.use;
    if (is_new) there = {n, size_++, table_.use};
    return {there.number, is_new};
  }

 private:
  struct NumberedNode {
    const Node* node = nullptr;
    std::uint32_t number = 0;
    std::uint32_t use = 0;  // see HashTable
  };
  // Entries of earlier traversals have a smaller `use`, and count as empty.
  struct HashTable {
    std::vector<NumberedNode> entries;
    std::uint32_t use = 0;
  };
  struct IdleTable;  // the table that no traversal of a thread uses at present

  NumberedNode& place(const Node* n) {
    auto k = (std::uint64_t(n) * 0x9E3779B97F4A7C15u) >> 32;
    const auto last = table_.entries.size() - 1;
    for (;; ++k) {
      auto& there = table_.entries[k & last];
      if (there.use != table_.use || there.node == n) return there;
    }
  }
  void start_table();
  void grow();
  void keep_table();

  std::uint32_t size_ = 0;
  std::array<const Node*, 16> few_;
  HashTable table_;
};

// The nodes that a traversal visits next. References need no reference counts; they stay valid
// because the roots hold the graph.
using PendingNodes = std::vector<const NodePtr*>;
inline void append(PendingNodes& to, const Nodes& more) {
  for (auto& n : more)
    if (n) to.push_back(&n);
}
void append(PendingNodes&, Nodes&&) = delete;  // the references would dangle

// Calls visit(n, todo) once for each node. The call appends the next nodes to `todo`. Nodes that
// `filter` rejects are skipped.
template <class Filter, class Visit>
void traverse(const Nodes& roots, const Filter& filter, const Visit& visit) {
  PendingNodes todo;
  todo.reserve(16);
  append(todo, roots);
  Numbering seen;
  while (!todo.empty()) {
    NodeRef n = *todo.back();
    todo.pop_back();
    if (filter(*n) && seen(n.get()).is_new) visit(n, todo);
  }
}
template <class Visit> void traverse(const Nodes& roots, const Visit& visit) {
  traverse(
      roots, [](const Node&) { return true; }, visit);
}
inline bool holds(const Nodes& list, NodeRef n) {
  return std::find(list.begin(), list.end(), n) != list.end();
}
inline void append(Nodes& to, const Nodes& more) { to.insert(to.end(), more.begin(), more.end()); }
// Sorts nodes by id, inputs first. A traversal from the results yields mostly the newest nodes
// first, which is the slowest order to sort, so such a list is reversed first.
template <class Listed> void sort_by_age(std::vector<Listed>& nodes) {
  auto older = [](auto& a, auto& b) { return a->id < b->id; };
  if (nodes.size() > 1 && older(nodes.back(), nodes.front()))
    std::reverse(nodes.begin(), nodes.end());
  if (!std::is_sorted(nodes.begin(), nodes.end(), older))
    std::sort(nodes.begin(), nodes.end(), older);
}
// Returns the nodes that the roots depend on, and the roots, inputs first. Loop bodies are not
// entered. If `stop(n)` is true, n is listed without its inputs.
Nodes topological(const Nodes& roots, bool (*stop)(const Node&) = nullptr);
// The same without references. In: no other thread changes the graph meanwhile.
std::vector<const Node*> nodes_below(const Nodes& roots, bool (*stop)(const Node&) = nullptr);

}  // namespace haliax
