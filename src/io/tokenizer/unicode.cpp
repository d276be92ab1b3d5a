// UTF-8, and properties and normal forms by utf8proc.
#include "io/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "io/tokenizer/properties.h"

namespace haliax {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

unsigned char byte_at(std::string_view text, std::size_t i) {
  return static_cast<unsigned char>(text[i]);
}
// Returns the bytes of the valid character at a position, or 0. Sets `bad` to the bytes that one
// U+FFFD replaces: the longest prefix of a character, as in the Unicode Standard, section 3.9.
std::size_t valid_length(std::string_view text, std::size_t at, std::size_t& bad) {
  const auto first = byte_at(text, at);
  bad = 1;
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  const std::size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  unsigned char low = 0x80, high = 0xbf;  // range of the second byte
  if (first == 0xe0) low = 0xa0;
  if (first == 0xed) high = 0x9f;
  if (first == 0xf0) low = 0x90;
  if (first == 0xf4) high = 0x8f;
  for (; bad < length; ++bad) {
    if (at + bad == text.size() || byte_at(text, at + bad) < low || byte_at(text, at + bad) > high)
      return 0;
    low = 0x80;
    high = 0xbf;
  }
  return length;
}

utf8proc_category_t category(char32_t c) { return utf8proc_category(utf8proc_int32_t(c)); }
// Characters with a normal form that Unicode 10 and later added. The package `tokenizers` has older
// tables: it leaves these characters, and their order, as they are.
constexpr CharacterRange kNotNormalized[] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
    {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},
    {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},
    {0xa82c, 0xa82c},   {0xab69, 0xab69},   {0x10781, 0x107ba}, {0x10d24, 0x10d27},
    {0x10eab, 0x10eac}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85},
    {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x1183a},
    {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193d, 0x1193e}, {0x11943, 0x11943},
    {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99},
    {0x11d42, 0x11d42}, {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42},
    {0x16ff0, 0x16ff1}, {0x1e030, 0x1e06d}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136},
    {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}, {0x1f16c, 0x1f16c},
    {0x1fbf0, 0x1fbf9},
};
// Marks that later versions than 8 added. StripAccents of the package retains them.
constexpr CharacterRange kRetainedMarks[] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
    {0xafa, 0xaff},     {0xb55, 0xb55},     {0xc04, 0xc04},     {0xc3c, 0xc3c},
    {0xcf3, 0xcf3},     {0xd00, 0xd00},     {0xd3b, 0xd3c},     {0xd81, 0xd81},
    {0xeba, 0xeba},     {0xece, 0xece},     {0x1715, 0x1715},   {0x180f, 0x180f},
    {0x1abf, 0x1ace},   {0x1cf7, 0x1cf7},   {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},
    {0xa8ff, 0xa8ff},   {0x10d24, 0x10d27}, {0x10eab, 0x10eac}, {0x10efd, 0x10eff},
    {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x11073, 0x11074},
    {0x110c2, 0x110c2}, {0x11145, 0x11146}, {0x111c9, 0x111c9}, {0x111ce, 0x111cf},
    {0x11241, 0x11241}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x1182c, 0x1183a},
    {0x11930, 0x11935}, {0x11937, 0x11938}, {0x1193b, 0x1193e}, {0x11940, 0x11940},
    {0x11942, 0x11943}, {0x119d1, 0x119d7}, {0x119da, 0x119e0}, {0x119e4, 0x119e4},
    {0x11a01, 0x11a0a}, {0x11a33, 0x11a39}, {0x11a3b, 0x11a3e}, {0x11a47, 0x11a47},
    {0x11a51, 0x11a5b}, {0x11a8a, 0x11a99}, {0x11d31, 0x11d36}, {0x11d3a, 0x11d3a},
    {0x11d3c, 0x11d3d}, {0x11d3f, 0x11d45}, {0x11d47, 0x11d47}, {0x11d8a, 0x11d8e},
    {0x11d90, 0x11d91}, {0x11d93, 0x11d97}, {0x11ef3, 0x11ef6}, {0x11f00, 0x11f01},
    {0x11f03, 0x11f03}, {0x11f34, 0x11f3a}, {0x11f3e, 0x11f42}, {0x13440, 0x13440},
    {0x13447, 0x13455}, {0x16f4f, 0x16f4f}, {0x16f7f, 0x16f87}, {0x16fe4, 0x16fe4},
    {0x16ff0, 0x16ff1}, {0x1cf00, 0x1cf2d}, {0x1cf30, 0x1cf46}, {0x1e08f, 0x1e08f},
    {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}};
bool is_normalized(char32_t c) { return !is_in(c, kNotNormalized); }

// Letters with a lowercase form that Unicode 14 to 17 added. utf8proc may be older than the
// package here.
struct LowercaseRange {
  char32_t first, last, lower;  // `lower` is the form of `first`
};
constexpr LowercaseRange kNewUppercase[] = {
    {0x1c89, 0x1c89, 0x1c8a},    {0xa7cb, 0xa7cb, 0x264},  {0xa7cc, 0xa7cc, 0xa7cd},
    {0xa7ce, 0xa7ce, 0xa7cf},    {0xa7d2, 0xa7d2, 0xa7d3}, {0xa7d4, 0xa7d4, 0xa7d5},
    {0xa7da, 0xa7da, 0xa7db},    {0xa7dc, 0xa7dc, 0x19b},  {0x10d50, 0x10d65, 0x10d70},
    {0x16ea0, 0x16eb8, 0x16ebb},
};
char32_t lowercase_of(char32_t c) {
  if (c >= kNewUppercase[0].first)
    for (auto& r : kNewUppercase)
      if (c >= r.first && c <= r.last) return r.lower + (c - r.first);
  return char32_t(utf8proc_tolower(utf8proc_int32_t(c)));
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0; });
}

}  // namespace

std::string_view valid_utf8(std::string_view bytes, std::string& storage) {
  std::size_t bad = 0, at = 0;
  while (at < bytes.size()) {
    if (bytes[at] >= 0) {
      ++at;
      continue;
    }
    const auto length = valid_length(bytes, at, bad);
    if (length == 0) break;
    at += length;
  }
  if (at == bytes.size()) return bytes;
  storage.assign(bytes.substr(0, at));
  while (at < bytes.size()) {
    const auto length = valid_length(bytes, at, bad);
    storage += length ? bytes.substr(at, length) : kReplacement;
    at += length ? length : bad;
  }
  return storage;
}

void append_character(std::string& to, char32_t c) {
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(utf8proc_int32_t(c), bytes);
  to.append(reinterpret_cast<const char*>(bytes), std::size_t(length));
}

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}
bool is_word(char32_t c) {
  static const auto added = [] {
    CharacterRanges out;
    for (auto* name : {"l", "m", "nd", "nl", "pc"})
      for (auto& r : difference_of(name).added) out.push_back(r);
    return joined(out);
  }();
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:  // circled letters are alphabetic, and joiners are part of words
      return (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
             (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189) || c == 0x200c ||
             c == 0x200d || is_in(c, added);
  }
}
bool is_number(char32_t c) {
  static const auto added = difference_of("n").added, digits = difference_of("digits").added;
  const auto k = category(c);
  return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO ||
         is_in(c, added) || is_in(c, digits);
}
bool is_punctuation(char32_t c) {
  if (c < 0x80)
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
  static const auto difference = difference_of("punctuation");
  const auto k = category(c);
  return is_in(c, difference.added) ||
         (k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO && !is_in(c, difference.removed));
}
bool is_combining_mark(char32_t c) {
  const auto k = category(c);
  if (c == 0x1cf2 || c == 0x1cf3) return true;  // letters since Unicode 12
  return k >= UTF8PROC_CATEGORY_MN && k <= UTF8PROC_CATEGORY_ME && !is_in(c, kRetainedMarks);
}

std::string normalized(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  for (std::size_t at = 0; at < text.size();) {
    const auto begin = at;
    if (is_normalized(next_character(text, at))) continue;
    return normalized(text.substr(0, begin), form) + std::string(text.substr(begin, at - begin)) +
           normalized(text.substr(at), form);
  }
  int options = UTF8PROC_STABLE;
  options |=
      form == NormalForm::nfc || form == NormalForm::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::nfkc || form == NormalForm::nfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* result = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   utf8proc_ssize_t(text.size()), &result, utf8proc_option_t(options));
  if (length < 0) throw std::bad_alloc();
  std::string out(reinterpret_cast<const char*>(result), std::size_t(length));
  std::free(result);
  return out;
}
std::string lowercase(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const auto c = next_character(text, at);
    if (c == 0x130)  // the only character whose lowercase form is two characters
      out += "i\xcc\x87";
    else
      append_character(out, lowercase_of(c));
  }
  return out;
}

}  // namespace haliax
