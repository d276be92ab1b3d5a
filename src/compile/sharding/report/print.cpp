// Prints a plan: one line per version, with bodies of loops indented.
#include "compile/sharding/gather_reasons.h"

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

  std::string sharding_text(const Version& v) const {
    std::string out;
    for (auto& [name, mesh_axes] : v.sharding.dims)
      out += " " + std::string(name.text()) + ":" + to_string(graph.mesh, mesh_axes);
    for (auto& [x, m] : v.sharding.partial)
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
    auto& v = plan.version(k);
    auto& n = graph.node(v.node);
    auto* kind = v.is<Reshard>() ? kReshardNames[int(v.step().kind)] : kKinds[v.kind.index()];
    text += indent + "#" + std::to_string(k) + " " + kind;
    text += " " + op(v.node) + " " + std::string(name_of(n.dtype)) + to_string(n.axes) +
            sharding_text(v);
    for (int x : v.in) text += x < 0 ? " -" : " #" + std::to_string(x);
    if (v.step().bytes > 0) text += "  " + std::to_string(std::int64_t(v.step().bytes)) + " bytes";
    if (v.bucket > 0) text += "  bucket " + std::to_string(v.bucket);
    if (v.ring() >= 0) text += "  block by block into #" + std::to_string(v.ring());
    auto& cause = graph.user_op(v.communicates() && v.cause >= 0 ? v.cause : v.node);
    if (v.communicates()) {
      text += std::string("  for ") + (v.cause < 0 ? "a result" : user_op_name(cause));
      if (v.gathers()) text += std::string(", requested by ") + name_of(gather_reasons.reason(v));
    }
    if (auto where = where_of(cause.origin); !where.empty() && &cause != graph.input(v.node))
      text += "    # " + where;
    text += "\n";
  }
  void in_body(int body, const std::string& indent) {
    for (int k : plan.body(body).versions) {
      auto& v = plan.version(k);
      if (!v.live) continue;
      line(k, indent);
      for (int inner : plan.bodies_of(v)) in_body(inner, indent + "    ");
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
