// UTF-8, properties of characters, and Unicode normalization.
#pragma once
#include <string>
#include <string_view>

namespace haliax {

// Returns the text with each invalid sequence replaced by U+FFFD. Sets `text` to a view of the
// argument if it is valid, or of `storage`.
std::string_view valid_utf8(std::string_view bytes, std::string& storage);

// The bytes of a character, from its first byte. The text must be valid.
inline std::size_t utf8_length(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}
// Decodes the character at a position of a valid text, and advances the position.
inline char32_t next_character(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) {
    return char32_t(static_cast<unsigned char>(text[at + i]));
  };
  const auto length = utf8_length(text[at]);
  char32_t c = byte(0);
  if (length == 2) c = (c & 0x1f) << 6 | (byte(1) & 0x3f);
  if (length == 3) c = (c & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
  if (length == 4)
    c = (c & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
  at += length;
  return c;
}
// Returns the start of the last character before a position.
inline std::size_t start_of_previous(std::string_view text, std::size_t end) {
  do --end;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80);
  return end;
}
void append_character(std::string& to, char32_t c);

bool is_space(char32_t c);           // White_Space
bool is_word(char32_t c);            // a letter, mark, decimal digit or connector, as \w
bool is_number(char32_t c);          // any category N
bool is_punctuation(char32_t c);     // ASCII punctuation, or any category P
bool is_combining_mark(char32_t c);  // categories Mn, Mc and Me of Unicode 8

enum class NormalForm { nfc, nfd, nfkc, nfkd };
std::string normalized(std::string_view text, NormalForm);
std::string lowercase(std::string_view text);

}  // namespace haliax
