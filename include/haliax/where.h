// Where in the user's code an array was made: file, line, and the path of the module that made it.
#pragma once
#include <cstdint>
#include <version>
#if defined(__cpp_lib_source_location)
#include <source_location>
#endif

namespace haliax {

#if defined(__cpp_lib_source_location)
using SourceLocation = std::source_location;
#else
// The same thing for a compiler whose standard library lacks it (clang 14 on libstdc++).
struct SourceLocation {
  const char* file = "";
  const char* function = "";
  std::uint_least32_t at = 0;
  static constexpr SourceLocation current(const char* file = __builtin_FILE(), const char* function = __builtin_FUNCTION(),
                                          std::uint_least32_t line = __builtin_LINE()) {
    return {file, function, line};
  }
  constexpr const char* file_name() const { return file; }
  constexpr const char* function_name() const { return function; }
  constexpr std::uint_least32_t line() const { return at; }
};
#endif

}  // namespace haliax
