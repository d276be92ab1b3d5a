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

NodeRef x(const NodeSpec& spec) { return spec.in[0]; }
NodeRef y(const NodeSpec& spec) { return spec.in[1]; }

// ---- elementwise ----
// Two scalars, in the precision of their dtype.
template <class F> NodePtr folded(const NodeSpec& spec, F f) {
  const bool numbers = x(spec)->op == &kNumber && y(spec)->op == &kNumber;
  if (!numbers || (spec.dtype != DType::f32 && spec.dtype != DType::f64)) return nullptr;
  return filled(f(real_of(*x(spec)), real_of(*y(spec))), spec.dtype, spec.axes);
}
NodePtr sum_of_numbers(const NodeSpec& spec) { return folded(spec, std::plus<>()); }
NodePtr difference_of_numbers(const NodeSpec& spec) { return folded(spec, std::minus<>()); }
NodePtr product_of_numbers(const NodeSpec& spec) { return folded(spec, std::multiplies<>()); }
NodePtr quotient_of_numbers(const NodeSpec& spec) { return folded(spec, std::divides<>()); }
// Return an operand if the other one is the identity of the op, such as x for x + 0.
NodePtr first_if(const NodeSpec& spec, double identity) {
  return is_number(y(spec), identity) ? fit(x(spec), spec.axes) : nullptr;
}
NodePtr either_if(const NodeSpec& spec, double identity) {
  return is_number(x(spec), identity) ? fit(y(spec), spec.axes) : first_if(spec, identity);
}
NodePtr plus_zero(const NodeSpec& spec) { return either_if(spec, 0); }
NodePtr minus_zero(const NodeSpec& spec) { return first_if(spec, 0); }
NodePtr times_one(const NodeSpec& spec) { return either_if(spec, 1); }
NodePtr divided_by_one(const NodeSpec& spec) { return first_if(spec, 1); }

NodePtr negated_twice(const NodeSpec& spec) {
  return x(spec)->op == &kNeg ? fit(x(spec)->in[0], spec.axes) : nullptr;
}
NodePtr negated_number(const NodeSpec& spec) {
  const bool may = is_number(x(spec)) && is_float(spec.dtype);
  return may ? filled(-real_of(*stripped(x(spec))), spec.dtype, spec.axes) : nullptr;
}

NodePtr cast_to_same(const NodeSpec& spec) {
  return x(spec)->dtype == spec.dtype ? fit(x(spec), spec.axes) : nullptr;
}
NodePtr cast_of_number(const NodeSpec& spec) {
  const auto from = x(spec)->dtype;
  if (!is_number(x(spec)) || (is_float(from) && !is_float(spec.dtype))) return nullptr;
  auto& n = *stripped(x(spec));
  return is_float(from) ? filled(real_of(n), spec.dtype, spec.axes)
                        : fit(integer(integer_of(n), spec.dtype), spec.axes);
}
// Returns true if each value of the dtype is a value of the other dtype.
bool widens(DType from, DType to) {
  if (from == DType::boolean) return to != DType::boolean;
  if (is_float(from))
    return is_float(to) && (to == DType::f64 || (to == DType::f32 && from != DType::f64));
  return is_integer(from) && is_integer(to) && is_signed(from) == is_signed(to) &&
         bytes_of(to) >= bytes_of(from);
}
NodePtr cast_of_widened(const NodeSpec& spec) {
  const bool may = x(spec)->op == &kCast && widens(x(spec)->in[0]->dtype, x(spec)->dtype);
  return may ? fit(cast(x(spec)->in[0], spec.dtype), spec.axes) : nullptr;
}

// ---- axes ----
NodePtr fit_to_same(const NodeSpec& spec) { return x(spec)->axes == spec.axes ? x(spec) : nullptr; }
NodePtr fit_of_fit(const NodeSpec& spec) {
  return x(spec)->op == &kFit ? fit(x(spec)->in[0], spec.axes) : nullptr;
}

NodePtr rename_of_scalar(const NodeSpec& spec) {
  return x(spec)->op == &kFit && x(spec)->in[0]->axes.empty() ? fit(x(spec)->in[0], spec.axes)
                                                              : nullptr;
}
NodePtr rename_of_rename(const NodeSpec& spec) {
  if (x(spec)->op != &kRename) return nullptr;
  auto& from = x(spec)->in[0];
  return rename(from, names_of(from->axes), names_of(spec.axes));
}

NodePtr full_slice(const NodeSpec& spec) {
  const auto c = SliceAttr::of(spec.attr);
  const bool all = spec.in.size() == 1 && c.start == 0 && c.step == 1 && !c.drop &&
                   c.size == find(*x(spec), c.axis)->size;
  return all ? x(spec) : nullptr;
}
NodePtr slice_of_broadcast(const NodeSpec& spec) {
  const bool constant =
      x(spec)->op == &kFit && !find(*x(spec)->in[0], SliceAttr::of(spec.attr).axis);
  return constant ? fit(x(spec)->in[0], spec.axes) : nullptr;
}
NodePtr slice_of_slice(const NodeSpec& spec) {
  if (x(spec)->op != &kSlice || x(spec)->in.size() > 1 || spec.in.size() > 1) return nullptr;
  auto inner = SliceAttr::of(*x(spec)), outer = SliceAttr::of(spec.attr);
  if (inner.axis != outer.axis || inner.drop) return nullptr;
  outer.start = inner.start + outer.start * inner.step;
  outer.step *= inner.step;
  return slice(x(spec)->in[0], outer, nullptr);
}
NodePtr place_of_zeros(const NodeSpec& spec) {
  return is_number(x(spec), 0) ? filled(0, spec.dtype, spec.axes) : nullptr;
}

// All positions, in order or from the last one to the first one: each one is its own inverse.
NodePtr full_place(const NodeSpec& spec) {
  const auto c = SliceAttr::of(spec.attr);
  if (spec.in.size() > 1 || c.size != find_axis(spec.axes, c.axis)->size) return nullptr;
  return fit(c.drop ? x(spec) : slice(x(spec), c, nullptr), spec.axes);
}

NodePtr reshaped_number(const NodeSpec& spec) {
  return is_number(x(spec)) ? fit(stripped(x(spec)), spec.axes) : nullptr;
}
// Returns x for a flatten and an unflatten of the same axes.
NodePtr reshape_back(const NodeSpec& spec, const Op& inverse) {
  if (x(spec)->op != &inverse) return nullptr;
  auto& from = x(spec)->in[0];
  const auto mine = RegroupAttr::of(spec.attr), its = RegroupAttr::of(*x(spec));
  const bool same =
      mine.parts == its.parts && mine.flat == its.flat && same_set(from->axes, spec.axes);
  return same ? fit(from, spec.axes) : nullptr;
}
NodePtr flatten_of_unflatten(const NodeSpec& spec) { return reshape_back(spec, kUnflatten); }
NodePtr unflatten_of_flatten(const NodeSpec& spec) { return reshape_back(spec, kFlatten); }

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
  NodeSpec spec{op, std::move(in), std::move(axes), dtype, std::move(attr)};
  for (auto& rule : kRules)
    if (rule.op == &op)
      if (auto simple = rule.apply(spec)) return simple;
  return make(op, std::move(spec.in), std::move(spec.axes), dtype, std::move(spec.attr));
}

}  // namespace haliax::prim
