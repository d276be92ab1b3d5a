// The graph passes, in order.
#include "transforms/optimise.h"

#include <cstdlib>
#include <cstdio>
#include <cstring>

#include "ops/prim.h"

namespace haliax {
namespace {

// HALIAX_PRINT=name prints the graph after the pass of that name.
void report(const Nodes& roots, const char* pass) {
  static const char* wanted = std::getenv("HALIAX_PRINT");
  if (wanted && std::strcmp(wanted, pass) == 0) {
    auto all = everything(roots);
    std::string text = to_string(all);
    for (auto& n : all) {
      if (n->op != &kLoop) continue;
      text += "%" + std::to_string(n->id) + " has";
      for (auto& r : loop_of(*n).results)
        for (auto& v : r.value) text += std::string(r.fold == Fold::stack ? " stack %" : r.carry ? " carry %" : " fold %") + std::to_string(v->id);
      text += "\n";
    }
    std::fprintf(stderr, "---- after %s\n%s", pass, text.c_str());
  }
#ifndef NDEBUG
  check(roots, pass);
#endif
}

// What a region of chunks sums is kept in f32. The gradient of an f32 parameter that is narrow only where it is multiplied is never narrow then.
Nodes widen_gradients(const Nodes& roots) {
  std::unordered_set<const Node*> inside;        // a region
  auto all = everything(roots);
  auto users = users_of(all, roots);
  for (auto& n : all) {
    bool in = n->op == &prim::kEnter;
    for (auto& x : n->in) in |= x && x->op != &prim::kLeave && inside.count(x.get());
    if (in) inside.insert(n.get());
  }
  auto narrower = [](DType a, DType b) { return is_float(a) && is_float(b) && bytes_of(a) < bytes_of(b); };
  Rewrite to;
  for (auto& n : all) {
    if (n->op != &prim::kCast || !narrower(n->in[0]->dtype, n->dtype)) continue;
    Nodes borders;
    auto x = n->in[0];
    for (; users[x.get()] == 1 && (x->op == &prim::kEnter || x->op == &prim::kLeave); x = x->in[0]) borders.push_back(x);
    if (x->op != &prim::kContract || !x->origin.backward || users[x.get()] > 1 || !inside.count(x.get())) continue;
    auto wide = make(*x->op, substitute(x->in, to), x->axes, n->dtype, x->attr);
    for (auto b = borders.rbegin(); b != borders.rend(); ++b) wide = make(*(*b)->op, {wide}, (*b)->axes, n->dtype, (*b)->attr);
    to[n.get()] = wide;
  }
  return to.empty() ? roots : substitute(roots, to);
}

}  // namespace

// Tracers and direct gradients have done their work once the graph is traced: what is left is the value. Barriers and constraints stay;
// the borders of regions stay until these are cut.
Nodes settled(const Nodes& roots, bool keep_regions) {
  Rewrite to;
  for (auto& n : everything(roots)) {   // inputs first: a wrap of a wrap
    bool group = n->op == &kResult && n->in[0]->op == &kCustom;
    bool region = n->op == &prim::kEnter || n->op == &prim::kLeave;
    if (!group && (n->op->kind != Kind::wrap || n->op == &prim::kBarrier || n->op == &prim::kPin || n->op == &kCustom)) continue;
    if (region && keep_regions) continue;
    to[n.get()] = substitute(group ? n->in[0]->in[std::size_t(n->attr.ints[0])] : n->in[0], to);
  }
  return to.empty() ? roots : substitute(roots, to);
}

Nodes optimise(const Nodes& roots, bool optional, program::Device* device, std::vector<std::string>* uncut) {
  if (!optional) return settled(roots, false);   // regions stay whole: the oracle computes f itself
  Nodes out = settled(cut_regions(widen_gradients(settled(roots, true)), device, 0, uncut), false);
  report(out, "chunks");
  out = optimise_loops(out);
  report(out, "loops");
  return out;
}

}  // namespace haliax
