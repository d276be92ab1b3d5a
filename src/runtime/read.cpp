// Reading arrays out.
#include <cmath>
#include <limits>
#include <type_traits>

#include "base/scalar.h"
#include "runtime/run.h"

namespace haliax {
namespace {

const Node& with_value(const NamedArray& a) {
  if (a.empty()) fail("eval", "the NamedArray is empty: it was never given a value");
  auto& n = *a.node();
  if (!n.donated.empty()) fail("eval", n.donated);
  if (!n.value) evaluate({a.node()});
  return n;
}

scalar::Value element(const Node& n, std::int64_t at) { return scalar::load(n.dtype, n.value->data() + at * bytes_of(n.dtype)); }
// As double, float or int64_t; what is larger than any of these becomes the largest.
template <class T> std::vector<T> converted(const Node& n) {
  constexpr auto to = std::is_integral_v<T> ? DType::i64 : sizeof(T) == 8 ? DType::f64 : DType::f32;
  std::vector<T> out(std::size_t(n.size()));
  for (std::int64_t i = 0; i < n.size(); ++i) {
    auto v = scalar::cast(element(n, i), n.dtype, to);
    if constexpr (!std::is_integral_v<T>) out[std::size_t(i)] = T(v.real);
    else out[std::size_t(i)] = n.dtype == DType::u64 && v.whole < 0 ? std::numeric_limits<T>::max() : v.whole;
  }
  return out;
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

}  // namespace haliax
