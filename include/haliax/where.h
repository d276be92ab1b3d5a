// Where in the user's code an array was made: file, line, and the path of the module that made it.
#pragma once
#include <cstdint>

// Headers open the namespace with this attribute: what they declare, and nothing else, the shared
// library exports.
namespace [[gnu::visibility("default")]] haliax {

// std::source_location as each compiler has it: one type for all, so that what one compiler built
// another one can link.
class SourceLocation {
 public:
  static constexpr SourceLocation current(const char* file = __builtin_FILE(),
                                          const char* function = __builtin_FUNCTION(),
                                          std::uint_least32_t line = __builtin_LINE()) {
    SourceLocation here;
    here.file_ = file;
    here.function_ = function;
    here.line_ = line;
    return here;
  }
  constexpr const char* file_name() const { return file_; }
  constexpr const char* function_name() const { return function_; }
  constexpr std::uint_least32_t line() const { return line_; }

 private:
  const char* file_ = "";
  const char* function_ = "";
  std::uint_least32_t line_ = 0;
};

}  // namespace haliax
