// Formatting of arrays, axes, meshes, keys and modules with {fmt}: `fmt::print("{} {:>12}", array,
// axis)`. Formatting evaluates arrays. haliax.h does not include this header.
#pragma once
#include <fmt/format.h>

#include "haliax/array.h"
#include "haliax/mesh.h"
#include "haliax/random.h"
#include "haliax/tree.h"

namespace haliax::detail {
// Formats a value as text, with the width and alignment options of strings.
template <class T> struct TextFormatter : fmt::formatter<fmt::string_view> {
  template <class Context> auto format(const T& value, Context& context) const {
    std::string text;
    // evaluates the array if necessary
    if constexpr (std::is_same_v<T, NamedArray>)
      text = value.to_string();
    else if constexpr (std::is_same_v<T, Name>)
      text = value.text();
    else if constexpr (std::is_same_v<T, DType>)
      text = name_of(value);
    else if constexpr (requires { to_string(value); })
      text = to_string(value);
    else
      text = tree_to_string(value);
    return fmt::formatter<fmt::string_view>::format(text, context);
  }
};
// Modules and states, which are structs. fmt/ranges.h formats ranges and tuples.
template <class T>
concept Module = ArrayTree<T> &&
    (reflect::kind<T> == reflect::Kind::fields || reflect::kind<T> == reflect::Kind::listed);
}  // namespace haliax::detail

template <>
struct fmt::formatter<haliax::NamedArray> : haliax::detail::TextFormatter<haliax::NamedArray> {};
template <> struct fmt::formatter<haliax::Axis> : haliax::detail::TextFormatter<haliax::Axis> {};
template <> struct fmt::formatter<haliax::Axes> : haliax::detail::TextFormatter<haliax::Axes> {};
template <>
struct fmt::formatter<haliax::AxisSpec> : haliax::detail::TextFormatter<haliax::AxisSpec> {};
template <> struct fmt::formatter<haliax::Name> : haliax::detail::TextFormatter<haliax::Name> {};
template <> struct fmt::formatter<haliax::DType> : haliax::detail::TextFormatter<haliax::DType> {};
template <> struct fmt::formatter<haliax::Mesh> : haliax::detail::TextFormatter<haliax::Mesh> {};
template <>
struct fmt::formatter<haliax::Mapping> : haliax::detail::TextFormatter<haliax::Mapping> {};
template <>
struct fmt::formatter<haliax::PartitionSpec>
    : haliax::detail::TextFormatter<haliax::PartitionSpec> {};
template <> struct fmt::formatter<haliax::Key> : haliax::detail::TextFormatter<haliax::Key> {};
template <haliax::detail::Module T>
struct fmt::formatter<T, char> : haliax::detail::TextFormatter<T> {};
