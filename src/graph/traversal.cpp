// The table of a traversal, and the topological order of a graph.
#include "graph/traversal.h"

namespace haliax {

static constexpr std::size_t kFirstEntries = 256, kMaxIdleEntries = 1 << 16;

static thread_local bool thread_ends = false;
struct Numbering::IdleTable {
  HashTable table;
  ~IdleTable() { thread_ends = true; }
  static HashTable& of_thread() {
    thread_local IdleTable idle;
    return idle.table;
  }
};

void Numbering::start_table() {
  if (!thread_ends) table_ = std::exchange(IdleTable::of_thread(), {});
  if (table_.entries.empty()) table_.entries.resize(kFirstEntries);
  if (++table_.use == 0) table_ = {std::vector<NumberedNode>(kFirstEntries), 1};
  for (std::uint32_t k = 0; k < size_; ++k) place(few_[k]) = {few_[k], k, table_.use};
}
void Numbering::keep_table() {
  if (thread_ends || table_.entries.size() > kMaxIdleEntries) return;
  auto& idle = IdleTable::of_thread();
  if (table_.entries.size() > idle.entries.size()) idle = std::move(table_);
}
void Numbering::grow() {
  const HashTable before =
      std::exchange(table_, {std::vector<NumberedNode>(4 * table_.entries.size()), 1});
  for (auto& known : before.entries)
    if (known.use == before.use) place(known.node) = {known.node, known.number, table_.use};
}

// `list` returns the entry of a node.
template <class Listed, class List>
static std::vector<Listed> sorted(const Nodes& roots, bool (*stop)(const Node&), const List& list) {
  std::vector<Listed> out;
  out.reserve(16);
  traverse(roots, [&](NodeRef n, PendingNodes& todo) {
    out.push_back(list(n));
    if (!stop || !stop(*n)) append(todo, n->in);
  });
  sort_by_age(out);
  return out;
}
Nodes topological(const Nodes& roots, bool (*stop)(const Node&)) {
  return sorted<NodePtr>(roots, stop, [](NodeRef n) { return n; });
}
std::vector<const Node*> nodes_below(const Nodes& roots, bool (*stop)(const Node&)) {
  return sorted<const Node*>(roots, stop, [](NodeRef n) { return n.get(); });
}

}  // namespace haliax
