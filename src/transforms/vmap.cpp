// vmap: hides an axis from f and restores it in the results, as the first visible axis.
#include "graph/fail.h"
#include "ops/named.h"
#include "transforms/leaves.h"

namespace haliax::detail {

Vmap::Vmap(const AxisSelector& a, SourceLocation where)
    : axis(a), at(where), hidden(fresh_hidden(a.name, where)), size(a.size) {}
Leaves Vmap::hide(const Leaves& in) {
  CallSite here(at);
  auto out = mapped(in, [&](const NodePtr& n) {
    auto* mine = find(*n, axis.name);
    if (!mine) return n;
    if (size >= 0 && mine->size != size)
      fail("vmap", "axis {} has size {} in {}, but {} elsewhere", axis.name, mine->size,
           ops::visible(*n), size);
    size = mine->size;
    return prim::rename(n, {axis.name}, {hidden});
  });
  if (size < 0)
    fail("vmap", "no argument has axis {}; pass an Axis with its size to map over a new axis{}",
         axis.name, did_you_mean(axis.name, axes_of(in)));
  context().hidden.push_back(Axis(hidden, size));
  return out;
}
Leaves Vmap::show(const Leaves& in) {
  CallSite here(at);
  return mapped(in, [&](const NodePtr& n) {
    if (has(n->axes, axis.name))
      fail("vmap", "the result has axis {} already: {}", axis.name, ops::visible(*n));
    auto axes = without_axes(ops::with_hidden({n}, ops::visible(*n)), hidden);
    auto shown = std::find_if(axes.begin(), axes.end(), [](auto& a) { return !a.name.hidden(); });
    axes.insert(shown, Axis(hidden, size));
    return prim::rename(prim::fit(n, axes), {hidden}, {axis.name});
  });
}

}  // namespace haliax::detail
