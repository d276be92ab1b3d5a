// The partition pass. Every value is kept in all the versions that exist (shard, whole, pending sum), and what is needed is made from the
// cheapest. An op says what it does along an axis and in what it is linear; no op has a sharding rule of its own.
#include "transforms/partition.h"

#include <algorithm>
#include <optional>

#include "base/where.h"
#include "ops/prim.h"

namespace haliax {
namespace {

using program::Wire;

struct Version { Sharding at; NodePtr local; bool gathered_forward = false; };
struct Hop { Sharding to; Wire wire; bool moves; std::vector<int> over; Name axis; double bytes; };

bool uses(const std::vector<int>& v, int x) { return std::find(v.begin(), v.end(), x) != v.end(); }
bool busy(const Sharding& s, int x) {
  return std::any_of(s.dims.begin(), s.dims.end(), [&](auto& d) { return uses(d.second, x); });
}
void set_cut(Sharding& s, Name n, std::vector<int> cut) {
  std::erase_if(s.dims, [&](auto& d) { return d.first.text() == n.text(); });
  if (!cut.empty()) s.dims.push_back({Name(n.text()), std::move(cut)});
  std::sort(s.dims.begin(), s.dims.end(), [](auto& a, auto& b) { return a.first.text() < b.first.text(); });
}
Sharding restricted(const Sharding& s, const Axes& axes) {
  Sharding out;
  for (auto& a : axes) if (auto* c = s.cut(a.name)) set_cut(out, a.name, *c);
  return out;
}

class Partitioner {
 public:
  Partitioner(const Mesh& mesh, int device) : mesh_(mesh), device_(device) {}

  Partitioned run(const Nodes& roots, const std::vector<Sharding>& wanted, const std::vector<PartitionInput>& inputs) {
    prepare(roots, wanted);
    for (auto& i : inputs) versions_[i.whole.get()] = {{i.at, i.local, false}};
    Partitioned out;
    compute_all(roots, nullptr);
    for (std::size_t k = 0; k < roots.size(); ++k) out.roots.push_back(obtain(roots[k], wanted[k], true));
    out.results = wanted;
    out.moves = moves_of(out.roots);
    return out;
  }

 private:
  const Mesh& mesh_;
  int device_;
  std::unordered_map<const Node*, std::vector<Version>> versions_;
  std::unordered_map<const Node*, int> users_;
  std::unordered_map<const Node*, Sharding> wish_;     // what later consumers will want it cut by
  Nodes keep_;

  int ranks(const std::vector<int>& over) const {
    int n = 1;
    for (int x : over) n *= mesh_.axes[std::size_t(x)].second;
    return n;
  }
  double bytes(const NodePtr& n, const Sharding& s) const {   // of this device's part, on average
    double b = bytes_of(n->dtype);
    for (auto& a : n->axes) b *= double(a.size) / (s.cut(a.name) ? ranks(*s.cut(a.name)) : 1);
    return b;
  }

  // ---- before: who reads what, and what will be wanted. Wishes travel back through ops of one shape, never through a constraint ----
  void wish_for(const NodePtr& n, const Sharding& s) {
    auto& w = wish_[n.get()];
    for (auto& [name, cut] : restricted(s, n->axes).dims) {
      bool taken = w.cut(name) != nullptr;
      for (int x : cut) taken |= busy(w, x);
      if (!taken) set_cut(w, name, cut);
    }
  }
  void prepare(const Nodes& roots, const std::vector<Sharding>& wanted) {
    auto all = everything(roots);
    for (std::size_t k = 0; k < roots.size(); ++k) ++users_[roots[k].get()], wish_for(roots[k], wanted[k]);
    for (auto n = all.rbegin(); n != all.rend(); ++n) {
      auto& node = **n;
      for (auto& x : node.in) if (x) ++users_[x.get()];
      if (node.op == &kLoop)
        for (auto& r : loop_of(node).results) for (auto& v : r.value) ++users_[v.get()];
      if (node.op == &prim::kPin) {
        wish_for(node.in[0], sharding_for(node.axes, *static_cast<const prim::Pin&>(*node.attr.payload).mapping, mesh_, "an array"));
        continue;
      }
      auto w = wish_.find(&node);
      if (w == wish_.end()) continue;
      auto mine = w->second;
      if (node.op == &kResult && node.in[0]->op == &kLoop) {
        auto& r = loop_of(node).results[std::size_t(node.attr.ints[0])];
        for (auto& v : r.value) wish_for(v, mine);
        if (r.start) wish_for(r.start, mine);
        continue;
      }
      if (node.op == &prim::kRename) continue;
      for (auto& x : node.in) {
        if (!x) continue;
        bool same = x->axes.size() == node.axes.size() && std::all_of(x->axes.begin(), x->axes.end(), [&](auto& a) { return has(node.axes, a.name); });
        if (same && (node.op->kind == Kind::map || node.op == &prim::kFit)) wish_for(x, mine);
      }
    }
  }

  // ---- versions ----
  bool forward_only(const Version& v, bool backward) const { return v.gathered_forward && backward; }

  // From one sharding to another: first what is free, then what shrinks the data, then what grows it.
  std::vector<Hop> route(const NodePtr& n, Sharding cur, const Sharding& to) const {
    std::vector<Hop> hops;
    auto ring = [&](const std::vector<int>& over, double b) { double g = ranks(over); return (g - 1) / g * b; };
    for (auto& a : n->axes) {   // slice what is whole, reduce-scatter what is pending
      auto* want = to.cut(a.name);
      if (!want) continue;
      auto* have = cur.cut(a.name);
      if (have) continue;
      bool pending = false, taken = false;
      for (int x : *want) pending |= cur.partial.count(x) && !to.partial.count(x), taken |= busy(cur, x);
      if (taken) continue;
      Sharding next = cur;
      set_cut(next, a.name, *want);
      if (pending) {
        double b = bytes(n, cur);
        for (int x : *want) next.partial.erase(x);
        hops.push_back({next, Wire::reduce_scatter, true, *want, a.name, ring(*want, b)});
      } else {
        hops.push_back({next, Wire::all_gather, false, *want, a.name, 0});
      }
      cur = next;
    }
    std::vector<int> over;
    for (auto& [x, m] : cur.partial) if (!to.partial.count(x)) over.push_back(x);
    if (!over.empty()) {
      Sharding next = cur;
      for (int x : over) next.partial.erase(x);
      hops.push_back({next, Wire::all_reduce, true, over, {}, 2 * ring(over, bytes(n, cur))});
      cur = next;
    }
    for (auto& a : n->axes) {   // gather what must be whole (or is cut otherwise)
      auto* have = cur.cut(a.name);
      auto* want = to.cut(a.name);
      if (!have || (want && *want == *have)) continue;
      Sharding next = cur;
      auto group = *have;
      set_cut(next, a.name, {});
      hops.push_back({next, Wire::all_gather, true, group, a.name, ring(group, bytes(n, next))});
      cur = next;
    }
    for (auto& a : n->axes) {   // and cut it the way it is wanted
      auto* want = to.cut(a.name);
      if (!want || cur.cut(a.name)) continue;
      Sharding next = cur;
      set_cut(next, a.name, *want);
      hops.push_back({next, Wire::all_gather, false, *want, a.name, 0});
      cur = next;
    }
    for (auto& [x, m] : to.partial) {
      if (cur.partial.count(x)) continue;
      Sharding next = cur;
      next.partial[x] = m;
      hops.push_back({next, Wire::all_reduce, false, {x}, {}, 0});
      cur = next;
    }
    return hops;
  }
  NodePtr moved(const NodePtr& whole, const NodePtr& x, const Sharding& from, const Hop& h) {
    auto outer = context().origin;
    context().origin = whole->origin;
    NodePtr out;
    auto axes = local_axes(whole->axes, h.to, mesh_, device_);
    if (!h.moves && h.axis) {                               // this device's block of what is whole
      auto* a = find(*whole, local_name(whole, h.axis));
      auto [start, size] = block_of(*a, h.over, mesh_, device_);
      out = prim::slice(x, a->name, start, size);
    } else if (!h.moves) {                                  // pending: the others hold the identity
      bool first = true;
      for (int m : h.over) first &= coordinate(mesh_, device_, m) == 0;
      out = first ? x : nothing_instead_of(x);
    } else {
      std::int64_t dim = -1, size = 0;
      if (h.axis)
        for (std::size_t d = 0; d < whole->axes.size(); ++d) if (whole->axes[d].name.text() == h.axis.text()) dim = std::int64_t(d), size = whole->axes[d].size;
      auto monoid = Monoid::sum;
      for (auto& [m, how] : from.partial) if (uses(h.over, m)) monoid = how;
      bool scatter = h.wire == Wire::reduce_scatter, gather = h.wire == Wire::all_gather;
      Attr attr{.ints = {std::int64_t(h.wire), std::int64_t(monoid), scatter ? dim : -1, scatter ? size : 0, gather ? dim : -1, gather ? size : 0}, .number = h.bytes};
      for (int m : h.over) attr.ints.push_back(m);
      out = make(kCollective, {x}, axes, x->dtype, attr);
    }
    context().origin = outer;
    keep_.push_back(out);
    return out;
  }
  // Zeros, but not before x: every device takes part in the collectives that x is made by.
  static NodePtr nothing_instead_of(const NodePtr& x) { return prim::barrier(prim::filled(0, x->dtype, x->axes), x); }
  static Name local_name(const NodePtr& n, Name shown) {
    for (auto& a : n->axes) if (a.name.text() == shown.text()) return a.name;
    return shown;
  }

  // What only numbers and positions make: made again in any sharding, never moved.
  NodePtr regrown(const NodePtr& n, const Sharding& s) {
    std::unordered_map<const Node*, NodePtr> done;
    for (auto& x : topological({n})) {
      auto axes = local_axes(x->axes, s, mesh_, device_);
      if (x->op == &prim::kIota) {
        auto* cut = s.cut(x->axes[0].name);
        auto start = cut ? block_of(x->axes[0], *cut, mesh_, device_).first : 0;
        done[x.get()] = prim::add(prim::iota(axes[0], x->dtype), prim::integer(start, x->dtype));
      } else if (x->op->kind == Kind::leaf) {
        done[x.get()] = x;
      } else {
        Nodes in;
        for (auto& i : x->in) in.push_back(done.at(i.get()));
        done[x.get()] = x->op == &prim::kFit ? prim::fit(in[0], axes) : make(*x->op, in, axes, x->dtype, x->attr);
      }
    }
    return done.at(n.get());
  }

  NodePtr obtain(const NodePtr& n, const Sharding& need, bool backward) {
    if (is_free(n)) {
      auto grown = regrown(n, restricted(need, n->axes));
      for (auto& [x, m] : need.partial) if (coordinate(mesh_, device_, x) != 0) return prim::filled(0, n->dtype, grown->axes);
      return grown;
    }
    auto& all = versions_.at(n.get());
    double cost = 0;
    std::size_t from = 0, length = 0;
    bool any = false;
    for (std::size_t v = 0; v < all.size(); ++v) {
      if (forward_only(all[v], backward)) continue;
      auto hops = route(n, all[v].at, need);
      double c = 0;
      for (auto& h : hops) c += h.bytes;
      if (!any || c < cost || (c == cost && hops.size() < length)) any = true, cost = c, from = v, length = hops.size();
    }
    Version v = all[from];
    for (auto& h : route(n, v.at, need)) {
      bool gathers = h.moves && h.wire == Wire::all_gather;
      v = {h.to, moved(n, v.local, v.at, h), v.gathered_forward || (gathers && !backward)};
      versions_.at(n.get()).push_back(v);
    }
    return v.local;
  }
  const Sharding& first(const NodePtr& n) {
    static const Sharding whole;
    if (is_free(n)) return whole;
    return versions_.at(n.get())[0].at;
  }

  // ---- one op ----
  // Axes that this op needs whole.
  static bool whole_axis(const Node& n, Name a) {
    auto named = [&] { return std::any_of(n.attr.names.begin(), n.attr.names.end(), [&](auto& x) { return x == a; }); };
    if (n.op == &prim::kRename || n.op->kind == Kind::map || n.op == &prim::kFit) return false;
    if (n.op->kind == Kind::reduce) return (n.op == &prim::kArgmax || n.op == &prim::kArgmin || n.op == &prim::kProd) && !has(n.axes, a);
    return named();
  }
  static Name seen(const Node& n, Name a) {   // the name under which the op sees an operand's axis
    if (n.op != &prim::kRename) return a;
    auto half = n.attr.names.size() / 2;
    for (std::size_t k = 0; k < half; ++k) if (n.attr.names[k] == a) return n.attr.names[half + k];
    return a;
  }
  static Name unseen(const Node& n, Name a) {
    if (n.op != &prim::kRename) return a;
    auto half = n.attr.names.size() / 2;
    for (std::size_t k = 0; k < half; ++k) if (n.attr.names[half + k] == a) return n.attr.names[k];
    return a;
  }
  static bool on_points(const Node& n, Name a) {   // is it an axis of the iteration space?
    if (has(n.axes, a)) return true;
    for (auto& x : n.in) if (x) for (auto& b : x->axes) if (seen(n, b.name) == a) return true;
    return false;
  }
  void assign(const Node& n, Sharding& work, Name a, const std::vector<int>& cut) {
    if (work.cut(a) || whole_axis(n, a) || !on_points(n, a)) return;
    for (int x : cut) if (busy(work, x)) return;
    set_cut(work, a, cut);
  }
  // How the points of an op are cut: a mapping binds the result of a contraction or a take; then come the operands' own cuts, where axis
  // and mesh axis are still free; what no operand cuts is made the way it will be wanted.
  Sharding work_of(const NodePtr& n) {
    Sharding work;
    bool binds = n->op->kind == Kind::contract || n->op == &prim::kGather;
    if (binds && n->origin.mapping) {
      auto s = sharding_for(n->axes, *n->origin.mapping, mesh_, n->op->name);
      for (auto& a : n->axes) if (auto* c = s.cut(a.name)) assign(*n, work, a.name, *c);
    }
    Nodes operands;                                         // the largest first: it is the dearest to move
    for (auto& x : n->in) if (x) operands.push_back(x);
    std::stable_sort(operands.begin(), operands.end(), [](auto& x, auto& y) { return x->bytes() > y->bytes(); });
    for (auto& x : operands) {
      auto& s = first(x);
      for (auto& a : x->axes) if (auto* c = s.cut(a.name)) assign(*n, work, seen(*n, a.name), *c);
    }
    if (work.dims.empty())
      if (auto w = wish_.find(n.get()); w != wish_.end())
        for (auto& a : n->axes) if (auto* c = w->second.cut(a.name)) assign(*n, work, a.name, *c);
    return work;
  }
  // May the sum pending over x in operand k ride through this op, to be reduced later?
  bool rides(const Node& n, std::size_t k, int x, const Sharding& work) {
    auto& operand = n.in[k];
    if (busy(work, x)) return false;
    if (n.op->linear == Linear::moves) return true;
    if (n.op->linear == Linear::no || first(operand).partial.at(x) != Monoid::sum || users_[operand.get()] > 1) return false;
    for (auto& v : versions_.at(operand.get())) if (!v.at.partial.count(x)) return false;
    if (n.op->linear == Linear::all) return true;
    for (std::size_t j = 0; j < n.in.size(); ++j)
      if (j != k && n.in[j] && (n.in[j] == operand || first(n.in[j]).partial.count(x))) return false;
    NodePtr self(NodePtr(), &n);
    return bytes(self, work) <= bytes(operand, first(operand));   // never grow what is pending
  }
  // Where a pending sum should land: on the axis that an output or a constraint will have cut by x.
  void land(const NodePtr& n, int x, Sharding& at) const {
    auto w = wish_.find(n.get());
    if (w == wish_.end()) return;
    for (auto& [name, cut] : w->second.dims) {
      if (!uses(cut, x) || at.cut(name)) continue;
      bool free = true;
      for (int m : cut) free &= !busy(at, m);
      if (free) return set_cut(at, name, cut);
    }
  }

  void compute(const NodePtr& n) {
    if (versions_.count(n.get()) || is_free(n)) return;
    bool backward = n->origin.backward;
    if (n->op == &prim::kPin) {
      auto at = sharding_for(n->axes, *static_cast<const prim::Pin&>(*n->attr.payload).mapping, mesh_, "an array");
      auto local = obtain(n->in[0], at, backward);
      versions_[n.get()] = {{at, local, false}};
      return;
    }
    if (n->op == &kLoop) return loop(n);
    if (n->op == &kResult) return;                          // set with its loop
    if (n->op->kind == Kind::leaf) {                        // a captured array, or a placeholder of a loop that is set there
      versions_[n.get()] = {{{}, n, false}};
      return;
    }
    auto work = work_of(n);
    std::vector<std::map<int, Monoid>> keep(n->in.size());
    Sharding result = restricted(work, n->axes);
    for (std::size_t k = 0; k < n->in.size(); ++k) {
      if (!n->in[k] || is_free(n->in[k])) continue;
      for (auto& [x, m] : first(n->in[k]).partial) {
        if (rides(*n, k, x, work)) { keep[k][x] = m, result.partial[x] = m; continue; }
        // Resolved here: by a reduce-scatter if anybody wants it cut, so that this op works on the shard.
        Sharding at = first(n->in[k]);
        at.partial.clear();
        auto before = at;
        land(n->in[k], x, at);
        if (!(at == before)) for (auto& a : n->in[k]->axes) if (auto* c = at.cut(a.name)) assign(*n, work, seen(*n, a.name), *c);
      }
    }
    result.dims = restricted(work, n->axes).dims;
    Nodes in;
    for (std::size_t k = 0; k < n->in.size(); ++k) {
      auto& x = n->in[k];
      if (!x) { in.push_back(x); continue; }
      Sharding need;
      for (auto& a : x->axes) if (auto* c = work.cut(seen(*n, a.name)); c && !(whole_operand(*n, k, a.name))) set_cut(need, a.name, *c);
      for (auto& [m, how] : keep[k]) if (!busy(need, m)) need.partial[m] = how;
      if (n->op->linear == Linear::all) for (auto& [m, how] : result.partial) if (!busy(need, m)) need.partial[m] = how;
      in.push_back(obtain(x, need, backward));
    }
    // A cut axis that is folded away leaves a pending sum.
    auto monoid = n->op == &prim::kMax ? Monoid::max : n->op == &prim::kMin ? Monoid::min : Monoid::sum;
    for (auto& [name, cut] : work.dims) {
      bool kept = std::any_of(n->axes.begin(), n->axes.end(), [name = name](auto& a) { return a.name.text() == name.text(); });
      if (!kept) for (int x : cut) result.partial[x] = monoid;
    }
    auto outer = context().origin;
    context().origin = n->origin;
    auto axes = local_axes(n->axes, result, mesh_, device_);
    if (n->op == &prim::kScatter && !result.partial.empty() && !prim::is_number(in[0], 0))   // the base counts once
      for (auto& [x, m] : result.partial) if (coordinate(mesh_, device_, x) != 0) in[0] = nothing_instead_of(in[0]);
    NodePtr local = n->op == &prim::kFit ? prim::fit(in[0], axes) : make(*n->op, in, axes, n->dtype, n->attr);
    context().origin = outer;
    versions_[n.get()] = {{result, local, false}};
  }
  static bool whole_operand(const Node& n, std::size_t k, Name a) {
    return n.op->role && n.op->role(n, k, a) == Role::whole;
  }

  // ---- loops ----
  void compute_all(const Nodes& roots, const Node* index) {
    std::unordered_set<const Node*> seen;
    Nodes todo(roots), order;
    while (!todo.empty()) {
      auto n = std::move(todo.back());
      todo.pop_back();
      if (!n || !seen.insert(n.get()).second || versions_.count(n.get())) continue;
      if (index && !n->varies_with(index)) continue;
      order.push_back(n);
      for (auto& x : n->in) if (x) todo.push_back(x);
    }
    std::sort(order.begin(), order.end(), [](auto& a, auto& b) { return a->id < b->id; });
    for (auto& n : order) compute(n);
  }
  NodePtr settled(const NodePtr& v, Sharding at, bool backward) {   // the value with nothing pending, where it is wanted
    auto pending = at.partial;
    at.partial.clear();
    for (auto& [x, m] : pending) land(v, x, at);
    return obtain(v, at, backward);
  }
  void loop(const NodePtr& n) {
    auto& l = loop_of(*n);
    bool backward = n->origin.backward;
    for (auto& r : l.results) if (r.start) compute(r.start);
    std::vector<Sharding> carried(l.results.size());
    for (std::size_t k = 0; k < l.results.size(); ++k)
      if (l.results[k].carry) {
        carried[k] = first(l.results[k].start);
        auto pending = carried[k].partial;
        carried[k].partial.clear();
        for (auto& [x, m] : pending) land(l.results[k].carry, x, carried[k]);
      }
    for (int attempt = 0;; ++attempt) {   // a carry that starts whole may be cut from the first turn on
      auto saved = versions_;
      Loop out = l;
      std::vector<Sharding> at(l.results.size());
      for (std::size_t k = 0; k < l.results.size(); ++k) {
        auto& r = l.results[k];
        if (!r.carry) continue;
        out.results[k].carry = prim::carry(l.index[0], local_axes(r.carry->axes, carried[k], mesh_, device_), r.carry->dtype);
        versions_[r.carry.get()] = {{carried[k], out.results[k].carry, false}};
      }
      bool again = false;
      for (std::size_t b = 0; b < l.index.size(); ++b) {
        Nodes values;
        for (auto& r : l.results) values.push_back(r.value[b]);
        compute_all(values, l.index[b].get());
        for (std::size_t k = 0; k < l.results.size(); ++k) {
          auto& r = l.results[k];
          auto& v = r.value[b];
          Sharding own = first(v);
          if (is_free(v)) own = b == 0 ? wished(v) : at[k];
          if (r.carry) {
            auto natural = own;
            natural.partial.clear();
            if (attempt < 3 && carried[k].dims.empty() && !natural.dims.empty()) carried[k] = natural, again = true;
            at[k] = carried[k];
            out.results[k].value[b] = obtain(v, carried[k], backward);
          } else if (r.fold == Fold::fold && r.monoid == Monoid::sum) {
            if (b == 0) at[k] = own;                        // stays pending: reduced once, after the loop
            out.results[k].value[b] = obtain(v, at[k], backward);
          } else {
            if (b == 0) {
              at[k] = own;
              at[k].partial.clear();
              for (auto& [x, m] : own.partial) land(v, x, at[k]);
            }
            out.results[k].value[b] = obtain(v, at[k], backward);
          }
        }
      }
      if (again) { versions_ = std::move(saved); continue; }
      for (std::size_t k = 0; k < l.results.size(); ++k)
        if (l.results[k].start) out.results[k].start = obtain(l.results[k].start, at[k], backward);
      // What the body made belongs to this loop alone; what was gathered outside it stays.
      for (auto i = versions_.begin(); i != versions_.end();) {
        bool inside = false;
        for (auto& index : l.index) inside |= i->first->varies_with(index.get());
        if (inside && !saved.count(i->first)) i = versions_.erase(i);
        else ++i;
      }
      auto outer = context().origin;
      context().origin = n->origin;
      auto made = make_loop(std::move(out));
      keep_.push_back(made);
      for (std::size_t k = 0; k < l.results.size(); ++k) {
        auto whole = loop_result(n, k);
        keep_.push_back(whole);
        versions_[whole.get()] = {{at[k], loop_result(made, k), false}};
      }
      versions_[n.get()] = {{{}, made, false}};
      context().origin = outer;
      return;
    }
  }
  Sharding wished(const NodePtr& n) const {
    auto w = wish_.find(n.get());
    return w == wish_.end() ? Sharding() : restricted(w->second, n->axes);
  }

  // Each collective as often as it runs: one that two loops share is in both.
  std::vector<Move> moves_of(const Nodes& roots) {
    std::vector<Move> out;
    count(roots, nullptr, 1, "", out);
    return out;
  }
  void count(const Nodes& roots, const Node* index, double turns, const std::string& where, std::vector<Move>& out) {
    const char* const names[] = {"all-reduce", "reduce-scatter", "all-gather", "all-to-all"};
    std::unordered_set<const Node*> seen;
    Nodes todo(roots), order;
    while (!todo.empty()) {
      auto n = todo.back();
      todo.pop_back();
      if (!n || (index && !n->varies_with(index)) || !seen.insert(n.get()).second) continue;
      order.push_back(n);
      for (auto& x : n->in) todo.push_back(x);
    }
    std::sort(order.begin(), order.end(), [](auto& a, auto& b) { return a->id < b->id; });
    for (auto& n : order) {
      if (n->op == &kLoop) {
        auto& l = loop_of(*n);
        for (std::size_t b = 0; b < l.index.size(); ++b) {
          Nodes values;
          for (auto& r : l.results) values.push_back(r.value[b]);
          count(values, l.index[b].get(), turns * double(trips(l, b)), std::string(l.axis.name.text()), out);
        }
      }
      if (n->op != &kCollective) continue;
      Move m{names[n->attr.ints[0]], to_string(n->in[0]->axes), to_string(n->origin.at), where, n->attr.number, turns};
      if (n->origin.module) m.where += ", in " + std::string(n->origin.module.text());
      out.push_back(std::move(m));
    }
  }
};

}  // namespace

Partitioned partition(const Nodes& roots, const std::vector<Sharding>& wanted, const std::vector<PartitionInput>& inputs, const Mesh& mesh, int device) {
  return Partitioner(mesh, device).run(roots, wanted, inputs);
}

}  // namespace haliax
