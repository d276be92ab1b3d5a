// Models whose linear layers and norms have flattened axes, as checkpoints store them.
#include "graph/node.h"
#include "haliax/ops.h"
#include "haliax/state_dict.h"

namespace haliax::detail {
namespace {

constexpr const char* kIn = "__IN__";
constexpr const char* kOut = "__OUT__";
constexpr const char* kNormed = "__OUT";  // the name in Haliax

AxisSpec flat_spec(const AxisSpec& axes, const char* name) {
  return axes.axes().empty() ? axes : AxisSpec(Axis(name, axis_size(axes.axes())));
}
// Replaces adjacent axes of an array by others of the same size.
void replace_axes(NamedArray& a, const AxisSpec& from, const AxisSpec& to) {
  if (a.empty() || from.axes().empty()) return;
  const auto &old = from.axes(), &fresh = to.axes();
  if (axis_size(old) != axis_size(fresh))
    fail("unflatten_modules_from_export",
         to_string(old) + " has another size than " + to_string(fresh));
  Axis one = old[0];
  if (old.size() > 1) {
    Names names;
    for (auto& axis : old) names.push_back(axis.name);
    one = Axis("__FLAT__", axis_size(old));
    a = flatten_axes(a, names, one.name);
  }
  a = fresh.size() == 1 ? rename(a, one.name, fresh[0].name) : unflatten_axis(a, one.name, to);
}
void replace_axes(nn::Linear& l, const AxisSpec& In, const AxisSpec& Out) {
  replace_axes(l.weight, l.In, In);
  replace_axes(l.weight, l.Out, Out);
  if (l.bias) replace_axes(*l.bias, l.Out, Out);
  l.In = In;
  l.Out = Out;
}
void replace_axes(const FlatModules::Norm& n, const AxisSpec& axis) {
  for (auto* a : {n.weight, n.bias})
    if (*a) replace_axes(**a, *n.axis, axis);
  *n.axis = axis;
}

}  // namespace

void flatten_modules(const FlatModules& modules, SourceLocation at) {
  CallSite here(at);
  for (auto* l : modules.linears) replace_axes(*l, flat_spec(l->In, kIn), flat_spec(l->Out, kOut));
  for (auto& n : modules.norms) replace_axes(n, flat_spec(*n.axis, kNormed));
}
void unflatten_modules(const FlatModules& modules, const FlatModules& like, SourceLocation at) {
  CallSite here(at);
  if (modules.linears.size() != like.linears.size() || modules.norms.size() != like.norms.size())
    fail("unflatten_modules_from_export", "the models have different numbers of modules");
  for (std::size_t k = 0; k < like.linears.size(); ++k)
    replace_axes(*modules.linears[k], like.linears[k]->In, like.linears[k]->Out);
  for (std::size_t k = 0; k < like.norms.size(); ++k)
    replace_axes(modules.norms[k], *like.norms[k].axis);
}

}  // namespace haliax::detail
