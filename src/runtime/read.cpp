// Reading arrays out, and printing them.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/half.h"
#include "runtime/run.h"

namespace haliax {
namespace {

const Node& with_value(const NamedArray& a) {
  if (a.empty()) fail("eval", "the NamedArray is empty: it was never given a value");
  auto& n = *a.node();
  if (!n.donated.empty()) fail("eval", n.donated);
  for (auto& x : n.axes)
    if (x.name.hidden())
      fail("eval", "a value is asked for inside vmap over " + std::string(x.name.text()) + ", where there is none yet");
  if (!n.value && !n.free.empty()) fail("eval", "a value is asked for inside scan, where there is none yet");
  if (!n.value) evaluate({a.node()});
  return n;
}

template <class T> double as_double(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return double(v);
}
double element(const std::byte* p, DType d) {
  switch (d) {
    case DType::f32: return as_double<float>(p);
    case DType::f64: return as_double<double>(p);
    case DType::bf16: { std::uint16_t v; std::memcpy(&v, p, 2); return double(from_bf16(v)); }
    case DType::f16: { std::uint16_t v; std::memcpy(&v, p, 2); return double(from_f16(v)); }
    case DType::i8: return as_double<std::int8_t>(p);
    case DType::i16: return as_double<std::int16_t>(p);
    case DType::i32: return as_double<std::int32_t>(p);
    case DType::i64: return as_double<std::int64_t>(p);
    case DType::u8: return as_double<std::uint8_t>(p);
    case DType::u16: return as_double<std::uint16_t>(p);
    case DType::u32: return as_double<std::uint32_t>(p);
    case DType::u64: return as_double<std::uint64_t>(p);
    case DType::boolean: return as_double<std::uint8_t>(p) != 0;
  }
  return 0;
}
template <class T>
T element_as(const std::byte* p, DType d) {
  if (d == DType::u64) {
    std::uint64_t v;
    std::memcpy(&v, p, sizeof v);
    return std::is_integral_v<T> ? T(std::min<std::uint64_t>(v, std::numeric_limits<std::int64_t>::max())) : T(v);
  }
  if (d == DType::i64) {
    std::int64_t v;
    std::memcpy(&v, p, sizeof v);
    return T(v);
  }
  auto v = element(p, d);
  if constexpr (std::is_integral_v<T>) {
    if (std::isnan(v)) return 0;
    if (std::abs(v) >= 0x1p63) return v < 0 ? std::numeric_limits<T>::min() : std::numeric_limits<T>::max();
  }
  return T(v);
}
template <class T> std::vector<T> converted(const Node& n) {
  std::vector<T> out(std::size_t(n.size()));
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = element_as<T>(n.value->data() + i * std::size_t(bytes_of(n.dtype)), n.dtype);
  return out;
}

std::string text_of(const std::byte* p, DType d) {
  if (d == DType::boolean) return element(p, d) != 0 ? "true" : "false";
  if (d == DType::u64) {
    std::uint64_t v;
    std::memcpy(&v, p, sizeof v);
    return std::to_string(v);
  }
  if (!is_float(d)) return std::to_string(element_as<std::int64_t>(p, d));
  auto v = element(p, d);
  if (std::isnan(v)) return "nan";  // whatever its sign
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", v);
  return text;
}
void print(std::string& s, const Node& n, std::size_t axis, std::int64_t at) {
  if (axis == n.axes.size()) {
    s += text_of(n.value->data() + at * bytes_of(n.dtype), n.dtype);
    return;
  }
  std::int64_t size = n.axes[axis].size, inner = 1;
  for (std::size_t a = axis + 1; a < n.axes.size(); ++a) inner *= n.axes[a].size;
  s += "[";
  for (std::int64_t i = 0; i < size; ++i) {
    if (i) s += ", ";
    if (size > 8 && i == 4) s += "..., ", i = size - 4;
    print(s, n, axis + 1, at + i * inner);
  }
  s += "]";
}

}  // namespace

const NamedArray& NamedArray::eval(SourceLocation at) const {
  Here here(at);
  with_value(*this);
  return *this;
}
void eval(std::span<const NamedArray> arrays, SourceLocation at) {
  Here here(at);
  Nodes nodes;
  for (auto& a : arrays) if (!a.empty()) nodes.push_back(a.node());
  evaluate(nodes);
}
double NamedArray::item(SourceLocation at) const {
  Here here(at);
  auto& n = with_value(*this);
  if (n.size() != 1) fail("item", "expected one value, got " + haliax::to_string(n.axes));
  return converted<double>(n)[0];
}
std::vector<float> NamedArray::floats(SourceLocation at) const {
  Here here(at);
  return converted<float>(with_value(*this));
}
std::vector<double> NamedArray::doubles(SourceLocation at) const {
  Here here(at);
  return converted<double>(with_value(*this));
}
std::vector<std::int64_t> NamedArray::integers(SourceLocation at) const {
  Here here(at);
  return converted<std::int64_t>(with_value(*this));
}
std::vector<std::byte> NamedArray::bytes(SourceLocation at) const {
  Here here(at);
  auto& n = with_value(*this);
  return {n.value->data(), n.value->data() + n.bytes()};
}
std::string NamedArray::to_string() const {
  if (!node_) return "NamedArray()";
  std::string s = "NamedArray(" + std::string(name_of(dtype())) + ", " + haliax::to_string(axes());
  try {
    if (context().tracing == 0) with_value(*this);
  } catch (const Error&) {}  // a value that cannot be had is not shown
  if (node_->value) s += ", ", print(s, *node_, 0, 0);
  return s + ")";
}

}  // namespace haliax
