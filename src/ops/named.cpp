#include "ops/named.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <limits>

namespace haliax::ops {

// ---- axes ----
Axes visible(const Axes& axes) {
  Axes out;
  for (auto& a : axes)
    if (!a.name.hidden()) out.push_back(a);
  return out;
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
Axes kept(const Node& n, const Axes& without) {
  Axes out, shown;
  for (auto& a : n.axes)
    if (a.name.hidden()) out.push_back(a);
    else if (!has(without, a.name)) shown.push_back(a);
  out.insert(out.end(), shown.begin(), shown.end());
  return out;
}
Names names_of(const Axes& axes) {
  Names out;
  for (auto& a : axes) out.push_back(a.name);
  return out;
}

Axis axis_of(const char* op, const NodePtr& x, const AxisSelector& s) {
  auto* a = find(*x, s.name);
  if (!a || s.name.hidden()) {
    auto shown = visible(*x);
    fail(op, "axis " + text(s.name) + " is not in " + to_string(shown) + did_you_mean(s.name, shown));
  }
  if (s.size >= 0 && s.size != a->size)
    fail(op, "axis " + text(s.name) + " has size " + std::to_string(a->size) + " in " + to_string(visible(*x)) + ", not " +
                 std::to_string(s.size));
  return *a;
}
Axes axes_of(const char* op, const NodePtr& x, const AxisSelection& selection) {
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
        fail(op, "axis " + text(axes[i].name) + " is there twice: " + to_string(visible(axes)) + "; rename one of them");
}
void check_free(const char* op, Name name, const Axes& taken) {
  if (has(taken, name)) fail(op, "the array already has an axis " + text(name) + ": " + to_string(visible(taken)));
}
void check_sizes(const char* op, const Axes& a, const Axes& b) {
  for (auto& x : a)
    if (auto* y = find_axis(b, x.name); y && x.size != y->size)
      fail(op, "axis " + text(x.name) + " has size " + std::to_string(x.size) + " in " + to_string(visible(a)) + " and " +
                   std::to_string(y->size) + " in " + to_string(visible(b)));
}

// ---- operands ----
namespace {

// The range of an integer dtype, within that of i64.
std::pair<std::int64_t, std::int64_t> range_of(DType d) {
  if (d == DType::boolean) return {0, 1};
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  int bits = 8 * bytes_of(d);
  if (is_signed(d)) return {-(most >> (64 - bits)) - 1, most >> (64 - bits)};
  return {0, bits == 64 ? most : (std::int64_t(1) << bits) - 1};
}
DType dtype_of_number(const Arr& a) { return a.is_real() ? DType::f32 : a.is_boolean() ? DType::boolean : DType::i32; }

NodePtr number_of(const char* op, const Arr& a, DType d) {
  if (is_float(d)) return prim::number(a.number(), d);
  if (d == DType::boolean) return prim::integer(a.number() != 0, d);
  if (a.is_real() && !(std::abs(a.number()) < 9e18 && a.number() == std::trunc(a.number())))
    fail(op, "the number " + std::to_string(a.number()) + " is not a whole number, as " + text(d) + " wants");
  auto [least, most] = range_of(d);
  auto v = a.is_real() ? std::int64_t(a.number()) : a.integer();
  if (v < least || v > most) fail(op, "the number " + std::to_string(v) + " does not fit in " + text(d));
  return prim::integer(v, d);
}

}  // namespace

NodePtr node_of(const char* op, const NamedArray& a) {
  if (a.empty()) fail(op, "an operand is an empty NamedArray: it was never given a value");
  return a.node();
}
NodePtr node_of(const char* op, const Arr& a) {
  return a.is_number() ? number_of(op, a, dtype_of_number(a)) : node_of(op, a.array());
}
NodePtr node_of(const char* op, const Arr& a, DType d) {
  if (a.is_number()) return number_of(op, a, d);
  auto n = node_of(op, a.array());
  return d == DType::boolean ? to_bool(n) : prim::cast(n, d);
}

namespace {
// f64 spreads to all that it meets, and is seldom meant where the rest is f32: said at the first time.
void tell_mixed(const char* op, const Node& a, const Node& b) {
  auto &wide = a.dtype == DType::f64 ? a : b, &narrow = &wide == &a ? b : a;
  if (wide.dtype != DType::f64 || narrow.dtype != DType::f32 || visible(narrow).empty()) return;
  static std::atomic_flag told;
  if (told.test_and_set()) return;
  std::fprintf(stderr,
               "haliax: warning: [%s] f64 %s meets f32 %s, and the result is f64; arrays of std::vector<double> are f64, and "
               "astype(DType::f32) narrows them; this is said once; %s\n",
               op, to_string(visible(wide)).c_str(), to_string(visible(narrow)).c_str(), where_of(context().origin).c_str());
}
}  // namespace
DType promoted(const char* op, const std::vector<Arr>& operands) {
  std::optional<DType> out;
  const Node* first = nullptr;
  DType weak = DType::boolean;   // of the numbers
  for (auto& a : operands) {
    if (a.is_number()) weak = promote(weak, dtype_of_number(a));
    else if (auto n = node_of(op, a); out) tell_mixed(op, *first, *n), out = promote(*out, n->dtype);
    else out = n->dtype, first = a.node().get();
  }
  if (!out || *out == DType::boolean) return weak;
  return is_float(weak) && !is_float(*out) ? DType::f32 : *out;
}

NodePtr to_bool(const NodePtr& x) {
  if (x->dtype == DType::boolean) return x;
  return prim::map(prim::kNotEqual, {x, prim::integer(0, x->dtype)}, DType::boolean, &x->axes);
}
NodePtr mask_of(const char* op, const NamedArray& mask, const Node& x) {
  auto n = node_of(op, mask);
  if (n->dtype != DType::boolean) fail(op, "the mask is " + text(n->dtype) + ", not bool; compare it with something");
  check_sizes(op, n->axes, x.axes);
  for (auto& a : visible(*n))
    if (!find(x, a.name))
      fail(op, "axis " + text(a.name) + " of the mask is not in " + to_string(visible(x)) + "; broadcast the array to it first");
  return n;
}
Axes broadcast(const char* op, const Nodes& nodes) {
  std::vector<Axes> shapes;
  for (auto& n : nodes) shapes.push_back(visible(*n));
  return with_hidden(nodes, broadcast(op, shapes));
}
Axes broadcast(const char* op, const std::vector<Axes>& given) {
  auto all = given;
  std::stable_sort(all.begin(), all.end(), [](auto& a, auto& b) { return axis_size(a) > axis_size(b); });
  auto within = [](const Axes& a, const Axes& b) {
    return std::all_of(a.begin(), a.end(), [&](auto& x) { return has(b, x.name); });
  };
  Axes out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) check_sizes(op, all[j], all[i]);
    if (i == 0 || (!within(all[i], out) && within(out, all[i]))) {
      out = all[i];
    } else if (!within(all[i], out)) {
      std::string shapes;
      for (auto& a : given) shapes += (shapes.empty() ? "" : &a == &given.back() ? " and " : ", ") + to_string(a);
      auto only = [&](const Axes& a, const Axes& b) {
        std::string s;
        for (auto& x : a) if (!has(b, x.name)) s += (s.empty() ? "" : ", ") + text(x.name);
        return s + (" is only in " + to_string(a));
      };
      fail(op, "cannot broadcast " + shapes + ": " + only(out, all[i]) + ", " + only(all[i], out) +
                   "; add axes to one of them with broadcast_axis");
    }
  }
  return out;
}
NodePtr pointwise(const char* op, const Op& code, const Nodes& nodes, DType dtype) {
  auto axes = broadcast(op, nodes);
  return prim::map(code, nodes, dtype, &axes);
}

}  // namespace haliax::ops
