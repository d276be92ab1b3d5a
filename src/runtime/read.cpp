// Reads the values of arrays.
#include <limits>
#include <type_traits>

#include "base/scalar.h"
#include "runtime/run.h"

namespace haliax {
namespace {

struct KnownNode {
  const Node& node;
  BufferPtr value;
};
KnownNode with_value(const NamedArray& a) {
  if (a.empty()) fail("eval", "the NamedArray is empty; assign a value to it first");
  auto& n = *a.node();
  if (!n.donated.empty()) fail("eval", n.donated);
  if (!n.value) evaluate({a.node()});
  auto value = n.value.get();
  if (!value) fail("eval", n.donated);  // donated by another thread in the meantime
  return {n, std::move(value)};
}

scalar::Value element(const KnownNode& k, std::int64_t at) {
  return scalar::load(k.node.dtype, k.value->data() + at * bytes_of(k.node.dtype));
}
// Converts to double, float or int64_t. A u64 value that exceeds int64_t becomes the largest
// int64_t.
template <class T> std::vector<T> converted(const KnownNode& k) {
  auto& n = k.node;
  constexpr auto to = std::is_integral_v<T> ? DType::i64 : sizeof(T) == 8 ? DType::f64 : DType::f32;
  std::vector<T> out(std::size_t(n.size()));
  for (std::int64_t i = 0; i < n.size(); ++i) {
    auto v = scalar::cast(element(k, i), n.dtype, to);
    if constexpr (!std::is_integral_v<T>)
      out[std::size_t(i)] = T(v.real);
    else
      out[std::size_t(i)] =
          n.dtype == DType::u64 && v.integer < 0 ? std::numeric_limits<T>::max() : v.integer;
  }
  return out;
}

}  // namespace

const NamedArray& NamedArray::eval(SourceLocation at) const {
  CallSite here(at);
  with_value(*this);
  return *this;
}
void eval(std::span<const NamedArray> arrays, SourceLocation at) {
  CallSite here(at);
  Nodes nodes;
  for (auto& a : arrays)
    if (!a.empty()) nodes.push_back(a.node());
  evaluate(nodes);
}
double NamedArray::item(SourceLocation at) const {
  CallSite here(at);
  auto known = with_value(*this);
  if (known.node.size() != 1)
    fail("item", "expected one value, got " + haliax::to_string(known.node.axes));
  return converted<double>(known)[0];
}
std::vector<float> NamedArray::floats(SourceLocation at) const {
  CallSite here(at);
  return converted<float>(with_value(*this));
}
std::vector<double> NamedArray::doubles(SourceLocation at) const {
  CallSite here(at);
  return converted<double>(with_value(*this));
}
std::vector<std::int64_t> NamedArray::integers(SourceLocation at) const {
  CallSite here(at);
  return converted<std::int64_t>(with_value(*this));
}
std::vector<std::byte> NamedArray::bytes(SourceLocation at) const {
  CallSite here(at);
  auto known = with_value(*this);
  return {known.value->data(), known.value->data() + known.node.bytes()};
}

}  // namespace haliax
