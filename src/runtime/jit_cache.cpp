#include "runtime/jit_impl.h"
#include "runtime/explain.h"

#include "base/where.h"

namespace haliax::detail {
namespace {

template <class T> bool equal(const std::shared_ptr<const T>& a, const std::shared_ptr<const T>& b) { return a == b || (a && b && *a == *b); }

}  // namespace

bool JitCore::Impl::same(const Signature& s, const Walk& w) {
  if (s.statics != w.statics || !(s.values == w.values) || s.axes.size() != w.arrays.size()) return false;
  for (std::size_t k = 0; k < w.arrays.size(); ++k) {
    auto& n = w.arrays[k]->node();
    if ((n ? int(n->dtype) : -1) != s.dtypes[k]) return false;
    if (n && n->axes != s.axes[k]) return false;
  }
  return true;
}
bool JitCore::Impl::same_scope(const Signature& s) const { return equal(s.mesh, current_mesh()) && equal(s.mapping, current_mapping()); }

Sharding JitCore::Impl::lies(const Node& n, int argument, const Mesh& mesh, const std::string& what) const {
  auto* mapping = options.in ? options.in->of(std::size_t(argument)) : usual(context().origin.mapping);
  bool told = options.in && mapping;
  if (auto* p = n.placement.get(); !told && p && (p->mesh == mesh || waits(*p))) mapping = &p->mapping;
  return mapping ? sharding_for(n.axes, *mapping, mesh, what) : Sharding();
}
bool JitCore::Impl::same_places(const Signature& s, const Walk& w, const Parts& arguments) const {
  if (s.in.empty() || (options.in && options.in->one())) return true;
  Here here(options.at);
  auto mesh = this->mesh();
  for (std::size_t k = 0; k < w.arrays.size(); ++k) {
    auto& n = w.arrays[k]->node();
    if (n && !(lies(*n, arguments.of_leaf[k], *mesh, "an argument") == s.in[k])) return false;
  }
  return true;
}

std::string JitCore::Impl::difference(const Walk& w, const std::vector<Sharding>& in) const {
  if (entries.empty()) return "the first call";
  auto& s = entries.back()->signature;
  if (!equal(s.mesh, current_mesh())) return "another mesh";
  if (!equal(s.mapping, current_mapping())) return "another axis mapping";
  if (s.axes.size() != w.arrays.size()) return "another number of arrays: " + std::to_string(w.arrays.size()) + ", not " + std::to_string(s.axes.size());
  for (std::size_t k = 0; k < w.arrays.size(); ++k) {
    auto& n = w.arrays[k]->node();
    auto name = k < w.paths.size() ? w.paths[k] : std::to_string(k);
    if ((n ? int(n->dtype) : -1) != s.dtypes[k]) return "array " + name + " has another dtype";
    if (n && n->axes != s.axes[k]) return "array " + name + " is " + to_string(n->axes) + ", not " + to_string(s.axes[k]);
    if (k < in.size() && k < s.in.size() && !(in[k] == s.in[k])) return "array " + name + " is placed otherwise";
  }
  return "a static field (a number, string, axis or function) differs";
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
      fail("jit", "argument " + std::to_string(d) + " is to be donated, but the function has " + std::to_string(arguments) +
                      ", counted from 0");
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
