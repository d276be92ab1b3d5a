// NamedArray: properties that need no evaluation, and arrays from host memory.
#include "haliax/array.h"

#include <algorithm>

#include "haliax/fmt.h"
#include "ops/named.h"

namespace haliax {
namespace {

using namespace ops;

NodeRef held(const char* op, NodeRef n) {
  if (!n) fail(op, "the NamedArray is empty; assign a value to it first");
  return n;
}
NamedArray data(const char* op, std::span<const std::byte> values, DType dtype, const Axes& axes) {
  check_unique(op, axes);
  auto count = std::int64_t(values.size()) / bytes_of(dtype), requested = axis_size(axes);
  if (count != requested)
    fail(op, fmt::format("{} values were given for {}, which has {} elements", count,
                         to_string(axes), requested));
  auto buffer = std::make_shared<Buffer>(std::int64_t(values.size()));
  std::copy(values.begin(), values.end(), buffer->data());
  return NamedArray(make_data(std::move(buffer), axes, dtype));
}
template <class T>
NamedArray data(std::span<const T> values, DType dtype, const Axes& axes, SourceLocation at) {
  CallSite here(at);
  return data("array", std::as_bytes(values), dtype, axes);
}

}  // namespace

NamedArray::NamedArray(double value, SourceLocation at) {
  CallSite here(at);
  node_ = prim::number(value, DType::f32);
}

Axes NamedArray::axes(SourceLocation at) const {
  if (node_) return visible(*node_);
  CallSite here(at);
  return visible(*held("axes", node_));
}
DType NamedArray::dtype(SourceLocation at) const {
  if (node_) return node_->dtype;
  CallSite here(at);
  return held("dtype", node_)->dtype;
}
std::int64_t NamedArray::ndim(SourceLocation at) const { return std::int64_t(axes(at).size()); }
std::int64_t NamedArray::size(SourceLocation at) const { return haliax::axis_size(axes(at)); }
std::int64_t NamedArray::nbytes(SourceLocation at) const { return size(at) * bytes_of(dtype(at)); }
bool NamedArray::has_axis(const AxisSelection& selection, SourceLocation at) const {
  auto mine = axes(at);
  return std::all_of(selection.items().begin(), selection.items().end(), [&](auto& s) {
    auto* a = find_axis(mine, s.name);
    return a && (s.size < 0 || s.size == a->size);
  });
}
std::int64_t NamedArray::axis_size(const AxisSelector& s, SourceLocation at) const {
  CallSite here(at);
  return axis_of("axis_size", held("axis_size", node_), s).size;
}
Axis NamedArray::resolve_axis(const AxisSelector& s, SourceLocation at) const {
  CallSite here(at);
  return axis_of("resolve_axis", held("resolve_axis", node_), s);
}

std::vector<std::int64_t> NamedArray::axis_size(std::initializer_list<AxisSelector> axes,
                                                SourceLocation at) const {
  std::vector<std::int64_t> out;
  for (auto& s : axes) out.push_back(axis_size(s, at));
  return out;
}
Axes NamedArray::resolve_axis(std::initializer_list<AxisSelector> axes, SourceLocation at) const {
  Axes out;
  for (auto& s : axes) out.push_back(resolve_axis(s, at));
  return out;
}
std::optional<std::size_t> NamedArray::axis_indices(const AxisSelector& s,
                                                    SourceLocation at) const {
  CallSite here(at);
  auto mine = visible(*held("axis_indices", node_));
  auto* a = find_axis(mine, s.name);
  if (!a) return {};
  axis_of("axis_indices", mine, s);
  return std::size_t(a - mine.data());
}
std::vector<std::optional<std::size_t>> NamedArray::axis_indices(
    std::initializer_list<AxisSelector> axes, SourceLocation at) const {
  std::vector<std::optional<std::size_t>> out;
  for (auto& s : axes) out.push_back(axis_indices(s, at));
  return out;
}
bool NamedArray::matches_axes(std::string_view spec, std::optional<DType> dtype,
                              SourceLocation at) const {
  CallSite here(at);
  auto& x = held("matches_axes", node_);
  auto mine = names_of(visible(*x));
  const bool unordered = spec.find('{') != spec.npos;
  Names listed;  // "..." included
  for (std::size_t i = 0; i < spec.size();) {
    auto end = std::min(spec.find_first_of(" {},", i), spec.size());
    if (end > i) listed.push_back(spec.substr(i, end - i));
    i = end + 1;
  }
  auto dots = std::find(listed.begin(), listed.end(), Name(ellipsis));
  if (std::count(dots, listed.end(), Name(ellipsis)) > 1)
    fail("matches_axes", fmt::format("the specification \"{}\" has two ...; use one", spec));
  if (dtype && x->dtype != *dtype) return false;
  const bool open = dots != listed.end();
  const auto named = listed.size() - open;
  if (mine.size() < named || (!open && mine.size() > named)) return false;
  if (unordered)
    return std::all_of(listed.begin(), listed.end(), [&](auto n) {
      return n == Name(ellipsis) || std::find(mine.begin(), mine.end(), n) != mine.end();
    });
  const auto before = dots - listed.begin(), after = listed.end() - dots - open;
  return std::equal(listed.begin(), dots, mine.begin(), mine.begin() + before) &&
         std::equal(listed.end() - after, listed.end(), mine.end() - after);
}

const NamedArray& NamedArray::scalar(SourceLocation at) const {
  CallSite here(at);
  if (auto mine = visible(*held("scalar", node_)); !mine.empty())
    fail("scalar", "the array has axes " + haliax::to_string(mine) +
                       ", so it is not a scalar; reduce them first");
  return *this;
}

Arr::Arr(unsigned long v, SourceLocation at) : Arr(long(v), at) {
  if (v <= static_cast<unsigned long>(std::numeric_limits<long>::max())) return;
  CallSite here(at);
  fail("number", std::to_string(v) + " does not fit in i64");
}
const NamedArray& Arr::array() const {
  if (is_number() && array_.empty()) {
    CallSite here(at_);
    array_ = NamedArray(node_of("number", *this));
  }
  return array_;
}

NamedArray array(std::span<const float> v, const AxisSpec& axes, SourceLocation at) {
  return data(v, DType::f32, axes, at);
}
NamedArray array(std::span<const double> v, const AxisSpec& axes, SourceLocation at) {
  return data(v, DType::f64, axes, at);
}
NamedArray array(std::span<const std::int32_t> v, const AxisSpec& axes, SourceLocation at) {
  return data(v, DType::i32, axes, at);
}
NamedArray array(std::span<const std::int64_t> v, const AxisSpec& axes, SourceLocation at) {
  return data(v, DType::i64, axes, at);
}
NamedArray array(std::span<const std::uint32_t> v, const AxisSpec& axes, SourceLocation at) {
  return data(v, DType::u32, axes, at);
}
NamedArray array(std::initializer_list<double> v, const AxisSpec& axes, SourceLocation at) {
  return array(std::vector<float>(v.begin(), v.end()), axes, at);
}
NamedArray from_bytes(std::span<const std::byte> v, DType dtype, const AxisSpec& axes,
                      SourceLocation at) {
  CallSite here(at);
  if (v.size() % std::size_t(bytes_of(dtype)))
    fail("from_bytes",
         fmt::format("{} bytes are not a multiple of the size of {}", v.size(), dtype));
  if (dtype != DType::boolean) return data("from_bytes", v, dtype, axes);
  std::vector<std::byte> bits(v.begin(), v.end());
  for (auto& b : bits) b = std::byte(b != std::byte(0));  // kernels require 0 or 1
  return data("from_bytes", bits, dtype, axes);
}

namespace {
NamedArray renamed_all(const NamedArray& a, const std::vector<AxisSelector>& axes,
                       SourceLocation at) {
  auto [here, x] = Call("named", Arr(a, at));
  auto old = visible(*x);
  Axes fresh;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    auto size = axes[i].size;
    if (size < 0) size = i < old.size() ? old[i].size : 0;
    fresh.emplace_back(axes[i].name, size);
  }
  check_unique("named", fresh);
  if (old.size() != axes.size())
    fail("named", fmt::format("the array has {} axes, {}, but the names are {}: {}", old.size(),
                              to_string(old), axes.size(), fmt::join(names_of(fresh), ", ")));
  for (std::size_t i = 0; i < axes.size(); ++i)
    if (old[i].size != fresh[i].size)
      fail("named",
           fmt::format("axis {} was given with size {}, but the array has size {} there: {}",
                       fresh[i].name, fresh[i].size, old[i].size, to_string(old)));
  return NamedArray(prim::rename(x, names_of(old), names_of(fresh)));
}
}  // namespace

NamedArray named(const NamedArray& a, const AxisSpec& spec, SourceLocation at) {
  return renamed_all(a, {spec.begin(), spec.end()}, at);
}
NamedArray named(const NamedArray& a, std::initializer_list<AxisSelector> axes, SourceLocation at) {
  return renamed_all(a, axes, at);
}
NamedArray named(const NamedArray& a, const Names& names, SourceLocation at) {
  return renamed_all(a, {names.begin(), names.end()}, at);
}

}  // namespace haliax
