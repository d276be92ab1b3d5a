// `debug::diagnose_common_issues`: arrays of a model that are shared, static, not finite, or
// without gradient.
#include <fmt/ranges.h>

#include <unordered_map>

#include "graph/fail.h"
#include "haliax/debug.h"
#include "haliax/ops.h"
#include "ops/prim.h"

namespace haliax {
namespace {

// Returns true if the value may be read: a tracer has none.
bool is_known(const NamedArray& a) { return context().tracing == 0 || a.node()->value.get(); }

// Returns true if all elements are equal. Equal constants, such as the initial biases of two
// layers, are one node, although they are different arrays for the user.
bool is_uniform(const NamedArray& a) {
  if (prim::is_number(a.node())) return true;
  return is_known(a) && (a.size() == 0 || bool(min(a) == max(a)));
}

}  // namespace

debug::ModuleProblems detail::problems_of(const Walk& model, const Walk* gradients,
                                          SourceLocation at) {
  CallSite here(at);
  debug::ModuleProblems out;
  out.in_static = model.holding;
  std::unordered_map<const void*, std::size_t> first;  // by node: index in `groups`
  struct SharedArray {
    const NamedArray* array;
    std::vector<std::string> paths;
  };
  std::vector<SharedArray> groups;
  for (std::size_t k = 0; k < model.arrays.size(); ++k) {
    auto& a = *model.arrays[k];
    if (a.empty()) continue;
    auto [known, is_new] = first.emplace(a.node().get(), groups.size());
    if (is_new) groups.push_back({&a, {}});
    groups[known->second].paths.push_back(model.paths[k]);
    if (is_float(a.dtype()) && is_known(a) && !bool(all(isfinite(a))))
      out.non_finite.push_back(model.paths[k]);
    if (!gradients || model.frozen[k] || !is_float(a.dtype())) continue;
    auto& g = *gradients->arrays[k];
    if (g.empty() || (is_known(g) && !bool(any(g != 0.))))
      out.without_gradient.push_back(model.paths[k]);
  }
  for (auto& [array, paths] : groups)
    if (paths.size() > 1 && !is_uniform(*array)) out.reused.push_back(std::move(paths));
  return out;
}

void detail::raise_problems(const debug::ModuleProblems& problems, SourceLocation at) {
  CallSite here(at);
  if (!problems.empty())
    fail("diagnose_common_issues", "the model has problems:\n{}", to_string(problems));
}

namespace debug {

bool ModuleProblems::empty() const {
  return reused.empty() && in_static.empty() && non_finite.empty() && without_gradient.empty();
}
std::string to_string(const ModuleProblems& p) {
  std::vector<std::string> lines;
  for (auto& paths : p.reused)
    lines.push_back(
        fmt::format("{} are one array; they diverge after the first update, so use one "
                    "field in both places",
                    fmt::join(paths, ", ")));
  for (auto& path : p.in_static)
    lines.push_back(path + " is static, but holds an array; make it a field of the tree");
  for (auto& path : p.non_finite) lines.push_back(path + " has values that are not finite");
  for (auto& path : p.without_gradient)
    lines.push_back(path + " has no gradient; the loss does not depend on it, or freeze it");
  return fmt::format("{}", fmt::join(lines, "\n"));
}

}  // namespace debug
}  // namespace haliax
