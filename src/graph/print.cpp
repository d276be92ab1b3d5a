// A graph as text: one line per node, numbered in order, with loop bodies indented. The output is
// deterministic.

#include <fmt/format.h>

#include "base/where.h"
#include "graph/loop.h"
#include "graph/traversal.h"

namespace haliax {
namespace {

const char* const kMonoids[] = {"sum", "prod", "max", "min"};

class GraphPrinter {
 public:
  explicit GraphPrinter(const std::unordered_map<const Node*, Axes>& memory) : memory_(memory) {}
  std::string run(const Nodes& roots) {
    lines(roots, "");
    text_ += "results";
    for (auto& r : roots) text_ += " " + name(r);
    return text_ + "\n";
  }

 private:
  const std::unordered_map<const Node*, Axes>& memory_;
  std::string text_;
  std::unordered_map<const Node*, std::size_t> number_;

  std::string name(NodeRef n) const {
    if (!n) return "-";
    return number_.count(n.get()) ? "%" + std::to_string(number_.at(n.get())) : "%?";
  }
  // Prints the nodes below the values of a body or of the top level.
  void lines(const Nodes& values, const std::string& indent) {
    for (auto& n : topological(values)) {
      // outer nodes are already listed, except for constants that only this body reads
      if (number_.count(n.get())) continue;
      number_.emplace(n.get(), number_.size());
      text_ += indent + name(n) + " = " + n->op->name;
      n->op == &kLoop ? loop(*n, indent) : line(*n);
    }
  }
  void line(const Node& n) {
    for (auto a : n.attr.names) text_ += " " + std::string(a.text());
    for (auto i : n.attr.ints) text_ += " " + std::to_string(i);
    bool number = n.op->kind == Kind::leaf && n.attr.ints.empty() && n.attr.names.empty() &&
                  !n.value && n.axes.empty();
    if (number) text_ += fmt::format(" {}", n.attr.number);
    for (auto& x : n.in) text_ += " " + name(x);
    text_ += "  " + std::string(name_of(n.dtype)) + to_string(n.axes);
    if (auto at = memory_.find(&n); at != memory_.end())
      text_ += "  in memory " + to_string(at->second);
    if (n.origin.module) text_ += "  in " + std::string(n.origin.module.text());
    text_ += "\n";
  }
  void loop(const Node& n, const std::string& indent) {
    auto& l = loop_of(n);
    text_ += " over " + to_string(l.axis) + (l.reverse ? ", reversed" : "") + "\n";
    for (std::size_t b = 0; b < l.index.size(); ++b) {
      text_ += indent + "  " + std::to_string(trips(l, b)) + " iterations\n";
      lines(values_of(l, b), indent + "    ");
    }
    for (std::size_t k = 0; k < l.results.size(); ++k) {
      auto& r = l.results[k];
      text_ += indent + "  result " + std::to_string(k) + ": ";
      text_ += r.carry                       ? "carry " + name(r.carry)
               : r.kind == ResultKind::stack ? "stack"
                                             : kMonoids[int(r.monoid)];
      for (auto& v : r.value) text_ += " " + name(v);
      if (r.start) text_ += " from " + name(r.start);
      if (r.is_condition) text_ += ", the condition";
      text_ += "\n";
    }
  }
};

}  // namespace

std::string to_string(const Nodes& roots, const std::unordered_map<const Node*, Axes>& memory) {
  return GraphPrinter(memory).run(roots);
}

}  // namespace haliax
