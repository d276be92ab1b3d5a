// Custom ops of the user: a step that calls the user's function, with the rules along axes that the
// user provides.
#include "haliax/custom_op.h"

#include <algorithm>
#include <mutex>
#include <set>

#include "base/fork.h"
#include "graph/emit.h"
#include "haliax/fmt.h"
#include "ops/attr.h"
#include "ops/named.h"

namespace haliax {
namespace {

using Way = Along::Way;
using namespace ops;

struct UserOp : Op {
  std::string label;
  CustomOp user;
};
const CustomOp& user_op(const Op& op) { return static_cast<const UserOp&>(op).user; }
const CpuKernel& kernel_of(const Node& n) { return user_op(*n.op).cpu[CustomAttr::of(n).kernel]; }

bool folds(AxisRule r) { return r >= AxisRule::reduce_sum; }
Monoid monoid_of(AxisRule r) { return Monoid(int(r) - int(AxisRule::reduce_sum)); }
// Returns the rule of a call along one of its axes; `map` if the call does not name the axis.
AxisRule rule_of(const Node& n, Name a) {
  auto axes = CustomAttr::of(n).axes;
  auto at = std::find(axes.begin(), axes.end(), a);
  return at == axes.end() ? AxisRule::map : user_op(*n.op).along[std::size_t(at - axes.begin())];
}
Axis named(const Node& n, Name a) {
  if (auto* mine = find(n, a)) return *mine;
  for (auto& x : n.in)
    if (auto* its = find(*x, a)) return *its;
  fail_at(n.origin, n.op->name, "axis " + text(a) + " is in none of its operands");
}

// ---- the op ----
Along along_rule(const Node& n, std::size_t, Name a) {
  auto rule = rule_of(n, a);
  if (rule == AxisRule::map) return {Way::map, a};
  return folds(rule) ? Along{Way::fold, a, monoid_of(rule)} : Along{Way::full, a};
}
Linear linear_rule(const Node& n, std::size_t k) {
  auto& all = user_op(*n.op).linear;
  return std::count(all.begin(), all.end(), int(k)) ? Linear::one : Linear::no;
}
// Raises unless each axis of the gradient of operand k is an axis of an operand or of the result,
// in its size.
void check_gradient(const Node& o, std::size_t k, const NamedArray& created) {
  if (created.empty()) return;
  for (auto& a : created.node()->axes) {
    auto* its = find(o, a.name);
    for (auto& x : o.in)
      if (!its) its = find(*x, a.name);
    if (!its && !a.name.hidden())
      fail(o.op->name, fmt::format("the gradient of operand {} has axis {}, which neither an "
                                   "operand nor the result {} has",
                                   k, a.name, to_string(visible(o))));
    if (its && its->size != a.size)
      fail(o.op->name,
           fmt::format("axis {} has size {} in the gradient of operand {}, but {} in the call",
                       a.name, a.size, k, its->size));
  }
}
Nodes gradient(NodeRef o, NodeRef g) {
  auto& user = user_op(*o->op);
  if (!user.grad)
    fail(o->op->name, "has no gradient; pass one to custom_op, or use stop_gradient on its result");
  std::vector<NamedArray> in;
  for (auto& x : o->in) in.push_back(NamedArray(x));
  Axes along;
  for (auto a : CustomAttr::of(*o).axes) along.push_back(named(*o, a));
  std::vector<NamedArray> created;
  {
    OutsideGraph outside;
    created = user.grad({in, NamedArray(o), NamedArray(g), along});
  }
  if (created.size() != in.size())
    fail(o->op->name,
         fmt::format("its gradient returns {} arrays for {} operands", created.size(), in.size()));
  Nodes out;
  for (std::size_t k = 0; k < created.size(); ++k) {
    check_gradient(*o, k, created[k]);
    out.push_back(created[k].node());  // `vjp` sums over the axes that the operand lacks
  }
  return out;
}

void lower(const Node& n, Emit& e) {
  // Fills the result if it is empty, or if a named axis is: a device of a mesh may have an empty
  // block. A reduction of nothing yields the neutral element.
  auto fill = [&](Monoid m) { e.fill(e.result(), n.axes, prim::identity(m, n.dtype)); };
  if (n.size() == 0) return fill(Monoid::sum);
  // Axes over which the backend iterates, followed by the axes that the kernel receives.
  Axes dims = n.axes;
  auto along = CustomAttr::of(n).axes;
  std::erase_if(dims, [&](auto& a) { return has(along, a.name); });
  auto outer = dims.size();
  for (auto name : along) {
    dims.push_back(named(n, name));
    auto rule = rule_of(n, name);
    if (dims.back().size == 0) return fill(folds(rule) ? monoid_of(rule) : Monoid::sum);
  }
  // One call of the kernel processes a full row, since calls have a cost.
  if (along.empty() && outer > 0) --outer;
  program::Step s;
  s.kind = program::Kind::custom;
  auto& arrays = s.custom.arrays;
  for (std::size_t k = 0; k < n.in.size(); ++k)
    arrays.push_back(Emit::view(e.operand(k), n.in[k]->axes, dims));
  arrays.push_back(Emit::view(e.result(), n.axes, dims));
  s.custom.dims = Emit::sizes(dims);
  s.custom.outer = int(outer);
  s.custom.run = kernel_of(n).run;
  if (dims.empty()) {  // a row with one element
    s.custom.dims = {1};
    for (auto& v : arrays) v.strides = {0};
  }
  e.push(std::move(s));
}

// ---- calls ----
std::string list_of(const std::vector<DType>& types, std::size_t count) {
  auto s = fmt::format("{}", fmt::join(types.begin(), types.begin() + std::ptrdiff_t(count), ", "));
  return count == 1 ? s : "(" + s + ")";
}
// Returns the index of the first kernel for these operands. A C++ scalar matches any dtype.
std::size_t kernel_for(const Op& op, const std::vector<Arr>& operands) {
  auto& kernels = user_op(op).cpu;
  auto count = kernels[0].dtypes.size() - 1;
  if (operands.size() != count)
    fail(op.name, fmt::format("expects {} operand{}, but {} {} given", count, count == 1 ? "" : "s",
                              operands.size(), operands.size() == 1 ? "is" : "are"));
  std::vector<DType> given;
  for (std::size_t k = 0; k < count; ++k)
    given.push_back(operands[k].is_number() ? kernels[0].dtypes[k]
                                            : node_of(op.name, operands[k])->dtype);
  std::string takes;
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    bool fits = true;
    for (std::size_t k = 0; k < count; ++k)
      fits &= operands[k].is_number() || kernels[i].dtypes[k] == given[k];
    if (fits) return i;
    takes += (i ? " or " : "") + list_of(kernels[i].dtypes, count);
  }
  fail(op.name, "expected " + takes + ", got " + list_of(given, count) + "; cast with astype");
}
// Returns the axes that a call names. Each is an axis of the operands or a new one, as its rule
// requires.
Axes named_axes(const Op& op, const Nodes& in, const AxisSelection& selection) {
  auto& rules = user_op(op).along;
  std::vector<AxisSelector> named = selection.items();
  Axes theirs, out;
  for (auto& x : in) {
    check_sizes(op.name, theirs, visible(*x));
    theirs = joined(theirs, visible(*x));
  }
  if (selection.all()) named.assign(theirs.begin(), theirs.end());
  if (named.size() != rules.size())
    fail(op.name, fmt::format("requires {} {}, but the call names {}", rules.size(),
                              rules.size() == 1 ? "axis" : "axes", named.size()));
  for (std::size_t k = 0; k < rules.size(); ++k) {
    auto& s = named[k];
    if (has(out, s.name)) fail(op.name, "axis " + text(s.name) + " is given twice");
    if (rules[k] == AxisRule::made) {
      if (has(theirs, s.name))
        fail(op.name,
             fmt::format("creates axis {}, but an operand has it: {}", s.name, to_string(theirs)));
      if (s.size < 0)
        fail(op.name,
             fmt::format("creates axis {}, but no operand has its size; pass an Axis", s.name));
      out.push_back(Axis(s.name, s.size));
      continue;
    }
    out.push_back(axis_of(op.name, theirs, s));
    if (rules[k] == AxisRule::gone && out.back().size == 0)
      fail(op.name, fmt::format("axis {} has size 0; its size must be at least 1", s.name));
  }
  return out;
}
// Returns the axes of the result: the axes of the largest operand, then axes that only the others
// have, without removed axes, and last the new axes.
Axes result_axes(const Op& op, const Nodes& in, const Axes& named) {
  auto& rules = user_op(op).along;
  Axes go, created, out;
  for (std::size_t k = 0; k < named.size(); ++k)
    if (rules[k] == AxisRule::made)
      created.push_back(named[k]);
    else if (rules[k] == AxisRule::gone || folds(rules[k]))
      go.push_back(named[k]);
  std::vector<Axes> mapped, all;
  for (auto& x : in) {
    all.push_back(visible(*x));
    mapped.push_back(without(all.back(), named));
  }
  broadcast(op.name, mapped);  // raises if no operand has all mapped axes
  std::stable_sort(all.begin(), all.end(),
                   [](auto& a, auto& b) { return axis_size(a) > axis_size(b); });
  for (auto& axes : all) out = joined(out, axes);
  return with_hidden(in, joined(without(out, go), created));
}
NamedArray call(const Op& op, const std::vector<Arr>& operands, const AxisSelection& along) {
  CallSite here(operands.empty() ? context().origin.at : operands[0].at());
  auto kernel = kernel_for(op, operands);
  auto& dtypes = user_op(op).cpu[kernel].dtypes;
  Nodes in;
  for (std::size_t k = 0; k < operands.size(); ++k)
    in.push_back(operands[k].is_number() ? node_of(op.name, operands[k], dtypes[k])
                                         : node_of(op.name, operands[k]));
  auto named = named_axes(op, in, along);
  auto axes = result_axes(op, in, named);
  return NamedArray(make(op, in, axes, dtypes.back(), CustomAttr{names_of(named), kernel}.attr()));
}

void check(const CustomOp& user) {
  if (!*user.name) fail("custom_op", "an op needs a name");
  const std::string name = user.name;
  if (user.cpu.empty()) fail("custom_op", name + " has no kernel");
  auto count = user.cpu[0].dtypes.size();
  std::set<AxisRule> monoids;
  std::copy_if(user.along.begin(), user.along.end(), std::inserter(monoids, monoids.end()), folds);
  if (monoids.size() > 1) fail("custom_op", name + " reduces by two monoids; use two ops");
  bool numbers = monoids.contains(AxisRule::reduce_sum) || monoids.contains(AxisRule::reduce_prod);
  for (auto& k : user.cpu) {
    if (k.dtypes.size() != count)
      fail("custom_op", "kernels of " + name + " have different operand counts");
    if (numbers && k.dtypes.back() == DType::boolean)
      fail("custom_op", name + " sums bools; use reduce_max for any, reduce_min for all");
  }
  for (int k : user.linear)
    if (k < 0 || k + 1 >= int(count))
      fail("custom_op",
           fmt::format("{} is linear in operand {}, but has {} operands", name, k, count - 1));
}

}  // namespace

NamedArray CustomFunction::operator()(Arr x, const AxisSelection& along) const {
  return call(*op_, {std::move(x)}, along);
}
NamedArray CustomFunction::operator()(std::initializer_list<Arr> operands,
                                      const AxisSelection& along) const {
  return call(*op_, operands, along);
}
NamedArray CustomFunction::operator()(const std::vector<Arr>& operands,
                                      const AxisSelection& along) const {
  return call(*op_, operands, along);
}

static constinit std::mutex ops_mutex;
static const bool op_forks =
    at_fork({kForkOps, [] { ops_mutex.lock(); }, [] { ops_mutex.unlock(); }});
CustomFunction custom_op(CustomOp user, SourceLocation at) {
  CallSite here(at);
  check(user);
  // Never freed: nodes may outlive the owner of the op.
  static auto* all = new std::vector<std::unique_ptr<UserOp>>;
  auto op = std::make_unique<UserOp>();
  op->label = user.name;
  op->user = std::move(user);
  op->name = op->user.name = op->label.c_str();
  op->kind = Kind::step;
  op->grad = gradient;
  op->lower = lower;
  op->along = along_rule;
  op->linear_in = linear_rule;
  std::lock_guard hold(ops_mutex);
  all->push_back(std::move(op));
  return CustomFunction(all->back().get());
}

}  // namespace haliax
