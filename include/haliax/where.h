// SourceLocation: the line of user code that error messages and reports name.
#pragma once
#include <cstdint>

// Headers open the namespace with this attribute, so that the shared library exports exactly the
// names that they declare.
namespace [[gnu::visibility("default")]] haliax {

/// A line of source code: file, function and line.
///
/// Functions have a default argument `SourceLocation::current()`, which is the line of the caller.
/// It corresponds to `std::source_location`, but has the same layout for all compilers, so that
/// code of different compilers links.
class SourceLocation {
 public:
  /// Returns the line at which it is called, or, as a default argument, the line of the caller.
  static constexpr SourceLocation current(const char* file = __builtin_FILE(),
                                          const char* function = __builtin_FUNCTION(),
                                          std::uint_least32_t line = __builtin_LINE()) {
    SourceLocation here;
    here.file_ = file;
    here.function_ = function;
    here.line_ = line;
    return here;
  }
  /// Returns the name of the file; empty if unknown.
  constexpr const char* file_name() const { return file_; }
  /// Returns the name of the function.
  constexpr const char* function_name() const { return function_; }
  /// Returns the line number, from 1; 0 if unknown.
  constexpr std::uint_least32_t line() const { return line_; }

 private:
  const char* file_ = "";
  const char* function_ = "";
  std::uint_least32_t line_ = 0;
};

namespace detail {
// Returns options with the location of the call, unless they set another one. A default member
// initializer would be the line of the struct in `Options o;`.
template <class Options> Options located(Options options, SourceLocation at) {
  if (options.at.line() == 0) options.at = at;
  return options;
}
}  // namespace detail

}  // namespace haliax
