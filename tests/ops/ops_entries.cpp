// Example inputs of the entries, for the tests of every op and for `bench --all`.
#include "ops_entries.h"

#include <algorithm>
#include <cmath>

namespace ops_test {

Axes axes_of(std::string_view text) {
  Axes out;
  for (std::size_t i = 0; i < text.size();) {
    Name name(text.substr(i++, 1));
    std::int64_t size = 0;
    while (i < text.size() && std::isdigit(static_cast<unsigned char>(text[i])))
      size = 10 * size + (text[i++] - '0');
    out.push_back({name, size});
  }
  return out;
}
std::string text_of(const Axes& axes) {
  std::string out;
  for (auto& a : axes) out += std::string(a.name.text()) + std::to_string(a.size);
  return out;
}

std::vector<double> values_of(const Sample& s, std::size_t seed) {
  std::vector<double> out(std::size_t(axis_size(axes_of(s.axes))));
  for (std::size_t i = 0; i < out.size(); ++i) {
    double place = double(i + 1 + 29 * seed) * 0.6180339887498949 + 0.03;
    double v = s.low + (s.high - s.low) * (place - std::floor(place));
    out[i] = is_float(s.dtype) ? v : std::floor(v);
  }
  return out;
}
NamedArray array_of(const Sample& s, std::size_t seed, DType floats) {
  return array(std::span<const double>(values_of(s, seed)), axes_of(s.axes))
      .astype(is_float(s.dtype) ? floats : s.dtype);
}

Leaves inputs_of(const Entry& e, std::size_t shift, DType floats) {
  Leaves out;
  for (std::size_t k = 0; k < e.in.size(); ++k)
    out.push_back(array_of(e.in[k], k + shift, floats).eval());
  return out;
}
bool differentiable(const Entry& e) {
  bool floats = std::any_of(e.in.begin(), e.in.end(), [](auto& s) { return is_float(s.dtype); });
  return e.smooth != Smooth::none && is_float(e.dtype) && floats;
}

}  // namespace ops_test
