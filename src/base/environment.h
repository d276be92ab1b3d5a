// Environment variables of the library. An invalid value raises an error that names the variable,
// the value, the allowed values, and the location in the user's code where it is known.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "haliax/where.h"

namespace haliax {

// Returns an integer in [least, most], or nothing if the variable is unset or empty.
std::optional<std::int64_t> env_integer(const char* variable, std::int64_t least, std::int64_t most,
                                        SourceLocation = {});
// Returns true for 1, false for 0, and `otherwise` if the variable is unset or empty.
bool env_flag(const char* variable, bool otherwise, SourceLocation = {});
// Returns true if a debug check is enabled. The default is true in a debug build and false in other
// builds; the variable (1 or 0) overrides it.
bool env_check_enabled(const char* variable, SourceLocation = {});
// Raises the error for an invalid value.
[[noreturn]] void fail_env(const char* variable, std::string_view value, std::string_view allowed,
                           SourceLocation = {});

}  // namespace haliax
