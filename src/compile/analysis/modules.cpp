#include "compile/analysis/modules.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "ops/attr.h"
#include "ops/collective.h"
#include "transforms/rewrite.h"

namespace haliax::analysis {
namespace {

using Path = std::optional<std::string_view>;  // nothing: not known; "": the model itself

std::string_view parent_of(std::string_view path) {
  const auto dot = path.rfind('.');
  return dot == path.npos ? std::string_view() : path.substr(0, dot);
}
std::string_view common(std::string_view a, std::string_view b) {
  auto contains = [](std::string_view path, std::string_view part) {
    return part.empty() ||
           (path.starts_with(part) && (path.size() == part.size() || path[part.size()] == '.'));
  };
  while (!contains(b, a)) a = parent_of(a);
  return a;
}
// Extends the path to the innermost module that contains both.
void include(Path& path, Path more) {
  if (more) path = path ? common(*path, *more) : more;
}

class Inference {
 public:
  explicit Inference(const Nodes& roots) : all_(all_nodes(roots)) {
    for (auto& n : all_)
      if (is_of_layer(*n))
        for (auto& x : n->in)
          if (x && !is_of_layer(*x)) include(readers_[x.get()], parent_of(n->origin.module.text()));
  }
  Modules run() {
    if (readers_.empty()) return {};
    Modules out;
    for (auto& n : all_) {
      if (n->op->kind == Kind::leaf || n->op == &kLoop || is_of_layer(*n)) continue;
      auto path = inferred(*n);
      if (!path) continue;
      paths_[n.get()] = *path;
      // Devices compare the text of collectives, but their graphs may differ.
      if (!path->empty() && n->op != &kCollective) out[n.get()] = Name(std::string(*path));
    }
    return out;
  }

 private:
  static bool is_of_layer(const Node& n) {
    return n.op->kind != Kind::leaf && bool(n.origin.module);
  }
  Path inferred(const Node& n) const {
    if (is_loop_result(n)) return module_around(result_of(n).value[0]);
    Path path;
    for (std::size_t k = 0; k < n.in.size(); ++k) {
      auto& x = n.in[k];
      // The update of a parameter reads its gradient.
      const bool updates = x && x->origin.backward && !n.origin.backward;
      if (x && !updates && !is_order_only(n, k)) include(path, module_around(x));
    }
    // If no module of an operand is known, the module stays unknown, whatever reads the node.
    if (auto readers = readers_.find(&n); path && readers != readers_.end())
      include(path, readers->second);
    return path;
  }
  // Returns the module in which the value of this node is read.
  Path module_around(const NodePtr& x) const {
    if (is_of_layer(*x)) return parent_of(x->origin.module.text());
    auto known = paths_.find(x.get());
    return known == paths_.end() ? Path() : known->second;
  }

  const Nodes all_;
  std::unordered_map<const Node*, Path> readers_;  // the layers that read a node
  std::unordered_map<const Node*, std::string_view> paths_;
};

}  // namespace

Modules modules_of(const Nodes& roots) { return Inference(roots).run(); }

}  // namespace haliax::analysis
