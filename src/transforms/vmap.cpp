// vmap: hides axes from f and restores them in the results, as the first visible axes.
#include <algorithm>
#include <utility>

#include "graph/fail.h"
#include "ops/named.h"
#include "transforms/leaves.h"

namespace haliax::detail {
namespace {

// Hides an axis. Returns the hidden axis, with its size.
Axis hide_axis(const Walk& arguments, const AxisSelector& axis, SourceLocation at) {
  CallSite here(at);
  const Name hidden = fresh_hidden(axis.name, at);
  std::int64_t size = axis.size;
  const auto in = arguments.leaves();
  arguments.assign(mapped(in, [&](NodeRef n) {
    auto* mine = find(*n, axis.name);
    if (!mine) return n;
    if (size >= 0 && mine->size != size)
      fail("vmap", "axis {} has size {} in {}, but {} elsewhere", axis.name, mine->size,
           ops::visible(*n), size);
    size = mine->size;
    return prim::rename(n, {axis.name}, {hidden});
  }));
  if (size < 0)
    fail("vmap", "no argument has axis {}; pass an Axis with its size to map over a new axis{}",
         axis.name, did_you_mean(axis.name, axes_of(in)));
  return context().hidden.emplace_back(hidden, size);
}
// Adds a hidden axis to the results, under its public name.
void show_axis(const Walk& results, Name name, const Axis& hidden, SourceLocation at) {
  CallSite here(at);
  results.assign(mapped(results.leaves(), [&](NodeRef n) {
    if (has(n->axes, name))
      fail("vmap", "the result has axis {} already: {}", name, ops::visible(*n));
    auto axes = without_axes(ops::with_hidden({n}, ops::visible(*n)), hidden.name);
    auto shown = std::find_if(axes.begin(), axes.end(), [](auto& a) { return !a.name.hidden(); });
    axes.insert(shown, hidden);
    return prim::rename(prim::fit(n, axes), {hidden.name}, {name});
  }));
}

}  // namespace

MappedAxes::MappedAxes(const AxisSelector& axis, SourceLocation at) : axes_{axis}, at_(at) {}
MappedAxes::MappedAxes(std::vector<AxisSelector> axes, SourceLocation at)
    : axes_(std::move(axes)), at_(at) {}
MappedAxes::MappedAxes(std::initializer_list<AxisSelector> axes, SourceLocation at)
    : axes_(axes), at_(at) {}
MappedAxes::MappedAxes(const MappedAxes&) = default;
MappedAxes::~MappedAxes() = default;
Axes MappedAxes::hide(const Walk& arguments) const {
  Axes hidden;
  for (auto& axis : axes_) hidden.push_back(hide_axis(arguments, axis, at_));
  return hidden;
}
void MappedAxes::show(const Walk& results, const Axes& hidden) const {
  for (std::size_t i = axes_.size(); i-- > 0;) show_axis(results, axes_[i].name, hidden[i], at_);
}

}  // namespace haliax::detail
