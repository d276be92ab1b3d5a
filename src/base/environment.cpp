// Parsing of environment variables.
#include "base/environment.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>

#include "base/where.h"
#include "haliax/error.h"

namespace haliax {

static std::string_view value_of(const char* variable) {
  const char* text = std::getenv(variable);
  return text ? text : "";
}

void fail_env(const char* variable, std::string_view value, std::string_view allowed,
              SourceLocation at) {
  auto place = to_string(at);
  if (!place.empty()) place = "; " + place;
  throw Error(
      fmt::format("[environment] {} is {}; it must be {}{}", variable, value, allowed, place));
}
std::optional<std::int64_t> env_integer(const char* variable, std::int64_t least, std::int64_t most,
                                        SourceLocation at) {
  const auto text = value_of(variable);
  if (text.empty()) return std::nullopt;
  std::int64_t n = 0;
  const char* end = text.data() + text.size();
  auto [read, error] = std::from_chars(text.data(), end, n);
  if (error != std::errc() || read != end || n < least || n > most)
    fail_env(variable, text, fmt::format("a number from {} to {}", least, most), at);
  return n;
}
bool env_flag(const char* variable, bool otherwise, SourceLocation at) {
  const auto text = value_of(variable);
  if (text.empty()) return otherwise;
  if (text != "0" && text != "1") fail_env(variable, text, "0 or 1", at);
  return text == "1";
}
bool env_check_enabled(const char* variable, SourceLocation at) {
#ifdef NDEBUG
  const bool usual = false;
#else
  const bool usual = true;
#endif
  return env_flag(variable, usual, at);
}

}  // namespace haliax
