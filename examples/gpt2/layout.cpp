#include "layout.h"

#include <haliax/ranks.h>

#include <charconv>

namespace gpt2 {

using namespace haliax;

Layout layout_of(const std::string& text) {
  std::vector<std::pair<std::string, int>> axes;
  for (std::size_t from = 0; from < text.size();) {
    const auto end = std::min(text.find(',', from), text.size()), equals = text.find('=', from);
    const auto name = text.substr(from, std::min(equals, end) - from);
    int size = 0;
    const char *first = text.data() + std::min(equals, end), *last = text.data() + end;
    if (equals < end) ++first;
    const auto [read, error] = std::from_chars(first, last, size);
    if (equals >= end || error != std::errc() || read != last || size < 1)
      throw Error("[gpt2] --mesh is " + text + "; it must be names and sizes, as data=4,model=2");
    if (name != "data" && name != "model")
      throw Error("[gpt2] --mesh is " + text + "; its axes may be data (examples, and weights) and model (heads, and the MLP)");
    axes.push_back({name, size});
    from = end + 1;
  }
  Layout out;
  out.mesh = Mesh(axes);
  std::vector<Mapping::Entry> parameters, inside;
  for (auto& [name, size] : axes)
    if (name == "data") {
      parameters.emplace_back("embed", "data"), inside.emplace_back("batch", "data");
    } else {
      for (const char* axis : {"heads", "mlp"}) parameters.emplace_back(axis, "model"), inside.emplace_back(axis, "model");
    }
  out.parameters = Mapping::of(parameters), out.inside = Mapping::of(inside);
  const int wanted = out.mesh.devices();
  if (rank_count() == 1) set_devices(wanted);
  else if (wanted != devices())
    throw Error("[gpt2] --mesh is " + (text.empty() ? "not given" : text) + ", " + std::to_string(wanted) + " devices, and " +
                std::to_string(rank_count()) + " ranks have " + std::to_string(devices()) + "; --mesh data=" +
                std::to_string(devices()) + " has as many");
  return out;
}

}  // namespace gpt2
