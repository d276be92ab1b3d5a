// What a plan sends, and why, as data for reports.
#include <algorithm>

#include "graph/axes.h"
#include "ops/attr.h"
#include "ops/by_blocks.h"
#include "ops/prim.h"
#include "transforms/gradient_names.h"
#include "compile/sharding/gather_reasons.h"

namespace haliax::partitioning {
namespace {

struct MoveReport {
  const Plan& plan;
  const Whole& whole;
  const Requests requests;
  std::vector<Names> gradient = {};                        // the parameters whose it is
  std::map<std::string_view, const Node*> arguments = {};  // by path
  std::vector<Move> out = {};
  std::map<int, std::size_t> of_bucket = {};

  const Node& node(int n) const { return whole.node(n); }
  Moved moved(const Version& s) const {
    int n = s.kind == Version::Kind::visit ? plan.version(s.in[0]).node : s.node;
    auto& me = node(n);
    using What = Moved::What;
    if (auto* a = whole.input(n); a && a->origin.module)
      return {What::argument, {a->origin.module}, "", me.axes};
    auto& of = gradient[std::size_t(n)];
    if (!of.empty() && (s.sums() || me.origin.backward)) return {What::gradient, of, "", me.axes};
    if (auto* p = of.empty() ? nullptr : updated(n))
      return {What::updated, {p->origin.module}, "", me.axes};
    auto& op = whole.written(n);
    return {&op == &me ? What::op : What::part, {}, said(op), me.axes};
  }
  // The argument to which this result adds something.
  const Node* updated(int n) const {
    if (node(n).origin.backward ||
        std::find(whole.roots.begin(), whole.roots.end(), n) == whole.roots.end())
      return nullptr;
    for (int x : whole.at(n).in)
      if (auto* a = x < 0 ? nullptr : whole.input(x);
          a && a->origin.module && same_names(a->axes, node(n).axes))
        return a;
    return nullptr;
  }
  Name module_of(int n) const {
    auto& names = gradient[std::size_t(n)];
    auto of = names.empty() ? std::string_view() : names[0].text();
    if (auto field = of.rfind('.'); field != of.npos) return Name(of.substr(0, field));
    // that of an input is its own path
    return node(n).op == &prim::kInput ? Name() : whole.written(n).origin.module;
  }
  bool after(int n) const { return requests.purposes.after(whole.written(n)); }
  // Gradients as they were traced, and what is made of them since. Operands come first.
  void find_gradients(const Gradients* noted) {
    gradient.resize(whole.values.size());
    if (!noted) return;
    for (auto& n : whole.values)
      if (n.node->op == &prim::kInput && n.node->origin.module)
        arguments[n.node->origin.module.text()] = n.node.get();
    for (std::size_t n = 0; n < whole.values.size(); ++n) {
      auto& me = node(int(n));
      if (!after(int(n))) continue;
      auto& mine = gradient[n] = noted->parameters(me);
      if (!mine.empty()) continue;
      for (int x : made_of(int(n))) {
        if (x < 0 || !is_float(node(x).dtype) || !after(x)) continue;
        auto& of = gradient[std::size_t(x)];
        if (!of.empty() && still_gradient(me, node(x), of)) {
          add_names(mine, of);
        } else if (of.empty() && same_names(me.axes, node(x).axes)) {
          // mixed with what is none: the norm of all, and a scalar's own
          mine.clear();
          break;
        }
      }
    }
  }
  std::vector<int> made_of(int n) const {
    auto& me = node(n);
    if (!is_loop_result(me)) return whole.at(n).in;
    std::vector<int> out;
    for (auto& v : result_of(me).value) out.push_back(whole.find(v.get()));
    return out;
  }
  // Is n one too, which is made of the gradient x? If it is moved, or put together turn by turn;
  // after the backward pass also if it is made point by point, or summed to the axes of the
  // parameter.
  bool still_gradient(const Node& n, const Node& x, const Names& of) const {
    if (keeps_names(n)) return same_names(n.axes, x.axes);
    if (n.op->linear == Linear::moves || n.op->kind == Kind::wrap || n.op == &kResult) return true;
    if (n.origin.backward) return false;
    if (n.op->kind == Kind::map) return same_names(n.axes, x.axes);
    auto parameter = arguments.find(of[0].text());
    return (n.op->kind == Kind::reduce || n.op->kind == Kind::contract) &&
           parameter != arguments.end() && same_names(n.axes, parameter->second->axes);
  }
  Move::Kind kind_of(const Version& s) const {
    if (s.ring >= 0 || s.kind == Version::Kind::visit) return Move::Kind::ring;
    if (s.kind == Version::Kind::back) return Move::Kind::reduce_scatter;
    if (s.kind == Version::Kind::shift) return Move::Kind::permute;
    switch (s.hop.kind) {
      case Hop::Kind::reduce_scatter:
        return Move::Kind::reduce_scatter;
      case Hop::Kind::all_reduce:
        return Move::Kind::all_reduce;
      case Hop::Kind::all_gather:
        return Move::Kind::all_gather;
      default:
        return Move::Kind::all_to_all;
    }
  }
  void add(const Version& s) {
    const int others = ranks(whole.mesh, s.hop.over) - 1;
    // its own block is not sent
    double times = s.ring >= 0 ? others : s.goes_round() ? double(others) / (others + 1) : 1;
    Move m{.kind = kind_of(s), .over = s.hop.over, .arrays = {moved(s)}};
    if (s.cause >= 0) m.cause = said(whole.written(s.cause));
    m.origin = whole.written(s.cause < 0 ? s.node : s.cause).origin;
    if (!m.origin.module) m.origin.module = module_of(s.node);
    if (m.gathers()) m.asked = s.goes_round() ? Asked::blocks : requests.by(s);
    m.at_most = s.goes_round() && may_spare(plan, whole, s.body);
    m.bytes = s.hop.bytes / times;
    m.turns = plan.body(s.body).turns * times;
    for (int r = s.body; r > 0; r = plan.body(r).parent) {
      auto& l = loop_of(node(plan.loop(plan.body(r).loop).node));
      m.loops.insert(m.loops.begin(), l.axis.name);
    }
    auto joined = of_bucket.find(s.bucket);
    if (joined == of_bucket.end()) {
      if (s.bucket > 0) of_bucket[s.bucket] = out.size();
      out.push_back(std::move(m));
      return;
    }
    auto& call = out[joined->second];
    call.bytes += m.bytes;
    // what nobody asked for stands first
    if (m.asked == Asked::nobody && call.asked != Asked::nobody) {
      call.arrays.insert(call.arrays.begin(), std::move(m.arrays[0]));
      call.cause = m.cause;
      call.origin = m.origin;
      call.asked = m.asked;
    } else {
      call.arrays.push_back(std::move(m.arrays[0]));
    }
  }
  void in_body(int r) {
    for (int k : plan.body(r).versions) {
      auto& s = plan.version(k);
      if (!s.live) continue;
      if (s.talks()) add(s);
      for (int body : plan.bodies_of(s)) in_body(body);
    }
  }
};

}  // namespace

const char* said(const Node& n) {
  return n.op == &prim::kPin ? prim::pin_of(n).by : prim::user_name(n);
}
std::vector<Move> moves_of(const Plan& plan, const Whole& whole, const Gradients* gradients) {
  MoveReport m{plan, whole, Requests(plan, whole, gradients)};
  m.find_gradients(gradients);
  m.in_body(0);
  return std::move(m.out);
}

}  // namespace haliax::partitioning

const char* haliax::name_of(Asked a) {
  const char* const names[] = {"NOBODY", "result", "constraint", "parameter", "gradient", "blocks"};
  return names[int(a)];
}
