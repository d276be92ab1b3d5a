// Printing and checking values inside of traced functions: in `jit`, in loops and on meshes.
// Outside of `jit`, both run at once. See docs/how-to/debugging.md.
#pragma once
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "haliax/array.h"

namespace [[gnu::visibility("default")]] haliax {
namespace debug {

/// A format string or a message, with the source location of the caller. Strings convert to it.
struct Text {
  std::string text;   ///< the string
  SourceLocation at;  ///< the line of the caller
  /// Converts a string.
  Text(const char* t, SourceLocation l = SourceLocation::current()) : text(t), at(l) {}
  Text(std::string t, SourceLocation l = SourceLocation::current()) : text(std::move(t)), at(l) {}
};

/// Prints values; `print` calls it with its arguments as arrays.
void print_all(const Text& text, const std::vector<NamedArray>& values);

/// Prints a line each time the values are computed: in each call, and in each iteration of a loop,
/// in the order of the code.
///
/// - Each `{}` of the text is replaced by one value, as `NamedArray::to_string`.
/// - On a mesh, a line is printed once, with unsharded values.
/// - Under `vmap`, one line shows all positions.
/// - Recomputation in the backward pass (`checkpoint`) prints nothing.
///
/// @param text    format string
/// @param values  arrays and C++ scalars
/// @throws haliax::Error if the number of `{}` is not the number of values, or inside
/// `chunked_reduce`, where no full value exists
///
///     debug::print("x is {}, the mean is {}", x, mean(x));
/// @see set_output
template <class... A> void print(Text text, const A&... values) {
  constexpr bool printable = (std::is_constructible_v<Arr, const A&, SourceLocation> && ...);
  static_assert(
      printable,
      "haliax: debug::print accepts arrays and numbers; format other values into its text.");
  if constexpr (printable) print_all(text, {Arr(values, text.at).array()...});
}

/// Raises an error when the program runs, if the condition is false at any position.
///
/// The message is `[check] text; file:line, in module`. Inside `jit`, the call of the jitted
/// function raises. Its results and its donated arguments are lost.
///
/// @param condition  bool array with any axes
/// @param text       message
/// @throws haliax::Error if the condition is not bool, or inside `chunked_reduce`
///
///     debug::check(max(x) < 1., "the state saturates");
void check(const Arr& condition, const Text& text);

/// Sets the function that receives each printed line, without its newline. Null: the standard
/// output.
void set_output(void (*line)(std::string_view));

}  // namespace debug
}  // namespace haliax
