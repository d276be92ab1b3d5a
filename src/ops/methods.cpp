// The ops as methods of NamedArray. Each method calls the free function of the same name with the
// source location of its caller.
#include "haliax/ops.h"

namespace haliax {

NamedArray NamedArray::sum(const AxisSelection& axis, SourceLocation at) const {
  return haliax::sum(Arr(*this, at), axis);
}
NamedArray NamedArray::sum(const AxisSelection& axis, const ReduceOptions& options,
                           SourceLocation at) const {
  return haliax::sum(Arr(*this, at), axis, options);
}
NamedArray NamedArray::mean(const AxisSelection& axis, SourceLocation at) const {
  return haliax::mean(Arr(*this, at), axis);
}
NamedArray NamedArray::mean(const AxisSelection& axis, const ReduceOptions& options,
                            SourceLocation at) const {
  return haliax::mean(Arr(*this, at), axis, options);
}
NamedArray NamedArray::prod(const AxisSelection& axis, SourceLocation at) const {
  return haliax::prod(Arr(*this, at), axis);
}
NamedArray NamedArray::prod(const AxisSelection& axis, const ReduceOptions& options,
                            SourceLocation at) const {
  return haliax::prod(Arr(*this, at), axis, options);
}
NamedArray NamedArray::max(const AxisSelection& axis, SourceLocation at) const {
  return haliax::max(Arr(*this, at), axis);
}
NamedArray NamedArray::max(const AxisSelection& axis, const ReduceOptions& options,
                           SourceLocation at) const {
  return haliax::max(Arr(*this, at), axis, options);
}
NamedArray NamedArray::min(const AxisSelection& axis, SourceLocation at) const {
  return haliax::min(Arr(*this, at), axis);
}
NamedArray NamedArray::min(const AxisSelection& axis, const ReduceOptions& options,
                           SourceLocation at) const {
  return haliax::min(Arr(*this, at), axis, options);
}
NamedArray NamedArray::any(const AxisSelection& axis, SourceLocation at) const {
  return haliax::any(Arr(*this, at), axis);
}
NamedArray NamedArray::any(const AxisSelection& axis, const ReduceOptions& options,
                           SourceLocation at) const {
  return haliax::any(Arr(*this, at), axis, options);
}
NamedArray NamedArray::all(const AxisSelection& axis, SourceLocation at) const {
  return haliax::all(Arr(*this, at), axis);
}
NamedArray NamedArray::all(const AxisSelection& axis, const ReduceOptions& options,
                           SourceLocation at) const {
  return haliax::all(Arr(*this, at), axis, options);
}
NamedArray NamedArray::var(const AxisSelection& axis, SourceLocation at) const {
  return haliax::var(Arr(*this, at), axis);
}
NamedArray NamedArray::var(const AxisSelection& axis, const VarOptions& options,
                           SourceLocation at) const {
  return haliax::var(Arr(*this, at), axis, options);
}
NamedArray NamedArray::std_dev(const AxisSelection& axis, SourceLocation at) const {
  return haliax::std_dev(Arr(*this, at), axis);
}
NamedArray NamedArray::std_dev(const AxisSelection& axis, const VarOptions& options,
                               SourceLocation at) const {
  return haliax::std_dev(Arr(*this, at), axis, options);
}
NamedArray NamedArray::argmax(SourceLocation at) const { return haliax::argmax(Arr(*this, at)); }
NamedArray NamedArray::argmax(const AxisSelector& axis, SourceLocation at) const {
  return haliax::argmax(Arr(*this, at), axis);
}
NamedArray NamedArray::argmin(SourceLocation at) const { return haliax::argmin(Arr(*this, at)); }
NamedArray NamedArray::argmin(const AxisSelector& axis, SourceLocation at) const {
  return haliax::argmin(Arr(*this, at), axis);
}
NamedArray NamedArray::ptp(const AxisSelection& axis, SourceLocation at) const {
  return haliax::ptp(Arr(*this, at), axis);
}
NamedArray NamedArray::cumsum(const AxisSelector& axis, DType dtype, SourceLocation at) const {
  return haliax::cumsum(Arr(*this, at), axis, dtype);
}
NamedArray NamedArray::cumprod(const AxisSelector& axis, DType dtype, SourceLocation at) const {
  return haliax::cumprod(Arr(*this, at), axis, dtype);
}
NamedArray NamedArray::cumsum(const AxisSelector& axis, SourceLocation at) const {
  return haliax::cumsum(Arr(*this, at), axis);
}
NamedArray NamedArray::cumprod(const AxisSelector& axis, SourceLocation at) const {
  return haliax::cumprod(Arr(*this, at), axis);
}
NamedArray NamedArray::sort(const AxisSelector& axis, SourceLocation at) const {
  return haliax::sort(Arr(*this, at), axis);
}
NamedArray NamedArray::argsort(const AxisSelector& axis, SourceLocation at) const {
  return haliax::argsort(Arr(*this, at), axis);
}
NamedArray NamedArray::astype(DType dtype, SourceLocation at) const {
  return haliax::astype(Arr(*this, at), dtype);
}
NamedArray NamedArray::clip(const std::optional<Arr>& min, const std::optional<Arr>& max,
                            SourceLocation at) const {
  return haliax::clip(Arr(*this, at), min, max);
}
NamedArray NamedArray::round(int decimals, SourceLocation at) const {
  return haliax::round(Arr(*this, at), decimals);
}
NamedArray NamedArray::trace(const AxisSelector& a, const AxisSelector& b, int offset,
                             SourceLocation at) const {
  return haliax::trace(Arr(*this, at), a, b, offset);
}
NamedArray NamedArray::dot(const NamedArray& other, const AxisSelection& axis,
                           SourceLocation at) const {
  return haliax::dot(Arr(*this, at), Arr(other, at), axis);
}
NamedArray NamedArray::dot(const NamedArray& other, const AxisSelection& axis,
                           const DotOptions& options, SourceLocation at) const {
  return haliax::dot(Arr(*this, at), Arr(other, at), axis, options);
}
NamedArray NamedArray::dot(const NamedArray& b, const NamedArray& c, const AxisSelection& axis,
                           SourceLocation at) const {
  return haliax::dot({Arr(*this, at), Arr(b, at), Arr(c, at)}, axis);
}
NamedArray NamedArray::dot(const std::vector<NamedArray>& others, const AxisSelection& axis,
                           const DotOptions& options, SourceLocation at) const {
  std::vector<NamedArray> all{*this};
  all.insert(all.end(), others.begin(), others.end());
  return haliax::dot(all, axis, options, at);
}
NamedArray NamedArray::rename(std::initializer_list<std::pair<AxisSelector, AxisSelector>> renames,
                              SourceLocation at) const {
  return haliax::rename(Arr(*this, at), renames);
}
NamedArray NamedArray::rename(const AxisSelector& from, const AxisSelector& to,
                              SourceLocation at) const {
  return haliax::rename(Arr(*this, at), from, to);
}
NamedArray NamedArray::rearrange(std::initializer_list<AxisSelector> order,
                                 SourceLocation at) const {
  return haliax::rearrange(Arr(*this, at), order);
}
NamedArray NamedArray::rearrange(const Names& order, SourceLocation at) const {
  return haliax::rearrange(Arr(*this, at), order);
}
NamedArray NamedArray::rearrange(const Axes& order, SourceLocation at) const {
  return haliax::rearrange(Arr(*this, at), order);
}
NamedArray NamedArray::rearrange(std::string_view spec, SourceLocation at) const {
  return haliax::rearrange(Arr(*this, at), spec);
}
NamedArray NamedArray::rearrange(std::string_view spec,
                                 std::initializer_list<LabelBinding> bindings,
                                 SourceLocation at) const {
  return haliax::rearrange(Arr(*this, at), spec, bindings);
}
NamedArray NamedArray::broadcast_axis(const AxisSpec& axes, SourceLocation at) const {
  return haliax::broadcast_axis(Arr(*this, at), axes);
}
NamedArray NamedArray::broadcast_to(const AxisSpec& axes, SourceLocation at) const {
  return haliax::broadcast_to(Arr(*this, at), axes);
}
NamedArray NamedArray::flatten_axes(const AxisSelection& old_axes, const AxisSelector& new_axis,
                                    SourceLocation at) const {
  return haliax::flatten_axes(Arr(*this, at), old_axes, new_axis);
}
NamedArray NamedArray::unflatten_axis(const AxisSelector& axis, const AxisSpec& new_axes,
                                      SourceLocation at) const {
  return haliax::unflatten_axis(Arr(*this, at), axis, new_axes);
}
NamedArray NamedArray::ravel(const AxisSelector& new_axis, SourceLocation at) const {
  return haliax::ravel(Arr(*this, at), new_axis);
}
NamedArray NamedArray::flatten(const AxisSelector& new_axis, SourceLocation at) const {
  return haliax::ravel(Arr(*this, at), new_axis);
}
NamedArray NamedArray::take(const AxisSelector& axis, const Arr& index, SourceLocation at) const {
  return haliax::take(Arr(*this, at), axis, index);
}
NamedArray NamedArray::slice(const AxisSelector& axis, const Arr& start, std::int64_t length,
                             SourceLocation at) const {
  return haliax::slice(Arr(*this, at), axis, start, length);
}
NamedArray NamedArray::slice(const std::vector<std::pair<AxisSelector, Arr>>& start,
                             const std::vector<std::pair<AxisSelector, SliceLength>>& length,
                             SourceLocation at) const {
  return haliax::slice(Arr(*this, at), start, length);
}
NamedArray NamedArray::updated_slice(const std::vector<std::pair<AxisSelector, NamedArray>>& start,
                                     const Arr& update, SourceLocation at) const {
  return haliax::updated_slice(Arr(*this, at), start, update);
}
std::vector<NamedArray> NamedArray::unbind(const AxisSelector& axis, SourceLocation at) const {
  return haliax::unbind(Arr(*this, at), axis);
}
std::vector<NamedArray> NamedArray::split(const AxisSelector& axis, const AxisSpec& pieces,
                                          SourceLocation at) const {
  return haliax::split(Arr(*this, at), axis, pieces);
}

// The source location is the one of the right operand, since a C++ operator has no parameter for
// its own.
NamedArray& NamedArray::operator+=(const Arr& b) & { return *this = add(Arr(*this, b.at()), b); }
NamedArray& NamedArray::operator-=(const Arr& b) & {
  return *this = subtract(Arr(*this, b.at()), b);
}
NamedArray& NamedArray::operator*=(const Arr& b) & {
  return *this = multiply(Arr(*this, b.at()), b);
}
NamedArray& NamedArray::operator/=(const Arr& b) & { return *this = divide(Arr(*this, b.at()), b); }
NamedArray& NamedArray::operator%=(const Arr& b) & { return *this = mod(Arr(*this, b.at()), b); }
NamedArray& NamedArray::operator&=(const Arr& b) & {
  return *this = bitwise_and(Arr(*this, b.at()), b);
}
NamedArray& NamedArray::operator|=(const Arr& b) & {
  return *this = bitwise_or(Arr(*this, b.at()), b);
}
NamedArray& NamedArray::operator^=(const Arr& b) & {
  return *this = bitwise_xor(Arr(*this, b.at()), b);
}
NamedArray& NamedArray::operator<<=(const Arr& b) & {
  return *this = left_shift(Arr(*this, b.at()), b);
}
NamedArray& NamedArray::operator>>=(const Arr& b) & {
  return *this = right_shift(Arr(*this, b.at()), b);
}

Picks::Picks(AxisSelector axis, Index index, SourceLocation at)
    : indices_{{std::move(axis), std::move(index)}}, where_(at) {}
Picks::Picks(std::initializer_list<std::pair<AxisSelector, Index>> all, SourceLocation at)
    : indices_(all), where_(at) {}
Picks::Picks(Indices all, SourceLocation at) : indices_(std::move(all)), where_(at) {}
NamedArray NamedArray::operator[](const Picks& p) const {
  return index(Arr(*this, p.where()), p.indices());
}
PickedPart NamedArray::at(const Picks& p) const { return {*this, p}; }
NamedArray PickedPart::get(IndexMode mode) const { return get(mode, std::nullopt); }
NamedArray PickedPart::get(IndexMode mode, std::optional<Arr> fill_value) const {
  return at_get(Arr(x_, picks_.where()), picks_.indices(), mode, std::move(fill_value));
}
NamedArray PickedPart::set(const Arr& y, IndexMode mode) const {
  return at_set(Arr(x_, picks_.where()), picks_.indices(), y, mode);
}
NamedArray PickedPart::add(const Arr& y, IndexMode mode) const {
  return at_add(Arr(x_, picks_.where()), picks_.indices(), y, mode);
}
NamedArray PickedPart::mul(const Arr& y, IndexMode mode) const {
  return at_mul(Arr(x_, picks_.where()), picks_.indices(), y, mode);
}
NamedArray PickedPart::multiply(const Arr& y, IndexMode mode) const {
  return at_mul(Arr(x_, picks_.where()), picks_.indices(), y, mode);
}
NamedArray PickedPart::divide(const Arr& y, IndexMode mode) const {
  return at_divide(Arr(x_, picks_.where()), picks_.indices(), y, mode);
}
NamedArray PickedPart::power(const Arr& y, IndexMode mode) const {
  return at_power(Arr(x_, picks_.where()), picks_.indices(), y, mode);
}
NamedArray PickedPart::min(const Arr& y, IndexMode mode) const {
  return at_min(Arr(x_, picks_.where()), picks_.indices(), y, mode);
}
NamedArray PickedPart::max(const Arr& y, IndexMode mode) const {
  return at_max(Arr(x_, picks_.where()), picks_.indices(), y, mode);
}

}  // namespace haliax
