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

struct Causing {  // sets the cause of new versions during a scope
  int &cause, outer;
  Causing(int& at, int n) : cause(at), outer(at) { cause = n; }
  ~Causing() { cause = outer; }
};

}  // namespace

Planner::Planner(GlobalGraph& whole, const PartitionOptions& options,
                 const std::vector<PartitionInput>& inputs, const std::vector<Sharding>& requested)
    : Planned(whole, options), inputs_(inputs), requested_(requested) {
  if (auto d = options.reduce_dtype; d && (!is_float(*d) || bytes_of(*d) > 4))
    fail("named_jit", "reduce_dtype: expected a float dtype of at most 32 bits, got " +
                          std::string(name_of(*d)));
}

Run Planner::run(const Choices& choices, bool contests) {
  choices_ = &choices;
  contests_ = contests;
  now_ = {};
  open_.clear();
  pins_.clear();
  stacks_.clear();
  now_.plan.bodies.emplace_back();
  fit_tables();
  for (auto& i : inputs_) {
    int n = whole_.find(i.global.get());
    if (n < 0) continue;
    now_.at(n).done = true;
    versions(n) = {add({.kind = Version::Kind::given, .node = n, .at = i.at})};
  }
  for (int n : whole_.level(-1, 0).order) compute(n);
  for (std::size_t k = 0; k < requested_.size(); ++k) {
    int n = whole_.roots[k];
    int created = obtain(n, requested_[k].on(node(n).axes));
    now_.plan.roots.push_back(created);
  }
  drop_dead_versions(now_.plan);
  return {std::move(now_.plan), std::move(now_.contested), std::move(stacks_)};
}
void Planner::contest(int n, OpChoice choice) {
  if (contests_) now_.contested.push_back({n, choice});
}
void Planner::put_first(int n, Version v, double points) {
  now_.plan.points += points * turns_of(n);
  int created = add(std::move(v));
  versions(n).insert(versions(n).begin(), created);
}
void Planner::fit_tables() { now_.nodes.resize(whole_.values.size()); }
int Planner::add(Version s) {
  int k = int(now_.plan.versions.size());
  s.body = body_of(s.node);
  s.cause = cause_;
  now_.plan.body(s.body).versions.push_back(k);
  now_.plan.versions.push_back(std::move(s));
  return k;
}

// ---- versions ----
int Planner::version_generated(int n, const Sharding& need) {
  for (int v : versions(n))
    if (version(v).at == need) return v;
  int s = add({.kind = Version::Kind::generate, .node = n, .at = need});
  versions(n).push_back(s);
  return s;
}
// Returns true if n is a sharding constraint, and `need` is sharded at least as the constraint
// requires. A reader that needs an axis less sharded is itself the cause of the communication.
bool Planner::asks_for(int n, const Sharding& need) const {
  if (node(n).op != &prim::kShardingConstraint) return false;
  auto pin = pins_.find(n);
  auto as_cut = [&](auto& a) {
    return need.mesh_axes(a.name).starts_with(pin->second.mesh_axes(a.name));
  };
  return pin == pins_.end() || std::all_of(node(n).axes.begin(), node(n).axes.end(), as_cut);
}
int Planner::made_now(int n, const Sharding& need) {
  Causing because(cause_, asks_for(n, need) ? n : cause_);
  Version s{.kind = Version::Kind::compute,
            .node = n,
            .at = need,
            .local_iterations = !own_turns(n).empty()};
  for (std::size_t k = 0; k < node(n).in.size(); ++k) {
    int x = operand(n, k);
    if (is_order_only(node(n), k))
      s.in.push_back(obtain(x, first(x)));
    else
      s.in.push_back(obtain(x, needed(n, k, need)));
  }
  if (lazy(n))
    now_.plan.points += local_size(rules::iteration_axes(node(n)), need, mesh_) * turns_of(n);
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
    for (auto& h : reshard(mesh_, node(n).axes, node(n).dtype, version(v).at, need))
      sends_nothing &= h.bytes == 0;
    if (sends_nothing) return v;
  }
  Sharding can;
  for (auto& [name, cut] : need.dims) {
    auto more = can;
    more.set(name, cut);
    if (rules::may_shard(node(n), name, cut, can, mesh_) &&
        rules::result_sharding(node(n), more) == more)
      can = more;
  }
  return made_now(n, can);
}
int Planner::obtain(int n, Sharding need) {
  if (instead(n) >= 0) return obtain(instead(n), std::move(need));
  need.dims = need.on(node(n).axes).dims;
  int from = -1;
  if (generated(n)) {
    from = version_generated(n, need.without_partial());
  } else {
    if (!done(n)) compute(n, true);
    if (instead(n) >= 0) return obtain(instead(n), std::move(need));
    for (int v : versions(n))
      if (version(v).at == need) return v;
    if (lazy(n)) {
      from = obtain_lazy(n, need);
    } else {
      auto o = offer(n, need);
      if (o.cost > 0 && is_dynamic_slice(node(n)) && !options_.regather)
        if (auto& of = node(operand(n, 0)); is_loop_result(of))
          stacks_[{whole_.find(of.in[0].get()), result_number(of)}] = need;
      from = o.remake ? made_now(n, need.without_partial()) : o.version;
    }
  }
  for (auto& h : reshard(mesh_, node(n).axes, node(n).dtype, version(from).at, need)) {
    Version s{
        .kind = Version::Kind::reshard, .node = n, .at = h.to, .in = {from}, .reshard_step = h};
    now_.plan.bytes += h.bytes * turns_of(n);
    from = add(std::move(s));
    versions(n).push_back(from);
  }
  return from;
}

// ---- ops ----
void Planner::compute(int n, bool asked_for) {
  if (done(n) || generated(n)) return;
  auto& me = node(n);
  if (int x = asked_for ? -1 : awaited(n); x >= 0) {
    compute(x);
    if (put_off(n)) return;
  }
  Causing because(cause_, n);
  now_.at(n).done = true;
  auto in = whole_.at(n).in;  // a copy, since the graph may grow
  for (int x : in)
    if (x >= 0) compute(x);
  if (me.op == &prim::kShardingConstraint) {
    pin(n);  // communicates nothing yet, since a reader may need another sharding
  } else if (me.op == &kLoop) {
    loop(n);
  } else if (is_loop_result(me)) {
    // Set with its loop.
  } else if (me.op->kind == Kind::leaf) {
    versions(n) = {add({.kind = Version::Kind::given, .node = n})};
  } else if (visit(n)) {
    // The device receives its block of the ring.
  } else if (auto other = otherwise(n)) {
    plan_instead(n, other);
  } else {
    compute_op(n);
  }
}
void Planner::pin(int n) {
  auto [found, fresh] = pins_.try_emplace(n);
  if (fresh)
    for (auto& [name, cut] : constraint(node(n), mesh_).dims)
      if (!cut.overlaps(taken(node(n)))) found->second.set(name, cut);
}
void Planner::plan_instead(int n, const NodePtr& other) {
  const int before = int(whole_.values.size()), k = whole_.id(other),
            end = int(whole_.values.size());
  auto& wished = whole_.at(k).preferred = wish(n);
  // Updates of an array are computed in the sharding of the array.
  if (wished.dims.empty() && rules::writes_into(node(n))) wished.dims = first(operand(n, 0)).dims;
  for (int i = end; i-- > before;) whole_.propagate_preferred(i, before);
  fit_tables();
  for (int i = before; i < end; ++i) whole_.at(i).expansion_of = n;
  for (int i = before; i < end; ++i) compute(i);
  compute(k);
  now_.at(n).instead = k;
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
NodePtr Planner::apart_from_base(int n, const Sharding& created) {
  auto& me = node(n);
  auto monoid = me.op->accumulates ? me.op->accumulates(me) : std::nullopt;
  if (!monoid || generated(operand(n, 0))) return nullptr;
  bool gathered = !created.partial.empty() && !first(operand(n, 0)).dims.empty();
  if (!gathered && decided(n) != Choice::move_axes) return nullptr;
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
  for (int x : whole_.at(n).in) {
    if (x < 0) continue;
    if (!first(x).is_replicated()) return false;
    deep = std::max(deep, int(now_.at(x).lazy));
  }
  if (deep < kDeep) now_.at(n).lazy = char(deep + 1);
  return deep < kDeep;
}
// Returns the partial sums of each operand that stay partial through the op. All other partial sums
// are reduced first. A reduce-scatter may shard a further axis of the iteration space (`work`). All
// decisions depend on `work`, so they are repeated until it no longer changes.
Planner::Pending Planner::ride_or_land(int n, Sharding& work) {
  auto& me = node(n);
  Pending keep;
  auto decide = [&] {
    keep.assign(me.in.size(), {});
    for (std::size_t k = 0; k < me.in.size(); ++k) {
      int operand = whole_.at(n).in[k];
      if (operand < 0 || is_order_only(me, k)) continue;
      for (auto [x, m] : first(operand).partial) {
        auto how = rides(n, k, x, m, work);
        if (how == Rides::larger) contest(n, Choice::keep_partial);
        if (how == Rides::yes || (how == Rides::larger && chosen(n, Choice::keep_partial))) {
          keep[k].push_back({x, m});
          continue;
        }
        if (work.uses(x)) continue;
        auto [name, cut] = landing(operand, x);
        if (!name) continue;
        Sharding landed;
        landed.set(name, cut);
        auto before = work;
        for (auto& [point, c] : rules::work_sharding(me, k, landed, mesh_).dims)
          assign(me, work, point, c);
        if (!(work == before)) return false;
      }
    }
    return true;
  };
  while (!decide()) {}
  return keep;
}
void Planner::compute_op(int n) {
  if (leave_to_readers(n)) return;
  auto& me = node(n);
  Sharding work, usual;
  Pending keep;
  {
    OriginScope due(me.origin);
    work = usual = work_of(n, Choice::usual);
    if (auto choice = decided(n); choice != Choice::usual)
      if (auto other = otherwise_cut(n, usual, choice)) work = *other;
    keep = ride_or_land(n, work);
  }
  if (auto axis = rules::shifted(me); axis && !work.mesh_axes(axis).empty()) return shift(n, work);
  Sharding kept;
  for (auto& k : keep)
    for (auto& [x, m] : k) kept.add_partial(x, m);
  auto created = rules::result_sharding(me, work);
  for (auto& [x, m] : kept.partial) created.add_partial(x, m);
  if (auto wide = in_wider_sums(n, created)) return plan_instead(n, wide);
  if (auto apart = apart_from_base(n, created)) return plan_instead(n, apart);
  if (regroup(n, work, kept)) return;
  double paid = now_.plan.bytes;
  compute_at(n, work, keep, kept, created);
  bool pays = now_.plan.bytes > paid || (rules::picks(me) && !created.partial.empty());
  for (auto& [x, m] : created.partial) pays |= wish(n).uses(x);
  if (pays) contest_cuts(n, usual);
}
void Planner::compute_at(int n, const Sharding& work, const Pending& keep, const Sharding& kept,
                         const Sharding& created) {
  auto& me = node(n);
  const auto in = whole_.at(n).in;  // a copy, since the graph may grow
  Version s{.kind = Version::Kind::compute,
            .node = n,
            .at = created,
            .local_iterations = !own_turns(n).empty()};
  for (std::size_t k = 0; k < in.size(); ++k) {
    if (in[k] < 0) {
      s.in.push_back(-1);
      continue;
    }
    if (is_order_only(me, k)) {
      s.in.push_back(obtain(in[k], first(in[k])));
      continue;
    }
    auto need = needed(n, k, work);
    for (auto& [x, m] : keep[k]) need.add_partial(x, m);
    if (rules::jointly_partial(me) && linear_in(me, k) != Linear::no) need.partial = kept.partial;
    if (rules::writes_into(me) && k == 0) need.partial = created.partial;  // adds the base once
    if (Sharding left; rules::work_sharding(me, k, first(in[k]), mesh_, &left), !left.dims.empty())
      move_base(in[k], need.without_partial());
    s.in.push_back(obtain(in[k], need));
  }
  put_first(n, std::move(s),
            me.op->kind == Kind::view ? 0 : local_size(rules::iteration_axes(me), work, mesh_));
}
void Planner::contest_cuts(int n, const Sharding& usual) {
  if (!contests_) return;
  std::vector<OpChoice> alternatives{Choice::preferred};
  if (!prim::sends_least_blockwise(node(n))) alternatives.push_back(Choice::move_axes);
  auto& in = whole_.at(n).in;
  for (int k = 0; k < std::min(2, int(in.size())); ++k)
    if (in[std::size_t(k)] >= 0) alternatives.push_back({Choice::operand, k});
  for (auto& choice : alternatives)
    if (otherwise_cut(n, usual, choice)) contest(n, choice);
}

}  // namespace haliax::partitioning
