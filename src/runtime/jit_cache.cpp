// The cache of traces: compares signatures, reports retraces and checks the options of a call.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "devices/communicator.h"
#include "devices/devices.h"
#include "runtime/jit_impl.h"
#include "runtime/strict.h"

namespace haliax::detail {
namespace {

template <class T>
bool equal(const std::shared_ptr<const T>& a, const std::shared_ptr<const T>& b) {
  return a == b || (a && b && *a == *b);
}

}  // namespace

Sharding JitCore::Impl::argument_sharding(const Node& n, int argument, const Mesh& mesh,
                                          const std::string& what) const {
  auto* mapping = options.in ? options.in->of(std::size_t(argument))
                             : default_mapping(context().origin.mapping);
  bool described = options.in && mapping;
  if (auto* p = n.placement.get(); !described && p && (p->mesh == mesh || is_unplaced(*p)))
    mapping = &p->mapping;
  return mapping ? sharding_for(n.axes, *mapping, mesh, what) : Sharding();
}

std::string argument_name(const std::string& path) {
  auto dot = path.find('.');
  return "argument " + path.substr(0, dot) + (dot == path.npos ? "" : ": " + path.substr(dot + 1));
}

// ---- differences between signatures ----
namespace {

// Compares static value k of two signatures, or of a signature and a `Walk`.
template <class A, class B> bool same_static(const A& a, const B& b, std::size_t k) {
  auto &x = a.described[k], &y = b.described[k];
  if (x.path != y.path || (x.value < 0) != (y.value < 0)) return false;
  if (x.value >= 0) return a.values[std::size_t(x.value)] == b.values[std::size_t(y.value)];
  auto bytes = [&](auto& of) {
    auto from = k ? of.described[k - 1].end : 0;
    return std::string_view(of.statics).substr(from, of.described[k].end - from);
  };
  return bytes(a) == bytes(b);
}
// Returns the first static value that differs. Without readable values, only returns that one
// differs.
std::string static_difference(const Signature& s, const Walk& w) {
  if (s.statics == w.statics && s.values == w.values) return "";
  for (std::size_t k = 0; k < std::min(s.described.size(), w.described.size()); ++k) {
    if (same_static(s, w, k)) continue;
    auto &was = s.described[k], &is = w.described[k];
    if (is.path != was.path) break;
    auto name = "the static " + argument_name(is.path);
    return is.text == was.text ? name + " differs"
                               : fmt::format("{} is {}, not {}", name, is.text, was.text);
  }
  return "a static argument or field (a number, string, axis or function) differs";
}

}  // namespace

std::string JitCore::Impl::array_difference(const Signature& s, const Walk& w) const {
  if (!equal(s.mesh, current_mesh())) return "a different mesh";
  if (!equal(s.mapping, current_mapping())) return "a different axis mapping";
  if (s.axes.size() != w.arrays.size()) {
    auto why = static_difference(s, w);  // a vector of another length, or an optional with a value
    return why.empty() ? fmt::format("a different number of arrays: {}, not {}", w.arrays.size(),
                                     s.axes.size())
                       : why;
  }
  auto array = [&](std::size_t k) {
    return k < w.paths.size() ? argument_name(w.paths[k]) : fmt::format("array {}", k);
  };
  for (std::size_t k = 0; k < w.arrays.size(); ++k) {
    auto& n = w.arrays[k]->node();
    if (int now = n ? int(n->dtype) : -1, was = s.dtypes[k]; now != was) {
      if (now < 0 || was < 0) return array(k) + (now < 0 ? " is empty" : " is not empty");
      return fmt::format("the dtype of {} is {}, not {}", array(k), name_of(DType(now)),
                         name_of(DType(was)));
    }
    if (n && n->axes != s.axes[k])
      return fmt::format("{} is {}, not {}", array(k), to_string(n->axes), to_string(s.axes[k]));
  }
  return "";
}
std::string JitCore::Impl::difference(const Signature& s, const Walk& w,
                                      const Parts& arguments) const {
  if (auto differs = array_difference(s, w); !differs.empty()) return differs;
  if (auto differs = static_difference(s, w); !differs.empty()) return differs;
  if (s.in.empty() || (options.in && options.in->one())) return "";
  CallSite here(options.at);
  auto mesh = this->mesh();
  for (std::size_t k = 0; k < w.arrays.size(); ++k) {
    auto& n = w.arrays[k]->node();
    if (!n || argument_sharding(*n, arguments.of_leaf[k], *mesh, "an argument") == s.in[k])
      continue;
    return (k < w.paths.size() ? argument_name(w.paths[k]) : fmt::format("array {}", k)) +
           " has a different sharding";
  }
  return "";
}
void JitCore::Impl::report_retraces(const Walk& w) {
  constexpr std::size_t often = 8;
  if (reported_retraces && !options.refuse_retraces) return;
  std::vector<const Signature*> others;  // differ from this call only in static values
  for (auto* e = newest.load(); e; e = e->older)
    if (auto& s = e->signature;
        s.described.size() == w.described.size() && array_difference(s, w).empty())
      others.push_back(&s);
  std::reverse(others.begin(), others.end());  // oldest first
  if (others.size() + 1 < often) return;
  std::string which;
  for (std::size_t k = 0; k < w.described.size(); ++k) {
    std::vector<std::string> values;
    bool differs = false;
    auto note = [&](const std::string& text) {
      if (std::find(values.begin(), values.end(), text) == values.end()) values.push_back(text);
    };
    for (auto* s : others) {
      differs |= !same_static(*s, w, k);
      note(s->described[k].text);
    }

    note(w.described[k].text);
    if (!differs) continue;
    if (values.size() > 4) {
      values.erase(values.begin() + 2, values.end() - 1);
      values.insert(values.end() - 1, "...");
    }

    which += fmt::format("{}{}{}", which.empty() ? "" : "; ", argument_name(w.described[k].path),
                         values[0].empty() ? "" : fmt::format(" ({})", fmt::join(values, ", ")));
  }
  if (which.empty()) return;
  auto text = fmt::format(
      "traced {} times for different static values: {}; a number is traced once "
      "if the function accepts a NamedArray (not auto, not a field of another type)",
      others.size() + 1, which);
  CallSite here(options.at);
  if (options.refuse_retraces) fail("jit", text);
  reported_retraces = true;
  fmt::print(stderr, "haliax: warning: [jit] {}; this warning is printed once; {}\n", text,
             where_of(context().origin));
}

std::shared_ptr<const Mesh> JitCore::Impl::mesh() const {
  if (!options.partition) return nullptr;
  return options.mesh ? std::make_shared<const Mesh>(*options.mesh) : current_mesh();
}
std::vector<const Mapping*> JitCore::Impl::given_mappings() const {
  std::vector<const Mapping*> given{options.axis_resources ? &*options.axis_resources : nullptr};
  for (auto* each : {&options.in, &options.out})
    for (std::size_t k = 0; *each && k < (*each)->each().size(); ++k)
      given.push_back((*each)->of(k));
  return given;
}
void JitCore::Impl::check_call(int arguments) const {
  CallSite here(options.at);
  for (int d : options.donate)
    if (d < 0 || d >= arguments)
      fail("jit",
           fmt::format("donate has argument {}, but the function has {} arguments, counted from 0",
                       d, arguments));
  if (!options.partition) return;
  require_each("named_jit", "in", options.in, arguments, "arguments");
  auto mappings = given_mappings();
  mappings.push_back(default_mapping(context().origin.mapping));
  auto mesh = this->mesh();
  for (auto* m : mappings) {
    if (m && mesh) require_axes("named_jit", *m, *mesh);
    if (m && !mesh && options.strict) refuse_without_mesh(*m);
  }
  for (auto& l : options.speed.links)
    if (mesh && !l.axis.empty()) mesh->size(l.axis);
}
void JitCore::Impl::require_devices(const Mesh& mesh, program::Device& backend) const {
  CallSite here(options.at);
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
