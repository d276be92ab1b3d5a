// The gradient: one walk, newest node first, so that every user of a node is done before the node.
#include <algorithm>
#include <map>

#include "ops/attr.h"
#include "ops/prim.h"
#include "transforms/gradient_names.h"
#include "transforms/rewrite.h"

namespace haliax {
namespace {

struct Newest {
  bool operator()(const NodePtr& a, const NodePtr& b) const { return a->id > b->id; }
};
using Cotangents = std::vector<std::pair<NodePtr, NodePtr>>;   // of what, its value

// Residuals: nodes of the forward body that the backward body reads are kept (stacked by the forward loop) or made again from what is
// kept. Contractions, reductions and what a contraction reads anyway are kept; what lies elementwise above them is made again.
struct Residuals {
  const Loop& l;
  std::size_t body;
  std::unordered_set<const Node*> forward = {};    // nodes of the forward body
  std::unordered_set<const Node*> read_by_dot = {}, in_region = {};
  Rewrite to = {};
  std::vector<NodePtr> kept = {};

  Residuals(const Loop& loop, std::size_t b) : l(loop), body(b) {
    auto* index = l.index[b].get();
    Nodes todo;
    for (auto& r : l.results) todo.push_back(r.value[b]);
    while (!todo.empty()) {
      auto n = todo.back();
      todo.pop_back();
      if (!n->varies_with(index) || !forward.insert(n.get()).second) continue;
      for (auto& x : n->in) if (x) {
        if (n->op->kind == Kind::contract || (n->op->kind == Kind::view && read_by_dot.count(n.get()))) read_by_dot.insert(x.get());
        todo.push_back(x);
      }
    }
    // What lies inside a region that is computed in chunks is never kept whole.
    Nodes order;
    for (auto& r : l.results) order.push_back(r.value[b]);
    for (auto& n : topological(order)) {
      bool in = n->op == &prim::kEnter;
      for (auto& x : n->in) in |= x && x->op != &prim::kLeave && in_region.count(x.get());
      if (in) in_region.insert(n.get());
    }
  }
  bool is_carry(const Node& n) const { return n.op == &prim::kCarry; }
  bool worth_keeping(const Node& n) const {
    if (is_carry(n)) return true;
    if (l.save != Save::all || in_region.count(&n)) return false;
    if (is_slice_at(n, l.index[body].get()) && !n.in[0]->varies_with(l.index[body].get())) return false;   // there already
    auto kind = n.op->kind;
    if (kind == Kind::contract || kind == Kind::reduce || kind == Kind::step || kind == Kind::loop || kind == Kind::result) return true;
    return kind == Kind::map && read_by_dot.count(&n) && n.size() > 1;
  }
  // Walks down from what the backward body reads to what is to be kept.
  void find(const Nodes& roots) {
    auto* index = l.index[body].get();
    std::unordered_set<const Node*> seen;
    Nodes todo(roots);
    std::erase(todo, nullptr);
    while (!todo.empty()) {
      auto n = todo.back();
      todo.pop_back();
      if (!n->varies_with(index) || !seen.insert(n.get()).second) continue;
      if (forward.count(n.get()) && worth_keeping(*n)) { kept.push_back(n); continue; }
      for (auto& x : n->in) if (x) todo.push_back(x);
      if (n->op == &kLoop) for (auto& r : loop_of(*n).results) for (auto& v : r.value) todo.push_back(v);
    }
  }
};

class Walk {
 public:
  Walk(const Nodes& ys, const Nodes& gs, const Nodes& wrt) : wrt_(wrt) {
    for (auto& x : wrt) goals_.insert(x.get());
    needed_ = dependents(ys, goals_);
    for (std::size_t k = 0; k < ys.size(); ++k) give(ys[k], gs[k]);
  }
  Nodes run() {
    At follow;
    while (!open_.empty()) {
      auto [n, g] = *open_.begin();
      open_.erase(open_.begin());
      auto origin = n->origin;
      origin.backward = true, origin.traced = 0;
      follow(origin);
      if (g) g = put_together(g);
      if (goals_.count(n.get())) {
        found_[n.get()] = g;
      } else if (n->op == &kResult) {
        of_results_[n->in[0].get()][result_number(*n)] = g;
        open_[n->in[0]] = nullptr;
      } else if (n->op == &kLoop) {
        for (auto& [of, value] : loop_vjp(n)) give(of, value);
      } else if (n->op == &kCustom) {
        custom_vjp(n);
      } else if (n->op->grad) {
        auto back = n->op->grad(n, g);
        for (std::size_t k = 0; k < back.size(); ++k) give(n->in[k], back[k]);
      }
    }
    Nodes out;
    for (auto& x : wrt_) {
      auto i = found_.find(x.get());
      out.push_back(i == found_.end() ? nullptr : i->second);
    }
    return out;
  }

 private:
  void give(const NodePtr& n, NodePtr g) {
    if (!g || !n || !is_float(n->dtype) || !needed_.count(n.get())) return;
    g = prim::cast(in_order(prim::sum_to(g, n->axes)), n->dtype);
    auto& slot = open_[n];
    slot = slot ? prim::add(slot, g) : g;
    if (auto& noted = context().gradients) noted->note(n, g), noted->note(n, slot);
  }
  // A point-wise cotangent in another order of axes is made in the primal's order: else it would lie in memory transposed.
  static NodePtr in_order(const NodePtr& g) {
    if (g->op != &prim::kFit || g->in[0]->op->kind != Kind::map || g->in[0]->axes.size() != g->axes.size()) return g;
    auto& x = *g->in[0];
    return make(*x.op, x.in, g->axes, x.dtype, x.attr);
  }
  // The cotangents of all parts of an axis (unbind, split) are not summed as arrays of the whole size: they are put side by side.
  static NodePtr put_together(const NodePtr& g) {
    std::vector<std::pair<SliceAttr, NodePtr>> parts;
    Nodes todo{g};
    while (!todo.empty()) {
      auto n = todo.back();
      todo.pop_back();
      if (n->op == &prim::kAdd && n->axes == g->axes) todo.insert(todo.end(), n->in.begin(), n->in.end());
      else if (n->op == &prim::kPlace && n->in.size() == 1 && SliceAttr::of(*n).step == 1 && n->axes == g->axes)
        parts.push_back({SliceAttr::of(*n), n->in[0]});
      else return g;
    }
    if (parts.size() < 2) return g;
    std::sort(parts.begin(), parts.end(), [](auto& a, auto& b) { return a.first.start < b.first.start; });
    Axis whole = *find(*g, parts[0].first.axis);
    std::int64_t at = 0;
    Nodes pieces;
    for (auto& [part, x] : parts) {
      if (part.axis != whole.name || part.start != at) return g;
      at += part.size;
      Axes axes = g->axes;
      for (auto& a : axes) if (a.name == whole.name) a.size = part.size;
      pieces.push_back(prim::fit(x, axes));
    }
    return at == whole.size ? prim::concat(pieces, whole) : g;
  }
  void custom_vjp(const NodePtr& n) {
    auto& c = static_cast<const Custom&>(*n->attr.payload);
    Nodes gs;
    auto& mine = of_results_[n.get()];
    for (std::size_t k = 0; k < c.results; ++k) {
      auto g = mine.find(k);
      gs.push_back(g == mine.end() ? prim::zeros_like(n->in[k]) : g->second);
    }
    auto back = c.backward(n->in, gs);
    for (std::size_t k = 0; k < back.size(); ++k) give(n->in[c.results + k], back[k]);
  }

  // The gradient of a loop is a loop backwards over the same index: slices give stacked cotangents, invariants give summed ones, a carry's
  // cotangent is a carry. Its body names the nodes of the forward body themselves.
  Cotangents loop_vjp(const NodePtr& node) {
    const Loop& l = loop_of(*node);
    auto& g = of_results_[node.get()];
    auto inputs = inputs_of(l);
    Nodes slices, whole;
    for (auto& x : inputs.slices) if (is_float(x->dtype) && needed_.count(x.get())) slices.push_back(x);
    for (auto& x : inputs.invariants) if (is_float(x->dtype) && needed_.count(x.get())) whole.push_back(x);
    std::vector<std::size_t> carries;   // that carry a gradient
    for (std::size_t k = 0; k < l.results.size(); ++k)
      if (l.results[k].fold == Fold::carry && is_float(l.results[k].carry->dtype)) carries.push_back(k);

    Loop back;
    back.axis = l.axis, back.index = l.index, back.drop = l.drop, back.reverse = carries.empty() ? l.reverse : !l.reverse, back.save = l.save;
    for (auto& x : slices) back.results.push_back({Fold::stack, Monoid::sum, {}}), (void)x;
    for (auto& x : whole) back.results.push_back({Fold::fold, Monoid::sum, {}}), (void)x;
    for (auto k : carries) {
      auto& c = l.results[k].carry;
      auto start = g.count(k) ? g.at(k) : prim::zeros_like(c);
      back.results.push_back({Fold::carry, Monoid::sum, {}, start, prim::carry(l.index[0], c->axes, c->dtype)});
    }
    Loop forward = l;                   // with what is kept for the backward
    for (std::size_t b = 0; b < l.index.size(); ++b) {
      auto& index = l.index[b];
      Nodes ys, gs, wrt;
      for (std::size_t k = 0; k < l.results.size(); ++k) {
        auto& r = l.results[k];
        if (r.fold == Fold::carry || !g.count(k)) continue;
        ys.push_back(r.value[b]);
        if (r.fold == Fold::stack) gs.push_back(prim::slice_at(g.at(k), index, l.drop));
        else
          gs.push_back(g.at(k));  // only gradients make folds, and they sum
      }
      for (std::size_t i = 0; i < carries.size(); ++i) {
        ys.push_back(l.results[carries[i]].value[b]);
        gs.push_back(back.results[slices.size() + whole.size() + i].carry);
      }
      for (auto& x : slices) wrt.push_back(prim::slice_at(x, index, l.drop));
      for (auto& x : whole) wrt.push_back(x);
      for (auto k : carries) wrt.push_back(l.results[k].carry);
      auto d = vjp(ys, gs, wrt);
      for (std::size_t j = 0; j < d.size(); ++j) if (!d[j]) d[j] = prim::zeros_like(wrt[j]);
      if (!carries.empty() || has_carry(l)) d = with_residuals(forward, l, b, d);
      for (std::size_t j = 0; j < d.size(); ++j) back.results[j].value.push_back(d[j]);
    }
    back.of_chunks = l.of_chunks, back.form = l.form, back.why = l.why;
    auto loop = make_loop(std::move(back));
    if (forward.results.size() > l.results.size()) {   // the residuals are results of the loop that keeps them
      auto keeper = make_loop(forward);
      Rewrite to;
      for (std::size_t k = 0; k < residuals_.size(); ++k) to[residuals_[k].get()] = loop_result(keeper, l.results.size() + k);
      loop = substitute(loop, to);
    }
    residuals_.clear();
    Cotangents out;
    for (std::size_t j = 0; j < slices.size(); ++j) out.push_back({slices[j], loop_result(loop, j)});
    for (std::size_t j = 0; j < whole.size(); ++j) out.push_back({whole[j], loop_result(loop, slices.size() + j)});
    for (std::size_t i = 0; i < carries.size(); ++i) out.push_back({l.results[carries[i]].start, loop_result(loop, slices.size() + whole.size() + i)});
    for (auto& [k, gk] : g) if (l.results[k].fold == Fold::fold && l.results[k].start && l.results[k].monoid == Monoid::sum) out.push_back({l.results[k].start, gk});
    return out;
  }
  static bool has_carry(const Loop& l) {
    return std::any_of(l.results.begin(), l.results.end(), [](auto& r) { return r.fold == Fold::carry; });
  }
  // Each residual becomes one more stacked result of the forward loop; until that loop is made, an input stands for the stack.
  Nodes with_residuals(Loop& forward, const Loop& l, std::size_t b, const Nodes& d) {
    Residuals r(l, b);
    r.find(d);
    Rewrite to;
    for (auto& n : r.kept) {
      Axes axes = n->axes;
      if (l.drop) axes.insert(axes.begin(), l.axis);
      else fail("scan", "a scan over chunks has no gradient yet");
      auto stack = prim::input(axes, n->dtype);
      residuals_.push_back(stack);
      forward.results.push_back({Fold::stack, Monoid::sum, {n}});
      to[n.get()] = prim::slice_at(stack, l.index[b], l.drop);
    }
    return substitute(d, to, l.index[b].get());
  }

  const Nodes& wrt_;
  std::unordered_set<const Node*> goals_, needed_;
  std::map<NodePtr, NodePtr, Newest> open_;
  std::unordered_map<const Node*, std::map<std::size_t, NodePtr>> of_results_;
  std::unordered_map<const Node*, NodePtr> found_;
  Nodes residuals_;
};

}  // namespace

Nodes vjp(const Nodes& ys, const Nodes& gs, const Nodes& wrt) { return Walk(ys, gs, wrt).run(); }

}  // namespace haliax
