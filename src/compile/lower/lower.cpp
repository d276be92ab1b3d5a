#include "compile/lower/lower.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/where.h"
#include "ops/collective.h"
#include "ops/prim.h"
#include "compile/loops/loops.h"
#include "compile/lower/fuse.h"
#include "compile/memory/purpose.h"
#include "compile/loops/early_exit.h"

namespace haliax {
namespace {

using program::Instr;
using program::Step;
using program::Term;

std::vector<std::int64_t> row_major(const Axes& axes) {
  std::vector<std::int64_t> s(axes.size());
  std::int64_t n = 1;
  for (std::size_t i = axes.size(); i-- > 0;) s[i] = n, n *= axes[i].size;
  return s;
}
std::string where_of(const Node& n) {
  auto s = to_string(n.origin.at);
  if (n.origin.module) s += ", " + std::string(n.origin.module.text());
  return s;
}

class Lowering final : public Emit {
 public:
  Lowering(program::Program& p, const LowerOptions& o, const Purposes& u, const Layouts& l)
      : p_(p), options_(o), purposes_(u), layouts_(l), steps_(&p.steps) {}

  int new_slot(std::int64_t bytes, const char* purpose, program::Home home = program::Home::arena, int index = -1) {
    p_.slots.push_back({bytes, home, index, -1, -1, purpose});
    return int(p_.slots.size()) - 1;
  }
  Place fresh(const Axes& axes, DType d, const char* purpose = "activations") {
    return {new_slot(axis_size(axes) * bytes_of(d), purpose), d, 0, row_major(axes), {}};
  }
  // Memory for a value of our own, in the order that suits its readers.
  Place fresh_for(const NodePtr& n) {
    auto p = fresh(n->axes, n->dtype, purposes_.of(*n));
    p_.slots.back().gathered = Purposes::gathered(*n);
    if (auto order = layouts_.find(n.get()); order != layouts_.end()) {
      auto strides = row_major(order->second);
      for (std::size_t i = 0; i < n->axes.size(); ++i)
        p.strides[i] = strides[std::size_t(find_axis(order->second, n->axes[i].name) - order->second.data())];
    }
    return p;
  }
  void know(const Node* n, Place p) {
    places_[n] = std::move(p);
    added_.push_back(n);
  }

  // ---- Emit ----
  Place operand(std::size_t k) override { return place_of(now_->in[k]); }
  Place result() override { return result_; }
  void zero(const Place& p, const Axes& axes) override { fill(p, axes, prim::number(0, p.dtype)); }
  void copy(const Place& from, const Place& to, const Axes& axes) override {
    bool there = from.slot == to.slot && from.offset == to.offset && from.terms == to.terms;   // made in its place
    for (std::size_t d = 0; d < axes.size(); ++d) there &= axes[d].size == 1 || from.strides[d] == to.strides[d];
    if (there) return;
    Step s;
    s.kind = program::Kind::copy;
    s.copy = {sizes(axes), view(from, axes, axes), view(to, axes, axes)};
    push(std::move(s));
  }
  void push(Step s) override {
    if (now_) s.why = now_->op->name, s.where = where_of(*now_);
    steps_->push_back(std::move(s));
  }
  Term term(const NodePtr& start, std::int64_t stride, std::int64_t limit) override {
    Term t;
    if (start->op == &prim::kIndex) {
      auto at = prim::index_start(*start);
      auto variable = variables_.at(start.get());
      if (variable < 0) t.stride = at * stride;
      else t.loop = variable, t.stride = prim::index_chunk(*start) * stride;
      return t;
    }
    if (is_number_node(*start)) {
      t.stride = std::clamp<std::int64_t>(start->attr.ints[0], 0, limit) * stride;
      return t;
    }
    Place p = place_of(start);
    if (!p.terms.empty()) {
      Place plain = fresh({}, p.dtype);
      copy(p, plain, {});
      p = plain;
    }
    t.slot = p.slot, t.slot_dtype = p.dtype, t.slot_offset = p.offset, t.limit = limit, t.stride = stride;
    return t;
  }

  // ---- where things lie ----
  Place place_of(const NodePtr& n) {
    if (auto known = places_.find(n.get()); known != places_.end()) return known->second;
    Place p;
    if (shows_value(*n)) p = place_of(shown_by(*n));
    else if (n->op->kind == Kind::view) {
      Place in = place_of(n->in[0]);
      p = n->op->view(*n, in, *this);
      if (!p) p = copied(n);
    } else {
      fail_at(n->origin, n->op->name, "has no place in memory");
    }
    know(n.get(), p);
    return p;
  }
  Place copied(const NodePtr& n) {   // a view that strides cannot say
    auto *was = now_;
    auto before = result_;
    now_ = n.get(), result_ = fresh(n->axes, n->dtype);
    n->op->lower(*n, *this);
    auto p = result_;
    now_ = was, result_ = before;
    return p;
  }

  // ---- a scope ----
  void scope(const std::vector<Target>& targets) {
    Scope s = make_scope(targets, places_, {options_.fuse});
    auto* outer = scope_;
    scope_ = &s;
    for (int u : ordered(s)) unit(s.units[std::size_t(u)]);
    scope_ = outer;
  }

  // Greedy: of the units that are ready, the one after which least is alive. Any order is right, few are small.
  std::vector<int> ordered(const Scope& s) {
    std::vector<int> out;
    std::size_t n = s.units.size();
    std::vector<std::set<const Node*>> reads(n);
    std::unordered_map<const Node*, int> readers;
    std::vector<std::int64_t> writes(n);
    for (std::size_t u = 0; u < n; ++u) {
      for (auto& made : s.units[u].nodes) {
        if (s.units[u].type != Unit::Type::copy && s.in_memory.count(made.get()) && !s.targets.count(made.get())) writes[u] += made->bytes();
        for (auto& x : made->in) if (x) below(x, s, int(u), reads[u]);
        if (made->op == &kCollective) for (std::size_t k = 0; k < wiring(*made).out.size(); ++k) writes[u] += collective_result(made, k)->bytes();
        if (made->op == &kLoop) for (std::size_t k = 0; k < loop_of(*made).results.size(); ++k) writes[u] += loop_result(made, k)->bytes();
      }
      for (auto* r : reads[u]) ++readers[r];
    }
    std::vector<std::size_t> waits(n);
    std::vector<std::vector<int>> then(n);
    for (std::size_t u = 0; u < n; ++u) {
      waits[u] = s.units[u].after.size();
      for (int a : s.units[u].after) then[std::size_t(a)].push_back(int(u));
    }
    std::vector<int> ready;
    for (std::size_t u = 0; u < n; ++u) if (!waits[u]) ready.push_back(int(u));
    while (!ready.empty()) {
      std::size_t best = 0;
      std::int64_t least = 0;
      for (std::size_t i = 0; i < ready.size(); ++i) {
        auto u = std::size_t(ready[i]);
        std::int64_t growth = writes[u];
        for (auto* r : reads[u]) if (readers[r] == 1) growth -= r->bytes();
        if (!options_.fuse) growth = 0;
        bool older = s.units[u].order < s.units[std::size_t(ready[best])].order;
        if (i == 0 || growth < least || (growth == least && older)) best = i, least = growth;
      }
      int u = ready[best];
      ready.erase(ready.begin() + std::ptrdiff_t(best));
      out.push_back(u);
      for (auto* r : reads[std::size_t(u)]) --readers[r];
      for (int t : then[std::size_t(u)]) if (--waits[std::size_t(t)] == 0) ready.push_back(t);
    }
    return out;
  }
  void below(const NodePtr& x, const Scope& s, int unit, std::set<const Node*>& out) {
    Nodes todo{x};
    std::set<const Node*> seen;
    while (!todo.empty()) {
      auto n = todo.back();
      todo.pop_back();
      if (places_.count(n.get()) || !seen.insert(n.get()).second) continue;
      auto made = s.unit_of.find(n.get());
      if (made != s.unit_of.end()) {
        if (made->second != unit && !s.targets.count(n.get())) out.insert(n.get());
        continue;
      }
      if (n->op->kind != Kind::leaf) for (auto& i : n->in) if (i) todo.push_back(i);
    }
  }

  void unit(const Unit& u) {
    auto* was = now_;
    now_ = u.nodes.back().get();
    if (u.type == Unit::Type::kernel) kernel(u);
    else if (u.type == Unit::Type::copy) into(u);
    else single(u.nodes[0]);
    now_ = was;
  }

  // Where the value of a node that is made now goes: to its first target, or to memory of its own.
  Place home(const NodePtr& n) {
    if (auto t = scope_->targets.find(n.get()); t != scope_->targets.end() && !t->second[0]->accumulate) return t->second[0]->place;
    if (auto known = joined_.find(n.get()); known != joined_.end()) return known->second;
    if (auto piece = scope_->piece_of.find(n.get()); piece != scope_->piece_of.end()) return piece_place(n, piece->second);
    return fresh_for(n);
  }
  // A piece of a concatenation is made where it will lie.
  Place piece_place(const NodePtr& n, const Scope::Piece& piece) {
    auto& whole = piece.whole;
    Place all = home(whole);
    joined_[whole.get()] = all;
    std::vector<std::pair<Name, std::int64_t>> strides;   // by the names of the operand, then of what it shows
    for (auto& a : piece.operand->axes) strides.push_back({a.name, all.strides[std::size_t(find(*whole, a.name) - whole->axes.data())]});
    for (auto x = piece.operand; x != n; x = x->in[0]) {
      if (x->op != &prim::kRename) continue;
      auto shown = strides;
      strides.clear();
      for (std::size_t i = 0; i < x->axes.size(); ++i)
        for (auto& [name, stride] : shown) if (name == x->axes[i].name) strides.push_back({x->in[0]->axes[i].name, stride});
    }
    Place p = all;
    p.strides.clear();
    for (auto& a : n->axes)
      for (auto& [name, stride] : strides) if (name == a.name) { p.strides.push_back(stride); break; }
    p.offset += piece.start * all.strides[std::size_t(find(*whole, whole->attr.names[0]) - whole->axes.data())];
    return p;
  }
  const Target* accumulation(const NodePtr& n) {   // the value is added to its one target, and lies nowhere else
    auto t = scope_->targets.find(n.get());
    if (t == scope_->targets.end() || t->second.size() != 1 || !t->second[0]->accumulate || scope_->in_memory.count(n.get())) return nullptr;
    return t->second[0];
  }

  void single(const NodePtr& n) {
    if (n->op == &kLoop) return loop(n);
    if (n->op == &kCollective) return wiring(*n).ranks > 0 ? ring(n) : collective(n);
    auto* add = n->op->kind == Kind::contract || n->op == &prim::kScatter ? accumulation(n) : nullptr;
    result_ = add ? add->place : home(n);
    if (n->op->kind == Kind::contract) {
      auto &a = n->in[0], &b = n->in[1];
      contract({result_, n->axes}, {place_of(a), a->axes}, {place_of(b), b->axes}, add != nullptr);
    } else if (add) {
      accumulating_ = true;
      n->op->lower(*n, *this);
      accumulating_ = false;
    } else {
      auto place = result_;
      n->op->lower(*n, *this);
      result_ = place;
    }
    if (!add) know(n.get(), result_);
  }

  static const Wiring& wiring(const Node& n) { return static_cast<const Wiring&>(*n.attr.payload); }
  void collective(const NodePtr& n) {
    auto& w = wiring(*n);
    Step s;
    s.kind = program::Kind::collective;
    s.collective = w.how;
    for (auto& x : n->in) s.collective.x.push_back({sizes(x->axes), view(place_of(x), x->axes, x->axes)});
    std::vector<Place> places;
    Nodes results;
    for (std::size_t k = 0; k < w.out.size(); ++k) {
      results.push_back(collective_result(n, k));
      places.push_back(home(results[k]));
      s.collective.out.push_back({sizes(w.out[k]), view(places[k], w.out[k], w.out[k])});
      int dim = -1;
      if (k < w.along.size())
        for (std::size_t d = 0; d < w.out[k].size(); ++d) if (w.out[k][d].name == w.along[k]) dim = int(d);
      s.collective.dim.push_back(dim);
    }
    push(std::move(s));
    know(n.get(), Place{0, DType::f32, 0, {}, {}});
    for (std::size_t k = 0; k < results.size(); ++k) know(results[k].get(), places[k]);
    keep_.insert(keep_.end(), results.begin(), results.end());
  }

  struct Part {
    Place place;
    Axes axes;
  };
  // The block of another rank is in memory while it is contracted, and handed on from there.
  void ring(const NodePtr& n) {
    auto& w = wiring(*n);
    auto &other = n->in[0], &block = n->in[1];
    auto result = collective_result(n, 0);
    auto out = home(result), its = place_of(other), mine = place_of(block);
    auto size = find(*block, w.along[0])->size;
    auto part = [&](Place p, Axes axes, std::int64_t turn) {   // what goes with the block of this turn
      for (std::size_t d = 0; d < axes.size(); ++d)
        if (axes[d].name == w.along[0]) p.offset += (w.rank + turn) % w.ranks * size * p.strides[d], axes[d].size = size;
      return Part{p, axes};
    };
    bool sums = !find(*result, w.along[0]);
    for (std::int64_t turn = 0; turn < w.ranks; ++turn) {
      if (turn > 0) {
        auto next = fresh(block->axes, block->dtype, "scratch");
        p_.slots.back().gathered = true;
        Step s;
        s.kind = program::Kind::collective;
        s.collective = w.how;
        for (auto [side, place] : {std::pair{&s.collective.x, &mine}, {&s.collective.out, &next}})
          side->push_back({sizes(block->axes), view(*place, block->axes, block->axes)});
        s.collective.dim = {-1};
        push(std::move(s));
        mine = next;
      }
      contract(part(out, result->axes, turn), part(its, other->axes, turn), {mine, block->axes}, sums && turn > 0);
    }
    know(n.get(), Place{0, DType::f32, 0, {}, {}});
    know(result.get(), out);
    keep_.push_back(result);
  }

  void contract(const Part& out, const Part& a, const Part& b, bool accumulate) {
    Axes batch, m, nn, k;
    for (auto& x : out.axes) {
      bool in_a = has(a.axes, x.name), in_b = has(b.axes, x.name);
      (in_a && in_b ? batch : in_a ? m : nn).push_back(x);
    }
    for (auto* side : {&a, &b})
      for (auto& x : side->axes) if (!has(out.axes, x.name) && !has(k, x.name)) k.push_back(x);
    Axes all = batch;
    for (auto* part : {&m, &nn, &k}) all.insert(all.end(), part->begin(), part->end());
    Step s;
    s.kind = program::Kind::contract;
    auto of = [&](const Part& p) { return view(p.place, p.axes, all); };
    s.contract = {sizes(batch), sizes(m), sizes(nn), sizes(k), of(a), of(b), of(out), accumulate};
    push(std::move(s));
  }

  // A value that is in memory, or a view of one, into a target.
  void into(const Unit& u) {
    auto& n = u.nodes[0];
    auto& t = *u.target;
    if (!t.accumulate) {
      if (in_memory(n)) return copy(place_of(n), t.place, n->axes);
    }
    Kernel k(*this, n->axes, {});
    int value = k.value(n, k.names(n->axes));
    k.store(value, n, t.place, t.accumulate, t.monoid);
    k.finish();
  }
  bool in_memory(const NodePtr& n) {
    auto& base = base_of(n);
    return places_.count(n.get()) || places_.count(base.get());
  }
  void fill(const Place& p, const Axes& axes, const NodePtr& number) {
    if (accumulating_) return;   // the target holds a sum already
    Kernel k(*this, axes, {});
    k.store_at(k.make(number, {}), p, axes, false, Monoid::sum);
    k.finish();
  }

  // ---- kernels: one SSA program over outer and inner points ----
  using Env = std::vector<std::pair<Name, std::size_t>>;   // axis name -> dimension
  struct Kernel {
    Lowering& l;
    Axes dims;
    std::size_t outer;
    std::vector<Instr> code;
    std::vector<std::pair<std::pair<const Node*, Env>, int>> memo;
    std::unordered_map<const Node*, int> made;   // nodes of this unit

    Kernel(Lowering& low, const Axes& o, const Axes& inner) : l(low), dims(o), outer(o.size()) { dims.insert(dims.end(), inner.begin(), inner.end()); }
    Env names(const Axes& axes) const {
      Env e;
      for (auto& a : axes)
        for (std::size_t d = 0; d < dims.size(); ++d) if (dims[d].name == a.name) e.push_back({a.name, d});
      return e;
    }
    static std::size_t dim(const Env& e, Name n) {
      for (auto& [name, d] : e) if (name == n) return d;
      fail("lower", "axis " + std::string(n.text()) + " has no dimension");
    }
    int push(Instr i) {
      code.push_back(std::move(i));
      return int(code.size()) - 1;
    }
    bool is_inner(int i) const { return code[std::size_t(i)].inner; }

    // The value of n, whose axes lie along the dimensions that `env` says.
    int value(const NodePtr& n, Env env) {
      Env mine;
      for (auto& a : n->axes) mine.push_back({a.name, dim(env, a.name)});
      if (auto m = made.find(n.get()); m != made.end() && mine == names(n->axes)) return m->second;
      for (auto& [key, v] : memo) if (key.first == n.get() && key.second == mine) return v;
      int v = make(n, mine);
      memo.push_back({{n.get(), mine}, v});
      return v;
    }
    int make(const NodePtr& n, const Env& env) {
      if (l.places_.count(n.get())) return load(n, env);
      if (n->op == &prim::kNumber) {
        Instr i{.code = Code::constant, .dtype = n->dtype, .number = n->attr.number, .integer = n->attr.ints.empty() ? 0 : n->attr.ints[0], .view = {}};
        return push(std::move(i));
      }
      if (n->op == &prim::kIota) return iota(n, int(env[0].second), 1);
      if (n->op == &prim::kIndex) return iota(n, -1, 0);
      if (n->op == &prim::kFit) {
        Env in;
        for (auto& a : n->in[0]->axes) in.push_back({a.name, dim(env, a.name)});
        return value(n->in[0], in);
      }
      if (n->op == &prim::kRename) {
        Env in;
        for (std::size_t k = 0; k < n->axes.size(); ++k) in.push_back({n->in[0]->axes[k].name, dim(env, n->axes[k].name)});
        return value(n->in[0], in);
      }
      if (shows_value(*n)) return value(shown_by(*n), env);
      if (n->op->kind == Kind::map && !(l.scope_ && made_elsewhere(n))) return point(n, env);
      return load(n, env);
    }
    bool made_elsewhere(const NodePtr& n) const { return l.scope_->unit_of.count(n.get()) && !pending.count(n.get()); }
    std::set<const Node*> pending;   // nodes of this unit
    int point(const NodePtr& n, const Env& env) {
      Instr i{.code = n->op->code, .dtype = n->dtype, .view = {}};
      for (std::size_t k = 0; k < n->in.size(); ++k) {
        Env in;
        for (auto& a : n->in[k]->axes) in.push_back({a.name, dim(env, a.name)});
        i.args[k] = value(n->in[k], in);
        i.inner |= is_inner(i.args[k]);
      }
      return push(std::move(i));
    }
    int iota(const NodePtr& n, int d, std::int64_t stride) {
      Instr i{.code = Code::iota, .dtype = n->dtype, .inner = d >= int(outer), .dim = d, .stride = stride, .view = {}};
      if (d < 0) {
        auto t = l.term(n, 1, 0);
        if (t.loop < 0) i.integer = t.stride;
        else i.view.terms.push_back(t);
      }
      return push(std::move(i));
    }
    int load(const NodePtr& n, const Env& env) {
      Place p = l.place_of(n);
      Instr i{.code = Code::load, .dtype = n->dtype, .view = {p.slot, p.dtype, p.offset, program::Dims(dims.size(), 0), p.terms}};
      for (std::size_t k = 0; k < n->axes.size(); ++k) {
        auto d = dim(env, n->axes[k].name);
        i.view.strides[d] += p.strides[k];
        i.inner |= d >= outer && dims[d].size > 1 && p.strides[k] != 0;
      }
      return push(std::move(i));
    }
    int fold(const NodePtr& n) {
      int v = value(n->in[0], names(n->in[0]->axes));
      if (!is_inner(v)) {   // the same at every inner point: said once for each of them
        Instr same{.code = Code::cast, .dtype = n->in[0]->dtype, .inner = true, .view = {}};
        same.args[0] = v;
        v = push(std::move(same));
      }
      Instr i{.code = n->op->code, .dtype = n->dtype, .view = {}};
      i.args[0] = v;
      return push(std::move(i));
    }
    void store(int v, const NodePtr& n, const Place& p, bool accumulate, Monoid m) { store_at(v, p, n->axes, accumulate, m); }
    void store_at(int v, const Place& p, const Axes& axes, bool accumulate, Monoid m) {
      Code c = !accumulate ? Code::store : m == Monoid::sum ? Code::store_add : m == Monoid::max ? Code::store_max : Code::store_min;
      Instr i{.code = c, .dtype = p.dtype, .view = Emit::view(p, axes, dims)};
      i.args[0] = v;
      for (auto& a : axes)
        for (std::size_t d = outer; d < dims.size(); ++d) i.inner |= dims[d].name == a.name;
      push(std::move(i));
    }
    void finish() {
      Step s;
      s.kind = program::Kind::fused;
      s.fused = {Emit::sizes(dims), int(outer), std::move(code)};
      l.push(std::move(s));
    }
  };

  void kernel(const Unit& u) {
    Kernel k(*this, u.outer, u.inner);
    for (auto& n : u.nodes) k.pending.insert(n.get());
    std::vector<std::pair<const Node*, Place>> stored;
    for (auto& n : u.nodes) {
      int v = n->op->kind == Kind::reduce ? k.fold(n) : n->op->kind == Kind::map ? k.point(n, k.names(n->axes)) : k.make(n, k.names(n->axes));
      k.made[n.get()] = v;
      bool placed = false;
      if (auto t = scope_->targets.find(n.get()); t != scope_->targets.end())
        for (auto* target : t->second) {
          k.store(v, n, target->place, target->accumulate, target->monoid);
          if (!target->accumulate && !placed) stored.push_back({n.get(), target->place}), placed = true;
        }
      if (!placed && scope_->in_memory.count(n.get())) {
        auto p = home(n);
        k.store(v, n, p, false, Monoid::sum);
        stored.push_back({n.get(), p});
      }
    }
    k.finish();
    for (auto& [n, p] : stored) know(n, p);
  }

  // ---- loops ----
  void loop(const NodePtr& n) {
    auto& l = loop_of(*n);
    Nodes results;
    std::vector<std::vector<TurnPart>> parts;            // of each body
    bool skips = false;
    for (std::size_t b = 0; b < l.index.size(); ++b) {
      parts.push_back(turn_parts(l, b, options_.fuse && !l.form.empty()));
      for (auto& p : parts[b]) skips |= p.flag != nullptr;
    }
    std::vector<Place> places;
    std::vector<bool> added;                             // to a sum that is there
    for (std::size_t k = 0; k < l.results.size(); ++k) {
      auto r = loop_result(n, k);
      auto& how = l.results[k];
      bool adds = how.fold == Fold::stack || (how.fold == Fold::fold && how.monoid == Monoid::sum && !how.start);
      auto* add = adds ? accumulation(r) : nullptr;
      added.push_back(add != nullptr);
      places.push_back(add ? add->place : home(r));
      results.push_back(r);
      if (add) continue;
      if (how.start) start_from(how.start, places[k], r->axes);
      else if (how.fold == Fold::stack && skips) zero(places[k], r->axes);
      else if (how.fold == Fold::fold) fill(places[k], r->axes, prim::identity(how.monoid, r->dtype));
    }
    auto* outer_steps = steps_;
    for (std::size_t turn = 0; turn < l.index.size(); ++turn) {
      auto b = l.reverse ? l.index.size() - 1 - turn : turn;   // what is left over lies at the end
      auto count = trips(l, b);
      if (count == 0) continue;
      Step s;
      s.kind = program::Kind::loop;
      s.loop.trips = count, s.loop.reverse = l.reverse, s.loop.variable = p_.loops++;
      auto* index = l.index[b].get();
      variables_[index] = prim::index_start(*index) == 0 ? s.loop.variable : -1;
      steps_ = &s.loop.body;
      auto mark = added_.size();
      std::vector<std::pair<Place, Place>> moves;   // of carries, at the end of a turn
      for (std::size_t k = 0; k < l.results.size(); ++k) if (l.results[k].carry) know(l.results[k].carry.get(), places[k]);
      for (auto& part : parts[b]) {
        if (parts[b].size() == 1) {
          turn_part(part, l, b, places, added, moves);
          continue;
        }
        auto before = added_.size();
        Step once;                                       // each part may end by itself
        once.kind = program::Kind::loop;
        once.loop.trips = 1, once.loop.variable = -1;
        steps_ = &once.loop.body;
        turn_part(part, l, b, places, added, moves);
        forget(before);
        steps_ = &s.loop.body;
        push(std::move(once));
      }
      std::size_t m = 0;
      for (std::size_t k = 0; k < l.results.size(); ++k) {
        auto& how = l.results[k];
        if (how.fold != Fold::carry || how.value[b] == how.carry) continue;
        copy(moves[m].first, moves[m].second, how.value[b]->axes), ++m;
      }
      forget(mark);
      variables_.erase(index);
      steps_ = outer_steps;
      push(std::move(s));
    }
    know(n.get(), Place{0, DType::f32, 0, {}, {}});
    for (std::size_t k = 0; k < results.size(); ++k) know(results[k].get(), places[k]);
    keep_.insert(keep_.end(), results.begin(), results.end());
  }
  void turn_part(const TurnPart& part, const Loop& l, std::size_t b, const std::vector<Place>& places, const std::vector<bool>& added,
                 std::vector<std::pair<Place, Place>>& moves) {
    if (part.flag) {
      Step skip;
      auto flag = fresh({}, DType::boolean);
      scope({{part.flag, flag}});
      skip.kind = program::Kind::skip, skip.skip = {view(flag, {}, {})};
      push(std::move(skip));
    }
    std::vector<Target> targets;
    for (auto& [k, value] : part.values) {
      auto& how = l.results[k];
      if (how.fold == Fold::fold) targets.push_back({value, places[k], true, how.monoid});
      else if (how.fold == Fold::stack) targets.push_back({value, part_of(places[k], l, l.index[b].get(), value->axes), added[k], Monoid::sum});
      else if (value != how.carry) {
        auto next = fresh(value->axes, value->dtype, purposes_.of(*value));
        moves.push_back({next, fitted(places[k], how.carry->axes, value->axes)});
        targets.push_back({value, next});
      }
    }
    scope(targets);
  }
  void forget(std::size_t from) {   // what has been placed since
    while (added_.size() > from) places_.erase(added_.back()), added_.pop_back();
  }
  static Place fitted(const Place& p, const Axes& of, const Axes& as) {
    Place out = p;
    out.strides.clear();
    for (auto& a : as) out.strides.push_back(p.strides[std::size_t(find_axis(of, a.name) - of.data())]);
    return out;
  }
  void start_from(const NodePtr& start, const Place& to, const Axes& axes) {
    if (in_memory(start)) {
      auto from = place_of(start);
      return copy(start->axes == axes ? from : fitted(from, start->axes, axes), to, axes);
    }
    Kernel k(*this, axes, {});
    k.store_at(k.value(start, k.names(start->axes)), to, axes, false, Monoid::sum);
    k.finish();
  }
  // The block of a stacked result that belongs to this turn.
  Place part_of(const Place& whole, const Loop& l, const Node* index, const Axes& value) {
    Place p = whole;
    std::int64_t stride = 0;
    if (l.drop) {
      stride = p.strides[0];
      p.strides.erase(p.strides.begin());
    } else {
      for (std::size_t i = 0; i < value.size(); ++i) if (value[i].name == l.axis.name) stride = p.strides[i];
    }
    auto t = term(NodePtr(NodePtr(), index), stride, 0);
    if (t.loop < 0) p.offset += t.stride;
    else p.terms.push_back(t);
    return p;
  }

 private:
  program::Program& p_;
  const LowerOptions& options_;
  const Purposes& purposes_;
  const Layouts& layouts_;
  std::vector<Step>* steps_;
  std::unordered_map<const Node*, Place> places_;
  std::vector<const Node*> added_;
  std::unordered_map<const Node*, Place> joined_;    // concatenations that have a place before they are made
  std::unordered_map<const Node*, int> variables_;   // loop index -> loop variable, or -1 where it is one number
  Nodes keep_;
  Scope* scope_ = nullptr;
  const Node* now_ = nullptr;
  Place result_;
  bool accumulating_ = false;
};

}  // namespace

namespace {

// The arrays that a graph has captured, bodies of loops included. Raises for what has no value and will have none.
Nodes captured_by(const std::vector<Nodes>& bodies, const Nodes& inputs) {
  std::set<const Node*> given;
  for (auto& n : inputs) given.insert(n.get());
  Nodes out;
  for (auto& body : bodies)
    for (auto& n : body) {
      if (given.count(n.get())) continue;
      if (n->op == &prim::kInput && !n->value)
        fail("eval", "a value is asked for inside jit, scan or vmap, where there is none yet");
      bool said = n->op == &prim::kNumber || n->op == &prim::kIota;   // as good as its value, and never in memory
      if (n->value && !said) given.insert(n.get()), out.push_back(n);
      else if (!n->donated.empty()) fail_at(n->origin, "eval", n->donated);
    }
  return out;
}

}  // namespace

Lowered lower(const Nodes& roots, const Nodes& inputs, const LowerOptions& options, const Layouts& layouts) {
  Lowered out{std::make_shared<program::Program>(), captured_by(bodies_of(roots), inputs)};
  auto& p = *out.program;
  Purposes purposes(roots, inputs);
  Lowering l(p, options, purposes, layouts);
  Nodes arguments = inputs;
  arguments.insert(arguments.end(), out.captured.begin(), out.captured.end());
  for (auto& n : arguments) {
    int slot = l.new_slot(n->bytes(), purposes.of_argument(*n), program::Home::argument, p.arguments);
    p.argument_slots.push_back(slot);
    ++p.arguments;
    l.know(n.get(), {slot, n->dtype, 0, row_major(n->axes), {}});
  }
  std::vector<Target> targets;
  for (auto& n : roots) {
    int slot = l.new_slot(n->bytes(), purposes.of_result(*n), program::Home::result, p.results);
    p.result_slots.push_back(slot);
    ++p.results;
    targets.push_back({n, {slot, n->dtype, 0, row_major(n->axes), {}}});
  }
  l.scope(targets);
  return out;
}

void ask_scratch(program::Program& p, program::Device& device, int workers) {
  std::vector<std::vector<Step>*> todo{&p.steps};
  while (!todo.empty()) {
    auto* steps = todo.back();
    todo.pop_back();
    for (auto& s : *steps) {
      if (!device.supports(s)) throw Error(std::string("[") + s.why + "] backend " + device.name() + " cannot run it; " + s.where);
      if (s.kind == program::Kind::loop) todo.push_back(&s.loop.body);
      else s.scratch_bytes = device.scratch_bytes(s, workers);
    }
  }
}

}  // namespace haliax
