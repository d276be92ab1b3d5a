// Lowers loops to steps that contain steps. A result is stacked in its final location, folded into
// it, or carried.
#include <algorithm>
#include <cstdlib>

#include "compile/lower/kernel.h"
#include "compile/lower/lowering.h"
#include "ops/prim.h"

namespace haliax {

using program::Step;

struct Lowering::LoweredLoop {
  const Loop& loop;
  std::vector<std::vector<IterationPart>> parts = {};  // parts of each body
  std::vector<Place> places = {};                      // place of each result
  std::vector<bool> added = {};                        // by result: it is added to an existing sum
  bool may_skip = false;      // an iteration may be skipped, and then stacks no results
  bool has_deferred = false;  // the iterations run in two passes (`IterationPart::deferred`)
};

void Lowering::lower_loop(const NodePtr& n) {
  auto& l = loop_of(*n);
  LoweredLoop state{l};
  auto parts = iteration_parts_.find(n.get());
  for (std::size_t b = 0; b < l.index.size(); ++b) {
    state.parts.push_back(parts == iteration_parts_.end() ? std::vector{unsplit_iteration(l, b)}
                                                          : parts->second[b]);
    for (auto& p : state.parts[b]) {
      state.may_skip |= p.flag != nullptr;
      state.has_deferred |= p.deferred != nullptr;
    }
  }
  state.may_skip |= condition_of(l) != nullptr;
  Nodes results;
  for (std::size_t k = 0; k < l.results.size(); ++k) {
    auto& r = results.emplace_back(loop_result(n, k));
    auto& result = l.results[k];
    bool adds = result.kind == ResultKind::stack ||
                (result.kind == ResultKind::fold && result.monoid == Monoid::sum && !result.start);
    auto* add = adds ? accumulation(r) : nullptr;
    state.added.push_back(add != nullptr);
    // A condition never changes, so it is read where it is stored.
    if (result.is_condition && in_memory(result.start)) {
      state.places.push_back(place_of(result.start));
      continue;
    }
    state.places.push_back(add ? add->place : target_place(r));
    if (add) continue;
    if (result.start)
      start_from(result.start, state.places[k], r->axes);
    else if (result.kind == ResultKind::stack && state.may_skip)
      zero(state.places[k], r->axes);
    else if (result.kind == ResultKind::fold)
      fill(state.places[k], r->axes, prim::identity(result.monoid, r->dtype));
  }
  copy_strided_operands(l);
  for (bool deferred : {false, true})
    for (std::size_t position = 0; position < l.index.size() && (!deferred || state.has_deferred);
         ++position)
      // The remainder tile has the last positions of the axis.
      lower_body(state, l.reverse ? l.index.size() - 1 - position : position, deferred);
  for (std::size_t k = 0; k < results.size(); ++k) set_place(results[k].get(), state.places[k]);
  retained_.insert(retained_.end(), results.begin(), results.end());
}

// Copies small views that the iterations read, and whose elements are not neighbors in memory, such
// as one column of an array. Loads of neighbors are faster.
void Lowering::copy_strided_operands(const Loop& l) {
  constexpr std::int64_t fewest_trips = 16, most_bytes = 32 << 10;
  if (trips(l, 0) < fewest_trips) return;
  for (auto& x : inputs_of(l).invariants) {
    if (x->op->kind != Kind::view || x->bytes() > most_bytes || !in_memory(x)) continue;
    const Place from = place_of(x);
    std::int64_t nearest = 0;  // the smallest stride
    for (std::size_t k = 0; k < x->axes.size(); ++k)
      if (const auto stride = std::abs(from.strides[k]); x->axes[k].size > 1 && stride > 0)
        nearest = nearest == 0 ? stride : std::min(nearest, stride);
    if (nearest <= 1) continue;
    const Place to = fresh(x->axes, x->dtype);
    copy(from, to, x->axes);
    set_place(x.get(), to);
  }
}

void Lowering::lower_body(const LoweredLoop& state, std::size_t b, bool deferred) {
  auto& l = state.loop;
  Step s{.kind = program::Kind::loop,
         .loop = {.trips = trips(l, b), .reverse = l.reverse, .continues_previous = deferred}};
  if (s.loop.trips == 0 || (deferred && !state.parts[b].front().deferred)) return;
  auto* index = l.index[b].get();
  const auto first_added = added_.size();
  const Place* condition = nullptr;
  for (std::size_t k = 0; k < l.results.size(); ++k) {
    if (l.results[k].carry) set_place(l.results[k].carry.get(), state.places[k]);
    if (l.results[k].is_condition) condition = &state.places[k];
  }
  auto iteration = [&] {
    for (auto& part : state.parts[b]) {
      const auto first_of_part = added_.size();
      lower_part(part, deferred ? part.deferred : part.flag, state, b);
      forget(first_of_part);
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
  forget(first_added);
  variables_.erase(index);
}

void Lowering::lower_part(const IterationPart& part, const NodePtr& flag, const LoweredLoop& state,
                          std::size_t b) {
  if (!flag) return lower_part_values(part, state, b);
  auto place = fresh({}, DType::boolean);
  lower_scope({{flag, place}});
  conditional(place, [&] { lower_part_values(part, state, b); });
}

// Computes the values of a part. Then all carries receive their next values, since the old values
// may be read until all next values are computed. Only a body that is a single part has carries.
void Lowering::lower_part_values(const IterationPart& part, const LoweredLoop& state,
                                 std::size_t b) {
  struct Move {
    Place from, to;
    Axes axes;
  };
  std::vector<Move> moves;
  std::vector<Target> targets;
  for (auto& [k, value] : part.values) {
    auto& result = state.loop.results[k];
    if (result.kind == ResultKind::fold)
      targets.push_back({value, state.places[k], true, result.monoid});
    else if (result.kind == ResultKind::stack)
      targets.push_back(
          {value, iteration_block(state.places[k], state.loop, state.loop.index[b], value->axes),
           state.added[k], Monoid::sum});
    else if (value != result.carry) {
      auto next = fresh(value->axes, value->dtype, purposes_.of(*value));
      moves.push_back(
          {next, reordered(state.places[k], result.carry->axes, value->axes), value->axes});
      targets.push_back({value, next});
    }
  }
  lower_scope(targets);
  for (auto& m : moves) copy(m.from, m.to, m.axes);
}

void Lowering::start_from(const NodePtr& start, const Place& to, const Axes& axes) {
  if (in_memory(start)) {
    auto from = place_of(start);
    return copy(start->axes == axes ? from : reordered(from, start->axes, axes), to, axes);
  }
  Kernel k(*this, axes, {});
  k.store(k.value(start, k.dims_of(start->axes)), to, axes, false, Monoid::sum);
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
