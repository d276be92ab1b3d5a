#include "compile/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "compile/memory/memory.h"
#include "ops/attr.h"
#include "ops/prim.h"
#include "transforms/rewrite.h"

namespace haliax {
namespace {

bool same_set(const Axes& a, const Axes& b) { return std::is_permutation(a.begin(), a.end(), b.begin(), b.end()); }
bool same_set(const NodePtr& a, const NodePtr& b) { return same_set(a->axes, b->axes) && a->dtype == b->dtype; }
Axes without(Axes axes, Name n) {
  std::erase_if(axes, [&](auto& a) { return a.name == n; });
  return axes;
}

// One node by itself: its axes and dtype are what its op makes of its operands.
struct NodeCheck {
  const Node& n;
  const char* after;

  // `why` with text for each {}, which takes its time only where something is wrong.
  template <class... A> void must(bool ok, const char* why, const A&... a) const {
    if (ok) return;
    fail_at(n.origin, "verify", fmt::format("{} after {}: {}", n.op->name, after, fmt::format(fmt::runtime(why), text(a)...)));
  }
  static std::string text(Name name) { return std::string(name.text()); }
  static std::string text(DType d) { return std::string(name_of(d)); }
  static std::string text(const Axes& axes) { return to_string(axes); }
  static std::string text(const Axis& axis) { return to_string(axis); }
  static std::string text(std::int64_t number) { return std::to_string(number); }
  static bool holds(const Axes& axes, const Axis& a) { return std::find(axes.begin(), axes.end(), a) != axes.end(); }

  void run() const {
    for (auto& a : n.axes) {
      auto same = [&](auto& b) { return a.name == b.name; };
      must(std::count_if(n.axes.begin(), n.axes.end(), same) == 1, "axis {} twice in {}", a.name, n.axes);
    }
    switch (n.op->kind) {
      case Kind::map: return map();
      case Kind::reduce: return reduce();
      case Kind::contract: return contract();
      case Kind::step: mapped(); return moves();
      case Kind::view: moves(); return result_is(n.in[0]->dtype);
      case Kind::wrap:
        if (n.op != &kCustom) must(n.axes == n.in[0]->axes && n.dtype == n.in[0]->dtype, "it is not like what it shows");
        return;
      case Kind::loop: return loop();
      case Kind::result: return result();
      case Kind::leaf: return;
    }
  }
  void result_is(DType d) const { must(n.dtype == d, "the result is {}", n.dtype); }
  // Are the axes of the operand some of the result's, of the same sizes?
  void fits(const Node& x) const {
    for (auto& a : x.axes) must(holds(n.axes, a), "operand {} does not fit {}", x.axes, n.axes);
  }
  void map() const {
    for (auto& x : n.in) fits(*x);
    auto c = n.op->code;
    bool asks = c == Code::is_finite || c == Code::is_nan || c == Code::is_inf || c == Code::logical_not;
    if (asks || (c >= Code::less && c <= Code::not_equal))
      return must(n.dtype == DType::boolean, "a comparison is {}", n.dtype);
    if (c == Code::select)
      return must(n.in[0]->dtype == DType::boolean && n.in[1]->dtype == n.dtype && n.in[2]->dtype == n.dtype,
                  "operands have other dtypes");
    if (c == Code::cast || c == Code::bitcast) return;
    for (auto& x : n.in) must(x->dtype == n.dtype, "an operand is {}, the result {}", x->dtype, n.dtype);
  }
  void reduce() const {
    auto& x = *n.in[0];
    for (auto& a : n.axes) must(holds(x.axes, a), "result {} is no part of {}", n.axes, x.axes);
    result_is(n.op->code == Code::reduce_argmax || n.op->code == Code::reduce_argmin ? DType::i32 : x.dtype);
  }
  void contract() const {
    auto &x = *n.in[0], &y = *n.in[1];
    for (auto& a : n.axes) must(find(x, a.name) || find(y, a.name), "no operand has axis {}", a.name);
    for (auto* operand : {&x, &y})
      for (auto& a : operand->axes) {
        if (has(n.axes, a.name)) must(holds(n.axes, a), "operand {} does not fit {}", operand->axes, n.axes);
        auto& other = operand == &x ? y : x;
        if (has(other.axes, a.name)) must(holds(other.axes, a), "axis {} has two sizes", a.name);
      }
  }
  // What a step maps the result has.
  void mapped() const {
    for (std::size_t k = 0; k < n.in.size(); ++k)
      for (auto& a : n.in[k]->axes) {
        auto rule = along(n, k, a.name);
        if (rule.way != Along::Way::map) continue;
        auto* its = find(n, rule.point);
        must(its && its->size == a.size, "it maps axis {} of {}, and makes {}", a.name, n.in[k]->axes, n.axes);
      }
  }
  void moves() const {
    if (n.in.empty()) return;
    auto& x = *n.in[0];
    if (n.op == &prim::kFit) {
      fits(x);
    } else if (n.op == &prim::kRename) {
      must(x.axes.size() == n.axes.size() && x.size() == n.size(), "it renames {} to {}", x.axes, n.axes);
    } else if (n.op == &prim::kFlatten || n.op == &prim::kUnflatten) {
      must(x.size() == n.size(), "it makes {} of {}", n.axes, x.axes);
    } else if (n.op == &prim::kConcat) {
      std::int64_t size = 0;
      auto along = n.attr.names[0];
      for (auto& part : n.in) {
        must(same_set(without(part->axes, along), without(n.axes, along)), "part {} does not fit {}", part->axes, n.axes);
        size += find(*part, along)->size;
      }
      must(size == find(n, along)->size, "its parts have {} positions, it has {}", size, n.axes);
    } else if (n.op == &prim::kSlice || n.op == &prim::kPlace) {
      auto &part = n.op == &prim::kSlice ? n : x, &whole = n.op == &prim::kSlice ? x : n;
      auto c = SliceAttr::of(n);
      auto *all = find(whole, c.axis), *mine = find(part, c.axis);
      bool alike = all && same_set(without(part.axes, c.axis), without(whole.axes, c.axis));
      must(alike, "{} is no part of {}", part.axes, whole.axes);
      must(c.drop ? !mine : mine && mine->size == c.size, "the part has {}, and {} positions are taken", part.axes, c.size);
      auto first = c.start, last = c.start + (c.size - 1) * c.step;
      bool inside = std::min(first, last) >= 0 && std::max(first, last) < all->size;
      must(c.size == 0 || inside, "it reaches outside of {}", whole.axes);
    }
  }
  void loop() const {
    auto& l = loop_of(n);
    must(!l.index.empty(), "it has no body");
    for (auto& r : l.results) {
      must(r.value.size() == l.index.size(), "a result has no value in one of its bodies");
      for (std::size_t b = 0; b < r.value.size(); ++b) body(l, r, b);
      if (r.carry) must(r.start && same_set(r.start, r.carry), "a carry starts from another kind of array");
      else if (r.start) must(same_set(r.start, r.value[0]), "a fold starts from another kind of array");
    }
  }
  void body(const Loop& l, const LoopResult& r, std::size_t b) const {
    auto& v = r.value[b];
    must(v->dtype == r.value[0]->dtype, "bodies make values of different dtypes");
    if (r.carry) return must(same_set(v, r.carry), "a turn leaves {} where it carries {}", v->axes, r.carry->axes);
    if (r.fold == Fold::fold) return must(same_set(v, r.value[0]), "bodies fold different axes");
    auto* along = find(*v, l.axis.name);
    if (l.drop) return must(!along, "a value of one position has the axis that is walked");
    must(along && along->size == prim::index_chunk(*l.index[b]), "a value that is stacked is no chunk of {}", l.axis);
  }
  void result() const {
    if (n.in[0]->op != &kLoop) return;
    auto& l = loop_of(n);
    auto k = result_number(n);
    must(k < l.results.size(), "its loop has no result {}", std::int64_t(k));
    result_is(l.results[k].value[0]->dtype);
  }
};

// What varies with a loop is read in its bodies only; borders of regions are around what they say.
struct ScopeCheck {
  const char* after;
  std::vector<const Node*> known = {};   // indices and carries of the loops around

  void values(const Nodes& roots, const Node* index) {
    for (auto& n : topological(roots)) {
      if (n->free.empty() && index) continue;   // of the top
      bool placeholder = n->op == &prim::kIndex || n->op == &prim::kCarry;
      bool inside = std::find(known.begin(), known.end(), n.get()) != known.end();
      NodeCheck{*n, after}.must(!placeholder || inside, "it is read outside of its loop");
      if (n->op == &kLoop) bodies(loop_of(*n));
    }
  }
  void bodies(const Loop& l) {
    auto outer = known.size();
    for (auto& r : l.results)
      if (r.carry) known.push_back(r.carry.get());
    for (std::size_t b = 0; b < l.index.size(); ++b) {
      known.push_back(l.index[b].get());
      if (b > 0) known.push_back(l.index[0].get());   // the placeholder of a carry names the first body's
      values(values_of(l, b), l.index[b].get());
      known.resize(known.size() - (b > 0 ? 2 : 1));
    }
    known.resize(outer);
  }
};

}  // namespace

bool verifies() { return checks(std::getenv("HALIAX_VERIFY")); }

void verify(const Nodes& roots, const char* after) {
  for (auto& n : everything(roots)) {
    NodeCheck check{*n, after};
    check.run();
    if (n->op != &prim::kEnter && n->op != &prim::kLeave) continue;
    auto* walked = find(*n, n->attr.names[0]);
    check.must(walked && walked->size == n->attr.ints[0], "a border is around {}, which lacks the walked axis", n->axes);
  }
  ScopeCheck{after}.values(roots, nullptr);
}

}  // namespace haliax
