// Patterns by PCRE2, with Unicode properties and its just-in-time compiler.
#include "io/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "graph/fail.h"
#include "io/file.h"
#include "io/tokenizer/unicode.h"

namespace haliax {
namespace {

// The classes of Oniguruma, which differ from those of PCRE2: \s is White_Space, and \w includes
// marks.
constexpr const char* kSpaces =
    R"(\t-\r\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr const char* kWords = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d})";
// The letters, the numbers and the marks that Unicode 15 and 16 added, which PCRE2 may lack.
constexpr CharacterRange kNewLetters[] = {
    {0x1c89, 0x1c8a},   {0xa7cb, 0xa7cd},   {0xa7da, 0xa7dc},   {0x105c0, 0x105f3},
    {0x10d4a, 0x10d65}, {0x10d6f, 0x10d85}, {0x10ec2, 0x10ec4}, {0x1123f, 0x11240},
    {0x11380, 0x11389}, {0x1138b, 0x1138b}, {0x1138e, 0x1138e}, {0x11390, 0x113b5},
    {0x113b7, 0x113b7}, {0x113d1, 0x113d1}, {0x113d3, 0x113d3}, {0x11bc0, 0x11be0},
    {0x11f02, 0x11f02}, {0x11f04, 0x11f10}, {0x11f12, 0x11f33}, {0x1342f, 0x1342f},
    {0x13441, 0x13446}, {0x13460, 0x143fa}, {0x16100, 0x1611d}, {0x16d40, 0x16d6c},
    {0x18cff, 0x18cff}, {0x1b132, 0x1b132}, {0x1b155, 0x1b155}, {0x1df25, 0x1df2a},
    {0x1e030, 0x1e06d}, {0x1e4d0, 0x1e4eb}, {0x1e5d0, 0x1e5ed}, {0x1e5f0, 0x1e5f0},
    {0x2b739, 0x2b739}, {0x2ebf0, 0x2ee5d}, {0x31350, 0x323af},
};
constexpr CharacterRange kNewNumbers[] = {
    {0x10d40, 0x10d49}, {0x116d0, 0x116e3}, {0x11bf0, 0x11bf9}, {0x11f50, 0x11f59},
    {0x16130, 0x16139}, {0x16d70, 0x16d79}, {0x1ccf0, 0x1ccf9}, {0x1d2c0, 0x1d2d3},
    {0x1e4f0, 0x1e4f9}, {0x1e5f1, 0x1e5fa},
};

constexpr CharacterRange kNewMarks[] = {
    {0x897, 0x897},     {0xcf3, 0xcf3},     {0xece, 0xece},     {0x10d69, 0x10d6d},
    {0x10efc, 0x10eff}, {0x11241, 0x11241}, {0x113b8, 0x113c0}, {0x113c2, 0x113c2},
    {0x113c5, 0x113c5}, {0x113c7, 0x113ca}, {0x113cc, 0x113d0}, {0x113d2, 0x113d2},
    {0x113e1, 0x113e2}, {0x11f00, 0x11f01}, {0x11f03, 0x11f03}, {0x11f34, 0x11f3a},
    {0x11f3e, 0x11f42}, {0x11f5a, 0x11f5a}, {0x13440, 0x13440}, {0x13447, 0x13455},
    {0x1611e, 0x1612f}, {0x1e08f, 0x1e08f}, {0x1e4ec, 0x1e4ef}, {0x1e5ee, 0x1e5ef}};

template <std::size_t N> std::string class_of(const CharacterRange (&ranges)[N]) {
  std::string out;
  for (auto& r : ranges)
    out += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", std::uint32_t(r.first), std::uint32_t(r.last));
  return out;
}
bool has_new_characters(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    // the first bytes of the ranges
    if (byte != 0xe0 && byte != 0xe1 && byte != 0xea && byte != 0xf0) {
      ++at;
      continue;
    }
    const auto c = next_character(text, at);
    if (is_in(c, kNewLetters) || is_in(c, kNewNumbers) || is_in(c, kNewMarks)) return true;
  }
  return false;
}

// Returns the name of a property in PCRE2's syntax. A script means the property Script, not
// Script_Extensions.
std::string property_name(std::string name) {
  static const std::map<std::string, std::string> categories{{"Letter", "L"},
                                                             {"Uppercase_Letter", "Lu"},
                                                             {"Lowercase_Letter", "Ll"},
                                                             {"Mark", "M"},
                                                             {"Number", "N"},
                                                             {"Decimal_Number", "Nd"},
                                                             {"Punctuation", "P"},
                                                             {"Symbol", "S"},
                                                             {"Separator", "Z"},
                                                             {"Space_Separator", "Zs"},
                                                             {"Other", "C"},
                                                             {"Control", "Cc"}};
  std::string negation;
  if (name.starts_with('^')) {
    negation = "^";
    name.erase(0, 1);
  }
  if (auto found = categories.find(name); found != categories.end())
    return negation + found->second;
  const bool is_script = name.size() > 2 && name != "Any" && name != "Alphabetic" &&
                         name.find_first_of(":=") == name.npos;
  return negation + (is_script ? "sc:" : "") + name;
}

// Translates Oniguruma's syntax to that of PCRE2. `all` adds the new characters to classes, which
// makes them several times slower.
std::string translated(std::string_view pattern, bool all) {
  const auto letters = all ? class_of(kNewLetters) : "", numbers = all ? class_of(kNewNumbers) : "",
             marks = all ? class_of(kNewMarks) : "";
  std::string out;
  int depth = 0;  // nesting level of brackets
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '[') {
      const bool posix = depth > 0 && pattern.substr(i).starts_with("[:");
      if (posix) {
        const auto end = pattern.find(":]", i);
        if (end == pattern.npos) fail("Tokenizer", "the pattern {} is malformed", pattern);
        out += pattern.substr(i, end + 2 - i);
        i = end + 1;
        continue;
      }
      ++depth;
      out += c;
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') {
        out += "\\]";
        ++i;
      }
    } else if (c == ']' && depth > 0) {
      --depth;
      out += c;
    } else if (c == '\\' && i + 1 < pattern.size()) {
      const char kind = pattern[++i];
      const auto in_class = [&](const std::string& list, bool negated) {
        if (depth > 0 && negated) return out += std::string("\\") + kind;
        if (depth > 0) return out += list;
        return out += std::string(negated ? "[^" : "[") + list + "]";
      };
      const auto with_new = [&](const std::string& name, const std::string& list) {
        if (list.empty())
          out += std::string("\\") + kind + "{" + name + "}";
        else
          in_class("\\p{" + name + "}" + list, kind == 'P');
      };
      const bool named =
          (kind == 'p' || kind == 'P') && i + 1 < pattern.size() && pattern[i + 1] == '{';
      const auto end = named ? pattern.find('}', i) : pattern.npos;
      if (kind == 's' || kind == 'S') {
        in_class(kSpaces, kind == 'S');
      } else if (kind == 'w' || kind == 'W') {
        in_class(kWords + letters + numbers + marks, kind == 'W');
      } else if (end != pattern.npos) {
        const auto name = property_name(std::string(pattern.substr(i + 2, end - i - 2)));
        if (depth > 0 && kind == 'P')
          out += "\\P{" + name + "}";
        else if (name == "L")
          with_new(name, letters);
        else if (name == "N")
          with_new(name, numbers);
        else if (name == "M")
          with_new(name, marks);
        else
          out += std::string("\\") + kind + "{" + name + "}";
        i = end;
      } else {
        out += std::string("\\") + kind;
      }
    } else {
      out += c;
    }
  }
  return out;
}

std::shared_ptr<void> compiled(const std::string& source, const std::string& expression) {
  int error = 0;
  PCRE2_SIZE at = 0;
  auto* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                             &error, &at, nullptr);
  if (!code) {
    PCRE2_UCHAR text[256];
    pcre2_get_error_message(error, text, sizeof text);
    fail("Tokenizer", "the pattern {} is not supported: {}", printable(expression),
         reinterpret_cast<const char*>(text));
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // if unavailable, the interpreter runs
  return {code, [](void* p) { pcre2_code_free(static_cast<pcre2_code*>(p)); }};
}
pcre2_code* code_of(const std::shared_ptr<void>& p) { return static_cast<pcre2_code*>(p.get()); }

}  // namespace

Pattern::Pattern(const nlohmann::json& spec) {
  if (spec.is_string()) {
    literal_ = spec.get<std::string>();
  } else if (spec.is_object() && spec.contains("String")) {
    literal_ = spec["String"].get<std::string>();
  } else if (spec.is_object() && spec.contains("Regex")) {
    compile(spec["Regex"].get<std::string>());
  } else {
    fail("Tokenizer", "the pattern {} is neither a String nor a Regex", printable(spec.dump()));
  }
}
Pattern Pattern::literal(std::string text) {
  Pattern out;
  out.literal_ = std::move(text);
  return out;
}
Pattern Pattern::regex(const std::string& expression) {
  Pattern out;
  out.compile(expression);
  return out;
}
void Pattern::compile(const std::string& expression) {
  const auto plain = translated(expression, false), all = translated(expression, true);
  code_ = compiled(plain, expression);
  code_of_all_ = all == plain ? code_ : compiled(all, expression);
}

Pattern::Matches::Matches(const Pattern& pattern, std::string_view text)
    : pattern_(pattern), text_(text) {
  if (!pattern_.code_) return;
  auto& code = has_new_characters(text) ? pattern_.code_of_all_ : pattern_.code_;
  code_ = code.get();
  data_ = pcre2_match_data_create_from_pattern(code_of(code), nullptr);
}
Pattern::Matches::~Matches() {
  if (data_) pcre2_match_data_free(static_cast<pcre2_match_data*>(data_));
}
bool Pattern::Matches::next(Match& m) {
  if (at_ > text_.size()) return false;
  if (!pattern_.code_) {
    const auto found = pattern_.literal_.empty() ? text_.npos : text_.find(pattern_.literal_, at_);
    if (found == text_.npos) return false;
    m = {found, found + pattern_.literal_.size()};
    at_ = m.end;
    return true;
  }
  auto* data = static_cast<pcre2_match_data*>(data_);
  const auto* text = reinterpret_cast<PCRE2_SPTR>(text_.data());
  const auto* code = static_cast<const pcre2_code*>(code_);
  int found = pcre2_match(code, text, text_.size(), at_, PCRE2_NO_UTF_CHECK, data, nullptr);
  if (found == PCRE2_ERROR_JIT_STACKLIMIT)
    found = pcre2_match(code, text, text_.size(), at_, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data,
                        nullptr);
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0) fail("Tokenizer", "a pattern failed with the error {} of PCRE2", found);
  const auto* ends = pcre2_get_ovector_pointer(data);
  m = {ends[0], ends[1]};
  at_ = m.end;
  if (m.begin == m.end)  // an empty match
    at_ += at_ < text_.size() ? utf8_length(text_[at_]) : 1;
  return true;
}
std::string Pattern::replaced(std::string_view text, std::string_view by) const {
  std::string out;
  std::size_t last = 0;
  Matches matches(*this, text);
  for (Match m; matches.next(m);) {
    out += text.substr(last, m.begin - last);
    out += by;
    last = m.end;
  }
  return out += text.substr(last);
}

}  // namespace haliax
