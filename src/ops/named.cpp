// Helpers of the public ops: selection of axes, conversion of operands, and broadcasting.
#include "ops/named.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>

#include "base/scalar.h"
#include "haliax/fmt.h"

namespace haliax::ops {

// ---- axes ----
Axes visible(Axes axes) {
  std::erase_if(axes, [](auto& a) { return a.name.hidden(); });
  return axes;
}
Axes hidden(const Nodes& nodes) {
  Axes out;
  for (auto& n : nodes)
    for (auto& a : n->axes)
      if (a.name.hidden() && !has(out, a.name)) out.push_back(a);
  return out;
}
Axes with_hidden(const Nodes& of, const Axes& shown) {
  Axes out = hidden(of);
  out.insert(out.end(), shown.begin(), shown.end());
  return out;
}

Axis axis_of(const char* op, const Axes& axes, const AxisSelector& s) {
  auto* a = find_axis(axes, s.name);
  if (!a || s.name.hidden()) {
    auto shown = visible(axes);
    fail(op, fmt::format("axis {} is not in {}{}", s.name, to_string(shown),
                         did_you_mean(s.name, shown)));
  }
  if (s.size >= 0 && s.size != a->size)
    fail(op, fmt::format("axis {} has size {} in {}, not {}", s.name, a->size,
                         to_string(visible(axes)), s.size));
  return *a;
}
Axes axes_of(const char* op, NodeRef x, const AxisSelection& selection) {
  if (selection.all()) return visible(*x);
  Axes out;
  for (auto& s : selection.items()) {
    auto a = axis_of(op, x, s);
    if (has(out, a.name)) fail(op, "axis " + text(a.name) + " is given twice");
    out.push_back(a);
  }
  return out;
}
void check_unique(const char* op, const Axes& axes) {
  for (std::size_t i = 0; i < axes.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (axes[i].name == axes[j].name)
        fail(op, "axis " + text(axes[i].name) + " occurs twice in " + to_string(visible(axes)) +
                     "; rename one of them");
}
void check_new(const char* op, const Axes& axes) {
  check_unique(op, axes);
  check_elements(op, axes);
}
void check_free(const char* op, Name name, const Axes& taken) {
  if (has(taken, name))
    fail(op, "the array already has an axis " + text(name) + ": " + to_string(visible(taken)));
}
void check_sizes(const char* op, const Axes& a, const Axes& b) {
  for (auto& x : a)
    if (auto* y = find_axis(b, x.name); y && x.size != y->size)
      fail(op, fmt::format("axis {} has size {} in {} and {} in {}", x.name, x.size,
                           to_string(visible(a)), y->size, to_string(visible(b))));
}
NodePtr renamed(const char* op, NodeRef x, const Axis& a, Name name) {
  if (!name || name == a.name) return x;
  check_free(op, name, x->axes);
  return prim::rename(x, {a.name}, {name});
}

// ---- operands ----
bool holds(DType d, std::int64_t v) {
  return is_float(d) || (scalar::integer(d, v).integer == v && (v >= 0 || is_signed(d)));
}
namespace {

DType dtype_of_number(const Arr& a) {
  if (a.is_real() || a.is_boolean()) return a.is_real() ? DType::f32 : DType::boolean;
  return holds(DType::i32, a.integer()) ? DType::i32 : DType::i64;
}

NodePtr number_of(const char* op, const Arr& a, DType d) {
  if (is_float(d)) return prim::number(a.number(), d);
  if (d == DType::boolean) return prim::integer(a.number() != 0, d);
  if (a.is_real() && !(std::abs(a.number()) < 9e18 && a.number() == std::trunc(a.number())))
    fail(op, "the number " + std::to_string(a.number()) + " is not an integer, as " + text(d) +
                 " requires");
  auto v = a.is_real() ? std::int64_t(a.number()) : a.integer();
  if (!holds(d, v))  // otherwise the value would wrap around
    fail(op, fmt::format("the number {} does not fit in {}", v, d));
  return prim::integer(v, d);
}

}  // namespace

NodeRef node_of(const char* op, const NamedArray& a) {
  if (a.empty()) fail(op, "an operand is an empty NamedArray; assign a value to it first");
  return a.node();
}
NodePtr node_of(const char* op, const Arr& a) {
  return a.is_number() ? number_of(op, a, dtype_of_number(a)) : node_of(op, a.array());
}
NodePtr node_of(const char* op, const Arr& a, DType d) {
  if (a.is_number()) return number_of(op, a, d);
  return cast(node_of(op, a.array()), d);
}

namespace {
// Warns once per process if an op combines f64 with an f32 array that has axes. The result is f64,
// which is rarely intended.
void describe_mixed(const char* op, const Node& a, const Node& b) {
  auto &wide = a.dtype == DType::f64 ? a : b, &narrow = &wide == &a ? b : a;
  if (wide.dtype != DType::f64 || narrow.dtype != DType::f32 || visible(narrow).empty()) return;
  static std::atomic_flag warned;
  if (warned.test_and_set()) return;
  fmt::print(stderr,
             "haliax: warning: [{}] f64 {} and f32 {} promote to f64; arrays of "
             "std::vector<double> are f64, and astype(DType::f32) narrows them; this warning is "
             "printed once; {}\n",
             op, to_string(visible(wide)), to_string(visible(narrow)), where_of(context().origin));
}
}  // namespace
DType promoted(const char* op, std::span<const Arr* const> operands) {
  std::optional<DType> out;
  const Node* first = nullptr;
  DType weak = DType::boolean;  // dtype of the C++ scalars
  for (auto* a : operands) {
    if (a->is_number())
      weak = promote(weak, dtype_of_number(*a));
    else if (auto& n = *node_of(op, a->array()); out) {
      describe_mixed(op, *first, n);
      out = promote(*out, n.dtype);
    } else {
      out = n.dtype;
      first = &n;
    }
  }
  if (!out || *out == DType::boolean) return weak;
  return is_float(weak) && !is_float(*out) ? DType::f32 : *out;
}

DType sum_dtype(DType d, std::int64_t count) {
  if (is_float(d) || bytes_of(d) >= 4) return d;
  auto wide = prim::position_dtype(count);
  if (is_signed(d) || d == DType::boolean) return wide;
  return wide == DType::i64 ? DType::u64 : DType::u32;
}
NodePtr to_bool(NodeRef x) {
  if (x->dtype == DType::boolean) return x;
  return prim::map(prim::kNotEqual, {x, prim::integer(0, x->dtype)}, DType::boolean, &x->axes);
}
NodePtr mask_of(const char* op, const NamedArray& mask, const Node& x) {
  auto n = node_of(op, mask);
  if (n->dtype != DType::boolean)
    fail(op, "mask: expected bool, got " + text(n->dtype) + "; use a comparison");
  check_sizes(op, n->axes, x.axes);
  for (auto& a : without(visible(*n), x.axes))
    fail(op, fmt::format("axis {} of the mask is not in {}; broadcast the array to it first",
                         a.name, to_string(visible(x))));
  return n;
}
namespace {
// Returns the operand that has all axes of the others, in the same sizes. Null: there is none, or
// an operand has hidden axes.
const Node* widest(const Nodes& nodes) {
  auto* wide = nodes[0].get();
  for (auto& n : nodes)
    if (axis_size(n->axes) > axis_size(wide->axes)) wide = n.get();
  auto fits = [&](const Axis& a) {
    auto* same = find_axis(wide->axes, a.name);
    return same && same->size == a.size && !a.name.hidden();
  };
  return std::all_of(nodes.begin(), nodes.end(),
                     [&](auto& n) { return std::all_of(n->axes.begin(), n->axes.end(), fits); })
             ? wide
             : nullptr;
}
}  // namespace
Axes broadcast(const char* op, const Nodes& nodes) {
  if (auto* wide = widest(nodes)) return wide->axes;
  std::vector<Axes> shapes;
  for (auto& n : nodes) shapes.push_back(visible(*n));
  return with_hidden(nodes, broadcast(op, shapes));
}
Axes broadcast(const char* op, const std::vector<Axes>& given) {
  auto all = given;
  std::stable_sort(all.begin(), all.end(),
                   [](auto& a, auto& b) { return axis_size(a) > axis_size(b); });
  Axes out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) check_sizes(op, all[j], all[i]);
    auto more = without(all[i], out), fewer = without(out, all[i]);
    if (!more.empty() && !fewer.empty()) {
      std::string shapes;
      for (auto& a : given)
        shapes += (shapes.empty() ? "" : &a == &given.back() ? " and " : ", ") + to_string(a);
      auto names = [](const Axes& axes) {
        return fmt::format("{}", fmt::join(names_of(axes), ", "));
      };
      fail(op, fmt::format("cannot broadcast {}: {} is only in {}, {} is only in {}; add axes to "
                           "one of them with broadcast_axis",
                           shapes, names(fewer), to_string(out), names(more), to_string(all[i])));
    }
    if (!more.empty()) out = all[i];
  }
  return out;
}
const AxisSelector* Bindings::find(const std::string& label) {
  auto at = std::find_if(given_.begin(), given_.end(), [&](auto& g) { return g.first == label; });
  if (at == given_.end()) return nullptr;
  used_[std::size_t(at - given_.begin())] = true;
  return &at->second;
}
const std::string* Bindings::unused() const {
  auto at = std::find(used_.begin(), used_.end(), false);
  return at == used_.end() ? nullptr : &given_[std::size_t(at - used_.begin())].first;
}
NamedArray pointwise(const char* op, const Op& code, Nodes nodes, DType dtype) {
  auto axes = broadcast(op, nodes);
  return NamedArray(prim::map(code, std::move(nodes), std::move(axes), dtype));
}

}  // namespace haliax::ops
