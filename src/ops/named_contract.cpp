// dot: elementwise products summed over named axes, as a sequence of contractions of two arrays.
#include <algorithm>
#include <limits>

#include "haliax/fmt.h"
#include "haliax/mesh.h"
#include "ops/named.h"

namespace haliax {
namespace ops {
namespace {

// The operands that are not contracted yet. For example, of (a, b), (b, c) and (c, d) with the
// result (a, d), the pair (a, b), (b, c) leaves (a, c), since the third operand needs c.
struct Contraction {
  Nodes left;
  Axes out;  // axes of the result, including hidden axes
  // Returns the axes of these two operands that the result or another operand needs.
  Axes surviving(std::size_t i, std::size_t j) const {
    auto needed = out;
    for (std::size_t k = 0; k < left.size(); ++k)
      if (k != i && k != j) needed = joined(needed, left[k]->axes);
    return common(joined(left[i]->axes, left[j]->axes), needed);
  }
  // Returns the pair with the fewest multiplications. Among equal pairs, the one with the smaller
  // result.
  std::pair<std::size_t, std::size_t> cheapest() const {
    std::pair<std::size_t, std::size_t> best{0, 1};
    std::pair<double, double> least{std::numeric_limits<double>::infinity(), 0};
    auto volume = [](const Axes& axes) {
      double v = 1;
      for (auto& a : axes) v *= double(a.size);
      return v;
    };
    for (std::size_t i = 0; i < left.size(); ++i)
      for (std::size_t j = i + 1; j < left.size(); ++j) {
        std::pair<double, double> cost{volume(joined(left[i]->axes, left[j]->axes)),
                                       volume(surviving(i, j))};
        if (cost < least) {
          least = cost;
          best = {i, j};
        }
      }
    return best;
  }
};

}  // namespace

NodePtr contract_all(const char* op, Nodes nodes, const Axes& shown, DType dtype) {
  for (std::size_t i = 0; i < nodes.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) check_sizes(op, nodes[j]->axes, nodes[i]->axes);
  auto axes = with_hidden(nodes, shown);
  auto inner = no_bool(dtype);
  if (inner != dtype)
    for (auto& n : nodes) n = prim::cast(n, inner);
  // Axes that only one operand has are summed before any multiplication.
  Contraction c{nodes, axes};
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (auto mine = c.surviving(i, i); mine.size() < nodes[i]->axes.size())
      c.left[i] = prim::reduce(Monoid::sum, prim::cast(nodes[i], inner), mine);
  while (c.left.size() > 1) {
    auto [i, j] = c.cheapest();
    bool last = c.left.size() == 2;
    auto remaining = last ? axes : c.surviving(i, j);
    auto& a = c.left[i];
    auto b = c.left[j];
    const bool sums_nothing = joined(a->axes, b->axes).size() == remaining.size();
    if (sums_nothing || a->dtype != b->dtype) {
      a = prim::cast(a, inner);
      b = prim::cast(b, inner);
    }

    a = sums_nothing ? prim::map(prim::kMul, {a, b}, inner, &remaining)
                     : prim::contract(a, b, remaining, inner);
    c.left.erase(c.left.begin() + std::ptrdiff_t(j));
  }
  return cast(prim::fit(prim::cast(c.left[0], inner), axes), dtype);
}
Nodes operands_of(const char* op, const std::vector<Arr>& arrays) {
  if (arrays.empty()) fail(op, "there are no arrays to multiply");
  std::vector<const Arr*> all;
  for (auto& a : arrays) all.push_back(&a);
  auto dtype = promoted(op, all);
  Nodes nodes;
  for (auto& a : arrays) nodes.push_back(node_of(op, a, dtype));
  return nodes;
}

// With a wider result dtype, the operands stay as they are, and only the sums use this dtype.
NamedArray contracted(const char* op, const Nodes& nodes, const Axes& out,
                      std::optional<DType> preferred) {
  auto dtype = nodes[0]->dtype, requested = preferred.value_or(dtype);
  if (requested != dtype &&
      !(is_float(requested) && is_float(dtype) && bytes_of(requested) >= bytes_of(dtype)))
    return astype(constrained(op, NamedArray(contract_all(op, nodes, out, dtype))), requested);
  return constrained(op, NamedArray(contract_all(op, nodes, out, requested)));
}

}  // namespace ops

namespace {

using namespace ops;

// Returns the axis of the arrays that a selector names. Raises unless two of the arrays have it.
Axis summed_axis(const Nodes& nodes, const Axes& all, const AxisSelector& s) {
  auto shapes = [&] {
    std::vector<std::string> out;
    for (auto& n : nodes) out.push_back(to_string(visible(*n)));
    return fmt::format("{}", fmt::join(out, ", "));
  };
  auto* a = find_axis(all, s.name);
  if (!a)
    fail("dot", fmt::format("axis {} is in none of the arrays: {}{}", s.name, shapes(),
                            did_you_mean(s.name, all)));
  if (s.size >= 0 && s.size != a->size)
    fail("dot",
         fmt::format("axis {} has size {} in {}, not {}", s.name, a->size, shapes(), s.size));
  auto holders = std::count_if(nodes.begin(), nodes.end(),
                               [&](auto& n) { return find(*n, s.name) != nullptr; });
  if (holders < 2 && nodes.size() > 1)
    fail("dot", fmt::format("axis {} is summed, but only one of the arrays has it: {}; to sum it "
                            "anyway use sum or einsum",
                            s.name, shapes()));
  return *a;
}
NamedArray dot_of(const std::vector<Arr>& arrays, const AxisSelection& axis,
                  const DotOptions& options) {
  CallSite here(arrays.empty() ? SourceLocation() : arrays[0].at());
  auto nodes = operands_of("dot", arrays);
  Axes all;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) check_sizes("dot", visible(*nodes[j]), visible(*nodes[i]));
    all = joined(all, visible(*nodes[i]));
  }
  Axes out = all;
  if (axis.all()) out.clear();
  for (auto& s : axis.items()) {
    auto a = summed_axis(nodes, all, s);
    if (!has(out, s.name)) fail("dot", "axis " + text(s.name) + " is given twice");
    out = without(out, {a});
  }
  if (!options.out_axes.all()) {
    Names order;
    for (auto& s : options.out_axes.items()) {
      if (s.size >= 0) axis_of("dot", out, s);  // "..." has no size
      order.push_back(s.name);
    }
    out = rearrange_for_partial_order(order, out, context().origin.at);
  }
  return contracted("dot", nodes, out, options.preferred_element_type);
}
std::vector<Arr> located(const std::vector<NamedArray>& arrays, SourceLocation at) {
  std::vector<Arr> out;
  for (auto& a : arrays) out.emplace_back(a, at);
  return out;
}

}  // namespace

NamedArray dot(Arr a, Arr b, const AxisSelection& axis, DotOptions options) {
  return dot_of({a, b}, axis, options);
}
NamedArray dot(std::initializer_list<Arr> arrays, const AxisSelection& axis, DotOptions options) {
  return dot_of(arrays, axis, options);
}
NamedArray dot(const std::vector<NamedArray>& arrays, const AxisSelection& axis, DotOptions options,
               SourceLocation at) {
  CallSite here(at);
  return dot_of(located(arrays, at), axis, options);
}

}  // namespace haliax
