// Properties of characters in the version of Unicode of the package `tokenizers`.
#pragma once
#include <bitset>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace haliax {

// Characters from first to last.
struct CharacterRange {
  char32_t first, last;
};
using CharacterRanges = std::vector<CharacterRange>;  // in ascending order

// Returns true if c is in one of the ranges.
bool is_in(char32_t c, std::span<const CharacterRange> ranges);
// Returns the ranges in ascending order, and joins those that touch.
CharacterRanges joined(CharacterRanges ranges);

// Searches valid UTF-8 for characters.
class CharacterFinder {
 public:
  CharacterFinder() = default;
  explicit CharacterFinder(CharacterRanges);
  bool found_in(std::string_view text) const;

 private:
  CharacterRanges ranges_;
  std::bitset<256> first_bytes_;  // first bytes of all characters
};

// Returns the name of a property in lower case, without spaces, hyphens and underscores.
std::string normalized_name(std::string_view name);

// The characters of a property of the package that libraries with an older Unicode may lack, and
// those that only these libraries include.
struct PropertyDifference {
  CharacterRanges added, removed;
};
// Returns the differences for a normalized name, such as "han" or "lu". The name of one letter is
// a group of categories.
PropertyDifference difference_of(const std::string& name);

}  // namespace haliax
