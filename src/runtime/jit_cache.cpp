#include <fmt/format.h>

#include "runtime/explain.h"
#include "runtime/jit_impl.h"

namespace haliax::detail {
namespace {

template <class T> bool equal(const std::shared_ptr<const T>& a, const std::shared_ptr<const T>& b) {
  return a == b || (a && b && *a == *b);
}

}  // namespace

Sharding JitCore::Impl::lies(const Node& n, int argument, const Mesh& mesh, const std::string& what) const {
  auto* mapping = options.in ? options.in->of(std::size_t(argument)) : usual(context().origin.mapping);
  bool told = options.in && mapping;
  if (auto* p = n.placement.get(); !told && p && (p->mesh == mesh || waits(*p))) mapping = &p->mapping;
  return mapping ? sharding_for(n.axes, *mapping, mesh, what) : Sharding();
}

std::string JitCore::Impl::difference(const Signature& s, const Walk& w, const Parts& arguments) const {
  if (!equal(s.mesh, current_mesh())) return "another mesh";
  if (!equal(s.mapping, current_mapping())) return "another axis mapping";
  if (s.axes.size() != w.arrays.size())
    return fmt::format("another number of arrays: {}, not {}", w.arrays.size(), s.axes.size());
  auto array = [&](std::size_t k) { return "array " + (k < w.paths.size() ? w.paths[k] : std::to_string(k)); };
  for (std::size_t k = 0; k < w.arrays.size(); ++k) {
    auto& n = w.arrays[k]->node();
    if ((n ? int(n->dtype) : -1) != s.dtypes[k]) return array(k) + " has another dtype";
    if (n && n->axes != s.axes[k]) return fmt::format("{} is {}, not {}", array(k), to_string(n->axes), to_string(s.axes[k]));
  }
  if (s.statics != w.statics || !(s.values == w.values))
    return "a static field (a number, string, axis or function) differs";
  if (s.in.empty() || (options.in && options.in->one())) return "";
  Here here(options.at);
  auto mesh = this->mesh();
  for (std::size_t k = 0; k < w.arrays.size(); ++k) {
    auto& n = w.arrays[k]->node();
    if (n && !(lies(*n, arguments.of_leaf[k], *mesh, "an argument") == s.in[k])) return array(k) + " is placed otherwise";
  }
  return "";
}

std::shared_ptr<const Mesh> JitCore::Impl::mesh() const {
  if (!options.partition) return nullptr;
  return options.mesh ? std::make_shared<const Mesh>(*options.mesh) : current_mesh();
}
std::vector<const Mapping*> JitCore::Impl::given_mappings() const {
  std::vector<const Mapping*> given{options.axis_resources ? &*options.axis_resources : nullptr};
  for (auto* each : {&options.in, &options.out})
    for (std::size_t k = 0; *each && k < (*each)->each().size(); ++k) given.push_back((*each)->of(k));
  return given;
}
void JitCore::Impl::check_call(int arguments) const {
  Here here(options.at);
  for (int d : options.donate)
    if (d < 0 || d >= arguments)
      fail("jit", fmt::format("argument {} is to be donated, but the function has {}, counted from 0", d, arguments));
  if (!options.partition) return;
  require_each("named_jit", "in", options.in, arguments, "arguments");
  auto mappings = given_mappings();
  mappings.push_back(usual(context().origin.mapping));
  auto mesh = this->mesh();
  for (auto* m : mappings) {
    if (m && mesh) require_axes("named_jit", *m, *mesh);
    if (m && !mesh && options.strict) refuse_without_mesh(*m);
  }
  for (auto& l : options.speed.links)
    if (mesh && !l.axis.empty()) mesh->size(l.axis);
}
void JitCore::Impl::must_have_devices(const Mesh& mesh) const {
  Here here(options.at);
  require_devices("named_jit", mesh);
}

}  // namespace haliax::detail
