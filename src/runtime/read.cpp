// Reading arrays out, and printing them.
#include <cstdio>
#include <cstring>

#include "base/half.h"
#include "runtime/run.h"

namespace haliax {
namespace {

const Node& with_value(const NamedArray& a) {
  if (!a) throw Error("[eval] the array is empty");
  auto& n = *a.node();
  if (!n.donated.empty()) fail_at(n.origin, "eval", n.donated);
  for (auto& x : n.axes)
    if (x.name.hidden()) fail_at(n.origin, "eval", "a value is asked for inside vmap over " + std::string(x.name.text()) + ", where there is none yet");
  if (!n.value && !n.free.empty()) fail_at(n.origin, "eval", "a value is asked for inside scan, where there is none yet");
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
template <class T> std::vector<T> converted(const Node& n) {
  std::vector<T> out(std::size_t(n.size()));
  auto width = bytes_of(n.dtype);
  for (std::size_t i = 0; i < out.size(); ++i) {
    auto* p = n.value->data() + std::int64_t(i) * width;
    if (n.dtype == DType::i64 || n.dtype == DType::u64) {
      std::int64_t v;
      std::memcpy(&v, p, 8);
      out[i] = T(v);
    } else {
      out[i] = T(element(p, n.dtype));
    }
  }
  return out;
}

void print(std::string& s, const Node& n, std::size_t axis, std::int64_t at) {
  char text[32];
  if (axis == n.axes.size()) {
    auto v = element(n.value->data() + at * bytes_of(n.dtype), n.dtype);
    if (n.dtype == DType::boolean) s += v ? "true" : "false";
    else std::snprintf(text, sizeof text, is_float(n.dtype) ? "%.6g" : "%.0f", v), s += text;
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

const NamedArray& NamedArray::eval() const {
  with_value(*this);
  return *this;
}
void eval(std::span<const NamedArray> arrays) {
  Nodes nodes;
  for (auto& a : arrays) if (a) nodes.push_back(a.node());
  evaluate(nodes);
}
double NamedArray::item() const {
  auto& n = with_value(*this);
  if (n.size() != 1) fail_at(n.origin, "item", "expected one value, got " + haliax::to_string(n.axes));
  return converted<double>(n)[0];
}
std::vector<float> NamedArray::floats() const { return converted<float>(with_value(*this)); }
std::vector<double> NamedArray::doubles() const { return converted<double>(with_value(*this)); }
std::vector<std::int64_t> NamedArray::integers() const { return converted<std::int64_t>(with_value(*this)); }
std::vector<std::byte> NamedArray::bytes() const {
  auto& n = with_value(*this);
  return {n.value->data(), n.value->data() + n.bytes()};
}
std::string NamedArray::to_string() const {
  if (!node_) return "NamedArray()";
  std::string s = "NamedArray(" + std::string(name_of(dtype())) + ", " + haliax::to_string(axes());
  if (node_->value) s += ", ", print(s, *node_, 0, 0);
  return s + ")";
}

}  // namespace haliax
