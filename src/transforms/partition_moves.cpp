// What a plan sends, and why, for reports.
#include <algorithm>

#include "ops/prim.h"
#include "transforms/partition_plan.h"
#include "transforms/purpose.h"

namespace haliax::partitioning {
namespace {

struct Moves {
  const Plan& plan;
  const Whole& whole;
  const Purposes purposes;
  std::vector<char> of_parameters = {};
  std::vector<Move> out = {};
  std::map<int, std::size_t> of_bucket = {};

  const Node& node(int n) const { return *whole.nodes[std::size_t(n)]; }
  // The argument that a value is, seen otherwise (cast, sliced); null: it is something else.
  const Node* argument(int n) const {
    while (whole.parameter[std::size_t(n)] && node(n).op != &prim::kInput) {
      auto& in = whole.in[std::size_t(n)];
      auto from = std::find_if(in.begin(), in.end(), [&](int x) { return x >= 0 && whole.parameter[std::size_t(x)]; });
      if (from == in.end()) return nullptr;  // of numbers and positions alone
      n = *from;
    }
    return node(n).op == &prim::kInput ? &node(n) : nullptr;
  }
  std::string name_of(int n) const {
    auto* a = argument(n);
    return a && a->origin.module ? std::string(a->origin.module.text()) : node(n).op->name;
  }
  // Made of parameters alone, and positions: operands come first.
  void find_parameters() {
    for (std::size_t n = 0; n < whole.nodes.size(); ++n) {
      bool of = !whole.in[n].empty() && node(int(n)).op->kind != Kind::loop && node(int(n)).op != &kResult, some = false;
      for (std::size_t k = 0; k < whole.in[n].size(); ++k) {
        int x = whole.in[n][k];
        if (rules::only_waits(node(int(n)), k)) continue;
        of &= x < 0 || of_parameters[std::size_t(x)] || whole.free[std::size_t(x)],
            some |= x >= 0 && of_parameters[std::size_t(x)];
      }
      of_parameters.push_back(
          node(int(n)).op == &prim::kInput ? purposes.of_argument(node(int(n))) == std::string_view("parameters") : of && some);
    }
  }
  static bool same_place(const Origin& a, const Origin& b) {
    return a.at.line() == b.at.line() && std::string_view(a.at.file_name()) == b.at.file_name() && a.module == b.module;
  }
  // A gather is asked for by the sharding of a result; by a constraint; of a parameter by the mapping of the computation that
  // reads it: that one says that along this axis the devices do not share the work; of a cotangent if the value was reduced and
  // cut.
  const char* asked(const Step& s) const {
    if (s.cause < 0) return "result";
    auto& cause = node(s.cause);
    if (cause.op == &prim::kPin) return "constraint";
    if (cause.origin.backward)
      for (auto& step : plan.steps)
        if (step.live && step.hop.kind == Hop::Kind::reduce_scatter && step.hop.over == s.hop.over &&
            !node(step.node).origin.backward && same_place(node(step.node).origin, cause.origin))
          return "gradient";
    if (!of_parameters[std::size_t(s.node)] || !cause.origin.mapping) return "";
    auto* shared = cause.origin.mapping->find(s.hop.axis);
    for (int x : s.hop.over)
      if (shared && std::find(shared->begin(), shared->end(), whole.mesh.axes()[std::size_t(x)].first) != shared->end())
        return "";
    return "parameter";
  }
  void add(const Step& s) {
    auto axes = to_string(node(s.node).axes);
    std::string by = s.hop.kind == Hop::Kind::all_gather ? asked(s) : "";
    int times = s.ring >= 0 ? ranks(whole.mesh, s.hop.over) - 1 : 1;
    auto cause = s.cause < 0 ? "result" : node(s.cause).op->name;
    auto& origin = node(s.cause < 0 ? s.node : s.cause).origin;
    if (auto joined = of_bucket.find(s.bucket); joined != of_bucket.end()) {
      auto& m = out[joined->second];
      m.bytes += s.hop.bytes, ++m.arrays;
      if (by.empty() && !m.asked.empty())  // what nobody asked for stands first
        m.array = name_of(s.node) + ", " + m.array, m.axes = axes + ", " + m.axes, m.cause = cause, m.origin = origin,
        m.asked = by;
      else
        m.array += ", " + name_of(s.node), m.axes += ", " + axes;
      return;
    }
    const char* const kinds[] = {"", "", "reduce-scatter", "all-to-all", "all-reduce", "all-gather"};
    Move m{s.ring >= 0                   ? "ring"
           : s.kind == Step::Kind::shift ? "permute"
                                         : kinds[int(s.hop.kind)],
           s.hop.over,
           name_of(s.node),
           axes,
           "",
           cause,
           origin,
           by};
    m.bytes = s.hop.bytes / times, m.turns = plan.regions[std::size_t(s.region)].turns * times;
    if (s.ring >= 0) m.loop = to_string(whole.mesh, s.hop.over);
    for (int r = s.region; r > 0; r = plan.regions[std::size_t(r)].parent) {
      auto& l = loop_of(node(plan.loops[std::size_t(plan.regions[std::size_t(r)].loop)].node));
      m.loop = std::string(l.axis.name.text()) + (m.loop.empty() ? "" : ", ") + m.loop;
    }
    if (s.bucket > 0) of_bucket[s.bucket] = out.size();
    out.push_back(std::move(m));
  }
  void region(int r) {
    for (int k : plan.regions[std::size_t(r)].steps) {
      auto& s = plan.steps[std::size_t(k)];
      if (!s.live) continue;
      if (s.talks()) add(s);
      if (s.kind == Step::Kind::loop)
        for (int body : plan.loops[std::size_t(s.loop)].regions) region(body);
    }
  }
};

}  // namespace

std::vector<Move> moves_of(const Plan& plan, const Whole& whole) {
  Nodes roots, inputs;
  for (int r : whole.roots) roots.push_back(whole.nodes[std::size_t(r)]);
  for (auto& n : whole.nodes)
    if (n->op == &prim::kInput) inputs.push_back(n);
  Moves m{plan, whole, Purposes(roots, inputs)};
  m.find_parameters();
  m.region(0);
  return std::move(m.out);
}

}  // namespace haliax::partitioning

bool haliax::gathers(std::string_view kind) { return kind == "all-gather" || kind == "ring"; }
