// The cache of traces: compares signatures and reports retraces.
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
// Returns the static values in which a call differs from others, with the values of all.
std::string differing_statics(const std::vector<const Signature*>& others, const Walk& w) {
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
  return which;
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
  auto mesh = options.call_mesh();
  for (std::size_t k = 0; k < w.arrays.size(); ++k) {
    auto& n = w.arrays[k]->node();
    if (!n || options.argument_sharding(*n, arguments.of_leaf[k], *mesh, "an argument") == s.in[k])
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
  const std::string which = differing_statics(others, w);
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

}  // namespace haliax::detail
