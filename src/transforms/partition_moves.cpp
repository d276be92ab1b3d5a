// What a plan sends, and why, for reports.
#include <algorithm>
#include <set>

#include "ops/prim.h"
#include "transforms/partition_plan.h"
#include "transforms/purpose.h"

namespace haliax::partitioning {
namespace {

bool same_names(const Node& a, const Node& b) {
  return a.axes.size() == b.axes.size() &&
         std::all_of(a.axes.begin(), a.axes.end(), [&](auto& x) { return has(b.axes, x.name); });
}
// As users know it.
const char* said(const Node& n) {
  if (is_top_k(n) || picks_top_k(n)) return "top_k";
  if (n.op == &prim::kPin) return static_cast<const prim::Pin&>(*n.attr.payload).by;
  if (n.op != &prim::kCumulative) return n.op->name;
  auto m = Monoid(n.attr.ints[0]);
  return m == Monoid::sum ? "cumsum" : m == Monoid::prod ? "cumprod" : n.op->name;
}

struct Moves {
  const Plan& plan;
  const Whole& whole;
  const Purposes purposes;
  std::vector<char> of_parameters = {};
  std::vector<Name> gradient = {};  // of which parameter it becomes the gradient
  std::set<int> updated = {};       // results that are a parameter and what is added to it
  std::vector<Move> out = {};
  std::map<int, std::size_t> of_bucket = {};

  const Node& node(int n) const { return *whole.nodes[std::size_t(n)]; }
  const Node& written(int n) const {  // the op of the user's that it helps to make
    while (whole.stands_for[std::size_t(n)] >= 0) n = whole.stands_for[std::size_t(n)];
    return node(n);
  }
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
  std::string name_of(const Step& s) const {
    int n = s.node;
    auto* a = argument(n);
    if (a && a->origin.module) return std::string(a->origin.module.text());
    auto& me = node(n);
    auto of = std::string(gradient[std::size_t(n)].text());
    if (!of.empty() && (s.sums() || me.origin.backward)) return "gradient of " + of;
    if (updated.count(n)) return "new " + of;
    auto& op = written(n);
    return (&op == &me ? "" : "part of ") + std::string(said(op));
  }
  Name module_of(int n) const {
    auto of = gradient[std::size_t(n)].text();
    if (auto field = of.rfind('.'); field != of.npos) return Name(of.substr(0, field));
    return node(n).op == &prim::kInput ? Name() : written(n).origin.module;  // that of an input is its own path
  }
  bool is_parameter(const Node* a) const {
    return a && a->origin.module && purposes.of_argument(*a) == std::string_view("parameters");
  }
  // A sum becomes the gradient of a parameter if the backward pass or what follows it makes it, and it goes, point by point, into
  // what is added to the parameter, or into a result with the parameter's path. Of several the nearest.
  void find_gradients(const std::vector<std::string>& results) {
    gradient.resize(whole.nodes.size());
    std::vector<int> found;  // nearest first
    const std::set<int> roots(whole.roots.begin(), whole.roots.end());
    auto reach = [&](int n, Name of) {
      if (n < 0 || gradient[std::size_t(n)] || !purposes.after(node(n))) return;
      gradient[std::size_t(n)] = of, found.push_back(n);
    };
    for (std::size_t n = 0; n < whole.nodes.size(); ++n) {
      if (node(int(n)).op->kind != Kind::map || node(int(n)).origin.backward) continue;
      for (int p : whole.in[n])
        if (auto* a = p < 0 ? nullptr : argument(p); is_parameter(a))
          if (same_names(node(int(n)), *a)) {
            reach(int(n), a->origin.module);
            if (gradient[n] && roots.count(int(n))) updated.insert(int(n));
          }
    }
    std::map<std::string_view, const Node*> parameters;
    for (auto& n : whole.nodes)
      if (n->op == &prim::kInput && is_parameter(n.get())) parameters[n->origin.module.text()] = n.get();
    for (std::size_t k = 0; k < results.size(); ++k) {
      auto path = module_path(results[k]).text();  // 1.mlp.up.weight: it may begin where the parameter's does
      auto p = parameters.find(path);
      for (auto dot = path.find('.'); p == parameters.end() && dot != path.npos; dot = path.find('.'))
        path.remove_prefix(dot + 1), p = parameters.find(path);
      if (p != parameters.end() && same_names(*p->second, node(whole.roots[k]))) reach(whole.roots[k], p->second->origin.module);
    }
    for (std::size_t k = 0; k < found.size(); ++k) {
      auto& n = node(found[k]);
      auto of = gradient[std::size_t(found[k])];
      if (n.op == &kResult && n.in[0]->op == &kLoop) {
        auto& r = loop_of(n).results[std::size_t(n.attr.ints[0])];
        for (auto& v : r.value) reach(whole.find(v.get()), of);
        if (r.start) reach(whole.find(r.start.get()), of);
      } else {
        for (int x : goes_through(found[k])) reach(x, of);
      }
    }
  }
  // Operands of which a gradient is made point by point. In the backward pass these are terms, parts, and what a number scales;
  // after it whatever has its axes.
  std::vector<int> goes_through(int n) const {
    auto& me = node(n);
    auto& in = whole.in[std::size_t(n)];
    bool moves = (me.op->linear == Linear::moves && me.op != &prim::kFit) || me.op->kind == Kind::wrap;
    if (!moves && me.op->kind != Kind::map && me.op != &prim::kFit) return {};
    bool any = moves || !me.origin.backward || me.op->linear == Linear::all || me.op == &prim::kCast || me.op == &prim::kFit;
    std::vector<int> out;
    for (std::size_t k = 0; k < in.size(); ++k)
      if (in[k] >= 0 && !rules::only_waits(me, k) && is_float(node(in[k]).dtype) && (moves || same_names(node(in[k]), me)))
        out.push_back(in[k]);
    if (!me.origin.backward && me.axes.empty()) {  // the norm of all gradients, which may scale it, is none
      std::erase_if(out, [&](int x) { return !purposes.after(node(x)); });
      if (out.size() > 1) std::erase_if(out, [&](int x) { return !node(x).origin.backward; });
      any = false;
    }
    return any || out.size() == 1 ? out : std::vector<int>();
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
    auto& cause = written(s.cause);
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
    auto cause = s.cause < 0 ? "result" : said(written(s.cause));
    auto origin = written(s.cause < 0 ? s.node : s.cause).origin;
    if (!origin.module) origin.module = module_of(s.node);
    if (auto joined = of_bucket.find(s.bucket); joined != of_bucket.end()) {
      auto& m = out[joined->second];
      m.bytes += s.hop.bytes, ++m.arrays;
      if (by.empty() && !m.asked.empty())  // what nobody asked for stands first
        m.array = name_of(s) + ", " + m.array, m.axes = axes + ", " + m.axes, m.cause = cause, m.origin = origin,
        m.asked = by;
      else
        m.array += ", " + name_of(s), m.axes += ", " + axes;
      return;
    }
    const char* const kinds[] = {"", "", "reduce-scatter", "all-to-all", "all-reduce", "all-gather"};
    Move m{s.ring >= 0                   ? "ring"
           : s.kind == Step::Kind::shift ? "permute"
                                         : kinds[int(s.hop.kind)],
           s.hop.over,
           name_of(s),
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

std::vector<Move> moves_of(const Plan& plan, const Whole& whole, const std::vector<std::string>& results) {
  Nodes roots, inputs;
  for (int r : whole.roots) roots.push_back(whole.nodes[std::size_t(r)]);
  for (auto& n : whole.nodes)
    if (n->op == &prim::kInput) inputs.push_back(n);
  Moves m{plan, whole, Purposes(roots, inputs)};
  m.find_parameters(), m.find_gradients(results);
  m.region(0);
  return std::move(m.out);
}

}  // namespace haliax::partitioning

bool haliax::gathers(std::string_view kind) { return kind == "all-gather" || kind == "ring"; }
