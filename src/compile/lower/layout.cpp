// Layout selection: groups the values that should have one layout.
#include "compile/lower/layout.h"

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "graph/axes.h"
#include "graph/loop.h"
#include "graph/traversal.h"
#include "ops/attr.h"
#include "ops/prim.h"
#include "transforms/rewrite.h"

namespace haliax {
namespace {

// Returns true for a loop result that stacks one slice per iteration, so that its first axis is the
// axis of the loop.
bool has_stack_axis(const Node& n) {
  if (n.op != &kResult || n.in[0]->op != &kLoop || n.in[0]->value) return false;
  auto& l = loop_of(n);
  return l.drop && result_of(n).kind == ResultKind::stack;
}

// Groups nodes that should have the same layout. Each matmul that computes or reads a node of a
// group determines the batch axes of the group; groups with conflicting batch axes keep the default
// layout.
class LayoutGroups {
 public:
  Layouts find_all(const Nodes& roots, const Nodes& all) {
    for (auto& n : roots) keep_default(n.get());
    for (auto& n : all) visit(*n);
    Layouts out;
    for (auto& n : all) {
      auto& g = groups_[root(n.get())];
      if (g.keeps_default || !g.batch || g.batch->empty()) continue;
      auto order = ordered(*n, *g.batch);
      if (order != n->axes) out[n.get()] = std::move(order);
    }
    for (auto& n : all) order_mask(*n, out);
    return out;
  }

 private:
  struct LayoutGroup {
    std::optional<Names> batch = {};
    bool keeps_default = false;
  };
  std::unordered_map<const Node*, const Node*> parent_;
  std::unordered_map<const Node*, LayoutGroup> groups_;
  std::unordered_set<const Node*> default_;  // values that keep the default layout

  const Node* root(const Node* n) {
    for (;;) {
      auto& p = parent_.try_emplace(n, n).first->second;
      if (p == n) return n;
      n = p = parent_.try_emplace(p, p).first->second;
    }
  }
  void keep_default(const Node* n) {
    groups_[root(n)].keeps_default = true;
    default_.insert(n);
  }
  void prefer(const Node* n, const Names& batch) {
    auto& g = groups_[root(n)];
    if (g.batch && *g.batch != batch) g.keeps_default = true;
    g.batch = batch;
  }
  void unite(const Node* a, const Node* b) {
    a = root(a);
    b = root(b);
    if (a == b) return;
    auto from = groups_[a];
    parent_[a] = b;
    if (from.keeps_default) groups_[b].keeps_default = true;
    if (from.batch) prefer(b, *from.batch);
  }

  void visit(const Node& n) {
    auto kind = n.op->kind;
    if (keeps_names(n) && !n.value) return;  // a broadcast: not in memory
    if (kind == Kind::leaf || n.value) return keep_default(&n);
    if (kind == Kind::contract) {
      Names batch;
      for (auto& a : n.axes)
        if (find(*n.in[0], a.name) && find(*n.in[1], a.name)) batch.push_back(a.name);
      std::sort(batch.begin(), batch.end(), [](auto& x, auto& y) { return x.text() < y.text(); });
      prefer(&n, batch);
      prefer(n.in[0].get(), batch);
      prefer(n.in[1].get(), batch);
    } else if (has_stack_axis(n)) {
      for (auto& v : result_of(n).value) {
        unite(v.get(), &n);
        default_.insert(v.get());
      }
    } else if (auto slice = slice_of(n); slice && slice->drop && has_stack_axis(*n.in[0]) &&
                                         slice->axis == n.in[0]->axes[0].name) {
      unite(&n, n.in[0].get());
    } else if (kind == Kind::map || kind == Kind::wrap) {
      for (auto& x : n.in)
        if (x && same_names(n.axes, x->axes)) unite(&n, x.get());
    } else if (kind == Kind::loop) {  // its bodies contain the reads of its operands
      for (auto& r : loop_of(n).results)
        if (r.start) keep_default(r.start.get());
    } else if (kind != Kind::reduce) {
      keep_default(&n);
      for (auto& x : n.in)
        if (x) keep_default(x.get());
    }
  }
  // A mask takes the layout of its first operand with all of its axes, so that the step that
  // computes it reads and writes in one order. No other value does, since others may be accumulated
  // in a buffer with the default layout.
  void order_mask(const Node& n, Layouts& out) const {
    if (n.op->kind != Kind::map || n.dtype != DType::boolean || n.value || default_.count(&n) ||
        out.count(&n))
      return;
    for (auto& x : n.in) {
      if (!x || keeps_names(*x) || !same_names(n.axes, x->axes)) continue;
      auto known = out.find(x.get());
      const Axes& order = known == out.end() ? x->axes : known->second;
      if (order != n.axes) out[&n] = order;
      return;
    }
  }
  static Axes ordered(const Node& n, const Names& batch) {
    Axes out = n.axes;
    std::stable_partition(out.begin() + has_stack_axis(n), out.end(), [&](auto& a) {
      return std::find(batch.begin(), batch.end(), a.name) != batch.end();
    });
    return out;
  }
};

}  // namespace

Nodes all_computed(const Nodes& roots) {
  Nodes all;
  traverse(roots, [&](const NodePtr& n, PendingNodes& todo) {
    all.push_back(n);
    if (!n->value || n->op->kind == Kind::leaf) add_reads(n, todo);
  });
  sort_by_age(all);
  return all;
}

Layouts layouts_of(const Nodes& roots) {
  return LayoutGroups().find_all(roots, all_computed(roots));
}

}  // namespace haliax
