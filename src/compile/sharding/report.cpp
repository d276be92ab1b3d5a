// What a plan sends, and why, for reports.
#include <algorithm>

#include "ops/attr.h"
#include "ops/by_blocks.h"
#include "ops/prim.h"
#include "transforms/gradient_names.h"
#include "compile/sharding/planner.h"
#include "compile/memory/purpose.h"

namespace haliax::partitioning {
namespace {

bool same_names(const Node& a, const Node& b) {
  return a.axes.size() == b.axes.size() &&
         std::all_of(a.axes.begin(), a.axes.end(), [&](auto& x) { return has(b.axes, x.name); });
}
// As users know it.
const char* said(const Node& n) {
  if (prim::is_top_k(n) || prim::picks_top_k(n)) return "top_k";
  if (n.op == &prim::kPin) return static_cast<const prim::Pin&>(*n.attr.payload).by;
  if (n.op != &prim::kCumulative) return n.op->name;
  auto m = CumulativeAttr::of(n).monoid;
  return m == Monoid::sum ? "cumsum" : m == Monoid::prod ? "cumprod" : n.op->name;
}

struct Moves {
  const Plan& plan;
  const Whole& whole;
  const Purposes purposes;
  std::vector<char> of_parameters = {};
  std::vector<Names> gradient = {};  // the parameters whose it is
  std::map<std::string_view, const Node*> arguments = {};  // by path
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
  std::string name_of(const Version& s) const {
    int n = s.node;
    auto* a = argument(n);
    if (a && a->origin.module) return std::string(a->origin.module.text());
    auto& me = node(n);
    auto& of = gradient[std::size_t(n)];
    if (!of.empty() && (s.sums() || me.origin.backward)) return "gradient of " + listed(of);
    if (auto* p = of.empty() ? nullptr : updated(n)) return "new " + std::string(p->origin.module.text());
    auto& op = written(n);
    return (&op == &me ? "" : "part of ") + std::string(said(op));
  }
  static std::string listed(const Names& names) {
    auto out = std::string(names[0].text());
    if (names.size() == 2) out += " and " + std::string(names[1].text());
    return names.size() > 2 ? out + " and " + std::to_string(names.size() - 1) + " more" : out;
  }
  // The argument to which this result adds something.
  const Node* updated(int n) const {
    if (node(n).origin.backward || std::find(whole.roots.begin(), whole.roots.end(), n) == whole.roots.end()) return nullptr;
    for (int x : whole.in[std::size_t(n)])
      if (auto* a = x < 0 ? nullptr : argument(x); a && a->origin.module && same_names(*a, node(n))) return a;
    return nullptr;
  }
  Name module_of(int n) const {
    auto& names = gradient[std::size_t(n)];
    auto of = names.empty() ? std::string_view() : names[0].text();
    if (auto field = of.rfind('.'); field != of.npos) return Name(of.substr(0, field));
    return node(n).op == &prim::kInput ? Name() : written(n).origin.module;  // that of an input is its own path
  }
  // Gradients as they were traced, and what is made of them since. Operands come first.
  void find_gradients(const Gradients* noted) {
    gradient.resize(whole.nodes.size());
    if (!noted) return;
    for (auto& n : whole.nodes)
      if (n->op == &prim::kInput && n->origin.module) arguments[n->origin.module.text()] = n.get();
    for (std::size_t n = 0; n < whole.nodes.size(); ++n) {
      auto& me = node(int(n));
      if (!purposes.after(me)) continue;
      auto& mine = gradient[n] = noted->parameters(me);
      if (!mine.empty()) continue;
      for (int x : made_of(int(n))) {
        if (x < 0 || !is_float(node(x).dtype) || !purposes.after(node(x))) continue;
        auto& of = gradient[std::size_t(x)];
        if (!of.empty() && still_gradient(me, node(x), of)) {
          add_names(mine, of);
        } else if (of.empty() && same_names(me, node(x))) {  // mixed with what is none: the norm of all, and a scalar's own
          mine.clear();
          break;
        }
      }
    }
  }
  std::vector<int> made_of(int n) const {
    auto& me = node(n);
    if (!is_loop_result(me)) return whole.in[std::size_t(n)];
    std::vector<int> out;
    for (auto& v : result_of(me).value) out.push_back(whole.find(v.get()));
    return out;
  }
  // Is n one too, which is made of the gradient x? If it is moved, or put together turn by turn; after the backward pass also if it
  // is made point by point, or summed to the axes of the parameter.
  bool still_gradient(const Node& n, const Node& x, const Names& of) const {
    if (n.op == &prim::kFit) return same_names(n, x);
    if (n.op->linear == Linear::moves || n.op->kind == Kind::wrap || n.op == &kResult) return true;
    if (n.origin.backward) return false;
    if (n.op->kind == Kind::map) return same_names(n, x);
    auto parameter = arguments.find(of[0].text());
    return (n.op->kind == Kind::reduce || n.op->kind == Kind::contract) && parameter != arguments.end() &&
           same_names(n, *parameter->second);
  }
  // Made of parameters alone, and positions: operands come first.
  void find_parameters(const Gradients* noted) {
    for (std::size_t n = 0; n < whole.nodes.size(); ++n) {
      bool of = !whole.in[n].empty() && node(int(n)).op->kind != Kind::loop && node(int(n)).op != &kResult, some = false;
      for (std::size_t k = 0; k < whole.in[n].size(); ++k) {
        int x = whole.in[n][k];
        if (only_waits(node(int(n)), k)) continue;
        of &= x < 0 || of_parameters[std::size_t(x)] || whole.free[std::size_t(x)],
            some |= x >= 0 && of_parameters[std::size_t(x)];
      }
      auto& me = node(int(n));
      bool frozen = noted && noted->taken_by(me.origin.module);  // a gradient is taken by it, though none may reach it
      of_parameters.push_back(
          me.op == &prim::kInput ? frozen || purposes.of_argument(me) == std::string_view("parameters") : of && some);
    }
  }
  static bool same_place(const Origin& a, const Origin& b) {
    return a.at.line() == b.at.line() && std::string_view(a.at.file_name()) == b.at.file_name() && a.module == b.module;
  }
  // What an op that goes by blocks makes on the way, and then reads itself: sums of blocks, their first few.
  bool between_blocks(const Version& s) const {
    auto& op = written(s.cause);
    return &op != &node(s.cause) && &op != &node(s.node) && &op == &written(s.node) && node(s.node).bytes() < op.in[0]->bytes();
  }
  // A gather is asked for by the sharding of a result; by a constraint; of a parameter by the mapping of the computation that
  // reads it: that one says that along this axis the devices do not share the work; of a cotangent if the value was reduced and
  // cut; by an op that goes by blocks.
  const char* asked(const Version& s) const {
    if (s.cause < 0) return "result";
    auto& cause = written(s.cause);
    if (cause.op == &prim::kPin) return "constraint";
    if (cause.origin.backward)
      for (auto& v : plan.versions)
        if (v.live && v.hop.kind == Hop::Kind::reduce_scatter && v.hop.over == s.hop.over &&
            !node(v.node).origin.backward && same_place(node(v.node).origin, cause.origin))
          return "gradient";
    return parameter_asked(s, cause) ? "parameter" : between_blocks(s) ? "blocks" : "";
  }
  bool parameter_asked(const Version& s, const Node& cause) const {
    if (!of_parameters[std::size_t(s.node)] || !cause.origin.mapping) return false;
    auto* shared = cause.origin.mapping->find(s.hop.axis);
    return !shared || std::none_of(s.hop.over.begin(), s.hop.over.end(), [&](int x) {
      return std::find(shared->begin(), shared->end(), whole.mesh.axes()[std::size_t(x)].first) != shared->end();
    });
  }
  void add(const Version& s) {
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
           : s.kind == Version::Kind::shift ? "permute"
                                         : kinds[int(s.hop.kind)],
           s.hop.over,
           name_of(s),
           axes,
           "",
           cause,
           origin,
           by};
    m.bytes = s.hop.bytes / times, m.turns = plan.bodies[std::size_t(s.body)].turns * times;
    if (s.ring >= 0) m.loop = to_string(whole.mesh, s.hop.over);
    for (int r = s.body; r > 0; r = plan.bodies[std::size_t(r)].parent) {
      auto& l = loop_of(node(plan.loops[std::size_t(plan.bodies[std::size_t(r)].loop)].node));
      m.loop = std::string(l.axis.name.text()) + (m.loop.empty() ? "" : ", ") + m.loop;
    }
    if (s.bucket > 0) of_bucket[s.bucket] = out.size();
    out.push_back(std::move(m));
  }
  void in_body(int r) {
    for (int k : plan.bodies[std::size_t(r)].versions) {
      auto& s = plan.versions[std::size_t(k)];
      if (!s.live) continue;
      if (s.talks()) add(s);
      if (s.kind == Version::Kind::loop)
        for (int body : plan.loops[std::size_t(s.loop)].bodies) in_body(body);
    }
  }
};

}  // namespace

std::vector<Move> moves_of(const Plan& plan, const Whole& whole, const Gradients* gradients) {
  Nodes roots, inputs;
  for (int r : whole.roots) roots.push_back(whole.nodes[std::size_t(r)]);
  for (auto& n : whole.nodes)
    if (n->op == &prim::kInput) inputs.push_back(n);
  Moves m{plan, whole, Purposes(roots, inputs)};
  m.find_parameters(gradients), m.find_gradients(gradients);
  m.body(0);
  return std::move(m.out);
}

}  // namespace haliax::partitioning

bool haliax::gathers(std::string_view kind) { return kind == "all-gather" || kind == "ring"; }
