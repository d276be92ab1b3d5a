// The options of a jitted function, as they apply to a call.
#include "runtime/call_options.h"

#include <fmt/format.h>

#include "devices/communicator.h"
#include "devices/devices.h"
#include "graph/fail.h"
#include "runtime/strict.h"

namespace haliax::detail {

Sharding CallOptions::argument_sharding(const Node& n, int argument, const Mesh& mesh,
                                        const std::string& what) const {
  auto* mapping = in ? in->of(std::size_t(argument)) : default_mapping(context().origin.mapping);
  bool described = in && mapping;
  if (auto* p = n.placement.get(); !described && p && (p->mesh == mesh || is_unplaced(*p)))
    mapping = &p->mapping;
  return mapping ? sharding_for(n.axes, *mapping, mesh, what) : Sharding();
}

std::shared_ptr<const Mesh> CallOptions::call_mesh() const {
  if (!partition) return nullptr;
  return mesh ? std::make_shared<const Mesh>(*mesh) : current_mesh();
}
std::vector<const Mapping*> CallOptions::given_mappings() const {
  std::vector<const Mapping*> given{axis_resources ? &*axis_resources : nullptr};
  for (auto* each : {&in, &out})
    for (std::size_t k = 0; *each && k < (*each)->each().size(); ++k)
      given.push_back((*each)->of(k));
  return given;
}
void CallOptions::check_call(int arguments) const {
  CallSite here(at);
  for (int d : donate)
    if (d < 0 || d >= arguments)
      fail("jit",
           fmt::format("donate has argument {}, but the function has {} arguments, counted from 0",
                       d, arguments));
  if (!partition) return;
  require_each("named_jit", "in", in, arguments, "arguments");
  auto mappings = given_mappings();
  mappings.push_back(default_mapping(context().origin.mapping));
  auto mesh = call_mesh();
  for (auto* m : mappings) {
    if (m && mesh) require_axes("named_jit", *m, *mesh);
    if (m && !mesh && strict) refuse_without_mesh(*m);
  }
  for (auto& l : speed.links)
    if (mesh && !l.axis.empty()) mesh->size(l.axis);
}
void CallOptions::require_devices(const Mesh& mesh, program::Device& backend) const {
  CallSite here(at);
  haliax::require_devices("named_jit", mesh);
  const auto mine = local_devices(mesh);
  const int requested = mine.count, there = backend.is_host() ? requested : backend.devices();
  // On a backend with one device, all devices of the mesh share it if this was requested.
  if (requested <= there || (there == 1 && has_requested(requested))) return;
  const auto together =
      there == 1
          ? fmt::format("set_devices({0}) or HALIAX_DEVICES={0} adds them there, ", requested)
          : "";
  fail("named_jit", fmt::format("the mesh ({}) has {} devices{}, but backend {} has {}; "
                                "{}JitOptions::backend or HALIAX_BACKEND selects another; plan() "
                                "accepts a mesh of any size",
                                to_string(mesh), requested, mine.ranks ? " on each rank" : "",
                                backend.name(), there, together));
}

}  // namespace haliax::detail
