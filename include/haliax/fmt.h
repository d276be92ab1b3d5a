// Formatting with {fmt}: fmt::print("{} {:>12}", array, axis). haliax.h does not include this.
#pragma once
#include <fmt/format.h>

#include "haliax/array.h"

namespace haliax::detail {
// As text, with the width and alignment that text may have.
template <class T> struct TextFormatter : fmt::formatter<fmt::string_view> {
  template <class Context> auto format(const T& value, Context& context) const {
    std::string text;
    if constexpr (std::is_same_v<T, NamedArray>) text = value.to_string();   // the values are shown if they have been computed
    else if constexpr (std::is_same_v<T, Name>) text = value.text();
    else if constexpr (std::is_same_v<T, DType>) text = name_of(value);
    else text = to_string(value);
    return fmt::formatter<fmt::string_view>::format(text, context);
  }
};
}  // namespace haliax::detail

template <> struct fmt::formatter<haliax::NamedArray> : haliax::detail::TextFormatter<haliax::NamedArray> {};
template <> struct fmt::formatter<haliax::Axis> : haliax::detail::TextFormatter<haliax::Axis> {};
template <> struct fmt::formatter<haliax::AxisSpec> : haliax::detail::TextFormatter<haliax::AxisSpec> {};
template <> struct fmt::formatter<haliax::Name> : haliax::detail::TextFormatter<haliax::Name> {};
template <> struct fmt::formatter<haliax::DType> : haliax::detail::TextFormatter<haliax::DType> {};
