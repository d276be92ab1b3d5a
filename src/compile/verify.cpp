#include "compile/verify.h"

#include <algorithm>
#include <cstdlib>

#include "ops/attr.h"
#include "ops/prim.h"
#include "transforms/rewrite.h"

namespace haliax {
namespace {

std::string text(Name n) { return std::string(n.text()); }
std::string text(DType d) { return std::string(name_of(d)); }
bool same_set(const Axes& a, const Axes& b) {
  return a.size() == b.size() && std::all_of(a.begin(), a.end(), [&](auto& x) { return std::find(b.begin(), b.end(), x) != b.end(); });
}
Axes without(Axes axes, Name n) {
  std::erase_if(axes, [&](auto& a) { return a.name == n; });
  return axes;
}

// One node by itself: its axes and dtype are what its op makes of its operands.
struct NodeCheck {
  const Node& n;
  const char* after;

  [[noreturn]] void bad(const std::string& why) const { fail_at(n.origin, "verify", std::string(n.op->name) + " after " + after + ": " + why); }
  void must(bool ok, const std::string& why) const {
    if (!ok) bad(why);
  }
  // Is this axis of the operand one of the result's, of the same size?
  void fits(const Node& x, const Axis& a) const {
    auto* mine = find(n, a.name);
    must(mine && mine->size == a.size, "operand " + to_string(x.axes) + " does not fit " + to_string(n.axes));
  }
  void run() const {
    for (std::size_t i = 0; i < n.axes.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) must(n.axes[i].name != n.axes[j].name, "axis " + text(n.axes[i].name) + " twice in " + to_string(n.axes));
    switch (n.op->kind) {
      case Kind::map: return map();
      case Kind::reduce: return reduce();
      case Kind::contract: return contract();
      case Kind::view:
      case Kind::step: return moves();
      case Kind::wrap:
        if (n.op != &kCustom) must(n.axes == n.in[0]->axes && n.dtype == n.in[0]->dtype, "it is not like what it shows");
        return;
      case Kind::loop: return loop();
      case Kind::result: return result();
      case Kind::leaf: return;
    }
  }
  void map() const {
    for (auto& x : n.in)
      for (auto& a : x->axes) fits(*x, a);
    auto c = n.op->code;
    bool compares = (c >= Code::less && c <= Code::not_equal) || c == Code::is_finite || c == Code::is_nan || c == Code::is_inf || c == Code::logical_not;
    if (compares) must(n.dtype == DType::boolean, "a comparison is " + text(n.dtype));
    else if (c == Code::select) must(n.in[0]->dtype == DType::boolean && n.in[1]->dtype == n.dtype && n.in[2]->dtype == n.dtype, "operands have other dtypes");
    else if (c != Code::cast && c != Code::bitcast)
      for (auto& x : n.in) must(x->dtype == n.dtype, "an operand is " + text(x->dtype) + ", the result " + text(n.dtype));
  }
  void reduce() const {
    auto& x = *n.in[0];
    for (auto& a : n.axes) {
      auto* its = find(x, a.name);
      must(its && its->size == a.size, "result " + to_string(n.axes) + " is no part of " + to_string(x.axes));
    }
    bool position = n.op->code == Code::reduce_argmax || n.op->code == Code::reduce_argmin;
    must(n.dtype == (position ? DType::i32 : x.dtype), "the result is " + text(n.dtype));
  }
  void contract() const {
    auto &x = *n.in[0], &y = *n.in[1];
    for (auto& a : n.axes) must(find(x, a.name) || find(y, a.name), "no operand has axis " + text(a.name));
    for (auto* operand : {&x, &y})
      for (auto& a : operand->axes) {
        if (find(n, a.name)) fits(*operand, a);
        auto& other = operand == &x ? y : x;
        if (auto* its = find(other, a.name)) must(its->size == a.size, "axis " + text(a.name) + " has two sizes");
      }
  }
  // What a step maps the result has.
  void mapped() const {
    for (std::size_t k = 0; k < n.in.size(); ++k)
      for (auto& a : n.in[k]->axes) {
        auto rule = along(n, k, a.name);
        if (rule.way != Along::Way::map) continue;
        auto* its = find(n, rule.point);
        must(its && its->size == a.size, "it maps axis " + text(a.name) + " of " + to_string(n.in[k]->axes) + ", and makes " + to_string(n.axes));
      }
  }
  void moves() const {
    if (n.op->kind == Kind::step) mapped();
    if (n.op == &prim::kFit) {
      for (auto& a : n.in[0]->axes) fits(*n.in[0], a);
    } else if (n.op == &prim::kRename) {
      must(n.in[0]->axes.size() == n.axes.size() && n.in[0]->size() == n.size(), "it renames " + to_string(n.in[0]->axes) + " to " + to_string(n.axes));
    } else if (n.op == &prim::kFlatten || n.op == &prim::kUnflatten) {
      must(n.in[0]->size() == n.size(), "it makes " + to_string(n.axes) + " of " + to_string(n.in[0]->axes));
    } else if (n.op == &prim::kConcat) {
      std::int64_t size = 0;
      auto along = n.attr.names[0];
      for (auto& x : n.in) {
        must(same_set(without(x->axes, along), without(n.axes, along)), "part " + to_string(x->axes) + " does not fit " + to_string(n.axes));
        size += find(*x, along)->size;
      }
      must(size == find(n, along)->size, "its parts have " + std::to_string(size) + " positions, it has " + to_string(n.axes));
    } else if (n.op == &prim::kSlice || n.op == &prim::kPlace) {
      auto& part = n.op == &prim::kSlice ? n : *n.in[0];
      auto& whole = n.op == &prim::kSlice ? *n.in[0] : n;
      auto c = SliceAttr::of(n);
      auto *all = find(whole, c.axis), *mine = find(part, c.axis);
      must(all && same_set(without(part.axes, c.axis), without(whole.axes, c.axis)), to_string(part.axes) + " is no part of " + to_string(whole.axes));
      must(c.drop ? !mine : mine && mine->size == c.size, "the part has " + to_string(part.axes) + ", and " + std::to_string(c.size) + " positions are taken");
      auto first = c.start, last = c.start + (c.size - 1) * c.step;
      if (c.size > 0) must(std::min(first, last) >= 0 && std::max(first, last) < all->size, "it reaches outside of " + to_string(whole.axes));
    }
    if (n.op->kind == Kind::view)
      must(n.dtype == n.in[0]->dtype, "the result is " + text(n.dtype));
  }
  void loop() const {
    auto& l = loop_of(n);
    must(!l.index.empty(), "it has no body");
    for (auto& r : l.results) {
      must(r.value.size() == l.index.size(), "a result has no value in one of its bodies");
      for (std::size_t b = 0; b < r.value.size(); ++b) body(l, r, b);
      if (r.carry) must(r.start && same_set(r.start->axes, r.carry->axes) && r.start->dtype == r.carry->dtype, "a carry starts from another kind of array");
      else if (r.start) must(same_set(r.start->axes, r.value[0]->axes) && r.start->dtype == r.value[0]->dtype, "a fold starts from another kind of array");
    }
  }
  void body(const Loop& l, const LoopResult& r, std::size_t b) const {
    auto& v = *r.value[b];
    must(v.dtype == r.value[0]->dtype, "bodies make values of different dtypes");
    if (r.carry) return must(same_set(v.axes, r.carry->axes) && v.dtype == r.carry->dtype, "a turn leaves " + to_string(v.axes) + " where it carries " + to_string(r.carry->axes));
    if (r.fold == Fold::fold) return must(same_set(v.axes, r.value[0]->axes), "bodies fold different axes");
    auto* along = find(v, l.axis.name);
    if (l.drop) must(!along, "a value of one position has the axis that is walked");
    else must(along && along->size == prim::index_chunk(*l.index[b]), "a value that is stacked is no chunk of " + to_string(l.axis));
  }
  void result() const {
    if (n.in[0]->op != &kLoop) return;
    auto& l = loop_of(n);
    auto k = result_number(n);
    must(k < l.results.size(), "its loop has no result " + std::to_string(k));
    must(n.dtype == l.results[k].value[0]->dtype, "the result is " + text(n.dtype));
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
      if (placeholder && std::find(known.begin(), known.end(), n.get()) == known.end())
        NodeCheck{*n, after}.bad("it is read outside of its loop");
      if (n->op == &kLoop) bodies(loop_of(*n));
    }
  }
  void bodies(const Loop& l) {
    auto outer = known.size();
    for (auto& r : l.results) if (r.carry) known.push_back(r.carry.get());
    for (std::size_t b = 0; b < l.index.size(); ++b) {
      known.push_back(l.index[b].get());
      if (b > 0) known.push_back(l.index[0].get());   // the placeholder of a carry names the first body's
      Nodes made;
      for (auto& r : l.results) made.push_back(r.value[b]);
      values(made, l.index[b].get());
      known.resize(known.size() - (b > 0 ? 2 : 1));
    }
    known.resize(outer);
  }
};

void check_border(const Node& n, const char* after) {
  auto* axis = find(n, n.attr.names[0]);
  if (!axis || axis->size != n.attr.ints[0]) NodeCheck{n, after}.bad("a border is around " + to_string(n.axes) + ", which lacks the walked axis");
}

}  // namespace

bool verifies() {
  static const bool on = [] {
    auto* asked = std::getenv("HALIAX_VERIFY");
#ifdef NDEBUG
    return asked && *asked == '1';
#else
    return !asked || *asked != '0';
#endif
  }();
  return on;
}

void verify(const Nodes& roots, const char* after) {
  for (auto& n : everything(roots)) {
    NodeCheck{*n, after}.run();
    if (n->op == &prim::kEnter || n->op == &prim::kLeave) check_border(*n, after);
  }
  ScopeCheck{after}.values(roots, nullptr);
}

}  // namespace haliax
