// Reverse-mode differentiation: one traversal from the newest node to the oldest, so that all users
// of a node are processed before the node.
#include <map>
#include <optional>
#include <set>

#include "base/name.h"
#include "ops/attr.h"
#include "ops/prim.h"
#include "transforms/gradient_names.h"
#include "transforms/hoist.h"
#include "transforms/rewrite.h"

namespace haliax {
namespace {

struct Newest {
  bool operator()(NodeRef a, NodeRef b) const { return a->id > b->id; }
};
using Cotangents = std::vector<std::pair<NodePtr, NodePtr>>;  // pairs of a node and its cotangent

// Chooses residuals. Nodes of the forward body that the backward body reads are saved (stacked by
// the forward loop) or rematerialized from saved nodes. Contractions, reductions and operands of
// contractions are saved; elementwise values that are computed from them are not.
struct Residuals {
  const Loop& l;
  const Node* index;
  std::unordered_set<const Node*> forward = {};  // nodes of the forward body
  std::unordered_set<const Node*> read_by_dot = {}, in_region = {};
  std::unordered_set<const Node*> saved_by_name = {};

  Residuals(const Loop& loop, std::size_t body) : l(loop), index(l.index[body].get()) {
    auto varies = [&](const Node& n) { return n.varies_with(index); };
    traverse(values_of(l, body), varies, [&](NodeRef n, PendingNodes& todo) {
      forward.insert(n.get());
      if (auto name = prim::checkpoint_name_of(*n); name && has(l.saved_names, *name))
        saved_by_name.insert(n->in[0].get());
      bool shows = n->op->kind == Kind::view || n->op->kind == Kind::wrap;
      bool of_dot = n->op->kind == Kind::contract || (shows && read_by_dot.count(n.get()));
      for (auto& x : n->in)
        if (of_dot) read_by_dot.insert(x.get());
      append(todo, n->in);
    });
    // Nodes inside a chunked region are never saved, since saving would materialize them.
    in_region = inside_regions(topological(values_of(l, body)));
  }
  bool worth_keeping(const Node& n) const {
    if (n.op == &prim::kCarry || saved_by_name.count(&n)) return true;
    if (l.save != Save::all || in_region.count(&n)) return false;
    if (is_slice_at(n, index) && !n.in[0]->varies_with(index)) return false;  // stored already
    switch (n.op->kind) {
      case Kind::contract:
      case Kind::reduce:
      case Kind::step:
      case Kind::loop:
      case Kind::result:
        return true;
      case Kind::map:
        return read_by_dot.count(&n) && n.size() > 1;
      default:
        return false;
    }
  }
  // Returns the nodes to save: the first ones below the roots that are worth keeping.
  Nodes saved(const Nodes& roots) const {
    Nodes out;
    auto varies = [&](const Node& n) { return n.varies_with(index); };
    traverse(roots, varies, [&](NodeRef n, PendingNodes& todo) {
      if (forward.count(n.get()) && worth_keeping(*n))
        out.push_back(n);
      else
        add_reads(n, todo);
    });
    return out;
  }
};

// Sets the loop depth of the context to the inside of this loop.
class InBody {
 public:
  explicit InBody(const Loop& l) { context().loop_depth = IndexAttr::of(*l.index[0]).depth + 1; }
  ~InBody() { context().loop_depth = outer_; }
  InBody(const InBody&) = delete;

 private:
  int outer_ = context().loop_depth;
};

class Backward {
 public:
  Backward(const Nodes& ys, const Nodes& gs, const Nodes& wrt) : wrt_(wrt) {
    for (auto& x : wrt) goals_.insert(x.get());
    needed_ = dependents(ys, goals_);
    for (std::size_t k = 0; k < ys.size(); ++k) give(ys[k], gs[k]);
  }
  Nodes run() {
    OriginScope follow;
    while (!open_.empty()) {
      auto [n, g] = *open_.begin();
      open_.erase(open_.begin());
      auto origin = n->origin;
      origin.backward = true;
      origin.traced = 0;
      follow(origin);
      if (g) g = assemble(g);
      if (goals_.count(n.get())) {
        found_[n.get()] = g;
      } else if (n->op == &kResult) {
        of_results_[n->in[0].get()][result_number(*n)] = g;
        open_[n->in[0]] = nullptr;
      } else if (n->op == &kLoop) {
        for (auto& [of, value] : loop_vjp(n)) give(of, value);
      } else if (n->op == &kCustomVjp) {
        custom_vjp(n);
      } else if (n->op->grad) {
        auto back = n->op->grad(n, g);
        for (std::size_t k = 0; k < back.size(); ++k) give(n->in[k], back[k]);
      }
    }
    Nodes out;
    for (auto& x : wrt_) out.push_back(found_[x.get()]);
    return out;
  }

 private:
  void give(NodeRef n, NodePtr g) {
    if (!g || !n || !is_float(n->dtype) || !needed_.count(n.get())) return;
    g = prim::cast(in_order(prim::sum_to(g, n->axes)), n->dtype);
    auto& slot = open_[n];
    slot = slot ? prim::add(slot, g) : g;
    if (auto& noted = context().gradients) {
      noted->note(n, g);
      noted->note(n, slot);
    }
  }
  // Computes an elementwise cotangent in the axis order of the primal. Otherwise, it would be
  // stored transposed.
  static NodePtr in_order(NodeRef g) {
    if (g->op != &prim::kFit || g->in[0]->op->kind != Kind::map ||
        g->in[0]->axes.size() != g->axes.size())
      return g;
    auto& x = *g->in[0];
    return prim::rebuilt(x, x.in, g->axes);
  }
  // The terms of a sum of cotangents.
  struct Terms {
    std::vector<std::pair<SliceAttr, NodePtr>> parts;  // neighboring positions of one axis
    NodePtr full;                                      // the sum of the others
    bool can_slice_full = true;                        // none of the others is a step of its own
  };
  static Terms terms_of(NodeRef g) {
    Terms out;
    Nodes todo{g};
    while (!todo.empty()) {
      auto n = todo.back();
      todo.pop_back();
      const auto is_part = [&] {
        return places_neighbors(*n) &&
               (out.parts.empty() || out.parts[0].first.axis == SliceAttr::of(*n).axis);
      };
      if (prim::combines(*n, Monoid::sum) && n->axes == g->axes)
        todo.insert(todo.end(), n->in.rbegin(), n->in.rend());
      else if (is_part() && n->axes == g->axes)
        out.parts.push_back({SliceAttr::of(*n), n->in[0]});
      else {
        out.full = out.full ? prim::add(out.full, n) : n;
        out.can_slice_full &= n->op->kind == Kind::view || n->op->kind == Kind::map;
      }
    }
    return out;
  }
  // Sums cotangents of parts of an axis (unbind, split, shifted slices) part by part: it
  // concatenates the sums, rather than summing arrays of the full size. For example, the cotangent
  // of x in x[1:] - x[:-1] is the concatenation of -g[0], g[:-1] - g[1:] and g[-1].
  static NodePtr assemble(NodeRef g) {
    constexpr std::size_t most_sums = 5;  // sums of several terms: they are steps of their own
    const auto terms = terms_of(g);
    if (terms.parts.empty() || !terms.can_slice_full) return g;
    if (terms.parts.size() == 1 && !terms.full) return g;
    const Axis axis = *find(*g, terms.parts[0].first.axis);
    if (axis.size == 0) return g;
    std::map<std::int64_t, std::vector<std::size_t>> bounds{{0, {}}, {axis.size, {}}};
    for (std::size_t k = 0; k < terms.parts.size(); ++k) {
      auto& part = terms.parts[k].first;
      bounds[part.start].push_back(k);  // the parts that start there
      bounds[part.start + part.size];
    }
    std::set<std::size_t> here;  // the parts that cover the present positions
    Nodes pieces;
    std::size_t sums = 0;
    for (auto bound = bounds.begin(); bound->first < axis.size; ++bound) {
      const auto start = bound->first, size = std::next(bound)->first - start;
      here.insert(bound->second.begin(), bound->second.end());
      std::erase_if(here, [&](std::size_t k) {
        auto& part = terms.parts[k].first;
        return part.start + part.size <= start;
      });
      const Axes axes = replaced(g->axes, axis.name, {axis.resize(size)});
      NodePtr sum = terms.full ? part_of(terms.full, axis.name, start, size) : nullptr;
      for (auto k : here) {
        auto& [part, x] = terms.parts[k];
        const auto term = prim::fit(part_of(x, axis.name, start - part.start, size), axes);
        sum = sum ? prim::add(sum, term) : term;
      }
      if (here.size() + (terms.full ? 1 : 0) > 1) ++sums;
      pieces.push_back(prim::fit(sum ? sum : prim::number(0, g->dtype), axes));
    }
    return sums > most_sums ? g : prim::concat(pieces, axis);
  }
  // Returns `size` positions of an axis, or x if it lacks the axis.
  static NodePtr part_of(NodeRef x, Name axis, std::int64_t start, std::int64_t size) {
    return find(*x, axis) ? prim::slice(x, axis, start, size) : x;
  }
  // Returns true for a place of neighboring positions that do not depend on an array.
  static bool places_neighbors(const Node& n) {
    if (n.op != &prim::kPlace || n.in.size() > 1) return false;
    const auto part = SliceAttr::of(n);
    return part.step == 1 || part.size == 1;
  }
  void custom_vjp(NodeRef n) {
    auto& c = custom_vjp_of(*n);
    Nodes gs;
    auto& mine = of_results_[n.get()];
    for (std::size_t k = 0; k < c.results; ++k)
      gs.push_back(mine.count(k) ? mine.at(k) : prim::zeros_like(n->in[k]));
    auto back = c.backward(n->in, gs);
    for (std::size_t k = 0; k < back.size(); ++k) give(n->in[c.results + k], back[k]);
  }

  // The gradient of a loop is a loop over the same index, reversed if the loop has carries. Slices
  // have stacked cotangents, invariants have summed ones, and the cotangent of a carry is a carry.
  // The backward body refers to nodes of the forward body.
  struct LoopGradient {
    LoopInputs inputs;                 // those with a cotangent
    std::vector<std::size_t> carries;  // results of the loop: carries with a cotangent
    Loop back;                         // the gradient, whose results have no values yet
    Nodes of = {};                     // the node whose cotangent is result j of `back`
    Nodes of_carries = {};             // the cotangents that are carried
  };
  using CotangentsOfResults = std::map<std::size_t, NodePtr>;
  LoopGradient begin_gradient(const Loop& l, const CotangentsOfResults& g) const {
    LoopGradient out{inputs_of(l), {}, l};
    for (auto* nodes : {&out.inputs.slices, &out.inputs.invariants})
      std::erase_if(*nodes,
                    [&](auto& x) { return !is_float(x->dtype) || !needed_.count(x.get()); });
    for (std::size_t k = 0; k < l.results.size(); ++k)
      if (l.results[k].kind == ResultKind::carry && is_float(l.results[k].carry->dtype))
        out.carries.push_back(k);
    auto& results = out.back.results;
    results.clear();
    if (!out.carries.empty()) out.back.reverse = !l.reverse;
    append(out.of, out.inputs.slices);
    results.resize(out.of.size(), {.kind = ResultKind::stack, .value = {}});
    append(out.of, out.inputs.invariants);
    results.resize(out.of.size(), {.kind = ResultKind::fold, .value = {}});
    for (auto k : out.carries) {
      auto& c = l.results[k].carry;
      auto start = g.count(k) ? g.at(k) : prim::zeros_like(c);
      out.of.push_back(l.results[k].start);
      out.of_carries.push_back(prim::carry(l.index[0], c->axes, c->dtype));
      results.push_back(
          {.kind = ResultKind::carry, .value = {}, .start = start, .carry = out.of_carries.back()});
    }
    return out;
  }
  // Returns the values of an iteration of the gradient, one per result.
  static Nodes body_vjp(const LoopGradient& gradient, const Loop& l, std::size_t b,
                        const CotangentsOfResults& g) {
    auto& index = l.index[b];
    Nodes ys, gs, wrt;
    for (std::size_t k = 0; k < l.results.size(); ++k) {
      auto& r = l.results[k];
      if (r.kind == ResultKind::carry || !g.count(k)) continue;
      ys.push_back(r.value[b]);  // folds exist only in gradient loops, and they are sums
      gs.push_back(r.kind == ResultKind::stack ? prim::slice_at(g.at(k), index, l.drop) : g.at(k));
    }
    for (auto k : gradient.carries) ys.push_back(l.results[k].value[b]);
    append(gs, gradient.of_carries);
    for (auto& x : gradient.inputs.slices) wrt.push_back(prim::slice_at(x, index, l.drop));
    append(wrt, gradient.inputs.invariants);
    for (auto k : gradient.carries) wrt.push_back(l.results[k].carry);
    auto d = vjp(ys, gs, wrt);
    for (std::size_t j = 0; j < d.size(); ++j)
      if (!d[j]) d[j] = prim::zeros_like(wrt[j]);
    return d;
  }
  Cotangents loop_vjp(NodeRef node) {
    const Loop& l = loop_of(*node);
    auto& g = of_results_[node.get()];
    auto gradient = begin_gradient(l, g);
    Loop forward = l;  // with residuals as additional results
    const InBody inside(l);
    for (std::size_t b = 0; b < l.index.size(); ++b) {
      auto d = body_vjp(gradient, l, b, g);
      if (has_carry(l)) d = with_residuals(forward, l, b, d);
      for (std::size_t j = 0; j < d.size(); ++j) gradient.back.results[j].value.push_back(d[j]);
    }
    auto* condition = condition_of(l);
    std::optional<DeferredSums> deferred;
    if (has_carry(l) && l.drop && l.save == Save::all && !condition) {
      deferred.emplace(gradient.back);
      gradient.back = deferred->loop();
    }
    if (condition) gradient.back.results.push_back(*condition);
    const auto loop = make_loop(std::move(gradient.back));
    Nodes results;
    if (deferred)
      results = deferred->results(loop);
    else
      for (std::size_t j = 0; j < gradient.of.size(); ++j) results.push_back(loop_result(loop, j));
    if (forward.results.size() > l.results.size())
      results = with_stacks(results, std::move(forward), l.results.size());
    Cotangents out;
    for (std::size_t j = 0; j < gradient.of.size(); ++j)
      out.push_back({gradient.of[j], results[j]});
    for (auto& [k, gk] : g)
      if (auto& r = l.results[k]; r.kind == ResultKind::fold && r.start && r.monoid == Monoid::sum)
        out.push_back({r.start, gk});
    return out;
  }
  // Replaces the inputs that represent stacks of residuals by results of the forward loop, which
  // follow its `first` own results.
  Nodes with_stacks(const Nodes& results, Loop forward, std::size_t first) {
    for (auto& r : forward.results)
      // The effect belongs to the differentiated loop.
      if (r.effect) std::fill(r.value.begin(), r.value.end(), r.carry);
    auto saver = make_loop(std::move(forward));
    Rewrite to;
    for (std::size_t k = 0; k < residuals_.size(); ++k)
      to[residuals_[k].get()] = loop_result(saver, first + k);
    auto out = substitute(results, to);
    residuals_.clear();
    return out;
  }
  static bool has_carry(const Loop& l) {
    return std::any_of(l.results.begin(), l.results.end(),
                       [](auto& r) { return r.kind == ResultKind::carry; });
  }
  // Adds each residual as a stacked result of the forward loop. Until this loop is built, an input
  // represents the stack.
  Nodes with_residuals(Loop& forward, const Loop& l, std::size_t b, const Nodes& d) {
    Rewrite to;
    for (auto& n : Residuals(l, b).saved(d)) {
      if (!l.drop) fail("scan", "a scan over chunks has no gradient");
      // A captured array may have an axis with the name of the loop axis. In the stack, this axis
      // is renamed.
      auto saved = n;
      Name own = l.axis.name, aside = has(n->axes, own) ? fresh_hidden(own) : own;
      if (aside != own) saved = prim::rename(n, {own}, {aside});
      auto stack = prim::input(joined({l.axis}, saved->axes), n->dtype);
      residuals_.push_back(stack);
      forward.results.push_back({.kind = ResultKind::stack, .value = {saved}});
      auto slice_of_stack = prim::slice_at(stack, l.index[b], l.drop);
      to[n.get()] = aside != own ? prim::rename(slice_of_stack, {aside}, {own}) : slice_of_stack;
    }
    return substitute(d, to, l.index[b].get());
  }

  const Nodes& wrt_;
  std::unordered_set<const Node*> goals_, needed_;
  std::map<NodePtr, NodePtr, Newest> open_;
  std::unordered_map<const Node*, CotangentsOfResults> of_results_;
  std::unordered_map<const Node*, NodePtr> found_;
  Nodes residuals_;  // inputs that represent stacks of residuals of a loop, until it is built
};

}  // namespace

Nodes vjp(const Nodes& ys, const Nodes& gs, const Nodes& wrt) {
  return Backward(ys, gs, wrt).run();
}

}  // namespace haliax
