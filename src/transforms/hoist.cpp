#include "transforms/hoist.h"

#include <algorithm>

#include "ops/attr.h"
#include "ops/prim.h"
#include "transforms/rewrite.h"

namespace haliax {
namespace {

// limits of the values that are materialized, in bytes: per iteration and in total
constexpr std::int64_t most_in_iteration = 128 << 10, most_in_total = 64 << 20;

// Returns true for views that rename or reorder axes.
bool shows_all(const Node& n) { return is_transparent_view(n) && n.in[0]->size() == n.size(); }
// Returns true for an elementwise op or a view that is linear in all operands together.
bool is_linear(const Node& n) {
  if (n.op->kind != Kind::map && !is_transparent_view(n)) return false;
  for (std::size_t k = 0; k < n.in.size(); ++k)
    if (const auto linear = linear_in(n, k); linear != Linear::all && linear != Linear::moves)
      return false;
  return true;
}

}  // namespace

Nodes with_hoisted_contractions(const Nodes& created, NodeRef index, const Axis& axis) {
  auto in_body = [&](const Node& n) { return n.varies_with(index.get()); };
  Rewrite to;
  traverse(created, in_body, [&](NodeRef n, PendingNodes& todo) {
    add_reads(n, todo);
    if (n->op->kind != Kind::contract || n->bytes() > most_in_iteration ||
        n->bytes() * axis.size > most_in_total)
      return;
    for (std::size_t k : {0, 1}) {
      auto &slice = n->in[k], &other = n->in[1 - k];
      const bool scanned = is_iteration_slice(*slice, *index) && !in_body(*slice->in[0]);
      if (!scanned || in_body(*other) || find(*other, axis.name)) continue;
      OriginScope due(n->origin);
      Nodes in{other, other};
      in[k] = slice->in[0];
      auto all = prim::rebuilt(*n, in, joined({axis}, n->axes));
      to[n.get()] = prim::fit(prim::slice_at(all, index, true), n->axes);
      return;
    }
  });
  return to.empty() ? created : substitute(created, to);
}

DeferredSums::DeferredSums(const Loop& l)
    : loop_(l), numbers_(l.results.size()), sums_(l.results.size()) {
  loop_.results.clear();
  std::vector<std::size_t> undecided;
  for (std::size_t k = 0; k < l.results.size(); ++k) {
    auto& r = l.results[k];
    if (r.kind == ResultKind::fold && r.monoid == Monoid::sum && !r.start)
      undecided.push_back(k);
    else
      numbers_[k] = add_result(loop_, r);
  }
  // In the second pass, there are stacks for all contractions that are deferred.
  for (int pass = 0; pass < 2; ++pass)
    std::erase_if(undecided, [&](std::size_t k) {
      auto& sum = l.results[k].value[0];
      if (!can_defer(*sum)) return false;
      sums_[k] = deferred(sum);
      return true;
    });
  for (auto k : undecided) numbers_[k] = add_result(loop_, l.results[k]);
}
bool DeferredSums::in_body(const Node& n) const { return n.varies_with(loop_.index[0].get()); }
// Returns true for the part of an array that an iteration reads.
bool DeferredSums::is_slice(const Node& x) const {
  return is_iteration_slice(x, *loop_.index[0]) && !in_body(*x.in[0]);
}
// Returns true if x, or the array that it renames or reorders, has the axis of the loop.
bool DeferredSums::has_own_axis(const Node& x) const {
  return has(x.axes, loop_.axis.name) || (shows_all(x) && has_own_axis(*x.in[0]));
}
// Returns true if the values of all iterations are an array, or are already stacked by the loop.
bool DeferredSums::is_stacked(const Node& x) const {
  if (shows_all(x)) return is_stacked(*x.in[0]);
  if (is_slice(x)) return true;
  return std::any_of(loop_.results.begin(), loop_.results.end(), [&](auto& r) {
    return r.kind == ResultKind::stack && r.value[0].get() == &x;
  });
}
bool DeferredSums::can_defer(const Node& sum) const {
  if (!in_body(sum) || has_own_axis(sum)) return false;
  if (is_stacked(sum)) return true;
  if (prim::reduces(sum, Monoid::sum)) return is_stacked(*sum.in[0]) && !has_own_axis(*sum.in[0]);
  if (is_linear(sum))
    return std::all_of(sum.in.begin(), sum.in.end(), [&](auto& x) { return can_defer(*x); });
  const bool is_outer_product = prim::combines(sum, Monoid::prod) &&
                                sum.in[0]->bytes() < sum.bytes() &&
                                sum.in[1]->bytes() < sum.bytes();
  if (sum.op->kind != Kind::contract && !is_outer_product) return false;
  std::int64_t added_bytes = 0;
  for (auto& x : sum.in) {
    if (!in_body(*x) || has_own_axis(*x)) return false;
    if (is_stacked(*x)) continue;
    if (x->bytes() > std::min(sum.bytes(), most_in_iteration)) return false;
    added_bytes += x->bytes() * loop_.axis.size;
  }
  return stacked_bytes_ + added_bytes <= most_in_total;
}
// Returns the sum over all iterations.
NodePtr DeferredSums::deferred(NodeRef sum) {
  OriginScope due(sum->origin);
  if (is_stacked(*sum)) return prim::reduce(Monoid::sum, stacked(sum), sum->axes);
  if (sum->op->kind == Kind::contract || prim::combines(*sum, Monoid::prod))
    return prim::contract(stacked(sum->in[0]), stacked(sum->in[1]), sum->axes, sum->dtype);
  if (prim::reduces(*sum, Monoid::sum))
    return prim::reduce(Monoid::sum, stacked(sum->in[0]), sum->axes);
  Nodes in;
  for (auto& x : sum->in) in.push_back(deferred(x));
  return prim::rebuilt(*sum, in, sum->axes);
}
// Returns the values of all iterations as an array.
NodePtr DeferredSums::stacked(NodeRef x) {
  if (shows_all(*x)) {
    auto all = stacked(x->in[0]);
    return prim::rebuilt(*x, {all}, joined({loop_.axis}, x->axes));
  }
  if (is_slice(*x)) return x->in[0];
  const auto before = loop_.results.size();
  const auto k = add_result(loop_, {.kind = ResultKind::stack, .value = {x}});
  if (k == before) stacked_bytes_ += x->bytes() * loop_.axis.size;
  stacks_.resize(loop_.results.size());
  if (!stacks_[k]) stacks_[k] = prim::input(joined({loop_.axis}, x->axes), x->dtype);
  return stacks_[k];
}
Nodes DeferredSums::results(NodeRef loop) const {
  Rewrite to;
  for (std::size_t k = 0; k < stacks_.size(); ++k)
    if (stacks_[k]) to[stacks_[k].get()] = loop_result(loop, k);
  auto sums = substitute(sums_, to);
  for (std::size_t k = 0; k < sums.size(); ++k)
    if (!sums[k]) sums[k] = loop_result(loop, numbers_[k]);
  return sums;
}

}  // namespace haliax
