// Prints a plan: one line per version, with bodies of loops indented.
#include "compile/sharding/report/gather_reasons.h"

namespace haliax::partitioning {
namespace {

const char* const kKinds[] = {"given",       "carry",   "generate", "compute",
                              "shift",       "regroup", "reshard",  "ring-receive",
                              "ring-return", "loop",    "result"};
const char* const kReshardNames[] = {"slice",    "make-partial", "reduce-scatter",
                                     "exchange", "all-reduce",   "all-gather"};

struct PlanPrinter {
  const Plan& plan;
  const GlobalGraph& graph;
  const GatherReasons gather_reasons;
  std::string text = {};

  std::string at(const Version& s) const {
    std::string out;
    for (auto& [name, mesh_axes] : s.at.dims)
      out += " " + std::string(name.text()) + ":" + to_string(graph.mesh, mesh_axes);
    for (auto& [x, m] : s.at.partial)
      out += " partial over " + graph.mesh.axes()[std::size_t(x)].first;
    return out;
  }
  // Returns the name of the op. For an argument, or a value computed from one, also the path of the
  // argument, such as layers.mlp.up.
  std::string op(int k) const {
    auto& n = graph.node(k);
    auto* of = graph.input(k);
    if (!of || !of->origin.module) return n.op->name;
    return n.op->name + std::string(of == &n ? " " : " of ") +
           std::string(of->origin.module.text());
  }
  void line(int k, const std::string& indent) {
    auto& s = plan.version(k);
    auto& n = graph.node(s.node);
    auto* kind = s.is<Reshard>() ? kReshardNames[int(s.step().kind)] : kKinds[s.kind.index()];
    text += indent + "#" + std::to_string(k) + " " + kind;
    text += " " + op(s.node) + " " + std::string(name_of(n.dtype)) + to_string(n.axes) + at(s);
    for (int x : s.in) text += x < 0 ? " -" : " #" + std::to_string(x);
    if (s.step().bytes > 0) text += "  " + std::to_string(std::int64_t(s.step().bytes)) + " bytes";
    if (s.bucket > 0) text += "  bucket " + std::to_string(s.bucket);
    if (s.ring() >= 0) text += "  block by block into #" + std::to_string(s.ring());
    auto& cause = graph.user_op(s.communicates() && s.cause >= 0 ? s.cause : s.node);
    if (s.communicates()) {
      text += std::string("  for ") + (s.cause < 0 ? "a result" : user_op_name(cause));
      if (s.gathers()) text += std::string(", requested by ") + name_of(gather_reasons.reason(s));
    }
    if (auto where = where_of(cause.origin); !where.empty() && &cause != graph.input(s.node))
      text += "    # " + where;
    text += "\n";
  }
  void in_body(int r, const std::string& indent) {
    for (int k : plan.body(r).versions) {
      auto& s = plan.version(k);
      if (!s.live) continue;
      line(k, indent);
      for (int body : plan.bodies_of(s)) in_body(body, indent + "    ");
    }
  }
};

}  // namespace

std::string to_string(const Plan& plan, const GlobalGraph& graph) {
  PlanPrinter p{plan, graph, GatherReasons(plan, graph)};
  p.in_body(0, "");
  p.text += "results";
  for (int r : plan.roots) p.text += " #" + std::to_string(r);
  return p.text + "\n";
}

}  // namespace haliax::partitioning
