// Looking inside of what runs later: in jit, in loops, on meshes. Outside of jit it happens at
// once. See docs/inspect.md.
#pragma once
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "haliax/array.h"

namespace [[gnu::visibility("default")]] haliax {
namespace debug {

struct Text {  // and where it was written
  std::string text;
  SourceLocation at;
  Text(const char* t, SourceLocation l = SourceLocation::current()) : text(t), at(l) {}
  Text(std::string t, SourceLocation l = SourceLocation::current()) : text(std::move(t)), at(l) {}
};
void print_all(const Text&, const std::vector<NamedArray>&);

// print("{} and {}", x, y): a line with the values, whenever they are computed: in each turn of a
// loop, in the order of the code, once on a mesh, with values whole. The backward pass of
// checkpoint prints nothing again. Under vmap all positions are printed at once. Raises inside
// chunked_reduce, where nothing is whole, and if there are not as many {} as values.
template <class... A> void print(Text text, const A&... values) {
  constexpr bool printable = (std::is_constructible_v<Arr, const A&, SourceLocation> && ...);
  static_assert(printable,
                "haliax: debug::print takes arrays and numbers; all else belongs into its text.");
  if constexpr (printable) print_all(text, {Arr(values, text.at).array()...});
}
// Raises `[check] text; file:line, in module` when the condition, a bool array, is false anywhere.
// In jit the call raises then, and its results and what was donated to it are lost.
void check(const Arr& condition, const Text&);
// Who gets the lines that are printed, without their newline. Null: the standard output.
void set_output(void (*line)(std::string_view));

}  // namespace debug
}  // namespace haliax
