// Computes only one side of a select whose condition is a single flag:
//
//     y = select(flag, f(x), g(x))      f, g: matmuls or loops that nothing else reads
//
// becomes two conditionals, of which one runs. An example is `cond` in shard_map, where the flag
// depends on the device. In the graph of all devices, the flag has an axis of devices, so both
// sides are computed for each of them. In the graph of one device, it is a scalar.
#include <algorithm>

#include "compile/lower/level_graph.h"
#include "compile/lower/rewrites.h"
#include "graph/axes.h"
#include "ops/prim.h"
#include "transforms/rewrite.h"

namespace haliax {
namespace {

using NodeSet = std::unordered_set<const Node*>;

// Returns the node of which x is a broadcast or a reordering.
const NodePtr& unbroadcast(const NodePtr& x) { return keeps_names(*x) ? unbroadcast(x->in[0]) : x; }
bool holds(const std::vector<int>& some, int k) {
  return std::find(some.begin(), some.end(), k) != some.end();
}
bool has_one_flag(const Node& select) { return unbroadcast(select.in[0])->size() == 1; }

// One level: the top, or a loop body.
class LazySelects {
 public:
  // depth: number of enclosing loop bodies.
  LazySelects(const Nodes& roots, const Node* index, int depth)
      : roots_(roots), index_(index), depth_(depth), level_(roots, index, true) {}
  // Returns the roots with conditionals in place of some selects with one flag. Returns the same
  // roots if there are none.
  Nodes run() const {
    for (int k = 0; k < level_.size(); ++k) {
      if (!prim::selects(level_.node(k)) || !has_one_flag(level_.node(k))) continue;
      auto together = with_same_flag(k);
      Nodes selects;
      for (int s : together) selects.push_back(level_.at(s).node);
      auto sides = std::array{side(together, 1), side(together, 2)};
      if (!sides[0].empty() || !sides[1].empty()) return rewritten(selects, sides);
    }
    return roots_;
  }

 private:
  using SideNodes = std::array<NodeSet, 2>;
  // Returns the select and later ones with its flag that do not depend on each other.
  std::vector<int> with_same_flag(int select) const {
    auto& flag = unbroadcast(level_.node(select).in[0]);
    std::vector<int> out{select};
    Marks members(level_.size());
    members.add(select);
    for (int k = select + 1; k < level_.size(); ++k) {
      auto& n = level_.node(k);
      if (!prim::selects(n) || unbroadcast(n.in[0]) != flag) continue;
      if (level_.dependents(members)[k]) continue;
      out.push_back(k);
      members.add(k);
    }
    return level_.keeps_collective_order(members) ? out : std::vector{select};
  }
  // Returns the nodes that are read as this operand of the selects only, directly or indirectly.
  // Returns nothing if none of them is a matmul, a loop or another step of its own.
  NodeSet side(const std::vector<int>& selects, std::size_t operand) const {
    NodeSet inside;
    bool has_step = false;
    for (int k = level_.size(); k-- > 0;) {
      auto& item = level_.at(k);
      auto& n = item.node;
      auto is_inside = [&](int r) {
        auto& reader = level_.node(r);
        if (inside.count(&reader)) return true;
        if (!holds(selects, r)) return false;
        return std::count(reader.in.begin(), reader.in.end(), n) == 1 && reader.in[operand] == n;
      };
      if (item.readers.empty() || item.is_root || item.first_collective || holds(selects, k) ||
          n->op->kind == Kind::leaf || n->value ||
          !std::all_of(item.readers.begin(), item.readers.end(), is_inside))
        continue;
      inside.insert(n.get());
      const auto kind = n->op->kind;
      has_step |= kind == Kind::contract || kind == Kind::loop || kind == Kind::step;
    }
    return has_step ? inside : NodeSet();
  }

  Nodes rewritten(const Nodes& selects, const SideNodes& sides) const {
    OriginScope here(selects[0]->origin);
    auto scalar = unbroadcast(selects[0]->in[0]);
    for (auto& a : scalar->axes) scalar = prim::at_position(scalar, a.name, 0);
    // The results of the last conditional; before it, the operands of the side that always runs.
    Nodes now;
    for (auto& s : selects) {
      auto& other = s->in[sides[0].empty() ? 1 : 2];
      const bool both = !sides[0].empty() && !sides[1].empty();
      now.push_back(both ? prim::filled(0, s->dtype, s->axes) : prim::fit(other, s->axes));
    }
    for (std::size_t k = 0; k < sides.size(); ++k) {
      if (sides[k].empty()) continue;
      const auto index = prim::conditional_index(depth_, LoopOrigin::select);
      auto l = prim::conditional(index, k == 0 ? scalar : prim::logical_not(scalar));
      for (std::size_t s = 0; s < selects.size(); ++s) {
        auto& select = *selects[s];
        auto carry = prim::carry(index, select.axes, select.dtype);
        auto value = prim::fit(in_conditional(select.in[k + 1], sides[k], index), select.axes);
        l.results.push_back(
            {.kind = ResultKind::carry, .value = {value}, .start = now[s], .carry = carry});
      }
      auto loop = make_loop(std::move(l));
      for (std::size_t s = 0; s < selects.size(); ++s) now[s] = loop_result(loop, s + 1);
    }
    Rewrite to;
    for (std::size_t s = 0; s < selects.size(); ++s) to[selects[s].get()] = now[s];
    return substitute(roots_, to, index_);
  }
  // Returns the value with all nodes that `inside` reads from elsewhere after a barrier on the
  // index. The nodes inside then vary with the index, so the body of the conditional computes them.
  // The bodies of loops inside are inside, too.
  NodePtr in_conditional(const NodePtr& value, const NodeSet& inside, const NodePtr& index) const {
    auto is_inside = [&](const Node& n) {  // a result is where its loop or collective is
      return inside.count(&n) > 0 && (n.op != &kResult || inside.count(n.in[0].get()) > 0);
    };
    Rewrite to;
    NodeSet indices;  // the indices of the loops inside
    traverse({value}, [&](const NodePtr& n, PendingNodes& todo) {
      if (is_inside(*n) || indices.count(n.get()) > 0 || varies_with(*n, indices)) {
        if (n->op == &kLoop)
          for (auto& i : loop_of(*n).index) indices.insert(i.get());
        return add_reads(n, todo);
      }
      if (n->op->kind == Kind::leaf && n->op->cheap) return;
      to[n.get()] = prim::barrier(n, index);
    });
    return substitute(value, to);
  }

  const Nodes& roots_;
  const Node* index_;
  const int depth_;
  const LevelGraph level_;
};

Nodes rewrite_selects(Nodes roots, const Node* index, int depth) {
  for (;;) {
    auto now = LazySelects(roots, index, depth).run();
    if (now == roots) break;
    roots = std::move(now);
  }
  auto is_untiled = [](const Loop& l) {
    return origin_of(l) == LoopOrigin::user || origin_of(l) == LoopOrigin::select;
  };
  return in_bodies(roots, index, is_untiled, [&](const Nodes& values, const Node* i) {
    return rewrite_selects(values, i, depth + 1);
  });
}

}  // namespace

Nodes lazy_selects(const Nodes& roots) {
  auto all = all_nodes(roots);
  auto is_candidate = [](auto& n) { return prim::selects(*n) && has_one_flag(*n); };
  return std::any_of(all.begin(), all.end(), is_candidate) ? rewrite_selects(roots, nullptr, 0)
                                                           : roots;
}

}  // namespace haliax
