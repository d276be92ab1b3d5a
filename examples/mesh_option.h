// Parses the --mesh option of the examples.
#pragma once
#include <haliax/mesh.h>
#include <haliax/ranks.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

namespace examples {

// The axes that a mesh may have, each with the values that it shards.
using MeshAxes = std::vector<std::pair<std::string, std::string>>;

// Parses data=4,model=2; an empty string means one device. Creates as many devices unless there are
// several ranks. Raises for an invalid mesh, for axes that are not in `known`, and if ranks have
// another number of devices than the mesh.
inline haliax::Mesh mesh_option(const std::string& program, const std::string& text,
                                const MeshAxes& known = {{"data", "examples, and weights"},
                                                         {"model", "heads, and the MLP"}}) {
  using namespace haliax;
  const auto refuse = [&](const std::string& why) {
    throw Error("[" + program + "] --mesh is " + (text.empty() ? "not given" : text) + why);
  };
  std::vector<std::pair<std::string, int>> axes;
  for (std::size_t from = 0; from < text.size();) {
    const auto end = std::min(text.find(',', from), text.size()), equals = text.find('=', from);
    const auto name = text.substr(from, std::min(equals, end) - from);
    int size = 0;
    const char *first = text.data() + std::min(equals, end), *last = text.data() + end;
    if (equals < end) ++first;
    const auto [read, error] = std::from_chars(first, last, size);
    if (equals >= end || error != std::errc() || read != last || size < 1)
      refuse("; it must be names and sizes, as data=4,model=2");
    if (std::find_if(known.begin(), known.end(), [&](auto& k) { return k.first == name; }) ==
        known.end()) {
      std::string all;
      for (std::size_t k = 0; k < known.size(); ++k)
        all += (k == 0                 ? ""
                : k + 1 < known.size() ? ", "
                                       : " and ") +
               known[k].first + " (" + known[k].second + ")";
      refuse("; its axes may be " + all);
    }
    axes.push_back({name, size});
    from = end + 1;
  }
  const Mesh mesh(axes);
  const int wanted = mesh.devices();
  if (rank_count() == 1)
    set_devices(wanted);
  else if (wanted != devices())
    refuse(", " + std::to_string(wanted) + " devices, but " + std::to_string(rank_count()) +
           " ranks have " + std::to_string(devices()) + ", each as many as rank " +
           std::to_string(this_rank()) +
           ", by HALIAX_DEVICES; --mesh data=" + std::to_string(devices()) + " has as many");
  return mesh;
}

}  // namespace examples
