// Sums that are added to an array start from it: no second array of its size.
#include "compile/loops/loops.h"
#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax {

// sum + array: the carry starts from the array, if that exists before the loop. sum + sum of one loop: one carry. No temporary of their size.
Nodes accumulate_folds(Nodes roots) {
  for (;;) {
    auto live = everything(roots);
    auto users = users_of(live, roots);
    Rewrite to;
    for (auto& n : live) {
      if (n->op != &prim::kAdd || !to.empty()) continue;
      for (std::size_t side : {0u, 1u}) {
        auto r = n->in[side], other = n->in[1 - side];
        if (!is_loop_result(*r) || users[r.get()] > 1 || r->axes != n->axes || other->axes != n->axes) continue;
        if (prim::is_number(other)) continue;
        Loop l = loop_of(*r);
        auto& mine = l.results[result_number(*r)];
        if (mine.fold != Fold::fold || mine.monoid != Monoid::sum || mine.start) continue;
        if (!depends_on(other, r->in[0])) mine.start = other;
        else if (other->op == &kResult && other->in == r->in && other != r && users[other.get()] == 1) {
          auto& second = l.results[result_number(*other)];
          if (second.fold != Fold::fold || second.monoid != Monoid::sum) continue;
          for (std::size_t b = 0; b < l.index.size(); ++b) mine.value[b] = prim::add(mine.value[b], second.value[b]);
          mine.start = second.start;
        } else continue;
        to[n.get()] = loop_result(replace_loop(r->in[0], std::move(l), to), result_number(*r));
        break;
      }
    }
    if (to.empty()) return roots;
    roots = drop_dead_results(substitute(roots, to));
  }
}

// array + scatter into zeros: the updates are added to the array itself. No second array of its size (the gradient of a tied table).
Nodes accumulate_updates(Nodes roots) {
  auto live = everything(roots);
  auto users = users_of(live, roots);
  Rewrite to;
  for (auto& n : live) {
    if (n->op != &prim::kAdd) continue;
    for (std::size_t side : {0u, 1u}) {
      auto &s = n->in[side], &array = n->in[1 - side];
      bool adds = is_scatter_add(*s) && prim::is_number(s->in[0], 0);
      if (!adds || users[s.get()] > 1 || s->axes != n->axes || array->axes != n->axes || prim::is_number(array)) continue;
      Nodes in = s->in;
      in[0] = array;
      for (auto& x : in) x = substitute(x, to);
      to[n.get()] = make(*s->op, in, s->axes, s->dtype, s->attr);
      break;
    }
  }
  return to.empty() ? roots : substitute(roots, to);
}

}  // namespace haliax
