// Chooses the sharding of the iteration space of each op: from the shardings of its operands, from
// the mapping and from the preferred sharding of its result. Mesh axes of an axis that the op
// requires in full move to another axis.
#include "compile/sharding/op_shardings.h"

#include <algorithm>

#include "ops/attr.h"
#include "ops/blockwise.h"
#include "ops/prim.h"

namespace haliax::partitioning {
namespace {

// A partial sum of at most this many times the bytes counts as equally large: sizes of shards are
// rounded.
constexpr double kEqualBytes = 1.001;

// Returns true if `a` is the better axis to shard into this number of blocks: its largest block is
// a smaller fraction of the axis, or the fractions are equal and `a` is longer. For example, given
// 4 blocks, size 8 (2/8 per device) is better than size 6 (2/6).
bool shards_better(const Axis& a, const Axis& b, std::int64_t blocks) {
  auto share = [&](const Axis& x) {
    return double((x.size + blocks - 1) / blocks) / double(x.size);
  };
  return share(a) < share(b) || (share(a) == share(b) && a.size > b.size);
}

}  // namespace

// Shards axis a of the iteration space in addition to `work`, if a and the mesh axes are free and
// the rules allow it. For example, given work [a: x], sharding b along y returns [a: x, b: y], and
// sharding b along x returns [a: x].
void OpShardings::shard_axis(const Node& n, Sharding& work, Name a,
                             const MeshAxes& mesh_axes) const {
  if (mesh_axes.empty() || !work.mesh_axes(a).empty() || mesh_axes.overlaps(blocked_axes(n)))
    return;
  for (int x : mesh_axes)
    if (work.uses(x)) return;
  if (rules::may_shard(n, a, mesh_axes, work, mesh_)) work.set(a, mesh_axes);
}
void OpShardings::shard_axes(const Node& n, Sharding& work, const Sharding& like) const {
  for (auto& [name, mesh_axes] : like.dims) shard_axis(n, work, name, mesh_axes);
}
// The sources below are applied in this order. Each one shards only axes, and uses only mesh axes,
// that are still free.
//
// 1. The source that `choice` selects: an operand, the preferred sharding, or the rows of a table.
// 2. The mapping, for a contraction or a gather, but not for a gather in sorted order or a scatter.
// 3. The operands, largest first, because it is the most expensive one to communicate.
// 4. If nothing is sharded: the preferred sharding of the result.
// 5. If nothing is sharded: the operands of deferred slices.
// 6. The mesh axes of axes that the op requires in full (`move_mesh_axes`). For Choice::move_axes,
//    this is also applied before 4.
//
// In these examples, [a: x] is an array with axis a sharded along mesh axis x:
//
// - u + v, given [a: x, b] and [a, b: y], returns [a: x, b: y]. Both operands are sliced.
// - u + v, given [a: x, b] and [b: x], returns [a: x], as the first operand is larger.
// - dot(u, w, "embed"), given [batch: data, embed] and [embed, hidden: model], returns
//   [batch: data, hidden: model] (tensor parallelism).
// - dot(u, w, "embed"), given [batch: data, embed] and [embed: data, hidden], returns [batch: data]
//   if the mapping shards batch along data (FSDP). The weight is gathered.
// - dot(u, v, "pos"), given [pos: data, a] and [pos: data, b], returns [pos: data]. The result is
//   partial over data.
// - sort(u, "k"), given a large [q, k: x], returns [q: x] by source 6.
Sharding OpShardings::work_of(int n, OpChoice choice) const {
  auto& me = node(n);
  Sharding work;
  auto shard_as_operand = [&](std::size_t k) {
    shard_axes(me, work, rules::work_sharding(me, k, sharding_of(operand(n, k)), mesh_));
  };
  if (choice.operand >= 0) shard_as_operand(std::size_t(choice.operand));
  if (choice == Choice::move_axes) shard_rows(n, work);
  if (choice == Choice::preferred) shard_axes(me, work, preferred(n));
  bool picks = rules::picks(me) && !rules::writes_into(me), in_order = prim::picks_in_order(me);
  bool binds = me.op->kind == Kind::contract || (picks && !in_order);
  if (binds && me.origin.mapping) shard_axes(me, work, sharding_for(me, *me.origin.mapping, mesh_));
  std::vector<std::size_t> operands;
  for (std::size_t k = 0; k < me.in.size(); ++k)
    if (me.in[k]) operands.push_back(k);
  std::stable_sort(operands.begin(), operands.end(),
                   [&](auto a, auto b) { return me.in[a]->bytes() > me.in[b]->bytes(); });
  for (auto k : operands) shard_as_operand(k);
  if (choice == Choice::move_axes) move_mesh_axes(n, work, choice);
  if (work.dims.empty())
    // Skips mesh axes along which an operand is partial: its sum is reduce-scattered later, if
    // possible.
    for (auto& [name, mesh_axes] : preferred(n).dims) {
      bool pending = false;
      for (int x : graph_.at(n).in)
        if (x >= 0)
          for (int m : mesh_axes) pending |= sharding_of(x).is_partial(m);
      if (!pending) shard_axis(me, work, name, mesh_axes);
    }
  if (work.dims.empty())  // the sharding of the operand of each deferred slice
    for (auto k : operands)
      if (int x = operand(n, k); is_deferred_slice(x))
        shard_axes(me, work, sharding_of(operand(x, 0)));
  move_mesh_axes(n, work, choice);
  return work;
}
PartialThrough OpShardings::partial_through(int n, std::size_t k, int x, Monoid m,
                                            const Sharding& work) const {
  auto& me = node(n);
  int of = operand(n, k);
  auto how = linear_in(me, k);
  if (how == Linear::no || work.uses(x) || (how != Linear::moves && m != Monoid::sum))
    return PartialThrough::no;
  if (users(of).size() > 1 || body_of(of) != body_of(n)) return PartialThrough::no;
  for (int v : versions(of))
    if (!version(v).sharding.is_partial(x)) return PartialThrough::no;
  if (how == Linear::one)
    for (std::size_t j = 0; j < me.in.size(); ++j)
      if (j != k && me.in[j] && (me.in[j] == me.in[k] || sharding_of(operand(n, j)).is_partial(x)))
        return PartialThrough::no;
  double bytes_before = bytes(of, sharding_of(of));  // the bytes to reduce later must not grow
  if (rules::shifted(me))
    for (std::size_t j = 0; j < me.in.size(); ++j)
      if (j != k && sharding_of(operand(n, j)).is_partial(x))
        bytes_before += bytes(operand(n, j), sharding_of(operand(n, j)));
  const double limit = bytes_before * kEqualBytes;
  if (bytes(n, rules::result_sharding(me, work)) <= limit) return PartialThrough::yes;
  // `place` writes the operand into an array of zeros, so only the result is larger.
  bool larger = me.op->kind == Kind::step && how == Linear::moves && !rules::jointly_partial(me);
  return larger ? PartialThrough::larger : PartialThrough::no;
}
std::pair<Name, MeshAxes> OpShardings::scatter_target(int n, int x) const {
  std::unordered_set<int> seen;
  return scatter_target(n, x, kScatterDepth, seen);
}
std::pair<Name, MeshAxes> OpShardings::scatter_target(int n, int x, int depth,
                                                      std::unordered_set<int>& seen) const {
  for (auto& [name, mesh_axes] : preferred(n).dims)
    if (mesh_axes.has(x)) return {name, mesh_axes};
  // A sum in a wider dtype is scattered like the 16-bit sum that it replaces.
  if (int of = graph_.at(n).expansion_of;
      of >= 0 && node(of).op == node(n).op && node(of).axes == node(n).axes)
    return scatter_target(of, x, depth, seen);
  auto readers = users(n);
  std::erase_if(readers, [&](int u) {
    return u < 0 || node(u).op == &kLoop || node(u).op == &kResult ||
           node(u).op == &prim::kShardingConstraint;
  });
  // Returns the axis of n that is sharded along x if reader u has this iteration space.
  auto axis_in = [&](int u, const Sharding& work) -> std::pair<Name, MeshAxes> {
    for (std::size_t k = 0; k < node(u).in.size(); ++k)
      if (operand(u, k) == n)
        for (auto& [name, mesh_axes] : rules::operand_sharding(node(u), k, work, mesh_).dims)
          if (mesh_axes.has(x)) return {name, mesh_axes};
    return {};
  };
  for (int u : readers)
    if (auto target = axis_in(u, work_of(u, Choice::usual)); target.first) return target;
  for (int u : readers) {
    const auto kind = node(u).op->kind;
    const bool passes_on = kind == Kind::map || kind == Kind::view || kind == Kind::reduce ||
                           rules::jointly_partial(node(u));
    if (depth == 0 || !passes_on || !seen.insert(u).second) continue;
    auto [name, mesh_axes] = scatter_target(u, x, depth - 1, seen);
    Sharding work;
    if (name) shard_axis(node(u), work, name, mesh_axes);
    if (auto target = axis_in(u, work); target.first) return target;
  }
  return {};
}
Sharding OpShardings::reduced_sharding(int n) const {
  auto sharding = sharding_of(n);
  if (fits_any_sharding(n)) return preferred(n).on(node(n).axes).without_partial();
  auto pending = sharding.partial;
  sharding.partial.clear();
  for (auto [x, m] : pending) {
    auto [name, mesh_axes] = scatter_target(n, x);
    bool taken = !name || !has(node(n).axes, name) || !sharding.mesh_axes(name).empty();
    for (int y : mesh_axes) taken |= sharding.uses(y);
    if (!taken) sharding.set(name, mesh_axes);
  }
  return sharding;
}
std::optional<Sharding> OpShardings::alternative_work(int n, const Sharding& usual,
                                                      OpChoice choice) const {
  auto& me = node(n);
  auto& in = graph_.at(n).in;
  auto other = work_of(n, choice);
  if (other == usual) return {};
  auto used = [&](const Sharding& s) {
    int r = 1;
    for (auto& d : s.dims) r *= ranks(mesh_, d.second);
    return r;
  };
  if (used(other) < used(usual)) return {};
  for (std::size_t k = 0; k < in.size(); ++k) {
    if (in[k] < 0 || !me.origin.mapping || !graph_.is_weight(in[k])) continue;
    auto need = rules::operand_sharding(me, k, other, mesh_),
         before = rules::operand_sharding(me, k, usual, mesh_);
    for (auto& [name, mesh_axes] : sharding_of(in[k]).dims)
      if (me.origin.mapping->find(name) && before.mesh_axes(name) == mesh_axes &&
          !(need.mesh_axes(name) == mesh_axes))
        return {};
  }
  return other;
}
// For each sharded axis of an operand that the op requires in full: moves its mesh axes to another
// axis of the iteration space. The operand then needs an all-to-all rather than an all-gather. For
// example, given a sort along k of x[q, k] with k sharded, shards q instead. Small operands are
// gathered unless `choice` is Choice::move_axes.
void OpShardings::move_mesh_axes(int n, Sharding& work, OpChoice choice) const {
  auto& me = node(n);
  if (rules::regroups(me)) return;
  for (std::size_t k = 0; k < me.in.size(); ++k) {
    if (!me.in[k] ||
        (double(me.in[k]->bytes()) <= prim::kNegligibleBytes && choice != Choice::move_axes))
      continue;
    Sharding left;
    rules::work_sharding(me, k, sharding_of(operand(n, k)), mesh_, &left);
    for (auto& [name, mesh_axes] : left.dims) {
      const Axis* best = nullptr;
      for (auto& a : me.in[k]->axes) {
        // excludes an axis of ids with the same name
        bool stays = has(me.axes, a.name) && along(me, k, a.name).point == a.name;
        if (a.name == name || !stays || a.size < 2 || !work.mesh_axes(a.name).empty()) continue;
        bool better = !best || shards_better(a, *best, ranks(mesh_, mesh_axes));
        if (better && rules::may_shard(me, a.name, mesh_axes, work, mesh_)) best = &a;
      }
      if (best) shard_axis(me, work, best->name, mesh_axes);
    }
  }
}
// For a gather or a scatter: moves mesh axes of the ids, and of the axis that they index, to an
// axis of the rows. Each device then looks up all ids, in its part of every row. For example, given
// take(table[vocab, embed], "vocab", ids[pos]) with vocab and pos sharded along one mesh axis,
// shards embed instead.
void OpShardings::shard_rows(int n, Sharding& work) const {
  auto& me = node(n);
  if (!rules::picks(me) || double(me.in[0]->bytes()) <= prim::kNegligibleBytes) return;
  auto is_of_rows = [&](Name a) {
    return has(me.in[0]->axes, a) && has(me.axes, a) && along(me, 0, a).way == Along::Way::map;
  };
  for (std::size_t k = 0; k < me.in.size(); ++k)
    for (auto& [name, mesh_axes] : sharding_of(operand(n, k)).dims) {
      const Axis* best = nullptr;
      for (auto& a : me.in[0]->axes)
        if (is_of_rows(a.name) && a.size > 1 &&
            sharding_of(operand(n, 0)).mesh_axes(a.name).empty() && work.mesh_axes(a.name).empty())
          if (!best || shards_better(a, *best, ranks(mesh_, mesh_axes))) best = &a;
      if (best && !is_of_rows(name)) shard_axis(me, work, best->name, mesh_axes);
    }
}

// ---- axes that an op requires in full, and positions that move ----
int OpShardings::blocks_along(const Node& op, Name axis, std::int64_t larger_than) const {
  const int x = operand(graph_.find(&op), 0), blocks = ranks(mesh_, sharding_of(x).mesh_axes(axis));
  const auto block_size = (haliax::find(node(x), axis)->size + blocks - 1) / blocks;
  return blocks > 1 && block_size > larger_than ? blocks : 0;
}
bool OpShardings::runs_by_blocks(const Node& op, Name axis, std::int64_t larger_than) const {
  int n = graph_.find(&op);
  return !is_chosen(n, Choice::gather) && !is_chosen(n, Choice::move_axes) &&
         blocks_along(op, axis, larger_than) > 0;
}
// Returns true for a top-k that first selects candidates in each block.
bool OpShardings::selects_by_blocks(const Node& n) const {
  return prim::is_top_k(n) &&
         runs_by_blocks(*n.in[0], SliceAttr::of(n).axis, SliceAttr::of(n).size);
}
// Three kinds of nodes are deferred to their readers:
//
// - An argsort of which all readers use only the first positions. It runs with the top-k, block by
//   block.
// - A top-k that is only read by gathers at its positions. It runs with the gathers.
// - A slice that is only read by concatenations along its axis. Its positions move once.
int OpShardings::deferral_source(int n) const {
  if (is_planned(n)) return -1;
  auto& me = node(n);
  auto all_users = [&](auto is) {
    auto& u = users(n);
    return !u.empty() &&
           std::all_of(u.begin(), u.end(), [&](int k) { return k >= 0 && is(node(k)); });
  };
  if (all_users([](const Node& u) { return prim::is_top_k(u); })) return operand(n, 0);
  if (prim::is_top_k(me)) {
    bool picked =
        all_users([&](const Node& u) { return prim::picks_top_k(u) && u.in[1].get() == &me; });
    return picked ? operand(operand(n, 0), 0) : -1;
  }
  auto axis = me.op->kind == Kind::view ? rules::shifted(me) : Name();
  auto joins = [&](const Node& u) {
    return u.op->kind == Kind::step && rules::jointly_partial(u) && rules::shifted(u) == axis;
  };
  return axis && all_users(joins) ? operand(n, 0) : -1;
}
bool OpShardings::is_deferred_slice(int x) const {
  return x >= 0 && !is_planned(x) && node(x).op->kind == Kind::view && rules::shifted(node(x));
}
bool OpShardings::is_deferred(int n) const {
  auto& me = node(n);
  if (prim::is_top_k(me)) return selects_by_blocks(me);
  if (auto axis = rules::shifted(me)) return !sharding_of(operand(n, 0)).mesh_axes(axis).empty();
  auto& u = users(n);
  return std::all_of(u.begin(), u.end(), [&](int k) { return selects_by_blocks(node(k)); });
}

}  // namespace haliax::partitioning
