// The simplification rules. `build` applies them before it creates a node. The named builders (add,
// cast, slice, ...), `rebuilt` and `substitute` use `build`; `map` and `make` apply no rules.
//
// Always  a rule keeps the axes, the dtype, and every bit of the values, except that x + 0 is x
//         where x is -0.
#include <functional>

#include "ops/attr.h"
#include "ops/simplify.h"

namespace haliax::prim {
namespace {

NodeRef x(const NodeSpec& d) { return d.in[0]; }
NodeRef y(const NodeSpec& d) { return d.in[1]; }

// ---- elementwise ----
// Two scalars, in the precision of their dtype.
template <class F> NodePtr folded(const NodeSpec& d, F f) {
  const bool numbers = x(d)->op == &kNumber && y(d)->op == &kNumber;
  if (!numbers || (d.dtype != DType::f32 && d.dtype != DType::f64)) return nullptr;
  return filled(f(real_of(*x(d)), real_of(*y(d))), d.dtype, d.axes);
}
NodePtr sum_of_numbers(const NodeSpec& d) { return folded(d, std::plus<>()); }
NodePtr difference_of_numbers(const NodeSpec& d) { return folded(d, std::minus<>()); }
NodePtr product_of_numbers(const NodeSpec& d) { return folded(d, std::multiplies<>()); }
NodePtr quotient_of_numbers(const NodeSpec& d) { return folded(d, std::divides<>()); }
// Returns an operand if the other one is the identity of the op.
NodePtr first_if(const NodeSpec& d, double identity) {
  return is_number(y(d), identity) ? fit(x(d), d.axes) : nullptr;
}
NodePtr either_if(const NodeSpec& d, double identity) {
  return is_number(x(d), identity) ? fit(y(d), d.axes) : first_if(d, identity);
}
NodePtr plus_zero(const NodeSpec& d) { return either_if(d, 0); }
NodePtr minus_zero(const NodeSpec& d) { return first_if(d, 0); }
NodePtr times_one(const NodeSpec& d) { return either_if(d, 1); }
NodePtr divided_by_one(const NodeSpec& d) { return first_if(d, 1); }

NodePtr negated_twice(const NodeSpec& d) {
  return x(d)->op == &kNeg ? fit(x(d)->in[0], d.axes) : nullptr;
}
NodePtr negated_number(const NodeSpec& d) {
  const bool may = is_number(x(d)) && is_float(d.dtype);
  return may ? filled(-real_of(*stripped(x(d))), d.dtype, d.axes) : nullptr;
}

NodePtr cast_to_same(const NodeSpec& d) {
  return x(d)->dtype == d.dtype ? fit(x(d), d.axes) : nullptr;
}
NodePtr cast_of_number(const NodeSpec& d) {
  const auto from = x(d)->dtype;
  if (!is_number(x(d)) || (is_float(from) && !is_float(d.dtype))) return nullptr;
  auto& n = *stripped(x(d));
  return is_float(from) ? filled(real_of(n), d.dtype, d.axes)
                        : fit(integer(integer_of(n), d.dtype), d.axes);
}
// Returns true if each value of the dtype is a value of the other dtype.
bool widens(DType from, DType to) {
  if (from == DType::boolean) return to != DType::boolean;
  if (is_float(from))
    return is_float(to) && (to == DType::f64 || (to == DType::f32 && from != DType::f64));
  return is_integer(from) && is_integer(to) && is_signed(from) == is_signed(to) &&
         bytes_of(to) >= bytes_of(from);
}
NodePtr cast_of_widened(const NodeSpec& d) {
  const bool may = x(d)->op == &kCast && widens(x(d)->in[0]->dtype, x(d)->dtype);
  return may ? fit(cast(x(d)->in[0], d.dtype), d.axes) : nullptr;
}

// ---- axes ----
NodePtr fit_to_same(const NodeSpec& d) { return x(d)->axes == d.axes ? x(d) : nullptr; }
NodePtr fit_of_fit(const NodeSpec& d) {
  return x(d)->op == &kFit ? fit(x(d)->in[0], d.axes) : nullptr;
}

NodePtr rename_of_scalar(const NodeSpec& d) {
  return x(d)->op == &kFit && x(d)->in[0]->axes.empty() ? fit(x(d)->in[0], d.axes) : nullptr;
}
NodePtr rename_of_rename(const NodeSpec& d) {
  if (x(d)->op != &kRename) return nullptr;
  auto& from = x(d)->in[0];
  return rename(from, names_of(from->axes), names_of(d.axes));
}

NodePtr full_slice(const NodeSpec& d) {
  const auto c = SliceAttr::of(d.attr);
  const bool all = d.in.size() == 1 && c.start == 0 && c.step == 1 && !c.drop &&
                   c.size == find(*x(d), c.axis)->size;
  return all ? x(d) : nullptr;
}
NodePtr slice_of_broadcast(const NodeSpec& d) {
  const bool constant = x(d)->op == &kFit && !find(*x(d)->in[0], SliceAttr::of(d.attr).axis);
  return constant ? fit(x(d)->in[0], d.axes) : nullptr;
}
NodePtr slice_of_slice(const NodeSpec& d) {
  if (x(d)->op != &kSlice || x(d)->in.size() > 1 || d.in.size() > 1) return nullptr;
  auto inner = SliceAttr::of(*x(d)), outer = SliceAttr::of(d.attr);
  if (inner.axis != outer.axis || inner.drop) return nullptr;
  outer.start = inner.start + outer.start * inner.step;
  outer.step *= inner.step;
  return slice(x(d)->in[0], outer, nullptr);
}
NodePtr place_of_zeros(const NodeSpec& d) {
  return is_number(x(d), 0) ? filled(0, d.dtype, d.axes) : nullptr;
}

// All positions, in order or from the last one to the first one: each one is its own inverse.
NodePtr full_place(const NodeSpec& d) {
  const auto c = SliceAttr::of(d.attr);
  if (d.in.size() > 1 || c.size != find_axis(d.axes, c.axis)->size) return nullptr;
  return fit(c.drop ? x(d) : slice(x(d), c, nullptr), d.axes);
}

NodePtr reshaped_number(const NodeSpec& d) {
  return is_number(x(d)) ? fit(stripped(x(d)), d.axes) : nullptr;
}
// Returns x for a flatten and an unflatten of the same axes.
NodePtr reshape_back(const NodeSpec& d, const Op& inverse) {
  if (x(d)->op != &inverse) return nullptr;
  auto& from = x(d)->in[0];
  const auto mine = RegroupAttr::of(d.attr), its = RegroupAttr::of(*x(d));
  const bool same =
      mine.parts == its.parts && mine.flat == its.flat && same_set(from->axes, d.axes);
  return same ? fit(from, d.axes) : nullptr;
}
NodePtr flatten_of_unflatten(const NodeSpec& d) { return reshape_back(d, kUnflatten); }
NodePtr unflatten_of_flatten(const NodeSpec& d) { return reshape_back(d, kFlatten); }

const SimplifyRule kRules[] = {
    {"number + number", &kAdd, sum_of_numbers},
    {"x + 0 -> x", &kAdd, plus_zero},
    {"number - number", &kSub, difference_of_numbers},
    {"x - 0 -> x", &kSub, minus_zero},
    {"number * number", &kMul, product_of_numbers},
    {"x * 1 -> x", &kMul, times_one},
    {"number / number", &kDiv, quotient_of_numbers},
    {"x / 1 -> x", &kDiv, divided_by_one},
    {"neg(neg(x)) -> x", &kNeg, negated_twice},
    {"neg(number)", &kNeg, negated_number},
    {"cast to the same dtype -> x", &kCast, cast_to_same},
    {"cast of a number", &kCast, cast_of_number},
    {"cast of a widening cast -> one cast", &kCast, cast_of_widened},
    {"fit to the same axes -> x", &kFit, fit_to_same},
    {"fit of a fit -> one fit", &kFit, fit_of_fit},
    {"rename of a broadcast scalar", &kRename, rename_of_scalar},
    {"rename of a rename -> one rename", &kRename, rename_of_rename},
    {"slice of all positions -> x", &kSlice, full_slice},
    {"slice of a broadcast -> a broadcast", &kSlice, slice_of_broadcast},
    {"slice of a slice -> one slice", &kSlice, slice_of_slice},
    {"place of zeros -> zeros", &kPlace, place_of_zeros},
    {"place of all positions -> a slice", &kPlace, full_place},
    {"flatten of a number", &kFlatten, reshaped_number},
    {"flatten of its unflatten -> x", &kFlatten, flatten_of_unflatten},
    {"unflatten of a number", &kUnflatten, reshaped_number},
    {"unflatten of its flatten -> x", &kUnflatten, unflatten_of_flatten},
};

}  // namespace

std::span<const SimplifyRule> simplify_rules() { return kRules; }

NodePtr build(const Op& op, Nodes in, Axes axes, DType dtype, Attr attr) {
  NodeSpec d{op, std::move(in), std::move(axes), dtype, std::move(attr)};
  for (auto& rule : kRules)
    if (rule.op == &op)
      if (auto simple = rule.apply(d)) return simple;
  return make(op, std::move(d.in), std::move(d.axes), dtype, std::move(d.attr));
}

}  // namespace haliax::prim
