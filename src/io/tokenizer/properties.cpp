// Differences of properties, from the table of unicode_changes.cpp.
#include "io/tokenizer/properties.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "io/tokenizer/unicode.h"
#include "io/tokenizer/unicode_changes.h"

namespace haliax {
namespace {

// Parses ranges such as "1c8a a7cb-a7cd".
CharacterRanges ranges_of(std::string_view text) {
  CharacterRanges out;
  const auto number = [&] {
    std::uint32_t value = 0;
    const auto end = std::from_chars(text.begin(), text.end(), value, 16).ptr;
    text.remove_prefix(std::size_t(end - text.begin()));
    return char32_t(value);
  };
  while (!text.empty()) {
    const auto first = number();
    auto last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      last = number();
    }
    out.push_back({first, last});
    if (!text.empty()) text.remove_prefix(1);  // the space
  }
  return out;
}
void append(CharacterRanges& to, const CharacterRanges& more) {
  to.insert(to.end(), more.begin(), more.end());
}

}  // namespace

bool is_in(char32_t c, std::span<const CharacterRange> ranges) {
  const auto at = std::lower_bound(ranges.begin(), ranges.end(), c,
                                   [](auto& r, char32_t value) { return r.last < value; });
  return at != ranges.end() && c >= at->first;
}
CharacterRanges joined(CharacterRanges ranges) {
  std::sort(ranges.begin(), ranges.end(), [](auto& a, auto& b) { return a.first < b.first; });
  CharacterRanges out;
  for (auto& r : ranges)
    if (!out.empty() && r.first <= out.back().last + 1)
      out.back().last = std::max(out.back().last, r.last);
    else
      out.push_back(r);
  return out;
}

CharacterFinder::CharacterFinder(CharacterRanges ranges) : ranges_(std::move(ranges)) {
  const auto first_byte = [](char32_t c) {
    std::string bytes;
    append_character(bytes, c);
    return static_cast<unsigned char>(bytes[0]);
  };
  for (auto& r : ranges_)
    for (unsigned byte = first_byte(r.first); byte <= first_byte(r.last); ++byte)
      first_bytes_.set(byte);
}
bool CharacterFinder::found_in(std::string_view text) const {
  for (std::size_t at = 0; at < text.size();)
    if (!first_bytes_[static_cast<unsigned char>(text[at])])
      ++at;
    else if (is_in(next_character(text, at), ranges_))
      return true;
  return false;
}

std::string normalized_name(std::string_view name) {
  std::string out;
  for (char c : name)
    if (c != ' ' && c != '-' && c != '_') out += char(std::tolower(static_cast<unsigned char>(c)));
  return out;
}
PropertyDifference difference_of(const std::string& name) {
  const bool group = name.size() == 1;
  const bool unassigned = name == "cn" || name == "unknown";
  PropertyDifference out;
  for (auto& [row, text] : unicode_changes()) {
    const std::string_view property(row);
    const bool category = property.size() == 2;
    if (property == name || (group && category && property.starts_with(name)))
      append(out.added, ranges_of(text));
    else if (property.starts_with('-') && property.substr(1) == name)
      append(out.removed, ranges_of(text));
    else if (category && (unassigned || name == "c"))
      append(out.removed, ranges_of(text));
  }
  return {joined(out.added), joined(out.removed)};
}

}  // namespace haliax
