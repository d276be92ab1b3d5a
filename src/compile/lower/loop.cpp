// Lowers loops to steps that contain steps. A result is stacked in its final location, folded into
// it, or carried.
#include <algorithm>

#include "compile/lower/kernel.h"
#include "compile/lower/lowering.h"
#include "ops/prim.h"

namespace haliax {

using program::Step;

struct Lowering::LoweredLoop {
  const Loop& l;
  std::vector<std::vector<IterationPart>> parts = {};  // parts of each body
  std::vector<Place> places = {};                      // place of each result
  std::vector<bool> added = {};                        // by result: it is added to an existing sum
  bool may_end = false;       // an iteration may end before it stacks its results
  bool has_deferred = false;  // the iterations run in two passes (`IterationPart::deferred`)
};

void Lowering::loop(const NodePtr& n) {
  auto& l = loop_of(*n);
  LoweredLoop t{l};
  auto parts = iteration_parts_.find(n.get());
  for (std::size_t b = 0; b < l.index.size(); ++b) {
    t.parts.push_back(parts == iteration_parts_.end() ? std::vector{unsplit_iteration(l, b)}
                                                      : parts->second[b]);
    for (auto& p : t.parts[b]) {
      t.may_end |= p.flag != nullptr;
      t.has_deferred |= p.deferred != nullptr;
    }
  }
  for (auto& r : l.results) t.may_end |= r.is_guard;
  Nodes results;
  for (std::size_t k = 0; k < l.results.size(); ++k) {
    auto& r = results.emplace_back(loop_result(n, k));
    auto& how = l.results[k];
    bool adds = how.fold == Fold::stack ||
                (how.fold == Fold::fold && how.monoid == Monoid::sum && !how.start);
    auto* add = adds ? accumulation(r) : nullptr;
    t.added.push_back(add != nullptr);
    t.places.push_back(add ? add->place : target_place(r));
    if (add) continue;
    if (how.start)
      start_from(how.start, t.places[k], r->axes);
    else if (how.fold == Fold::stack && t.may_end)
      zero(t.places[k], r->axes);
    else if (how.fold == Fold::fold)
      fill(t.places[k], r->axes, prim::identity(how.monoid, r->dtype));
  }
  for (bool deferred : {false, true})
    for (std::size_t position = 0; position < l.index.size() && (!deferred || t.has_deferred);
         ++position)
      // The remainder chunk has the last positions of the axis.
      body(t, l.reverse ? l.index.size() - 1 - position : position, deferred);
  for (std::size_t k = 0; k < results.size(); ++k) set_place(results[k].get(), t.places[k]);
  retained_.insert(retained_.end(), results.begin(), results.end());
}

void Lowering::body(const LoweredLoop& t, std::size_t b, bool deferred) {
  auto& l = t.l;
  Step s{
      .kind = program::Kind::loop,
      .loop = {
          .trips = trips(l, b), .reverse = l.reverse, .continues_previous = deferred, .body = {}}};
  if (s.loop.trips == 0 || (deferred && !t.parts[b].front().deferred)) return;
  s.loop.variable = p_.loops++;
  auto* index = l.index[b].get();
  variables_[index] = prim::index_start(*index) == 0 ? s.loop.variable : -1;
  auto* outer = std::exchange(steps_, &s.loop.body);
  auto mark = added_.size();
  Moves moves;
  for (std::size_t k = 0; k < l.results.size(); ++k)
    if (auto& r = l.results[k]; r.carry) {
      set_place(r.carry.get(), t.places[k]);
      if (r.is_guard) push({.kind = program::Kind::skip, .skip = {view(t.places[k], {}, {})}});
    }
  for (auto& part : t.parts[b]) {
    auto before = added_.size();
    // With several parts, each part may end early on its own.
    Step once{.kind = program::Kind::loop, .loop = {.variable = -1, .trips = 1, .body = {}}};
    bool single = t.parts[b].size() == 1;
    if (!single) steps_ = &once.loop.body;
    iteration_part(part, deferred ? part.deferred : part.flag, t, b, moves);
    if (single) continue;
    forget(before);
    steps_ = &s.loop.body;
    push(std::move(once));
  }
  std::size_t m = 0;
  for (auto& how : l.results) {
    if (how.fold != Fold::carry || how.value[b] == how.carry) continue;
    copy(moves[m].first, moves[m].second, how.value[b]->axes);
    ++m;
  }
  forget(mark);
  variables_.erase(index);
  steps_ = outer;
  push(std::move(s));
}

void Lowering::iteration_part(const IterationPart& part, const NodePtr& ends, const LoweredLoop& t,
                              std::size_t b, Moves& moves) {
  if (ends) {
    auto flag = fresh({}, DType::boolean);
    scope({{ends, flag}});
    push({.kind = program::Kind::skip, .skip = {view(flag, {}, {})}});
  }
  std::vector<Target> targets;
  for (auto& [k, value] : part.values) {
    auto& how = t.l.results[k];
    if (how.fold == Fold::fold)
      targets.push_back({value, t.places[k], true, how.monoid});
    else if (how.fold == Fold::stack)
      targets.push_back({value, iteration_block(t.places[k], t.l, t.l.index[b], value->axes),
                         t.added[k], Monoid::sum});
    else if (value != how.carry) {
      auto next = fresh(value->axes, value->dtype, purposes_.of(*value));
      moves.push_back({next, reordered(t.places[k], how.carry->axes, value->axes)});
      targets.push_back({value, next});
    }
  }
  scope(targets);
}

void Lowering::start_from(const NodePtr& start, const Place& to, const Axes& axes) {
  if (in_memory(start)) {
    auto from = place_of(start);
    return copy(start->axes == axes ? from : reordered(from, start->axes, axes), to, axes);
  }
  Kernel k(*this, axes, {});
  k.store(k.value(start, k.names(start->axes)), to, axes, false, Monoid::sum);
  k.finish();
}

Place Lowering::iteration_block(const Place& stack, const Loop& l, const NodePtr& index,
                                const Axes& value) {
  Place p = stack;
  // The position of the loop axis in the result.
  auto along = l.drop ? 0 : find_axis(value, l.axis.name) - value.data();
  auto t = term(index, p.strides[std::size_t(along)], 0);
  if (l.drop) p.strides.erase(p.strides.begin());
  if (t.loop < 0)
    p.offset += t.stride;
  else
    p.terms.push_back(t);
  return p;
}

}  // namespace haliax
