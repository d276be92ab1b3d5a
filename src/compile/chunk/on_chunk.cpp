// Builds the nodes of a region on one chunk, and the loops over all chunks.
#include <algorithm>
#include <cmath>

#include "ops/attr.h"
#include "ops/block.h"
#include "ops/blockwise.h"
#include "compile/chunk/region.h"

namespace haliax {

// Returns the axes of a value on a chunk. An axis with this name but another size is unchanged, as
// in the result of top_k.
Axes Region::axes_on_chunk(Axes axes, Name a, std::size_t b) const {
  for (auto& x : axes)
    if (x.name == a && x.size == axis_.size) x.size = prim::index_chunk(*index_[b]);
  return axes;
}
// Returns the part of x that an iteration of body b reads: the value computed on the chunk, a slice
// of an array outside of the region, or x itself if it lacks the axis.
NodePtr Region::part(const NodePtr& x, Name a, std::size_t b) {
  if (auto& known = known_of(*x).parts; !known.empty()) return known[b];
  if (enters(*x)) return part(x->in[0], axis_.name, b);
  if (!has_axis(*x, a)) return x;
  auto& created = outer_[{x.get(), a.data()}];
  if (created.empty()) {
    for (std::size_t k = 0; k < index_.size(); ++k) {
      if (grows(x, a) || owner_.count(x.get()))
        created.push_back(made_on_chunk(x, a, k));
      else
        created.push_back(prim::block_of(x, {block(a, k)}));
    }
  }
  return created[b];
}

// Returns true for a lookup whose ids are computed from positions alone, such as a bias by
// distance.
bool Region::is_looked_up(const Node& n, Name a) const {
  if (n.op->kind != Kind::step || picks(n, a)) return false;
  bool by_position = false;
  for (std::size_t k = 0; k < n.in.size(); ++k) {
    if (!n.in[k] || !has(n.in[k]->axes, a)) continue;
    by_position = is_generated(n.in[k]) && along(n, k, a).way == Along::Way::map;
    if (!by_position) return false;
  }
  return by_position;
}
bool Region::grows(const NodePtr& x, Name a) const {
  std::unordered_set<const Node*> seen;
  std::vector<std::pair<NodePtr, Name>> todo{{x, a}};
  std::int64_t bytes = 0;
  while (!todo.empty()) {
    auto [n, name] = todo.back();
    todo.pop_back();
    if (!has_axis(*n, name) || prim::is_number(n) || is_position(*n) ||
        !seen.insert(n.get()).second)
      continue;
    if (owner_.count(n.get())) continue;  // the loop of this carry is rebuilt on the chunk
    bool places = picks(*n, name) && prim::is_number(n->in[0]);
    // Sharding constraints count as well, since random draws may have one.
    bool shows =
        is_transparent_view(*n) || is_region_boundary(*n) || n->op == &prim::kShardingConstraint;
    bool pointwise =
        !n->value && (n->op->kind == Kind::map || shows || places || is_looked_up(*n, name));
    if (!pointwise) {
      bytes += n->bytes();
      if (bytes >= x->bytes()) return false;
      continue;
    }
    for (std::size_t k = 0; k < n->in.size(); ++k)
      todo.push_back({n->in[k], name_in_operand(*n, k, name)});
  }
  return seen.count(x.get()) > 0 && x->op->kind != Kind::leaf;
}

// Returns n on the chunks of its operands. `a`: the name of the tiled axis, see name_in.
NodePtr Region::made_on_chunk(const NodePtr& n, Name a, std::size_t b) {
  OriginScope here(n->origin);
  // barrier of a branch of `cond`
  bool in_turn = n->op == &prim::kBarrier && n->in[1]->op == &prim::kIndex;
  if (in_turn) return prim::barrier(part(n->in[0], a, b), n->in[1]);
  if (enters(*n) || leaves(*n) || n->op == &prim::kBarrier) return part(n->in[0], a, b);
  if (n->op == &kLoop) return loop_on_chunk(n, b);
  if (turns(*n)) return running_on_chunk(n, b);
  if (n->op == &kResult) return loop_result(part(n->in[0], a, b), result_number(*n));
  if (n->op == &prim::kCarry) return prim::carry(n->in[0], axes_on_chunk(n->axes, a, b), n->dtype);
  Name inner = is_transparent_view(*n) ? name_in_operand(*n, 0, a) : a;
  Nodes in;
  bool from_table = picks(*n, a);
  // An array outside of the region may be read in full, except for the table of a gather along the
  // axis.
  for (std::size_t k = 0; k < n->in.size(); ++k) {
    auto& x = n->in[k];
    bool table = from_table && k == 0;
    bool whole = !x || (!table && !contains(x) && has_axis(*x, inner) &&
                        along(*n, k, inner).way == Along::Way::full);
    in.push_back(whole ? x : part(x, inner, b));
  }
  auto axes = contains(n) && !walks(n) ? n->axes : axes_on_chunk(n->axes, a, b);
  // A chunk processes the indices that are inside of it.
  if (from_table) return prim::on_block(*n, std::move(in), axes, {block(a, b)});
  if (auto m = n->op->accumulates ? n->op->accumulates(*n) : std::nullopt; m && !walks(n))
    // The initial value is added once, as the start of the loop result (see folded). Each chunk
    // starts at the identity.
    in[0] = prim::fit(prim::identity(*m, n->dtype), n->axes);
  return prim::rebuilt(*n, std::move(in), axes);
}
NodePtr Region::loop_on_chunk(const NodePtr& n, std::size_t b) {
  if (goes_along(*n)) return steps_on_chunk(n, b);
  Loop l = loop_of(*n);
  auto a = name_in(*n);
  for (auto& r : l.results) {
    for (auto& v : r.value) v = part(v, a, b);
    if (r.start) r.start = part(r.start, a, b);
    if (r.carry) r.carry = part(r.carry, a, b);
  }
  return make_loop(std::move(l));
}

LoopResult Region::folded(const NodePtr& n) {
  LoopResult r{Fold::fold, *folds_by(*n), {}, {}, {}};
  for (std::size_t b = 0; b < index_.size(); ++b) {
    auto v = made_on_chunk(n, name_in(*n), b);
    r.value.push_back(r.monoid == Monoid::sum ? widened(v) : v);
  }
  if (r.monoid == Monoid::prod) {
    r.fold = Fold::carry;
    r.start = prim::filled(1, n->dtype, n->axes);
    r.carry = prim::carry(index_[0], n->axes, n->dtype);
    for (auto& v : r.value) v = prim::map(prim::kMul, {r.carry, v}, n->dtype, &n->axes);
  }
  if (n->op == &kResult && goes_along(*n)) r.start = result_of(*n).start;
  bool from_zeros = r.monoid == Monoid::sum && prim::is_number(n->in[0], 0);
  if (n->op->accumulates && !from_zeros) r.start = prim::cast(n->in[0], r.value[0]->dtype);
  return r;
}
// Swaps two axis names: `a`, the name of the tiled axis in x, and the name that the loop has for
// it.
NodePtr Region::swapped(const NodePtr& x, Name a) const {
  return prim::rename(x, {a, axis_.name}, {axis_.name, a});
}

// Returns the final value of a reduction, computed from the result of its loop and the final values
// so far.
NodePtr Region::finished(const NodePtr& n, const NodePtr& result, Finals& finals) {
  auto v = prim::cast(result, n->dtype);
  if (auto s = streamed(n); !s.guarded && holds(known_of(*s.top).order.streams, n)) {
    auto& top = finals.of.at(s.top);
    auto good = prim::map(prim::kIsFinite, {top}, DType::boolean);
    if (s.hides)
      good = prim::map(prim::kBitOr, {good, prim::equal(top, prim::extreme(top->dtype, false))},
                       DType::boolean);
    v = prim::map(prim::kSelect, {good, v, prim::number(std::nan(""), n->dtype)}, n->dtype,
                  &n->axes);
  }
  if (!picks(*n, name_in(*n))) return v;
  auto in = n->in;
  for (std::size_t k = 1; k < in.size(); ++k) in[k] = finals({in[k]})[0];
  return prim::where_in_range(*n, in, v, prim::picked_outside(n->dtype));
}

// Replaces the values that the bodies read from outside by final values. A node outside of the
// bodies, such as a layer after the region, is computed once for all passes and the roots. A loop
// outside may contain the same chunks in its own body, and still computes them there.
void Region::finish(Loop& l, Finals& finals) const {
  Rewrite known = finals.parts;
  auto read = [&](const NodePtr& x) {
    if (x && !known.count(x.get())) known[x.get()] = finals({x})[0];
  };
  for (std::size_t b = 0; b < index_.size(); ++b) {
    Nodes values, reads;
    for (auto& r : l.results) values.push_back(r.value[b]);
    std::unordered_set<const Node*> body;
    for (auto& n : level_of(values, index_[b].get())) {
      if (is_region_boundary(*n) && !n->varies_with(index_[b].get())) continue;  // entered outside
      body.insert(n.get());
      add_reads(n, reads);
    }
    append(reads, values);
    for (auto& x : reads)
      if (!body.count(x.get())) read(x);
  }
  for (auto& r : l.results) {
    r.value = substitute(r.value, known);
    if (r.start) r.start = finals({r.start})[0];
  }
}

Nodes Region::without_waits() const {
  Rewrite to;
  for (auto& n : level_)
    if (!waits_ && n->op == &prim::kBarrier && !contains(n) && contains(n->in[1]))
      to[n.get()] = substitute({n->in[0]}, to, around_)[0];
  return to.empty() ? roots_ : substitute(roots_, to, around_);
}

Nodes Region::cut(const RegionCut& how) {
  reverse_ = how.reverse;
  int count = sweeps();
  keep_for_later(how.keep);
  // The axis may be a chunk of an enclosing call, and shorter than the chunk of this call.
  const auto chunk = std::min(how.chunk, axis_.size);
  index_ = {prim::index(axis_, 0, chunk, 0, LoopOrigin::region)};
  if (auto left = axis_.size % chunk)
    index_.push_back(prim::index(axis_, axis_.size - left, left, 0, LoopOrigin::region));
  for (auto& n : level_) {
    if (!contains(n) || !on_chunk(n)) continue;
    Nodes created;
    for (std::size_t b = 0; b < index_.size(); ++b)
      created.push_back(made_on_chunk(n, name_in(*n), b));
    member(*n).parts = std::move(created);
  }
  Finals finals{around_};
  for (int s = 0; s < count; ++s) {
    Loop l;
    l.axis = axis_;
    l.index = index_;
    l.save = Save::nothing;
    l.reverse = goes_back(s);
    l.of_scores = how.of_scores;
    l.form = how.form;
    l.why = how.why;
    l.any_order = steps_[s].empty() && std::none_of(folds_[s].begin(), folds_[s].end(),
                                                    [&](auto& n) { return turns(*n); });
    Nodes of;
    std::unordered_set<const Node*> done;
    auto add = [&](LoopResult r, const NodePtr& n) {
      l.results.push_back(std::move(r));
      of.push_back(n);
    };
    for (auto& n : steps_[s])
      if (!turns(*n))
        stream_steps(l, of, n);
      else
        for (auto& r : known_of(*n).known) add(r, nullptr);
    for (auto& n : folds_[s]) {
      if (n->op == &kResult && goes_along(*n) && result_of(*n).carry) continue;
      auto& order = known_of(*n).order;
      if (!order.streams.empty()) {
        stream(l, of, n);
        for (auto& x : order.streams) done.insert(x.get());
      } else if (turns(*n)) {
        stream_turns(l, of, n);
        for (auto& x : order.picked) done.insert(x.get());
      } else if (!done.count(n.get())) {
        add(folded(n), n);
      }
    }
    for (auto& n : stacks_[s]) {
      LoopResult r{Fold::stack, Monoid::sum, known_of(*n).parts, {}, {}};
      auto a = known_of(*n).role.axis;
      for (auto& v : r.value) v = swapped(v, a);
      add(std::move(r), n);
    }
    if (l.results.empty()) continue;
    finish(l, finals);
    auto loop = make_loop(std::move(l));
    for (std::size_t k = 0; k < of.size(); ++k) {
      auto& n = of[k];
      if (!n) continue;
      auto result = loop_result(loop, k);
      if (!on_chunk(n)) {
        auto v = result;
        for (auto& [x, m] : members_)
          if (auto* t = turns(*x); t && t->positions && find(*result, t->positions))
            v = prim::rename(result, {t->positions}, {t->axis});
        finals.of[n.get()] = finished(n, prim::fit(v, n->axes), finals);
        continue;
      }
      auto a = known_of(*n).role.axis;
      finals.of[n.get()] = prim::fit(swapped(result, a), n->axes);
      // A later pass reads the stacked value instead of rematerializing it.
      for (std::size_t b = 0; b < index_.size(); ++b) {
        auto& p = known_of(*n).parts[b];
        if (!is_slice_at(*p, index_[b].get()))
          finals.parts[p.get()] = swapped(prim::slice_at(result, index_[b], false), a);
      }
    }
  }
  return finals(roots_);
}

}  // namespace haliax
