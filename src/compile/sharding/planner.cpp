// Planning: each op in turn. Every version of a value is kept, and what is needed is made from the cheapest.
#include "compile/sharding/planner.h"

#include <algorithm>

#include "ops/attr.h"
#include "ops/by_blocks.h"
#include "ops/prim.h"

namespace haliax::partitioning {

Sharding constraint(const Node& pin, const Mesh& mesh) {
  Following due;
  due(pin.origin);
  return sharding_for(pin, *static_cast<const prim::Pin&>(*pin.attr.payload).mapping, mesh);
}

namespace {

constexpr int kDeep = 64;             // of what may be left to be made where it is read

struct Causing {  // for the length of a scope
  int &cause, outer;
  Causing(int& at, int n) : cause(at), outer(at) { cause = n; }
  ~Causing() { cause = outer; }
};

}  // namespace

// ---- the graph of the whole ----
Whole::Whole(const Nodes& out, const std::vector<Sharding>& wanted, const Mesh& m) : mesh(m) {
  for (auto& n : everything(out)) id(n);
  for (auto& n : out) roots.push_back(id(n));
  wishes(wanted);
}
int Whole::find(const Node* n) const {
  auto i = ids_.find(n);
  return i == ids_.end() ? -1 : i->second;
}
int Whole::id(const NodePtr& n) {
  if (int known = find(n.get()); known >= 0) return known;
  std::vector<int> operands;
  bool seen_through = rules::is_view(*n) || n->op == &prim::kSlice || n->op == &prim::kBarrier || n->op->kind == Kind::map;
  for (std::size_t i = 0; i < n->in.size(); ++i) {
    auto& x = n->in[i];
    operands.push_back(x ? id(x) : -1);
    if (x && !only_waits(*n, i) && !(parameter[std::size_t(operands.back())] || free[std::size_t(operands.back())]))
      seen_through = false;
  }
  int k = int(nodes.size());
  ids_[n.get()] = k;
  nodes.push_back(n), in.push_back(std::move(operands)), stands_for.push_back(-1), wish.emplace_back();
  free.push_back(is_free(n));
  parameter.push_back(n->op == &prim::kInput || (seen_through && !free.back()));
  return k;
}

const Whole::Level& Whole::level(int loop, std::size_t body) {
  auto [found, fresh] = levels_.try_emplace({loop, body});
  auto& s = found->second;
  if (!fresh) return s;
  const Loop* l = loop < 0 ? nullptr : &loop_of(*nodes[std::size_t(loop)]);
  std::vector<int> todo;
  auto reach = [&](int n, int user) {
    if (n < 0 || (l && !varies_in(*nodes[std::size_t(n)], *l, body))) return;
    auto [entry, is_new] = s.users.try_emplace(n);
    entry->second.push_back(user);
    if (is_new) todo.push_back(n), s.order.push_back(n);
  };
  if (!l)
    for (int r : roots) reach(r, -1);
  else
    for (auto& r : l->results) reach(id(r.value[body]), -1);
  while (!todo.empty()) {
    int n = todo.back();
    todo.pop_back();
    for (int x : in[std::size_t(n)]) reach(x, n);
  }
  std::sort(s.order.begin(), s.order.end(), [&](int a, int b) { return nodes[std::size_t(a)]->id < nodes[std::size_t(b)]->id; });
  return s;
}

// Wishes travel back through ops that keep the axes, and never through a constraint, which has a wish of its own.
void Whole::wish_for(int n, const Sharding& s) {
  auto& w = wish[std::size_t(n)];
  for (auto& [name, cut] : s.on(nodes[std::size_t(n)]->axes).dims) {
    bool taken = !w.cut(name).empty();
    for (int x : cut) taken |= w.cuts(x);
    if (!taken) w.set(name, cut);
  }
}
void Whole::wishes(const std::vector<Sharding>& wanted) {
  for (std::size_t k = 0; k < roots.size(); ++k) wish_for(roots[k], wanted[k]);
  std::vector<int> order(nodes.size());
  for (std::size_t k = 0; k < order.size(); ++k) order[k] = int(k);
  std::sort(order.begin(), order.end(), [&](int a, int b) { return nodes[std::size_t(a)]->id > nodes[std::size_t(b)]->id; });
  for (int k : order) {
    auto& n = *nodes[std::size_t(k)];
    auto& mine = wish[std::size_t(k)];
    if (n.op == &prim::kPin)
      wish_for(in[std::size_t(k)][0], constraint(n, mesh));
    else if (is_loop_result(n)) {
      auto& r = result_of(n);
      auto of_turn = mine;
      if (r.fold == Fold::stack && !r.carry) of_turn.set(loop_of(n).axis.name, {});
      for (auto& v : r.value) wish_for(id(v), of_turn);
      if (r.start) wish_for(id(r.start), mine);
    } else if (!mine.dims.empty() && (n.op->kind == Kind::map || n.op->linear == Linear::moves || rules::places(n))) {
      for (std::size_t i = 0; i < n.in.size(); ++i) {
        if (!n.in[i] || only_waits(n, i)) continue;
        bool broadcast = prim::maps(n) && n.in[i]->axes.size() != n.axes.size();
        if (!broadcast) wish_for(in[std::size_t(k)][i], rules::needed(n, i, mine, mesh));
      }
    }
  }
}

// ---- the planner ----
Planner::Planner(Whole& whole, const PartitionOptions& options, const std::vector<PartitionInput>& inputs,
                 const std::vector<Sharding>& wanted)
    : whole_(whole), mesh_(whole.mesh), options_(options), inputs_(inputs), wanted_(wanted) {
  if (auto d = options.reduce_dtype; d && (!is_float(*d) || bytes_of(*d) > 4))
    fail("named_jit", "reduce_dtype is f32, and sums of bf16 and f16 are reduced in it; it is " + std::string(name_of(*d)));
}

Plan Planner::run(const Choices& choices) {
  choices_ = &choices;
  now_ = {}, open_.clear(), pins_.clear();
  if (first_run_) contested.clear();
  asked.clear();
  now_.plan.bodies.emplace_back();
  fit_tables();
  for (auto& i : inputs_) {
    int n = whole_.find(i.whole.get());
    if (n < 0) continue;
    now_.done[std::size_t(n)] = true;
    versions(n) = {add({.kind = Version::Kind::given, .node = n, .at = i.at})};
  }
  for (int n : whole_.level(-1, 0).order) compute(n);
  for (std::size_t k = 0; k < wanted_.size(); ++k) {
    int n = whole_.roots[k];
    int made = obtain(n, wanted_[k].on(node(n).axes));
    now_.plan.roots.push_back(made);
  }
  drop_dead(now_.plan, whole_);
  first_run_ = false;
  return std::move(now_.plan);
}
void Planner::fit_tables() {
  auto n = whole_.nodes.size();
  now_.of_node.resize(n), now_.lazy.resize(n, 0), now_.done.resize(n, 0), now_.alias.resize(n, -1);
}
int Planner::body_of(int n) const {
  for (std::size_t k = open_.size(); k-- > 0;)
    if (varies_in(node(n), loop_of(node(open_[k].loop)), open_[k].number)) return open_[k].body;
  return 0;
}
Cut Planner::taken(const Node& n) const {
  Cut out;
  for (auto& o : open_)
    if (!o.turns.empty() && varies_in(n, loop_of(node(o.loop)), o.number)) out = out + o.turns;
  return out;
}
Cut Planner::own_turns(int n) const {
  auto& me = node(n);
  if (me.op != &prim::kSlice || me.in.size() < 2) return {};
  for (auto& o : open_) {
    auto& l = loop_of(node(o.loop));
    if (!o.turns.empty() && me.in[1] == l.index[o.number] && !varies_in(*me.in[0], l, o.number)) return o.turns;
  }
  return {};
}
// Of operand k: what a loop walks is cut as its turns are.
Sharding Planner::needed(int n, std::size_t k, const Sharding& work) const {
  auto need = rules::needed(node(n), k, work, mesh_);
  if (auto turns = own_turns(n); k == 0 && !turns.empty()) need.set(SliceAttr::of(node(n)).axis, turns);
  return need;
}
const std::vector<int>& Planner::users(int n) {
  static const std::vector<int> none;
  auto& r = now_.plan.bodies[std::size_t(body_of(n))];
  auto& s = whole_.level(r.loop < 0 ? -1 : now_.plan.loops[std::size_t(r.loop)].node, r.number);
  auto found = s.users.find(n);
  return found == s.users.end() ? none : found->second;
}
int Planner::add(Version s) {
  int k = int(now_.plan.versions.size());
  s.body = body_of(s.node), s.cause = cause_;
  now_.plan.bodies[std::size_t(s.body)].versions.push_back(k);
  now_.plan.versions.push_back(std::move(s));
  return k;
}

// ---- versions ----
const Sharding& Planner::pinned(int n) {
  auto [found, fresh] = pins_.try_emplace(n);
  if (fresh)
    for (auto& [name, cut] : constraint(node(n), mesh_).dims)
      if (!cut.meets(taken(node(n)))) found->second.set(name, cut);
  return found->second;
}
const Sharding& Planner::first(int n) {
  static const Sharding whole;
  if (now_.alias[std::size_t(n)] >= 0) return first(now_.alias[std::size_t(n)]);
  if (node(n).op == &prim::kPin && now_.done[std::size_t(n)]) return pinned(n);
  if (whole_.free[std::size_t(n)] || now_.lazy[std::size_t(n)] || versions(n).empty()) return whole;
  return version(versions(n)[0]).at;
}
// A slice that a loop takes of a weight each turn: is the weight gathered as a whole, before?
bool Planner::gathers_ahead(int n) const {
  return whole_.parameter[std::size_t(whole_.in[std::size_t(n)][0])] && !options_.regather;
}

Planner::Offer Planner::offer(int n, const Sharding& need, int depth) {
  if (int other = now_.alias[std::size_t(n)]; other >= 0) return offer(other, need, depth);
  if (whole_.free[std::size_t(n)] || now_.lazy[std::size_t(n)]) return {};
  Offer best;
  auto turns = turns_of(n);
  for (int v : versions(n)) {
    auto hops = reshard(mesh_, node(n).axes, node(n).dtype, version(v).at, need);
    double cost = 0;
    for (auto& h : hops) cost += h.bytes * turns;
    if (best.version < 0 || cost < best.cost || (cost == best.cost && hops.size() < best.length))
      best = {cost, v, false, hops.size()};
  }
  if (best.version >= 0 && best.cost == 0) return best;
  auto& me = node(n);
  // A weight that is made again is what it was before, if that is there anyway: kept, or gathered ahead of the loop.
  bool kept = me.op == &prim::kBarrier && whole_.weight(n) &&
              (!options_.regather || body_of(n) != body_of(whole_.in[std::size_t(n)][0]));
  bool view = kept || rules::is_view(me) || (me.op->kind == Kind::view && need.cut(rules::shifted(me)).empty());
  if (!view || depth > 8 || (!need.partial.empty() && best.version >= 0)) return best;
  for (auto& [name, cut] : need.dims)
    if (!rules::may_cut(me, name, cut, need, mesh_)) return best;
  double cost = 0;
  for (std::size_t k = 0; k < me.in.size(); ++k)
    if (!only_waits(me, k)) cost += offer(whole_.in[std::size_t(n)][k], needed(n, k, need), depth + 1).cost;
  bool sliced = me.op == &prim::kSlice && me.in.size() > 1 && body_of(n) != body_of(whole_.in[std::size_t(n)][0]);
  bool ahead = sliced && gathers_ahead(n);
  if (best.version < 0 || cost < best.cost - 0.5 || (ahead && cost <= best.cost + 0.5))
    if (!sliced || ahead || cost == 0 || best.version < 0) return {cost, -1, true, 0};
  return best;
}
int Planner::regrown(int n, const Sharding& need) {
  for (int v : versions(n))
    if (version(v).at == need) return v;
  int s = add({.kind = Version::Kind::regrow, .node = n, .at = need});
  versions(n).push_back(s);
  return s;
}
int Planner::made_now(int n, const Sharding& need) {
  Causing because(cause_, node(n).op == &prim::kPin ? n : cause_);
  Version s{.kind = Version::Kind::compute, .node = n, .at = need, .own_turns = !own_turns(n).empty()};
  for (std::size_t k = 0; k < node(n).in.size(); ++k) {
    int x = whole_.in[std::size_t(n)][k];
    if (only_waits(node(n), k))
      s.in.push_back(obtain(x, first(x)));
    else
      s.in.push_back(obtain(x, needed(n, k, need)));
  }
  if (now_.lazy[std::size_t(n)]) now_.plan.points += local_size(rules::points(node(n)), need, mesh_) * turns_of(n);
  if (node(n).op == &prim::kPin) {
    versions(n).push_back(s.in[0]);
    return s.in[0];
  }
  int made = add(std::move(s));
  versions(n).push_back(made);
  return made;
}
int Planner::obtain(int n, Sharding need) {
  if (int other = now_.alias[std::size_t(n)]; other >= 0) return obtain(other, std::move(need));
  need.dims = need.on(node(n).axes).dims;
  int from = -1;
  if (whole_.free[std::size_t(n)]) {
    from = regrown(n, need.without_pending());
  } else {
    if (!now_.done[std::size_t(n)]) compute(n, true);
    if (int other = now_.alias[std::size_t(n)]; other >= 0) return obtain(other, std::move(need));
    for (int v : versions(n))
      if (version(v).at == need) return v;
    if (now_.lazy[std::size_t(n)]) {
      for (int v : versions(n)) {
        bool cut_free = !rules::is_pointwise(node(n));  // of what is there, by slices alone; else it need not be there at all
        for (auto& h : reshard(mesh_, node(n).axes, node(n).dtype, version(v).at, need)) cut_free &= h.bytes == 0;
        if (cut_free && from < 0) from = v;
      }
      if (from < 0) {
        Sharding can;
        for (auto& [name, cut] : need.dims) {
          auto more = can;
          more.set(name, cut);
          if (rules::may_cut(node(n), name, cut, can, mesh_) && rules::made(node(n), more) == more) can = more;
        }
        from = made_now(n, can);
      }
    } else {
      auto o = offer(n, need);
      bool sliced = node(n).op == &prim::kSlice && node(n).in.size() > 1;
      if (o.cost > 0 && sliced && !options_.regather) {
        auto& of = node(whole_.in[std::size_t(n)][0]);
        if (is_loop_result(of)) asked[{whole_.find(of.in[0].get()), result_number(of)}] = need;
      }
      from = o.remake ? made_now(n, need.without_pending()) : o.version;
    }
  }
  for (auto& h : reshard(mesh_, node(n).axes, node(n).dtype, version(from).at, need)) {
    Version s{.kind = Version::Kind::hop, .node = n, .at = h.to, .in = {from}, .hop = h};
    now_.plan.bytes += h.bytes * turns_of(n);
    from = add(std::move(s));
    versions(n).push_back(from);
  }
  return from;
}

// ---- ops ----
void Planner::compute(int n, bool asked_for) {
  if (now_.done[std::size_t(n)] || whole_.free[std::size_t(n)]) return;
  auto& me = node(n);
  if (!asked_for && put_off(n)) return;
  Causing because(cause_, n);
  now_.done[std::size_t(n)] = true;
  auto in = whole_.in[std::size_t(n)];  // a copy: the whole may grow
  for (int x : in)
    if (x >= 0 && !put_off(x)) compute(x);
  if (me.op == &prim::kPin) {
    pinned(n);  // nothing moves before somebody reads it, who may want it otherwise
  } else if (me.op == &kLoop) {
    loop(n);
  } else if (is_loop_result(me)) {
    // Set with its loop.
  } else if (me.op->kind == Kind::leaf) {
    versions(n) = {add({.kind = Version::Kind::given, .node = n})};
  } else if (auto other = otherwise(n)) {
    stand_in(n, other);
  } else {
    compute_op(n);
  }
}
void Planner::stand_in(int n, const NodePtr& other) {
  auto& found = whole_.nodes;
  auto before = found.size();
  int k = whole_.id(other);
  whole_.wish[std::size_t(k)] = whole_.wish[std::size_t(n)];
  fit_tables();
  for (auto i = before; i < found.size(); ++i) whole_.stands_for[i] = n;
  for (auto i = before; i < found.size(); ++i) compute(int(i));
  compute(k);
  now_.alias[std::size_t(n)] = k;
}
// A narrow sum that would be pending so, made wider and rounded once it is no longer pending; null: it stays as it is.
NodePtr Planner::in_wider_sums(int n, const Sharding& made) {
  auto& me = ptr(n);
  if (!options_.reduce_dtype || !is_float(me->dtype) || bytes_of(me->dtype) >= bytes_of(*options_.reduce_dtype)) return nullptr;
  if (std::none_of(made.partial.begin(), made.partial.end(), [](auto& p) { return p.second == Monoid::sum; })) return nullptr;
  Following due;
  due(me->origin);
  auto wide = widened(me);
  return wide->op == me->op ? prim::cast(wide, me->dtype) : nullptr;
}
void Planner::assign(const Node& n, Sharding& work, Name a, const Cut& cut) const {
  if (cut.empty() || !work.cut(a).empty() || cut.meets(taken(n))) return;
  for (int x : cut)
    if (work.cuts(x)) return;
  if (rules::may_cut(n, a, cut, work, mesh_)) work.set(a, cut);
}
// How the points of an op are cut: a mapping binds the result of a contraction or a take; then come the operands' own cuts, the
// largest operand first (it is the dearest to move), where axis and mesh axis are still free; what no operand cuts is made as it
// will be wanted.
Sharding Planner::work_of(int n, int follow) {
  auto& me = node(n);
  Sharding work;
  auto after = [&](std::size_t k) {
    for (auto& [name, cut] : rules::wanted(me, k, first(whole_.in[std::size_t(n)][k]), mesh_).dims) assign(me, work, name, cut);
  };
  auto wished = [&] {
    for (auto& [name, cut] : whole_.wish[std::size_t(n)].dims) assign(me, work, name, cut);
  };
  if (follow >= 0) after(std::size_t(follow));
  if (follow == kWish) wished();
  bool picks = rules::picks(me) && !rules::places(me), in_order = prim::picks_in_order(me);
  bool binds = me.op->kind == Kind::contract || (picks && !in_order);
  if (binds && me.origin.mapping)
    for (auto& [name, cut] : sharding_for(me, *me.origin.mapping, mesh_).dims) assign(me, work, name, cut);
  std::vector<std::size_t> operands;
  for (std::size_t k = 0; k < me.in.size(); ++k)
    if (me.in[k]) operands.push_back(k);
  std::stable_sort(operands.begin(), operands.end(), [&](auto a, auto b) { return me.in[a]->bytes() > me.in[b]->bytes(); });
  for (auto k : operands) after(k);
  if (work.dims.empty())
    for (auto& [name, cut] : whole_.wish[std::size_t(n)].dims) {  // but what is pending lands later, if it can
      bool pending = false;
      for (int x : whole_.in[std::size_t(n)])
        if (x >= 0)
          for (int m : cut) pending |= first(x).pending(m);
      if (!pending) assign(me, work, name, cut);
    }
  if (work.dims.empty())  // of slices that are read through, as what they are taken of lies
    for (auto k : operands) {
      int x = whole_.in[std::size_t(n)][k];
      if (now_.done[std::size_t(x)] || node(x).op != &prim::kSlice) continue;
      for (auto& [name, cut] : first(whole_.in[std::size_t(x)][0]).dims) assign(me, work, name, cut);
    }
  displace(n, work, follow);
  return work;
}
// May what is pending over x in operand k ride through this op, to be reduced later?
bool Planner::rides(int n, std::size_t k, int x, Monoid m, const Sharding& work) {
  auto& me = node(n);
  int operand = whole_.in[std::size_t(n)][k];
  auto how = linear_in(me, k);
  if (how == Linear::no || work.cuts(x) || (how != Linear::moves && m != Monoid::sum)) return false;
  if (users(operand).size() > 1 || body_of(operand) != body_of(n)) return false;
  for (int v : versions(operand))
    if (!version(v).at.pending(x)) return false;
  if (how == Linear::one)
    for (std::size_t j = 0; j < me.in.size(); ++j)
      if (j != k && me.in[j] && (me.in[j] == me.in[k] || first(whole_.in[std::size_t(n)][j]).pending(x))) return false;
  double terms = bytes(operand, first(operand));  // never grow what is pending
  if (rules::shifted(me))
    for (std::size_t j = 0; j < me.in.size(); ++j)
      if (j != k && first(whole_.in[std::size_t(n)][j]).pending(x))
        terms += bytes(whole_.in[std::size_t(n)][j], first(whole_.in[std::size_t(n)][j]));
  if (bytes(n, rules::made(me, work)) <= terms * 1.001) return true;
  if (me.op->kind != Kind::step || how != Linear::moves || rules::together(me)) return false;  // into a larger array
  if (first_run_) contested.push_back({n, kRides});
  auto choice = choices_->follow.find(n);
  return choice != choices_->follow.end() && choice->second == kRides;
}
// Where something pending over x should land: on the axis that an output, a constraint or any consumer will have cut by x.
std::pair<Name, Cut> Planner::landing(int n, int x) {
  for (auto& [name, cut] : whole_.wish[std::size_t(n)].dims)
    if (cut.has(x)) return {name, cut};
  // A sum that is made wider lands where the narrow one would.
  if (int of = whole_.stands_for[std::size_t(n)]; of >= 0 && node(of).op == node(n).op && node(of).axes == node(n).axes)
    return landing(of, x);
  for (int u : users(n)) {
    if (u < 0 || node(u).op == &kLoop || node(u).op == &kResult || node(u).op == &prim::kPin) continue;
    auto work = work_of(u, kUsual);
    for (std::size_t k = 0; k < node(u).in.size(); ++k)
      if (whole_.in[std::size_t(u)][k] == n)
        for (auto& [name, cut] : rules::needed(node(u), k, work, mesh_).dims)
          if (cut.has(x)) return {name, cut};
  }
  return {};
}

// How the points may be cut instead, by another's cuts first. Fewer bytes never buy less parallel work, nor a weight gathered
// along an axis that the mapping cuts.
std::optional<Sharding> Planner::otherwise_cut(int n, const Sharding& usual, int follow) {
  auto& me = node(n);
  auto& in = whole_.in[std::size_t(n)];
  auto other = work_of(n, follow);
  if (other == usual) return {};
  auto used = [&](const Sharding& s) {
    int r = 1;
    for (auto& d : s.dims) r *= ranks(mesh_, d.second);
    return r;
  };
  if (used(other) < used(usual)) return {};
  for (std::size_t k = 0; k < in.size(); ++k) {
    if (in[k] < 0 || !me.origin.mapping || !whole_.weight(in[k])) continue;
    auto need = rules::needed(me, k, other, mesh_), before = rules::needed(me, k, usual, mesh_);
    for (auto& [name, cut] : first(in[k]).dims)
      if (me.origin.mapping->find(name) && before.cut(name) == cut && !(need.cut(name) == cut)) return {};
  }
  return other;
}

void Planner::compute_op(int n) {
  auto& me = node(n);
  const auto in = whole_.in[std::size_t(n)];  // a copy: the whole may grow
  // Of what is whole, what is cheaply made is made where it is read, in the sharding that is wanted there.
  int deep = 0;
  bool uncut = rules::is_pointwise(me) || me.op->kind == Kind::reduce || rules::places(me);
  for (int x : in) {
    if (x < 0 || !uncut) continue;
    uncut &= first(x).whole();
    if (now_.lazy[std::size_t(x)]) deep = std::max(deep, int(now_.lazy[std::size_t(x)]));
  }
  if (uncut && deep < kDeep) {
    now_.lazy[std::size_t(n)] = char(deep + 1);
    return;
  }
  auto outer = context().origin;
  context().origin = me.origin;
  auto work = work_of(n, kUsual);
  const auto usual = work;
  if (auto c = choices_->follow.find(n); c != choices_->follow.end())
    if (auto other = otherwise_cut(n, usual, c->second)) work = *other;
  std::vector<std::vector<std::pair<int, Monoid>>> keep;
  auto decide = [&] {
    keep.assign(in.size(), {});
    for (std::size_t k = 0; k < in.size(); ++k) {
      if (in[k] < 0 || only_waits(me, k)) continue;
      for (auto [x, m] : first(in[k]).partial) {
        if (rides(n, k, x, m, work)) {
          keep[k].push_back({x, m});
          continue;
        }
        if (work.cuts(x)) continue;
        auto [name, cut] = landing(in[k], x);
        if (!name) continue;
        Sharding landed;
        landed.set(name, cut);
        auto before = work;
        for (auto& [point, c] : rules::wanted(me, k, landed, mesh_).dims) assign(me, work, point, c);
        if (!(work == before)) return false;
      }
    }
    return true;
  };
  while (!decide()) {}
  context().origin = outer;
  if (auto axis = rules::shifted(me); axis && !work.cut(axis).empty()) return shift(n, work);
  Sharding kept;
  for (auto& k : keep)
    for (auto& [x, m] : k) kept.pend(x, m);
  auto made_so = rules::made(me, work);
  for (auto& [x, m] : kept.partial) made_so.pend(x, m);
  if (auto wide = in_wider_sums(n, made_so)) return stand_in(n, wide);
  if (regroup(n, work, kept)) return;

  Version s{.kind = Version::Kind::compute, .node = n, .at = made_so, .own_turns = !own_turns(n).empty()};
  double paid = now_.plan.bytes;
  for (std::size_t k = 0; k < in.size(); ++k) {
    if (in[k] < 0) {
      s.in.push_back(-1);
      continue;
    }
    if (only_waits(me, k)) {
      s.in.push_back(obtain(in[k], first(in[k])));
      continue;
    }
    auto need = needed(n, k, work);
    for (auto& [x, m] : keep[k]) need.pend(x, m);
    if (rules::together(me) && linear_in(me, k) != Linear::no) need.partial = kept.partial;
    if (rules::places(me) && k == 0) need.partial = s.at.partial;  // the base counts once
    if (Sharding left; rules::wanted(me, k, first(in[k]), mesh_, &left), !left.dims.empty()) move_base(in[k], need);
    s.in.push_back(obtain(in[k], need));
  }
  bool pays = now_.plan.bytes > paid;
  for (auto& [x, m] : s.at.partial) pays |= whole_.wish[std::size_t(n)].cuts(x);
  for (int k : {kMoved, kWish, 0, 1})
    if (pays && first_run_ && (k != kMoved || !tells_little(me)) && k < int(in.size()) &&
        (k < 0 || in[std::size_t(k)] >= 0) && otherwise_cut(n, usual, k))
      contested.push_back({n, k});
  now_.plan.points += local_size(rules::points(me), work, mesh_) * turns_of(n);
  int made = add(std::move(s));
  versions(n).insert(versions(n).begin(), made);
}

}  // namespace haliax::partitioning
