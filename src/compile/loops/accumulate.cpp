// Starts loop sums from the array that they are added to, which saves a second array of this size.
#include "compile/loops/loops.h"
#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax {

namespace {

bool is_sum(const LoopResult& r) { return r.fold == Fold::fold && r.monoid == Monoid::sum; }

// Returns n = r + other as a result of the loop that computes r; null if this is not possible.
NodePtr added_inside(const Node& n, const NodePtr& r, const NodePtr& other,
                     std::unordered_map<const Node*, int>& users, Rewrite& to) {
  if (!is_loop_result(*r) || users[r.get()] > 1 || r->axes != n.axes || other->axes != n.axes)
    return nullptr;
  if (prim::is_number(other)) return nullptr;
  Loop l = loop_of(*r);
  auto& mine = l.results[result_number(*r)];
  if (!is_sum(mine) || mine.start) return nullptr;
  if (!depends_on(other, r->in[0])) {
    mine.start = other;
  } else {
    if (other->op != &kResult || other->in != r->in || other == r || users[other.get()] != 1)
      return nullptr;
    auto& second = l.results[result_number(*other)];
    if (!is_sum(second)) return nullptr;
    for (std::size_t b = 0; b < l.index.size(); ++b)
      mine.value[b] = prim::add(mine.value[b], second.value[b]);
    mine.start = second.start;
  }
  return loop_result(replace_loop(r->in[0], std::move(l), to), result_number(*r));
}

}  // namespace

// Handles two cases without a temporary array. sum + array: the sum starts from the array, if the
// array does not depend on the loop. sum + sum of the same loop: one sum.
Nodes accumulate_sums(Nodes roots) {
  for (;;) {
    auto live = all_nodes(roots);
    auto users = users_of(live, roots);
    Rewrite to;
    for (auto& n : live)
      for (std::size_t side = 0; side < 2 && prim::combines(*n, Monoid::sum) && to.empty(); ++side)
        if (auto sum = added_inside(*n, n->in[side], n->in[1 - side], users, to)) to[n.get()] = sum;
    if (to.empty()) return roots;
    roots = substitute(roots, to);
  }
}

// array + scatter into zeros: scatters into the array itself, without a second array of its size.
// An example is the gradient of a tied embedding table.
Nodes accumulate_updates(Nodes roots) {
  auto live = all_nodes(roots);
  auto users = users_of(live, roots);
  Rewrite to;
  for (auto& n : live) {
    if (!prim::combines(*n, Monoid::sum)) continue;
    for (std::size_t side : {0u, 1u}) {
      auto &s = n->in[side], &array = n->in[1 - side];
      bool adds = accumulates(*s, Monoid::sum) && prim::is_number(s->in[0], 0);
      if (!adds || users[s.get()] > 1 || s->axes != n->axes || array->axes != n->axes ||
          prim::is_number(array))
        continue;
      Nodes in = s->in;
      in[0] = array;
      in = substitute(in, to);
      to[n.get()] = prim::rebuilt(*s, in, s->axes);
      break;
    }
  }
  return to.empty() ? roots : substitute(roots, to);
}

}  // namespace haliax
