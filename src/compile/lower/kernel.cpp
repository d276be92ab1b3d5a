// `Kernel`: instructions of one fused step.
#include "compile/lower/kernel.h"

#include <algorithm>

#include "compile/lower/lowering.h"
#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax {

using program::Instr;

Kernel::Kernel(Lowering& low, const Axes& outer, const Axes& inner)
    : lowering_(low), dims_(outer), outer_(outer.size()) {
  dims_.insert(dims_.end(), inner.begin(), inner.end());
}
AxisDims Kernel::dims_of(const Axes& axes) const {
  AxisDims e;
  for (auto& a : axes)
    if (auto* d = find_axis(dims_, a.name)) e.push_back({a.name, std::size_t(d - dims_.data())});
  return e;
}
std::size_t Kernel::dim(const AxisDims& e, Name n) {
  for (auto& [name, d] : e)
    if (name == n) return d;
  fail("lower", "axis " + std::string(n.text()) + " has no dimension");
}
// Returns the dimensions of the axes of an operand, which has the axis names of its reader.
AxisDims Kernel::operand_dims(const NodePtr& operand, const AxisDims& dims) const {
  AxisDims mine;
  for (auto& a : operand->axes) mine.push_back({a.name, dim(dims, a.name)});
  return mine;
}
int Kernel::push(Instr i) {
  code_.push_back(std::move(i));
  return int(code_.size()) - 1;
}

int Kernel::value(const NodePtr& n, AxisDims dims) {
  auto mine = operand_dims(n, dims);
  if (auto m = instr_of.find(n.get()); m != instr_of.end() && mine == dims_of(n->axes))
    return m->second;
  for (auto& known : known_)
    if (known.node == n.get() && known.dims == mine) return known.instr;
  const int instr = compute(n, mine);
  known_.push_back({n.get(), mine, instr});
  return instr;
}
int Kernel::compute(const NodePtr& n, const AxisDims& dims) {
  if (lowering_.is_placed(*n)) return load(n, dims);
  if (n->op == &prim::kNumber)
    return push({.code = Code::constant,
                 .dtype = n->dtype,
                 .number = real_of(*n),
                 .integer = integer_of(*n)});
  if (n->op == &prim::kIota) return iota(n, int(dims[0].second), 1);
  if (n->op == &prim::kIndex) return iota(n, -1, 0);
  if (is_transparent_view(*n)) {
    AxisDims in;
    for (auto& a : n->in[0]->axes) in.push_back({a.name, dim(dims, name_in_result(*n, 0, a.name))});
    return value(n->in[0], in);
  }
  if (is_alias(*n)) return value(aliased(*n), dims);
  if (n->op->kind == Kind::map && !(lowering_.is_computed(*n) && !own_nodes.count(n.get())))
    return elementwise(n, dims);
  return load(n, dims);
}
int Kernel::elementwise(const NodePtr& n, const AxisDims& dims) {
  Instr i{.code = n->op->code, .dtype = n->dtype};
  for (std::size_t k = 0; k < n->in.size(); ++k) {
    i.args[k] = value(n->in[k], operand_dims(n->in[k], dims));
    i.inner |= is_inner(i.args[k]);
  }
  return push(std::move(i));
}
int Kernel::iota(const NodePtr& n, int d, std::int64_t stride) {
  Instr i{
      .code = Code::iota, .dtype = n->dtype, .inner = d >= int(outer_), .dim = d, .stride = stride};
  if (d < 0) {
    auto t = lowering_.term(n, 1, 0);
    if (t.loop < 0)
      i.integer = t.stride;
    else
      i.view.terms.push_back(t);
  }
  return push(std::move(i));
}
int Kernel::load(const NodePtr& n, const AxisDims& dims) {
  Place p = lowering_.place_of(n);
  Instr i{.code = Code::load,
          .dtype = n->dtype,
          .view = {p.slot, p.dtype, p.offset, program::Dims(dims_.size(), 0), p.terms}};
  for (std::size_t k = 0; k < n->axes.size(); ++k) {
    auto d = dim(dims, n->axes[k].name);
    i.view.strides[d] += p.strides[k];
    i.inner |= d >= outer_ && dims_[d].size > 1 && p.strides[k] != 0;
  }
  return push(std::move(i));
}
int Kernel::reduction(const NodePtr& n) {
  int v = value(n->in[0], dims_of(n->in[0]->axes));
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
void Kernel::finish() {
  lowering_.push({.fused = {Emit::sizes(dims_), int(outer_), std::move(code_)}});
}

}  // namespace haliax
