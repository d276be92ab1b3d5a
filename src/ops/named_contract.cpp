// dot: products summed over named axes, as a sequence of contractions of two arrays.
#include <algorithm>
#include <limits>

#include "haliax/mesh.h"
#include "ops/named.h"

namespace haliax {
namespace ops {
namespace {

Axes joined(const Axes& a, const Axes& b) {
  Axes out = a;
  for (auto& v : b) if (!has(out, v.name)) out.push_back(v);
  return out;
}

struct Contraction {
  Nodes left;
  Axes out;   // with the hidden axes
  bool needed(Name n, std::size_t i, std::size_t j) const {   // by the result, or by an operand other than these two
    if (has(out, n)) return true;
    for (std::size_t k = 0; k < left.size(); ++k)
      if (k != i && k != j && find(*left[k], n)) return true;
    return false;
  }
  Axes surviving(std::size_t i, std::size_t j) const {
    Axes axes;
    for (auto& v : joined(left[i]->axes, left[j]->axes)) if (needed(v.name, i, j)) axes.push_back(v);
    return axes;
  }
  // The pair with the fewest multiplications; of equals the one with the smaller result.
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
        std::pair<double, double> cost{volume(joined(left[i]->axes, left[j]->axes)), volume(surviving(i, j))};
        if (cost < least) least = cost, best = {i, j};
      }
    return best;
  }
};

}  // namespace

NodePtr contract_all(const char* op, Nodes nodes, const Axes& shown, DType dtype) {
  for (std::size_t i = 0; i < nodes.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) check_sizes(op, nodes[j]->axes, nodes[i]->axes);
  auto axes = with_hidden(nodes, shown);
  // Products of bools are counted in i32.
  auto inner = dtype;
  if (dtype == DType::boolean)
    for (auto& n : nodes) n = prim::cast(n, inner = DType::i32);
  // What only one operand has is summed before any product.
  Contraction c{nodes, axes};
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    Axes mine;
    for (auto& a : nodes[i]->axes) if (c.needed(a.name, i, i)) mine.push_back(a);
    if (mine.size() < nodes[i]->axes.size()) c.left[i] = prim::reduce(Monoid::sum, prim::cast(nodes[i], inner), mine);
  }
  while (c.left.size() > 1) {
    auto [i, j] = c.cheapest();
    bool last = c.left.size() == 2;
    auto kept = last ? axes : c.surviving(i, j);
    auto &a = c.left[i], &b = c.left[j];
    bool product = joined(a->axes, b->axes).size() == kept.size();   // nothing is summed
    NodePtr ab;
    if (product) ab = prim::map(prim::kMul, {prim::cast(a, inner), prim::cast(b, inner)}, inner, &kept);
    else if (a->dtype == b->dtype) ab = prim::contract(a, b, kept, inner);
    else ab = prim::contract(prim::cast(a, inner), prim::cast(b, inner), kept, inner);
    c.left[i] = ab;
    c.left.erase(c.left.begin() + std::ptrdiff_t(j));
  }
  auto result = prim::fit(prim::cast(c.left[0], inner), axes);
  return dtype == DType::boolean ? to_bool(result) : result;
}

}  // namespace ops

namespace {

using namespace ops;

NamedArray dot(const std::vector<Arr>& arrays, const AxisSelection& axis, const DotOptions& options) {
  Here here(arrays.empty() ? SourceLocation() : arrays[0].at());
  if (arrays.empty()) fail("dot", "there are no arrays to multiply");
  auto dtype = promoted("dot", arrays);
  Nodes nodes;
  for (auto& a : arrays) nodes.push_back(node_of("dot", a, dtype));

  Axes all;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) check_sizes("dot", visible(*nodes[j]), visible(*nodes[i]));
    for (auto& a : visible(*nodes[i])) if (!has(all, a.name)) all.push_back(a);
  }
  auto among = [&] {
    std::string s;
    for (auto& n : nodes) s += (s.empty() ? "" : ", ") + to_string(visible(*n));
    return s;
  };
  Axes out = all;
  if (axis.all()) out.clear();
  for (auto& s : axis.items()) {
    auto* a = find_axis(all, s.name);
    if (!a) fail("dot", "axis " + text(s.name) + " is in none of the arrays: " + among() + did_you_mean(s.name, all));
    if (s.size >= 0 && s.size != a->size)
      fail("dot", "axis " + text(s.name) + " has size " + std::to_string(a->size) + " in " + among() + ", not " +
                      std::to_string(s.size));
    auto holders = std::count_if(nodes.begin(), nodes.end(), [&](auto& n) { return find(*n, s.name) != nullptr; });
    if (holders < 2 && nodes.size() > 1)
      fail("dot", "axis " + text(s.name) + " is summed, but only one of the arrays has it: " + among() +
                      "; to sum it anyway use sum or einsum");
    if (!has(out, s.name)) fail("dot", "axis " + text(s.name) + " is given twice");
    std::erase_if(out, [&](auto& v) { return v.name == s.name; });
  }
  if (options.out_axes) out = rearrange_for_partial_order(*options.out_axes, out, context().origin.at);
  // With a wider result the operands stay as they are, and only the sums are wide.
  auto wanted = options.preferred_element_type.value_or(dtype);
  if (wanted != dtype && !(is_float(wanted) && is_float(dtype) && bytes_of(wanted) >= bytes_of(dtype)))
    return astype(constrained("dot", NamedArray(contract_all("dot", nodes, out, dtype))), wanted);
  return constrained("dot", NamedArray(contract_all("dot", nodes, out, wanted)));
}

}  // namespace

NamedArray dot(Arr a, Arr b, const AxisSelection& axis, DotOptions options) { return dot(std::vector<Arr>{a, b}, axis, options); }
NamedArray dot(std::initializer_list<Arr> arrays, const AxisSelection& axis, DotOptions options) {
  return dot(std::vector<Arr>(arrays), axis, options);
}

}  // namespace haliax
