// vmap hides an axis from what f sees, and shows it again, first, in the results.
#include "base/name.h"
#include "haliax/transforms.h"
#include "ops/prim.h"

namespace haliax::detail {

Vmap::Vmap(const AxisSelector& a, SourceLocation where) : axis(a), at(where), hidden(fresh_hidden(a.name)), size(a.size) {}
Leaves Vmap::hide(const Leaves& in) {
  Here here(at);
  Leaves out = in;
  for (auto& a : out) {
    if (a.empty()) continue;
    auto* mine = find(*a.node(), axis.name);
    if (!mine) continue;
    if (size >= 0 && mine->size != size) fail("vmap", "axis " + std::string(axis.name.text()) + " has size " + std::to_string(mine->size) + " in " + to_string(a.axes()) + " and " + std::to_string(size) + " elsewhere");
    size = mine->size;
    a = NamedArray(prim::rename(a.node(), {axis.name}, {hidden}));
  }
  if (size < 0) fail("vmap", "no argument has axis " + std::string(axis.name.text()) + "; give an Axis with its size to map over a new one");
  context().hidden.push_back(Axis(hidden, size));
  return out;
}
Leaves Vmap::show(const Leaves& in) {
  Here here(at);
  Leaves out = in;
  for (auto& a : out) {
    if (a.empty()) continue;
    if (find(*a.node(), axis.name)) fail("vmap", "the result has axis " + std::string(axis.name.text()) + " already: " + to_string(a.axes()));
    Axes others, front;
    for (auto& x : a.node()->axes) {
      if (x.name == hidden) continue;
      (x.name.hidden() ? front : others).push_back(x);
    }
    front.push_back(Axis(hidden, size));
    front.insert(front.end(), others.begin(), others.end());
    a = NamedArray(prim::rename(prim::fit(a.node(), front), {hidden}, {axis.name}));
  }
  return out;
}

}  // namespace haliax::detail
