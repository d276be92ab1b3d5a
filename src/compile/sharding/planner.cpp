// Plans one op after the other. All versions of a value are retained, and a further version is
// resharded from the cheapest one.
#include "compile/sharding/planner.h"

#include <algorithm>

#include "ops/attr.h"
#include "ops/blockwise.h"
#include "ops/prim.h"
#include "transforms/rewrite.h"

namespace haliax::partitioning {

namespace {

// length of the longest chain of ops that each reader computes for itself (Planning::lazy)
constexpr int kDeep = 64;

struct CauseScope {  // sets the cause of new versions during a scope
  int &cause, outer;
  CauseScope(int& at, int n) : cause(at), outer(at) { cause = n; }
  ~CauseScope() { cause = outer; }
};

}  // namespace

Planner::Planner(GlobalGraph& graph, const PartitionOptions& options,
                 const std::vector<PartitionInput>& inputs, const std::vector<Sharding>& requested)
    : PlanQueries(graph, options), inputs_(inputs), requested_(requested) {
  if (auto d = options.reduce_dtype; d && (!is_float(*d) || bytes_of(*d) > 4))
    fail("named_jit", "reduce_dtype: expected a float dtype of at most 32 bits, got " +
                          std::string(name_of(*d)));
}

PlannerResult Planner::run(const Choices& choices, bool find_alternatives) {
  choices_ = &choices;
  finds_alternatives_ = find_alternatives;
  draft_ = {};
  open_bodies_.clear();
  constraints_.clear();
  stacks_.clear();
  draft_.plan.bodies.emplace_back();
  track_new_nodes();
  for (auto& i : inputs_) {
    int n = graph_.find(i.global.get());
    if (n < 0) continue;
    draft_.at(n).planned = true;
    versions(n) = {add({.kind = Given{}, .node = n, .at = i.at})};
  }
  for (int n : graph_.level(-1, 0).order) compute(n);
  for (std::size_t k = 0; k < requested_.size(); ++k) {
    int n = graph_.roots[k];
    int created = obtain(n, requested_[k].on(node(n).axes));
    draft_.plan.roots.push_back(created);
  }
  drop_dead_versions(draft_.plan);
  return {std::move(draft_.plan), std::move(draft_.alternatives), std::move(stacks_)};
}
void Planner::add_alternative(int n, OpChoice choice) {
  if (finds_alternatives_) draft_.alternatives.push_back({n, choice});
}
void Planner::add_computed(int n, Version v, double points) {
  draft_.plan.points += points * iterations_of(n);
  int created = add(std::move(v));
  versions(n).insert(versions(n).begin(), created);
}
void Planner::track_new_nodes() { draft_.nodes.resize(graph_.values.size()); }
int Planner::add(Version s) {
  int k = int(draft_.plan.versions.size());
  s.body = body_of(s.node);
  s.cause = cause_;
  draft_.plan.bytes += s.step().bytes * draft_.plan.body(s.body).iterations;
  draft_.plan.body(s.body).versions.push_back(k);
  draft_.plan.versions.push_back(std::move(s));
  return k;
}

// ---- versions ----
int Planner::obtain_generated(int n, const Sharding& need) {
  for (int v : versions(n))
    if (version(v).at == need) return v;
  int s = add({.kind = Generate{}, .node = n, .at = need});
  versions(n).push_back(s);
  return s;
}
// Returns true if n is a sharding constraint, and `need` is sharded at least as the constraint
// requires. A reader that needs an axis less sharded is itself the cause of the communication.
bool Planner::requires_sharding(int n, const Sharding& need) const {
  if (node(n).op != &prim::kShardingConstraint) return false;
  auto found = constraints_.find(n);
  auto is_sharded_enough = [&](auto& a) {
    return need.mesh_axes(a.name).starts_with(found->second.mesh_axes(a.name));
  };
  return found == constraints_.end() ||
         std::all_of(node(n).axes.begin(), node(n).axes.end(), is_sharded_enough);
}
int Planner::compute_version(int n, const Sharding& need) {
  CauseScope because(cause_, requires_sharding(n, need) ? n : cause_);
  Version s{.kind = Compute{!local_iterations_over(n).empty()}, .node = n, .at = need};
  for (std::size_t k = 0; k < node(n).in.size(); ++k) {
    int x = operand(n, k);
    if (is_order_only(node(n), k))
      s.in.push_back(obtain(x, sharding_of(x)));
    else
      s.in.push_back(obtain(x, operand_sharding(n, k, need)));
  }
  if (is_lazy(n))
    draft_.plan.points +=
        local_size(rules::iteration_axes(node(n)), need, mesh_) * iterations_of(n);
  if (node(n).op == &prim::kShardingConstraint) {
    versions(n).push_back(s.in[0]);
    return s.in[0];
  }
  int created = add(std::move(s));
  versions(n).push_back(created);
  return created;
}
// Returns a version that is resharded to `need` without communication. n is lazy: each reader
// computes it from replicated operands, in the sharding that it needs.
int Planner::obtain_lazy(int n, const Sharding& need) {
  for (int v : versions(n)) {
    // A replicated version of a reduction or scatter is reused if slices of it suffice. Other ops
    // are computed again per sharding, so that no replicated version has to be materialized.
    bool sends_nothing = !rules::computable_anywhere(node(n));
    for (auto& step : reshard(mesh_, node(n).axes, node(n).dtype, version(v).at, need))
      sends_nothing &= step.bytes == 0;
    if (sends_nothing) return v;
  }
  Sharding can;
  for (auto& [name, mesh_axes] : need.dims) {
    auto more = can;
    more.set(name, mesh_axes);
    if (rules::may_shard(node(n), name, mesh_axes, can, mesh_) &&
        rules::result_sharding(node(n), more) == more)
      can = more;
  }
  return compute_version(n, can);
}
int Planner::obtain(int n, Sharding need) {
  if (replacement(n) >= 0) return obtain(replacement(n), std::move(need));
  need.dims = need.on(node(n).axes).dims;
  int from = -1;
  if (generated(n)) {
    from = obtain_generated(n, need.without_partial());
  } else {
    if (!is_planned(n)) compute(n, true);
    if (replacement(n) >= 0) return obtain(replacement(n), std::move(need));
    for (int v : versions(n))
      if (version(v).at == need) return v;
    if (is_lazy(n)) {
      from = obtain_lazy(n, need);
    } else {
      auto o = cheapest_source(n, need);
      if (o.cost > 0 && is_dynamic_slice(node(n)) && !options_.regather)
        if (auto& of = node(operand(n, 0)); is_loop_result(of))
          stacks_[{graph_.find(of.in[0].get()), result_number(of)}] = need;
      from = o.recompute ? compute_version(n, need.without_partial()) : o.version;
    }
  }
  for (auto& step : reshard(mesh_, node(n).axes, node(n).dtype, version(from).at, need)) {
    Version s{.kind = Reshard{step}, .node = n, .at = step.to, .in = {from}};
    from = add(std::move(s));
    versions(n).push_back(from);
  }
  return from;
}

// ---- ops ----
void Planner::compute(int n, bool is_requested) {
  if (is_planned(n) || generated(n)) return;
  auto& me = node(n);
  if (int x = is_requested ? -1 : deferral_source(n); x >= 0) {
    compute(x);
    if (is_deferred(n)) return;
  }
  CauseScope because(cause_, n);
  draft_.at(n).planned = true;
  auto in = graph_.at(n).in;  // a copy, since the graph may grow
  for (int x : in)
    if (x >= 0) compute(x);
  if (me.op == &prim::kShardingConstraint) {
    plan_constraint(n);  // communicates nothing yet, since a reader may need another sharding
  } else if (me.op == &kLoop) {
    loop(n);
  } else if (is_loop_result(me)) {
    // Set with its loop.
  } else if (me.op->kind == Kind::leaf) {
    versions(n) = {add({.kind = Given{}, .node = n})};
  } else if (plan_ring_receive(n)) {
    // The device receives its block of the ring.
  } else if (auto other = expansion(n)) {
    plan_replacement(n, other);
  } else {
    compute_op(n);
  }
}
void Planner::plan_constraint(int n) {
  auto [found, fresh] = constraints_.try_emplace(n);
  if (fresh)
    for (auto& [name, mesh_axes] : constraint(node(n), mesh_).dims)
      if (!mesh_axes.overlaps(blocked_axes(node(n)))) found->second.set(name, mesh_axes);
}
void Planner::plan_replacement(int n, const NodePtr& other) {
  const int before = int(graph_.values.size()), k = graph_.id(other),
            end = int(graph_.values.size());
  auto& preferred_of = graph_.at(k).preferred = preferred(n);
  // Updates of an array are computed in the sharding of the array.
  if (preferred_of.dims.empty() && rules::writes_into(node(n)))
    preferred_of.dims = sharding_of(operand(n, 0)).dims;
  for (int i = end; i-- > before;) graph_.propagate_preferred(i, before);
  track_new_nodes();
  for (int i = before; i < end; ++i) graph_.at(i).expansion_of = n;
  for (int i = before; i < end; ++i) compute(i);
  compute(k);
  draft_.at(n).replacement = k;
}
// Returns a low-precision partial sum as a sum in a wider dtype, which is rounded after the
// reduction over devices. Null: the result is no such sum. For example, given a bf16 contraction
// that is partial, and reduce_dtype f32, returns cast(f32 contraction, bf16).
NodePtr Planner::in_wider_sums(int n, const Sharding& created) {
  auto& me = ptr(n);
  if (!options_.reduce_dtype || !is_float(me->dtype) ||
      bytes_of(me->dtype) >= bytes_of(*options_.reduce_dtype))
    return nullptr;
  if (std::none_of(created.partial.begin(), created.partial.end(),
                   [](auto& p) { return p.second == Monoid::sum; }))
    return nullptr;
  OriginScope due(me->origin);
  auto wide = widened(me);
  return wide->op == me->op ? prim::cast(wide, me->dtype) : nullptr;
}
// If updates are computed in another sharding than their base array has, returns the base combined
// with updates of an identity array, so that the base is not communicated. Null: not the case. For
// example, given scatter_add(base, ids, updates), returns base + scatter_add(0, ids, updates).
NodePtr Planner::separate_from_base(int n, const Sharding& created) {
  auto& me = node(n);
  auto monoid = me.op->accumulates ? me.op->accumulates(me) : std::nullopt;
  if (!monoid || generated(operand(n, 0))) return nullptr;
  bool gathered = !created.partial.empty() && !sharding_of(operand(n, 0)).dims.empty();
  if (!gathered && choice_of(n) != Choice::move_axes) return nullptr;
  OriginScope due(me.origin);
  auto in = me.in;
  in[0] = prim::fit(prim::identity(*monoid, me.dtype), me.axes);
  return prim::map(prim::pairwise(*monoid), {me.in[0], prim::rebuilt(me, in, me.axes)}, me.dtype,
                   &me.axes);
}
// Returns true, and marks n as lazy, if all of its operands are replicated and each reader can
// compute it in the sharding that it needs.
bool Planner::leave_to_readers(int n) {
  auto& me = node(n);
  if (!rules::computable_anywhere(me) && me.op->kind != Kind::reduce && !rules::writes_into(me))
    return false;
  int deep = 0;
  for (int x : graph_.at(n).in) {
    if (x < 0) continue;
    if (!sharding_of(x).is_replicated()) return false;
    deep = std::max(deep, int(draft_.at(x).lazy));
  }
  if (deep < kDeep) draft_.at(n).lazy = char(deep + 1);
  return deep < kDeep;
}
// Returns the partial sums of each operand that stay partial through the op. All other partial sums
// are reduced first. A reduce-scatter may shard a further axis of the iteration space (`work`). All
// decisions depend on `work`, so they are repeated until it no longer changes.
Planner::Pending Planner::partial_operands(int n, Sharding& work) {
  auto& me = node(n);
  Pending partial_of;
  auto decide = [&] {
    partial_of.assign(me.in.size(), {});
    for (std::size_t k = 0; k < me.in.size(); ++k) {
      int operand = graph_.at(n).in[k];
      if (operand < 0 || is_order_only(me, k)) continue;
      for (auto [x, m] : sharding_of(operand).partial) {
        auto how = partial_through(n, k, x, m, work);
        if (how == PartialThrough::larger) add_alternative(n, Choice::keep_partial);
        if (how == PartialThrough::yes ||
            (how == PartialThrough::larger && is_chosen(n, Choice::keep_partial))) {
          partial_of[k].push_back({x, m});
          continue;
        }
        if (work.uses(x)) continue;
        auto [name, mesh_axes] = scatter_target(operand, x);
        if (!name) continue;
        Sharding scattered;
        scattered.set(name, mesh_axes);
        auto before = work;
        for (auto& [point, c] : rules::work_sharding(me, k, scattered, mesh_).dims)
          shard_axis(me, work, point, c);
        if (!(work == before)) return false;
      }
    }
    return true;
  };
  while (!decide()) {}
  return partial_of;
}
void Planner::compute_op(int n) {
  if (leave_to_readers(n)) return;
  auto& me = node(n);
  Sharding work, usual;
  Pending partial_of;
  {
    OriginScope due(me.origin);
    work = usual = work_of(n, Choice::usual);
    if (auto choice = choice_of(n); choice != Choice::usual)
      if (auto other = alternative_work(n, usual, choice)) work = *other;
    partial_of = partial_operands(n, work);
  }
  if (auto axis = rules::shifted(me); axis && !work.mesh_axes(axis).empty()) return shift(n, work);
  Sharding partial;
  for (auto& sums : partial_of)
    for (auto& [x, m] : sums) partial.add_partial(x, m);
  auto created = rules::result_sharding(me, work);
  for (auto& [x, m] : partial.partial) created.add_partial(x, m);
  if (auto wide = in_wider_sums(n, created)) return plan_replacement(n, wide);
  if (auto sum = separate_from_base(n, created)) return plan_replacement(n, sum);
  if (regroup(n, work, partial)) return;
  double paid = draft_.plan.bytes;
  compute_at(n, work, partial_of, partial, created);
  bool pays = draft_.plan.bytes > paid || (rules::picks(me) && !created.partial.empty());
  for (auto& [x, m] : created.partial) pays |= preferred(n).uses(x);
  if (pays) add_alternative_shardings(n, usual);
}
void Planner::compute_at(int n, const Sharding& work, const Pending& partial_of,
                         const Sharding& partial, const Sharding& created) {
  auto& me = node(n);
  const auto in = graph_.at(n).in;  // a copy, since the graph may grow
  Version s{.kind = Compute{!local_iterations_over(n).empty()}, .node = n, .at = created};
  for (std::size_t k = 0; k < in.size(); ++k) {
    if (in[k] < 0) {
      s.in.push_back(-1);
      continue;
    }
    if (is_order_only(me, k)) {
      s.in.push_back(obtain(in[k], sharding_of(in[k])));
      continue;
    }
    auto need = operand_sharding(n, k, work);
    for (auto& [x, m] : partial_of[k]) need.add_partial(x, m);
    if (rules::jointly_partial(me) && linear_in(me, k) != Linear::no)
      need.partial = partial.partial;
    if (rules::writes_into(me) && k == 0) need.partial = created.partial;  // adds the base once
    if (Sharding left;
        rules::work_sharding(me, k, sharding_of(in[k]), mesh_, &left), !left.dims.empty())
      reshard_base(in[k], need.without_partial());
    s.in.push_back(obtain(in[k], need));
  }
  add_computed(n, std::move(s),
               me.op->kind == Kind::view ? 0 : local_size(rules::iteration_axes(me), work, mesh_));
}
void Planner::add_alternative_shardings(int n, const Sharding& usual) {
  if (!finds_alternatives_) return;
  std::vector<OpChoice> alternatives{Choice::preferred};
  if (!prim::sends_least_blockwise(node(n))) alternatives.push_back(Choice::move_axes);
  auto& in = graph_.at(n).in;
  for (int k = 0; k < std::min(2, int(in.size())); ++k)
    if (in[std::size_t(k)] >= 0) alternatives.push_back({Choice::operand, k});
  for (auto& choice : alternatives)
    if (alternative_work(n, usual, choice)) add_alternative(n, choice);
}

}  // namespace haliax::partitioning
