// The exception type of the library.
#pragma once
#include <stdexcept>
#include <string>

namespace [[gnu::visibility("default")]] haliax {

/// The exception that all functions of the library throw.
///
/// The message has one form: `[op] the problem, with the actual values; a hint; file:line, in
/// module.path`. The line is the line of the caller that called the op.
///
///     [sum] axis embd is not in (batch=2, embed=3); did you mean embed?; train.cpp:12
class Error : public std::runtime_error {
 public:
  /// Creates an error with a message.
  explicit Error(const std::string& what) : std::runtime_error(what) {}
};

}  // namespace haliax
