// Views of the host memory of an array with a given order of axes.
#include "haliax/view.h"

#include <fmt/format.h>

#include "graph/node.h"

namespace haliax {

HostView host_view(const NamedArray& a, DType dtype, const std::vector<AxisSelector>& axes,
                   SourceLocation at) {
  CallSite here(at);
  if (a.empty()) fail("host_view", "the NamedArray is empty; assign a value to it first");
  auto mine = a.axes();
  if (a.dtype() != dtype)
    fail("host_view", fmt::format("expected {1}, got {0}; cast it with astype", name_of(a.dtype()),
                                  name_of(dtype)));
  if (axes.size() != mine.size())
    fail("host_view",
         fmt::format("{} axes are requested, but the array has {}", axes.size(), to_string(mine)));
  HostView out;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j)
      if (axes[j].name == axes[i].name)
        fail("host_view", "axis " + std::string(axes[i].name.text()) + " is requested twice");
    auto axis = a.resolve_axis(axes[i], at);
    std::int64_t stride = 1;
    for (std::size_t k = mine.size(); mine[k - 1].name != axis.name; --k)
      stride *= mine[k - 1].size;
    out.sizes.push_back(axis.size);
    out.strides.push_back(stride);
  }
  out.data = a.eval(at).node()->value.get()->data();
  return out;
}

}  // namespace haliax
