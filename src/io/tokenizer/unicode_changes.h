// Differences of the package `tokenizers` from the properties of Unicode 14.
#pragma once
#include <span>

namespace haliax {

struct UnicodeChange {
  const char* name;    // property in lower case, with the prefix - for removed characters
  const char* ranges;  // hexadecimal, such as "1c8a a7cb-a7cd"
};
// Returns the characters that each property has in the package only, or lacks there.
std::span<const UnicodeChange> unicode_changes();

}  // namespace haliax
