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
  bool may_skip = false;      // an iteration may be skipped, and then stacks no results
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
      t.may_skip |= p.flag != nullptr;
      t.has_deferred |= p.deferred != nullptr;
    }
  }
  t.may_skip |= condition_of(l) != nullptr;
  Nodes results;
  for (std::size_t k = 0; k < l.results.size(); ++k) {
    auto& r = results.emplace_back(loop_result(n, k));
    auto& how = l.results[k];
    bool adds = how.fold == Fold::stack ||
                (how.fold == Fold::fold && how.monoid == Monoid::sum && !how.start);
    auto* add = adds ? accumulation(r) : nullptr;
    t.added.push_back(add != nullptr);
    // A condition never changes, so it is read where it is stored.
    if (how.is_condition && in_memory(how.start)) {
      t.places.push_back(place_of(how.start));
      continue;
    }
    t.places.push_back(add ? add->place : target_place(r));
    if (add) continue;
    if (how.start)
      start_from(how.start, t.places[k], r->axes);
    else if (how.fold == Fold::stack && t.may_skip)
      zero(t.places[k], r->axes);
    else if (how.fold == Fold::fold)
      fill(t.places[k], r->axes, prim::identity(how.monoid, r->dtype));
  }
  for (bool deferred : {false, true})
    for (std::size_t position = 0; position < l.index.size() && (!deferred || t.has_deferred);
         ++position)
      // The remainder tile has the last positions of the axis.
      body(t, l.reverse ? l.index.size() - 1 - position : position, deferred);
  for (std::size_t k = 0; k < results.size(); ++k) set_place(results[k].get(), t.places[k]);
  retained_.insert(retained_.end(), results.begin(), results.end());
}

void Lowering::body(const LoweredLoop& t, std::size_t b, bool deferred) {
  auto& l = t.l;
  Step s{.kind = program::Kind::loop,
         .loop = {.trips = trips(l, b), .reverse = l.reverse, .continues_previous = deferred}};
  if (s.loop.trips == 0 || (deferred && !t.parts[b].front().deferred)) return;
  auto* index = l.index[b].get();
  const auto mark = added_.size();
  const Place* condition = nullptr;
  for (std::size_t k = 0; k < l.results.size(); ++k) {
    if (l.results[k].carry) set_place(l.results[k].carry.get(), t.places[k]);
    if (l.results[k].is_condition) condition = &t.places[k];
  }
  auto iteration = [&] {
    for (auto& part : t.parts[b]) {
      auto before = added_.size();
      iteration_part(part, deferred ? part.deferred : part.flag, t, b);
      forget(before);
    }
  };
  if (condition) {
    variables_[index] = -1;
    conditional(*condition, iteration);
  } else {
    s.loop.variable = p_.loops++;
    // The smaller last chunk starts after 0 and has one iteration, so its index is a constant.
    variables_[index] = prim::index_start(*index) == 0 ? s.loop.variable : -1;
    push_with_body(std::move(s), iteration);
  }
  forget(mark);
  variables_.erase(index);
}

void Lowering::iteration_part(const IterationPart& part, const NodePtr& flag, const LoweredLoop& t,
                              std::size_t b) {
  if (!flag) return part_values(part, t, b);
  auto place = fresh({}, DType::boolean);
  scope({{flag, place}});
  conditional(place, [&] { part_values(part, t, b); });
}

// Computes the values of a part. Then all carries receive their next values, since the old values
// may be read until all next values are computed. Only a body that is a single part has carries.
void Lowering::part_values(const IterationPart& part, const LoweredLoop& t, std::size_t b) {
  struct Move {
    Place from, to;
    Axes axes;
  };
  std::vector<Move> moves;
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
      moves.push_back({next, reordered(t.places[k], how.carry->axes, value->axes), value->axes});
      targets.push_back({value, next});
    }
  }
  scope(targets);
  for (auto& m : moves) copy(m.from, m.to, m.axes);
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
                                Axes value) {
  if (l.drop) value.insert(value.begin(), l.axis);
  auto p = block_of({stack, value}, l.axis.name, prim::index_chunk(*index),
                    prim::index_start(*index), variables_.at(index.get()))
               .place;
  if (l.drop) p.strides.erase(p.strides.begin());
  return p;
}

}  // namespace haliax
