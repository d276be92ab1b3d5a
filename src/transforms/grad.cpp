// Gradients of functions of leaves: the implementation of grad, vjp and jvp in haliax/transforms.h.
#include <exception>

#include "graph/fail.h"
#include "ops/named.h"
#include "transforms/gradient_names.h"
#include "transforms/leaves.h"
#include "transforms/rewrite.h"
#include "transforms/scores.h"

namespace haliax {

Nodes nodes_of(const Leaves& leaves) {
  Nodes out;
  for (auto& a : leaves)
    if (!a.empty()) out.push_back(a.node());
  return out;
}
Axes axes_of(const Leaves& leaves) {
  Axes out;
  for (auto& n : nodes_of(leaves)) out = joined(out, ops::visible(*n));
  return out;
}
Axes with_hidden(const Axes& axes, const Axes& hidden) {
  return joined(without(hidden, axes), axes);
}
bool same_axes(const NamedArray& a, const NamedArray& b) { return same_set(a.axes(), b.axes()); }

namespace {

bool is_tracer(NodeRef n) { return n->op == &prim::kTracer; }
NodePtr or_zeros(NodeRef g, NodeRef like) { return g ? g : prim::zeros_like(like); }

// Returns the path of a leaf that a gradient is taken with respect to: the path of the jit argument
// that it is, or was before a cast or an update; otherwise the path in its own tree.
Name path_of(NodeRef leaf, const std::string& path) {
  for (auto n = leaf; n;) {
    if ((n->op == &prim::kTracer || n->op == &prim::kInput) && n->origin.module)
      return n->origin.module;
    bool continues =
        n->op->kind == Kind::map || n->op->kind == Kind::view || n->op->kind == Kind::wrap;
    auto from = std::find_if(n->in.begin(), n->in.end(),
                             [&](auto& x) { return x && x->size() == n->size(); });
    n = continues && from != n->in.end() ? *from : nullptr;
  }
  if (!path.empty()) return module_path(path);
  return leaf->field.path() ? leaf->field.path() : leaf->origin.module;
}

}  // namespace

namespace detail {

// Saves the context. An exception may end a trace at any point, and the destructor restores what
// changed since, such as hidden axes and origins.
Tracing::Tracing() : before_(std::make_shared<Context>(context())) { ++context().tracing; }
// Effects continue in the enclosing trace, except those of a separate program and those of a trace
// that an exception ended.
Tracing::~Tracing() {
  auto& c = context();
  bool ours = c.in_jit == before_->in_jit && std::uncaught_exceptions() == 0;
  if (ours) before_->effect = std::move(c.effect);
  before_->last_call = c.last_call;
  if (c.trace != before_->trace) c.trace->last = newest_id();
  c = std::move(*before_);
}

Leaves tracers(const Leaves& leaves, const std::vector<bool>& frozen,
               const std::vector<std::string>& paths) {
  GraphReader reader;
  Leaves out = leaves;
  for (std::size_t k = 0; k < out.size(); ++k) {
    auto& n = leaves[k].node();
    if (!n || !is_float(n->dtype)) continue;
    auto path = path_of(n, paths[k]);
    if (!paths[k].empty()) n->field.note(module_path(paths[k]));
    if (auto& noted = context().gradients) noted->add_parameter(path);
    if (frozen[k]) continue;
    // Inside vmap, each position has a gradient of its own, also with respect to shared arrays.
    out[k] = NamedArray(prim::tracer(prim::fit(n, with_hidden(n->axes, context().hidden)), path));
  }
  return out;
}

Leaves pullback(const Leaves& ys, const Leaves& gs, const Leaves& wrt, SourceLocation at) {
  CallSite here(at);
  if (ys.size() != gs.size())
    fail("vjp", "the result has {} arrays, but its cotangent has {}", ys.size(), gs.size());
  Nodes y, g, x;
  for (std::size_t k = 0; k < ys.size(); ++k) {
    if (ys[k].empty() || gs[k].empty()) continue;
    if (!same_axes(ys[k], gs[k]))
      fail("vjp", "a cotangent is {}, but its array is {}", gs[k].axes(), ys[k].axes());
    y.push_back(ys[k].node());
    g.push_back(gs[k].node());
  }
  for (auto& n : nodes_of(wrt))
    if (is_tracer(n)) x.push_back(n);
  if (!x.empty())
    y = with_score_boundaries(y, scores_budget(context().scores_budget), context().loop_depth, x);
  auto d = vjp(y, g, x);
  auto next = d.begin();
  return mapped(wrt, [&](NodeRef n) { return is_tracer(n) ? or_zeros(*next++, n) : nullptr; });
}
Leaves gradients(const NamedArray& loss, const Leaves& wrt, SourceLocation at) {
  CallSite here(at);
  if (loss.empty()) fail("grad", "the function returned an empty array");
  if (loss.ndim() != 0)
    fail("grad",
         "the function must return a scalar, but returned {}; "
         "sum or mean it, or differentiate under vmap",
         loss.axes());
  if (!is_float(loss.dtype()))
    fail("grad", "the function must return a float, but returned {}", loss.dtype());
  auto& n = loss.node();
  return pullback({loss}, {NamedArray(prim::filled(1, n->dtype, n->axes))}, wrt, at);
}

std::pair<Leaves, Leaves> jvp(LeafFunction f, const Leaves& primals, const Leaves& tangents,
                              SourceLocation at) {
  CallSite here(at);
  Tracing tracing;
  if (primals.size() != tangents.size())
    fail("jvp", "there are {} arrays, but {} tangents", primals.size(), tangents.size());
  auto x =
      tracers(primals, std::vector<bool>(primals.size()), std::vector<std::string>(primals.size()));
  auto ys = called(f, x);
  Nodes us, y, wrt, ts;
  for (auto& n : nodes_of(ys))
    if (is_float(n->dtype)) {
      y.push_back(n);
      us.push_back(prim::input(n->axes, n->dtype));
    }

  for (std::size_t k = 0; k < x.size(); ++k) {
    if (x[k].empty() || !is_tracer(x[k].node())) continue;
    wrt.push_back(x[k].node());
    if (!tangents[k].empty() && !same_axes(tangents[k], x[k]))
      fail("jvp", "a tangent is {}, but its array is {}", tangents[k].axes(), x[k].axes());
    if (!tangents[k].empty() && !is_float(tangents[k].dtype()))
      fail("jvp", "a tangent is {}, but its array is {}; cast it with astype", tangents[k].dtype(),
           x[k].dtype());
    ts.push_back(prim::fit(or_zeros(tangents[k].node(), wrt.back()), wrt.back()->axes));
  }
  auto g = vjp(y, us, wrt);
  Nodes gg, tt;
  for (std::size_t k = 0; k < g.size(); ++k)
    if (g[k]) {
      gg.push_back(g[k]);
      tt.push_back(ts[k]);
    }

  auto d = vjp(gg, tt, us);
  Rewrite zeroed;  // the result is linear in the cotangents; their values do not matter
  for (auto& u : us) zeroed[u.get()] = prim::zeros_like(u);
  d = substitute(d, zeroed);
  auto next = d.begin();
  return {ys, mapped(ys, [&](NodeRef n) {
            return is_float(n->dtype) ? or_zeros(*next++, n) : nullptr;
          })};
}

}  // namespace detail
}  // namespace haliax
