// Starts loop sums, and scatters into zeros, from the array that they are added to, which saves a
// second array of this size.
#include "compile/loops/loops.h"
#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax {
namespace {

bool is_sum(const LoopResult& r) { return r.kind == ResultKind::fold && r.monoid == Monoid::sum; }

// Returns n = r + other as one result of the loop that sums r; null if this is not possible. There
// are two cases, both without a temporary array:
//
// - `other` does not depend on the loop: sum(x_i) + a starts the sum from a.
// - `other` is another sum of the same loop: sum(x_i) + sum(y_i) becomes sum(x_i + y_i).
NodePtr added_inside(const Node& n, const NodePtr& r, const NodePtr& other,
                     std::unordered_map<const Node*, int>& users, Rewrite& to) {
  if (!is_loop_result(*r) || users[r.get()] > 1 || r->axes != n.axes || other->axes != n.axes)
    return nullptr;
  if (prim::is_number(other)) return nullptr;  // a scalar needs no array
  Loop l = loop_of(*r);
  auto& sum = l.results[result_number(*r)];
  if (!is_sum(sum) || sum.start) return nullptr;
  if (!depends_on(other, r->in[0])) {
    sum.start = other;
  } else {
    const bool same_loop = other->op == &kResult && other->in == r->in;
    if (!same_loop || other == r || users[other.get()] != 1) return nullptr;
    auto& other_sum = l.results[result_number(*other)];
    if (!is_sum(other_sum)) return nullptr;
    for (std::size_t b = 0; b < l.index.size(); ++b)
      sum.value[b] = prim::add(sum.value[b], other_sum.value[b]);
    sum.start = other_sum.start;
  }
  return loop_result(replace_loop(r->in[0], std::move(l), to), result_number(*r));
}

// Rewrites the first addition to a loop sum, if there is one.
void accumulate_one(const Nodes& roots, Rewrite& to) {
  auto all = all_nodes(roots);
  auto users = users_of(all, roots);
  for (auto& n : all)
    for (std::size_t side = 0; side < 2 && prim::combines(*n, Monoid::sum); ++side)
      if (auto sum = added_inside(*n, n->in[side], n->in[1 - side], users, to)) {
        to[n.get()] = sum;
        return;
      }
}

}  // namespace

Nodes accumulate_sums(Nodes roots) { return rewrite_one_by_one(std::move(roots), accumulate_one); }

// An example is the gradient of a tied embedding table.
Nodes accumulate_updates(Nodes roots) {
  auto all = all_nodes(roots);
  auto users = users_of(all, roots);
  Rewrite to;
  for (auto& n : all) {
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
