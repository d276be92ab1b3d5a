// `Kernel`: instructions of one fused step.
#include "compile/lower/kernel.h"

#include <algorithm>

#include "compile/lower/lowering.h"
#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax {

using program::Instr;

Kernel::Kernel(Lowering& low, const Axes& outer, const Axes& inner)
    : l_(low), dims_(outer), outer_(outer.size()) {
  dims_.insert(dims_.end(), inner.begin(), inner.end());
}
Env Kernel::names(const Axes& axes) const {
  Env e;
  for (auto& a : axes)
    if (auto* d = find_axis(dims_, a.name)) e.push_back({a.name, std::size_t(d - dims_.data())});
  return e;
}
std::size_t Kernel::dim(const Env& e, Name n) {
  for (auto& [name, d] : e)
    if (name == n) return d;
  fail("lower", "axis " + std::string(n.text()) + " has no dimension");
}
// Returns the dimensions of the axes of an operand, which has the axis names of its reader.
Env Kernel::of(const NodePtr& operand, const Env& env) const {
  Env mine;
  for (auto& a : operand->axes) mine.push_back({a.name, dim(env, a.name)});
  return mine;
}
int Kernel::push(Instr i) {
  code_.push_back(std::move(i));
  return int(code_.size()) - 1;
}

int Kernel::value(const NodePtr& n, Env env) {
  auto mine = of(n, env);
  if (auto m = computed.find(n.get()); m != computed.end() && mine == names(n->axes))
    return m->second;
  for (auto& [key, v] : memo_)
    if (key.first == n.get() && key.second == mine) return v;
  int v = compute(n, mine);
  memo_.push_back({{n.get(), mine}, v});
  return v;
}
int Kernel::compute(const NodePtr& n, const Env& env) {
  if (l_.is_placed(*n)) return load(n, env);
  if (n->op == &prim::kNumber)
    return push({.code = Code::constant,
                 .dtype = n->dtype,
                 .number = real_of(*n),
                 .integer = integer_of(*n)});
  if (n->op == &prim::kIota) return iota(n, int(env[0].second), 1);
  if (n->op == &prim::kIndex) return iota(n, -1, 0);
  if (is_transparent_view(*n)) {
    Env in;
    for (auto& a : n->in[0]->axes) in.push_back({a.name, dim(env, name_in_result(*n, 0, a.name))});
    return value(n->in[0], in);
  }
  if (is_alias(*n)) return value(aliased(*n), env);
  if (n->op->kind == Kind::map && !(l_.is_computed(*n) && !pending.count(n.get())))
    return elementwise(n, env);
  return load(n, env);
}
int Kernel::elementwise(const NodePtr& n, const Env& env) {
  Instr i{.code = n->op->code, .dtype = n->dtype};
  for (std::size_t k = 0; k < n->in.size(); ++k) {
    i.args[k] = value(n->in[k], of(n->in[k], env));
    i.inner |= is_inner(i.args[k]);
  }
  return push(std::move(i));
}
int Kernel::iota(const NodePtr& n, int d, std::int64_t stride) {
  Instr i{
      .code = Code::iota, .dtype = n->dtype, .inner = d >= int(outer_), .dim = d, .stride = stride};
  if (d < 0) {
    auto t = l_.term(n, 1, 0);
    if (t.loop < 0)
      i.integer = t.stride;
    else
      i.view.terms.push_back(t);
  }
  return push(std::move(i));
}
int Kernel::load(const NodePtr& n, const Env& env) {
  Place p = l_.place_of(n);
  Instr i{.code = Code::load,
          .dtype = n->dtype,
          .view = {p.slot, p.dtype, p.offset, program::Dims(dims_.size(), 0), p.terms}};
  for (std::size_t k = 0; k < n->axes.size(); ++k) {
    auto d = dim(env, n->axes[k].name);
    i.view.strides[d] += p.strides[k];
    i.inner |= d >= outer_ && dims_[d].size > 1 && p.strides[k] != 0;
  }
  return push(std::move(i));
}
int Kernel::reduction(const NodePtr& n) {
  int v = value(n->in[0], names(n->in[0]->axes));
  if (!is_inner(v))  // the same at every inner element: a cast repeats it
    v = push(
        {.code = Code::cast, .dtype = n->in[0]->dtype, .args = {v, -1, -1, -1}, .inner = true});
  return push({.code = n->op->code, .dtype = n->dtype, .args = {v, -1, -1, -1}});
}
void Kernel::store(int v, const Place& p, const Axes& axes, bool accumulate, Monoid m) {
  Code c = !accumulate        ? Code::store
           : m == Monoid::sum ? Code::store_add
           : m == Monoid::max ? Code::store_max
                              : Code::store_min;
  bool inner = std::any_of(dims_.begin() + std::ptrdiff_t(outer_), dims_.end(),
                           [&](auto& d) { return has(axes, d.name); });
  push({.code = c,
        .dtype = p.dtype,
        .args = {v, -1, -1, -1},
        .inner = inner,
        .view = Emit::view(p, axes, dims_)});
}
void Kernel::finish() { l_.push({.fused = {Emit::sizes(dims_), int(outer_), std::move(code_)}}); }

}  // namespace haliax
