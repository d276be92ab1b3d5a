// Fusion of a scope into units: finds the nodes that need memory, and the kernel that computes each
// node.
//
// ScopeNodes   the nodes of a scope, collectives in plan order
// Anchors      which of them are in memory, and which one kernel computes for all readers
// Builder      units: kernels, single nodes and copies
#include "compile/lower/fuse.h"

#include <algorithm>
#include <functional>
#include <set>

#include "graph/axes.h"
#include "ops/attr.h"
#include "ops/collective.h"
#include "ops/prim.h"
#include "transforms/rewrite.h"

namespace haliax {
namespace {

// Readers recompute a map node that needs at most this many ops and arrays; the search for them
// ends at this depth.
constexpr int kCheapOps = 4, kCheapLoads = 2, kCheapDepth = 16;
constexpr int kExpensive = 99;           // cost of an op that is never recomputed
constexpr int kMostInlined = 64;         // instructions that a read of a map node adds to a kernel
constexpr std::size_t kMostJoined = 24;  // nodes of a kernel that more nodes may join
constexpr std::size_t kMostMerged = 12;  // nodes of a kernel that merges with another one
constexpr std::size_t kMostSearched = 4096;  // units that a search for a dependency may reach

bool is_view(const Node& n) { return n.op->kind == Kind::view; }
bool is_custom_vjp_result(const Node& n) { return n.op == &kResult && n.in[0]->op == &kCustomVjp; }
// Returns true for views and aliases, which need no memory of their own.
bool forwards(const Node& n) { return is_view(n) || is_alias(n); }
// Returns true for views that an expression can read through: they rename, reorder or broadcast.
bool is_readable_through(const Node& n) { return is_transparent_view(n) || is_alias(n); }
bool in_kernel(const Node& n) {
  return n.op->kind == Kind::map || n.op->kind == Kind::reduce || n.op->kind == Kind::leaf;
}
bool is_step(const Node& n) {
  return n.op->kind == Kind::contract || n.op->kind == Kind::step || n.op->kind == Kind::loop;
}

// Returns a topological order. Nodes that are ready are ordered by rank.
std::vector<std::size_t> sorted(const std::vector<std::vector<std::size_t>>& users,
                                const std::vector<std::size_t>& rank) {
  std::vector<int> waits(users.size());
  for (auto& all : users)
    for (auto u : all) ++waits[u];
  std::set<std::pair<std::size_t, std::size_t>> ready;
  for (std::size_t k = 0; k < users.size(); ++k)
    if (!waits[k]) ready.insert({rank[k], k});
  std::vector<std::size_t> out;
  while (!ready.empty()) {
    out.push_back(ready.extract(ready.begin()).value().second);
    for (auto u : users[out.back()])
      if (--waits[u] == 0) ready.insert({rank[u], u});
  }
  return out;
}

// The nodes of a scope, and the nodes among them that units compute.
struct ScopeNodes {
  const std::vector<Target>& targets;
  const Places& placed;
  Nodes order = {};  // operands first
  // Nodes in which other devices take part: collectives, and loops that contain collectives. The
  // value is the plan number of the first collective.
  std::unordered_map<const Node*, std::size_t> collectives = {};
  std::unordered_map<const Node*, int> users = {};  // number of readers, as operands and as targets
  std::unordered_set<const Node*> in_memory = {};   // nodes that are read from memory
  std::unordered_set<const Node*> anchored = {};  // nodes that one kernel computes for all readers

  bool is_placed(const Node& n) const { return placed.count(&n) > 0; }
  bool has_one_user(const Node& n) const {
    auto known = users.find(&n);
    return known != users.end() && known->second == 1;
  }
  // Marks the node that n views as stored in memory.
  void store_in_memory(const NodePtr& n) {
    if (auto& base = base_of(n); !is_placed(*base)) in_memory.insert(base.get());
  }
};

// Orders collectives equally on all devices: among the collectives that may be next, the one with
// the smallest plan number is first. Age is not a valid order, because a pass may have rebuilt
// nodes on one device only.
void order_collectives(ScopeNodes& nodes) {
  auto& order = nodes.order;
  std::unordered_map<const Node*, std::size_t> at;
  for (std::size_t k = 0; k < order.size(); ++k) at[order[k].get()] = k;
  std::vector<std::vector<std::size_t>> then(order.size());
  std::vector<std::size_t> planned(order.size()), age(order.size()), requested;
  for (std::size_t k = 0; k < order.size(); ++k) {
    auto found = nodes.collectives.find(order[k].get());
    age[k] = k;
    planned[k] = found == nodes.collectives.end() ? 0 : found->second;
    for (auto& x : order[k]->in)
      if (auto below = at.find(x.get()); below != at.end() && !nodes.is_placed(*order[k]))
        then[below->second].push_back(k);
  }
  for (auto k : sorted(then, planned))
    if (planned[k]) requested.push_back(k);
  if (std::is_sorted(requested.begin(), requested.end())) return;
  for (std::size_t c = 1; c < requested.size(); ++c) then[requested[c - 1]].push_back(requested[c]);
  auto by_age = std::exchange(order, {});
  for (auto k : sorted(then, age)) order.push_back(by_age[k]);
}
ScopeNodes nodes_of(const std::vector<Target>& targets, const Places& placed) {
  ScopeNodes out{targets, placed};
  Nodes roots;
  for (auto& t : targets) roots.push_back(t.node);
  traverse(roots, [&](const NodePtr& n, PendingNodes& todo) {
    out.order.push_back(n);
    if (!out.is_placed(*n) && n->op->kind != Kind::leaf) append(todo, n->in);
  });
  sort_by_age(out.order);
  for (auto& n : out.order)
    if (int number = out.is_placed(*n) ? 0 : first_collective(*n))
      out.collectives[n.get()] = std::size_t(number);
  if (out.collectives.size() > 1) order_collectives(out);
  return out;
}

// Chooses the nodes that are stored in memory, and the nodes that one kernel computes for all
// readers (anchored). The readers of other nodes compute them again.
struct Anchors {
  ScopeNodes& nodes;
  bool fuse;
  // Number of elements of the largest kernel that reads the node.
  std::unordered_map<const Node*, std::int64_t> read_at = {};

  // Finds the nodes that must be in memory, and counts the readers of each node.
  void find_stored_nodes() {
    for (auto& n : nodes.order) {
      if (nodes.is_placed(*n) || n->op->kind == Kind::leaf) continue;
      for (std::size_t k = 0; k < n->in.size(); ++k) {
        auto& x = n->in[k];
        if (!x) continue;
        ++nodes.users[x.get()];
        if (in_kernel(*n)) {
          auto& at = read_at[read_node(x).get()];
          at = std::max(at, n->op->kind == Kind::reduce ? n->in[0]->size() : n->size());
        }
        if (reads_from_memory(*n, k)) nodes.store_in_memory(x);
      }
    }
    for (auto& t : nodes.targets) ++nodes.users[t.node.get()];
  }
  static bool reads_from_memory(const Node& n, std::size_t k) {
    auto& x = n.in[k];
    if (!is_step(n) && (!is_view(n) || is_readable_through(n))) return false;
    // Zeros, or the start of a carry, are filled in.
    if (n.op->accumulates && k == 0 && prim::is_number(x, 0)) return false;
    if (n.op == &kLoop && prim::is_number(x)) return false;
    // A term of an offset: an index that a view or the body of an inner loop uses, or a scalar that
    // a view uses.
    if (x->op == &prim::kIndex && (is_view(n) || n.op == &kLoop)) return false;
    return !(is_view(n) && k > 0 && prim::is_number(x));
  }
  // Returns the node of which x is a view that an expression can read through.
  static const NodePtr& read_node(const NodePtr& x) {
    return is_readable_through(*x) ? read_node(aliased(*x)) : x;
  }
  // Adds the cost of recomputing a map node, and the number of arrays that the recomputation reads.
  // Stops once the node cannot be cheap.
  void add_cost(const NodePtr& n, int& cost, int& loads, int depth = 0) const {
    if (cost > kCheapOps || loads > kCheapLoads || depth > kCheapDepth) {
      cost = kExpensive;
      return;
    }
    if (is_term(n)) return;
    bool readable_through = is_readable_through(*n), maps = n->op->kind == Kind::map;
    if (nodes.is_placed(*n) || nodes.in_memory.count(n.get()) || nodes.anchored.count(n.get()) ||
        !(maps || readable_through)) {
      ++loads;
      return;
    }
    if (readable_through) return add_cost(aliased(*n), cost, loads, depth + 1);
    cost += is_expensive(n->op->code) ? kExpensive : 1;
    for (auto& x : n->in) add_cost(x, cost, loads, depth + 1);
  }
  bool is_cheap(const NodePtr& n) const {
    int cost = 0, loads = 0;
    add_cost(n, cost, loads);
    return cost <= kCheapOps && loads <= kCheapLoads;
  }

  static bool is_term(const NodePtr& n) {
    return prim::is_number(n) || n->op == &prim::kIota || n->op == &prim::kIndex;
  }
  // Returns true if kernels would compute each element of the node many times, because they
  // broadcast it. For example, cos(angle) with axes (pos, half), times queries (batch, heads, pos,
  // half).
  bool is_broadcast(const Node& n) const {
    constexpr std::int64_t many = 4;
    auto at = read_at.find(&n);
    return at != read_at.end() && at->second >= many * n.size();
  }
  void anchor() {
    // The instructions that a read of this node adds to a kernel.
    struct Inlined {
      int size = 1;
      bool is_expensive = false;
    };
    std::unordered_map<const Node*, Inlined> inlined;
    for (auto& n : nodes.order) {
      if (nodes.is_placed(*n)) continue;
      auto& [size, expensive] = inlined[n.get()];
      expensive = n->op->kind == Kind::map && is_expensive(n->op->code);
      for (auto& x : n->in)
        if (auto i = inlined.find(x.get()); i != inlined.end() && !nodes.anchored.count(x.get()) &&
                                            (in_kernel(*x) || forwards(*x))) {
          size += i->second.size;
          expensive |= i->second.is_expensive;
        }
      bool needed = nodes.in_memory.count(n.get()) > 0, shared = nodes.users[n.get()] > 1;
      auto kind = n->op->kind;
      // true: readers that inline the map would repeat too much work
      bool repeats_work = kind == Kind::map &&
                          (size > kMostInlined || (shared && !is_generated(n) && !is_cheap(n)) ||
                           (expensive && is_broadcast(*n)));
      if (kind == Kind::reduce || (kind == Kind::leaf && needed && is_term(n)) ||
          (kind == Kind::map && (needed || !fuse)) || repeats_work)
        nodes.anchored.insert(n.get());
    }
    for (auto& t : nodes.targets)  // a target is computed in place, not elsewhere and copied
      if (auto& n = t.node; in_kernel(*n) && !nodes.is_placed(*n) && n->op != &prim::kIndex &&
                            (n->op->kind != Kind::leaf || is_term(n)))
        nodes.anchored.insert(n.get());
  }
};

bool shows_all(const Node& n) {
  return (is_transparent_view(n) || n.op->unview) && n.in[0]->size() == n.size();
}
bool stacks_slices(const Node& n) {
  return is_loop_result(n) && result_of(n).kind == ResultKind::stack;
}
// Returns true for steps that copy segments of their operands, as a concatenation does.
bool copies_segments(const Node& n) { return n.op->kind == Kind::step && n.op->segments; }
// Returns the node of which x views all elements, if it has no other reader. Null otherwise.
NodePtr only_viewed_node(const NodePtr& x, const ScopeNodes& nodes, const Scope& scope) {
  auto n = x;
  bool single_user = nodes.has_one_user(*n);
  while (shows_all(*n)) {
    n = n->in[0];
    single_user &= nodes.has_one_user(*n);
  }
  return single_user && !nodes.is_placed(*n) && scope.unit_of.count(n.get()) > 0 &&
                 !scope.targets.count(n.get())
             ? n
             : nullptr;
}
// Finds the nodes that are computed in the place of their only reader (Scope::in_reader).
void find_in_reader(const ScopeNodes& nodes, Scope& scope) {
  for (auto& c : nodes.order) {
    if (!copies_segments(*c) || nodes.is_placed(*c)) continue;
    auto parts = c->op->segments(*c);
    if (parts.size() < 2) continue;  // a single part among zeros
    for (auto& part : parts) {
      auto& x = c->in[part.operand];
      auto n = only_viewed_node(x, nodes, scope);
      const bool is_stored_in_reader =
          n && (n->op->kind == Kind::contract || n->op->kind == Kind::map || stacks_slices(*n) ||
                copies_segments(*n));
      if (is_stored_in_reader) scope.in_reader[n.get()] = {c, x, part.to};
    }
  }
  // A stack or a concatenation that is returned under other names or in another axis order.
  for (auto& [node, all] : scope.targets) {
    if (all.size() > 1 || all[0]->accumulate || !shows_all(*node)) continue;
    auto n = only_viewed_node(node->in[0], nodes, scope);
    if (n && (stacks_slices(*n) || copies_segments(*n)))
      scope.in_reader[n.get()] = {all[0]->node, all[0]->node, 0};
  }
}

struct KernelAxes {
  Axes outer, inner;
};
// Returns the axes of this kernel with n computed inside of it. Nothing: n cannot be.
std::optional<KernelAxes> joined_axes(const NodePtr& n, const Unit& u) {
  if (finds_position(n->op->code) || u.nodes.size() > kMostJoined) return {};
  const KernelAxes current{u.outer, u.inner};
  Axes all = u.outer;
  all.insert(all.end(), u.inner.begin(), u.inner.end());
  if (n->op->kind == Kind::map) {
    const bool is_of_rows = !u.inner.empty() && same_set(n->axes, u.outer);
    return is_of_rows || same_set(n->axes, all) ? std::optional(current) : std::nullopt;
  }
  if (n->op->kind != Kind::reduce || !same_set(n->in[0]->axes, all)) return {};
  auto over = without(n->in[0]->axes, n->axes);
  if (!u.inner.empty()) return same_set(over, u.inner) ? std::optional(current) : std::nullopt;
  // Rows stay in cache only if the reduced axes are the last axes of all values that the kernel
  // stores.
  for (auto& m : u.nodes) {
    const auto first = m->axes.size() - std::min(over.size(), m->axes.size());
    if (!same_set(Axes(m->axes.begin() + std::ptrdiff_t(first), m->axes.end()), over)) return {};
  }
  auto outer = without(all, over);
  return KernelAxes{outer, without(all, outer)};
}

// Divides the nodes into units. For example, a = exp(x), s = sum(a) and y = a / s become one
// kernel, whose outer axes are those of s: s joins the kernel of a (kernel_for), and so does y,
// since it reads both without a rename.
struct Builder {
  ScopeNodes nodes;
  bool fuse;
  Scope scope = {};

  // An anchored node that the computation of a node reads. `unrenamed`: the read passes no rename,
  // so axis names have the same meaning in both nodes.
  struct Read {
    NodePtr node;
    bool unrenamed;
  };
  // Collects the anchored nodes that the computation of n reads, and in `after` the nodes that must
  // be computed first: starts of slices, and operands that barriers wait for. For example, given
  // n = exp(t) + rename(t, a -> b), one path to t is unrenamed and one is not. Only a node that an
  // unrenamed path reaches can share a kernel with n.
  void collect_reads(const NodePtr& n, std::vector<Read>& out, Nodes& after) const {
    std::set<std::pair<const Node*, bool>> seen;
    std::function<void(const NodePtr&, bool)> visit = [&](const NodePtr& x, bool unrenamed) {
      if (!seen.insert({x.get(), unrenamed}).second || nodes.is_placed(*x)) return;
      if (nodes.anchored.count(x.get()) || !(in_kernel(*x) || forwards(*x))) {
        out.push_back({x, unrenamed});
        return;
      }
      if (!forwards(*x)) {
        for (auto& i : x->in) visit(i, unrenamed);
        return;
      }
      // The second operand of a barrier, or the start of a slice.
      if (x->in.size() > 1) after.push_back(x->in[1]);
      const bool renames = !is_readable_through(*x) || (is_view(*x) && !keeps_names(*x));
      visit(aliased(*x), unrenamed && !renames);
    };
    if (forwards(*n)) return visit(n, true);
    for (auto& x : n->in)
      if (x) visit(x, true);
  }

  void depend(int unit, int on) {
    if (unit != on) scope.units[std::size_t(unit)].after.insert(on);
  }
  // Returns true if the unit depends on `goal`, directly or transitively. Conservative: also
  // returns true if the search would be expensive.
  bool is_downstream(int unit, int goal) const {
    std::unordered_set<int> seen;
    std::vector<int> todo{unit};
    while (!todo.empty()) {
      int reached = todo.back();
      todo.pop_back();
      if (reached == goal || seen.size() > kMostSearched) return true;
      if (!seen.insert(reached).second) continue;
      auto& after = scope.units[std::size_t(reached)].after;
      todo.insert(todo.end(), after.begin(), after.end());
    }
    return false;
  }
  int add_unit(Unit u) {
    scope.units.push_back(std::move(u));
    return int(scope.units.size()) - 1;
  }
  int unit_of(const Node* n) const {
    auto i = scope.unit_of.find(n);
    return i == scope.unit_of.end() ? -1 : i->second;
  }

  int last_collective = -1;
  std::unordered_map<const Node*, std::vector<int>> rows_of = {};  // kernels that reduce the node
  void build() {
    for (auto& n : nodes.order) {
      if (nodes.is_placed(*n)) continue;
      if (n->op == &kResult && (n->in[0]->op == &kLoop || n->in[0]->op == &kCollective))
        scope.unit_of[n.get()] = scope.unit_of.at(n->in[0].get());
      else if (is_step(*n) || nodes.anchored.count(n.get()))
        assign(n);
    }
    if (fuse) find_in_reader(nodes, scope);
    if (fuse) merge_parts();
    for (auto& t : nodes.targets) add_target(t);
  }
  // Merges elementwise kernels that compute parts of one result, such as the cotangents of the
  // slices of an array, if they depend on the same units. Their parts may be interleaved in
  // memory, which is then written in one pass.
  void merge_parts() {
    std::unordered_map<const Node*, const Node*> last_part;  // by reader
    for (auto& n : nodes.order) {
      auto in_reader = scope.in_reader.find(n.get());
      if (in_reader == scope.in_reader.end() || unit_of(n.get()) < 0) continue;
      auto& last = last_part[in_reader->second.reader.get()];
      const int unit = unit_of(n.get()), before = last ? unit_of(last) : unit;
      auto& all = scope.units;
      if (all[std::size_t(before)].after == all[std::size_t(unit)].after) merge(before, unit, {});
      last = n.get();
    }
  }
  // Returns true if n may join this kernel without a cycle: no other unit that n reads depends on
  // it. Values of the kernel itself must be computed by its instructions, not read from memory.
  bool may_join(int unit, const std::vector<Read>& read, const Nodes& after) const {
    for (auto& r : read) {
      const int other = unit_of(r.node.get());
      if (other == unit && !(r.unrenamed && nodes.anchored.count(r.node.get()))) return false;
      if (other >= 0 && other != unit && is_downstream(other, unit)) return false;
    }
    for (auto& a : after)
      for (int other : units_below(a))
        if (is_downstream(other, unit)) return false;
    return true;
  }
  // A kernel that computes a node as well, and its axes.
  struct JoinedKernel {
    int unit;
    KernelAxes axes;
  };
  std::optional<JoinedKernel> kernel_for(const NodePtr& n, const std::vector<Read>& read,
                                         const Nodes& after) const {
    std::unordered_set<int> tried;
    auto joined = [&](int unit) -> std::optional<JoinedKernel> {
      if (unit < 0 || scope.units[std::size_t(unit)].type != Unit::Type::kernel ||
          !tried.insert(unit).second)
        return {};
      auto axes = joined_axes(n, scope.units[std::size_t(unit)]);
      if (!axes || !may_join(unit, read, after)) return {};
      return JoinedKernel{unit, std::move(*axes)};
    };
    for (auto r = read.rbegin(); r != read.rend(); ++r)
      if (r->unrenamed)
        if (auto kernel = joined(unit_of(r->node.get()))) return kernel;
    if (n->op->kind != Kind::reduce) return {};
    // Alternatively, n joins another reduction of the same rows. The rows are then read once and
    // are freed sooner.
    for (auto& r : read) {
      auto rows = rows_of.find(r.node.get());
      if (!r.unrenamed || r.node->bytes() < n->in[0]->bytes() || rows == rows_of.end()) continue;
      for (int unit : rows->second)
        if (auto kernel = joined(unit)) return kernel;
    }
    return {};
  }
  int new_unit(const NodePtr& n) {
    Unit u;
    u.type = nodes.anchored.count(n.get()) ? Unit::Type::kernel : Unit::Type::single;
    u.outer = n->axes;
    if (n->op->kind == Kind::reduce) {
      u.inner = without(n->in[0]->axes, n->axes);
      auto over = ReduceAttr::of(*n).over;  // flat positions follow the axis order of the op
      for (std::size_t i = 0; i < over.size(); ++i) u.inner[i] = *find(*n->in[0], over[i]);
    }
    return add_unit(std::move(u));
  }
  // Merges an elementwise kernel into a kernel over the same elements that reads its results, if
  // neither depends on the other. For example, the moments of an optimizer and its parameters are
  // computed in one pass.
  void merge(int part, int into, const std::unordered_set<int>& dependencies) {
    if (part < 0 || part == into) return;
    for (int unit : dependencies)
      if (unit >= 0 && unit != part && unit != into && is_downstream(unit, part)) return;
    auto &a = scope.units[std::size_t(part)], &b = scope.units[std::size_t(into)];
    auto is_mergeable = [](const Unit& u) {
      return u.type == Unit::Type::kernel && u.inner.empty() && u.nodes.size() <= kMostMerged;
    };
    if (!is_mergeable(a) || !is_mergeable(b) || !same_set(a.outer, b.outer) ||
        is_downstream(part, into) || is_downstream(into, part))
      return;
    b.nodes.insert(b.nodes.begin(), a.nodes.begin(), a.nodes.end());
    for (auto& n : a.nodes) scope.unit_of[n.get()] = into;
    b.after.insert(a.after.begin(), a.after.end());
    b.age = std::max(a.age, b.age);
    for (auto& u : scope.units)
      if (u.after.erase(part)) u.after.insert(into);
    a = Unit{};  // the merged unit is empty
  }
  // Adds a node to an existing kernel or to a unit of its own, after all units that it reads.
  void assign(const NodePtr& n) {
    std::vector<Read> read;
    Nodes after;
    collect_reads(n, read, after);
    const bool fuses = fuse && nodes.anchored.count(n.get()) &&
                       (n->op->kind == Kind::map || n->op->kind == Kind::reduce);
    const auto kernel = fuses ? kernel_for(n, read, after) : std::nullopt;
    const int into = kernel ? kernel->unit : new_unit(n);
    if (kernel) {
      scope.units[std::size_t(into)].outer = kernel->axes.outer;
      scope.units[std::size_t(into)].inner = kernel->axes.inner;
    }
    if (fuses) merge_operands(read, after, into);
    auto& unit = scope.units[std::size_t(into)];
    unit.nodes.push_back(n);
    unit.age = std::max(unit.age, std::int64_t(n->id));
    scope.unit_of[n.get()] = into;
    if (n->op->kind == Kind::reduce)
      for (auto& r : read)
        if (r.unrenamed) rows_of[r.node.get()].push_back(into);
    depend_on_operands(n, read, after, into);
  }
  // Merges the kernels that a node of unit `into` reads into that unit, where possible.
  void merge_operands(const std::vector<Read>& read, const Nodes& after, int into) {
    // not_mergeable: units whose values it reads under other names, or from memory.
    std::unordered_set<int> dependencies, not_mergeable;
    for (auto& r : read) {
      const int unit = unit_of(r.node.get());
      dependencies.insert(unit);
      if (!r.unrenamed || !nodes.anchored.count(r.node.get())) not_mergeable.insert(unit);
    }
    for (auto& a : after)
      for (int unit : units_below(a)) {
        dependencies.insert(unit);
        not_mergeable.insert(unit);
      }
    for (auto& r : read)
      if (const int unit = unit_of(r.node.get()); !not_mergeable.count(unit))
        merge(unit, into, dependencies);
  }
  // Makes unit `into`, which computes n, run after all units that n reads, and after the previous
  // collective if n is one.
  void depend_on_operands(const NodePtr& n, const std::vector<Read>& read, const Nodes& after,
                          int into) {
    for (auto& r : read) {
      int unit = unit_of(r.node.get());
      if (unit < 0 || unit == into) continue;
      depend(into, unit);
      nodes.store_in_memory(r.node);
    }
    for (auto& a : after)
      for (int unit : units_below(a)) depend(into, unit);
    if (nodes.collectives.count(n.get())) {
      if (last_collective >= 0) depend(into, last_collective);
      last_collective = into;
    }
    if (scope.units[std::size_t(into)].type == Unit::Type::single)
      for (auto& x : n->in)
        if (x)
          for (int unit : units_below(x)) depend(into, unit);
  }
  // Copies a target that its unit does not write itself.
  void add_target(const Target& t) {
    auto& n = t.node;
    int unit = unit_of(n.get());
    bool written_directly = unit >= 0 && !is_view(*n) && scope.targets[n.get()][0] == &t &&
                            (!t.accumulate || accumulates(n, t));
    // A kernel may store a value several times.
    bool stores_many = unit >= 0 && scope.units[std::size_t(unit)].type == Unit::Type::kernel;
    if (written_directly || stores_many) return;
    Unit u;
    u.type = Unit::Type::copy;
    u.nodes = {n};
    u.target = &t;
    u.age = std::int64_t(n->id);
    if (unit >= 0 || unit_of(base_of(n).get()) >= 0) {
      nodes.store_in_memory(n);
    } else {  // computed by the copy, from results of other units
      std::vector<Read> read;
      Nodes after;
      collect_reads(n, read, after);
      for (auto& r : read) nodes.store_in_memory(r.node);
    }
    const int copy = add_unit(std::move(u));
    for (int other : units_below(n)) depend(copy, other);
  }
  // Returns true if a contraction or a scatter can add to its target directly: it has no other
  // reader.
  bool accumulates(const NodePtr& n, const Target& t) const {
    if (t.monoid != Monoid::sum || nodes.users.at(n.get()) > 1 || nodes.in_memory.count(n.get()))
      return false;
    if (is_loop_result(*n)) {  // nested loops: the inner loop adds to the sum of the outer loop
      auto& r = result_of(*n);
      return r.kind == ResultKind::stack ||
             (r.kind == ResultKind::fold && r.monoid == Monoid::sum && !r.start);
    }
    return n->op->kind == Kind::contract ||
           (haliax::accumulates(*n, Monoid::sum) && prim::is_number(n->in[0], 0));
  }
  // Returns the units that compute the operands below this node.
  std::vector<int> units_below(const NodePtr& n) const {
    std::vector<int> out;
    auto inside = [&](const Node& x) { return !nodes.is_placed(x); };
    traverse({n}, inside, [&](const NodePtr& x, PendingNodes& todo) {
      if (int u = unit_of(x.get()); u >= 0)
        out.push_back(u);
      else if (x->op->kind != Kind::leaf)
        append(todo, x->in);
    });
    return out;
  }
};

}  // namespace

int first_collective(const Node& n) {
  if (n.op == &kCollective) return collective_spec_of(n).number;
  if (n.op != &kLoop) return 0;
  int first = 0;
  auto& l = loop_of(n);
  for (std::size_t b = 0; b < l.index.size(); ++b) {
    for (auto& x : topological(values_of(l, b)))
      if (varies_in(*x, l, b))
        if (int number = first_collective(*x); number && (!first || number < first)) first = number;
  }
  return first;
}
bool is_alias(const Node& n) {
  return (n.op->kind == Kind::wrap && n.op != &kCustomVjp) || is_custom_vjp_result(n);
}
const NodePtr& aliased(const Node& n) {
  return is_custom_vjp_result(n) ? n.in[0]->in[result_number(n)] : n.in[0];
}
const NodePtr& base_of(const NodePtr& n) {
  const NodePtr* x = &n;
  while (forwards(**x)) x = &aliased(**x);
  return *x;
}

Scope make_scope(const std::vector<Target>& targets, const Places& placed, bool fuse) {
  auto nodes = nodes_of(targets, placed);
  Anchors anchors{nodes, fuse};
  anchors.find_stored_nodes();
  anchors.anchor();
  Builder b{std::move(nodes), fuse};
  for (auto& t : targets) b.scope.targets[t.node.get()].push_back(&t);
  b.build();
  b.scope.in_memory = std::move(b.nodes.in_memory);
  return std::move(b.scope);
}

}  // namespace haliax
