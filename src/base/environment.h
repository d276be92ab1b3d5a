// What the environment asks of the library. A value that is not allowed raises: the text names the
// variable, the value, and what is allowed, and the place in the user's code, where one is known.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "haliax/where.h"

namespace haliax {

// A whole number from least to most; none where the variable is not set, or empty.
std::optional<std::int64_t> env_integer(const char* variable, std::int64_t least, std::int64_t most,
                                        SourceLocation = {});
// 1 or 0; `otherwise` where it is not set, or empty.
bool env_flag(const char* variable, bool otherwise, SourceLocation = {});
// Of a check, 1 or 0: it is on in a debug build unless it is 0, elsewhere if it is 1.
bool env_check_enabled(const char* variable, SourceLocation = {});
[[noreturn]] void fail_env(const char* variable, std::string_view value, std::string_view allowed,
                           SourceLocation = {});

}  // namespace haliax
