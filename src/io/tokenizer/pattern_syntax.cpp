// Oniguruma differs from PCRE2 in
// - sets of characters, which may be nested and intersected: [\p{L}&&[^\p{Han}]];
// - classes: \s is White_Space, \w includes marks, \h is a hexadecimal digit;
// - options and quantifiers: (?m) lets . match newlines, a{1,3}+ repeats a{1,3}.
// A set is translated to an expression that matches one character.
#include "io/tokenizer/pattern_syntax.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>

#include "graph/fail.h"
#include "io/file.h"
#include "io/tokenizer/unicode.h"

namespace haliax {
namespace {

constexpr const char* kAnyCharacter = "(?s:.)";
// The characters that \w matches outside of brackets only.
constexpr const char* kSuperscripts = R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";
constexpr const char* kSpaces =
    R"(\t-\r\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// A class with a name: characters, as in brackets of PCRE2, and properties.
struct NamedClass {
  const char *name, *characters, *properties;
  bool negated = false;
};
constexpr NamedClass kNamedClasses[] = {
    {"word", R"(\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})",
     "l m nd nl pc"},
    {"space", kSpaces, ""},
    {"whitespace", kSpaces, ""},
    {"xdigit", "0-9A-Fa-f", ""},
    {"ascii", R"(\x{0}-\x{7f})", ""},
    {"any", R"(\x{0}-\x{10ffff})", ""},
    {"blank", R"(\t)", "zs"},
    {"graph", R"(\t-\r\x{20}\x{85}\x{2028}\x{2029})", "zs cc cn", true},
    {"print", R"(\x{2028}\x{2029})", "cc cn", true},
    {"assigned", "", "cn", true},
    {"alpha", "", "alphabetic"},
    {"alnum", "", "alphabetic nd"},
    {"upper", "", "uppercase"},
    {"lower", "", "lowercase"},
    {"digit", "", "nd"},
    {"punct", "", "p s"},
    {"cntrl", "", "cc"},
    {"lc", "", "lu ll lt"},
    {"casedletter", "", "lu ll lt"},
    {"letter", "", "l"},
    {"uppercaseletter", "", "lu"},
    {"lowercaseletter", "", "ll"},
    {"titlecaseletter", "", "lt"},
    {"modifierletter", "", "lm"},
    {"otherletter", "", "lo"},
    {"mark", "", "m"},
    {"combiningmark", "", "m"},
    {"nonspacingmark", "", "mn"},
    {"spacingmark", "", "mc"},
    {"enclosingmark", "", "me"},
    {"number", "", "n"},
    {"decimalnumber", "", "nd"},
    {"letternumber", "", "nl"},
    {"othernumber", "", "no"},
    {"punctuation", "", "p"},
    {"connectorpunctuation", "", "pc"},
    {"dashpunctuation", "", "pd"},
    {"openpunctuation", "", "ps"},
    {"closepunctuation", "", "pe"},
    {"initialpunctuation", "", "pi"},
    {"finalpunctuation", "", "pf"},
    {"otherpunctuation", "", "po"},
    {"symbol", "", "s"},
    {"mathsymbol", "", "sm"},
    {"currencysymbol", "", "sc"},
    {"modifiersymbol", "", "sk"},
    {"othersymbol", "", "so"},
    {"separator", "", "z"},
    {"spaceseparator", "", "zs"},
    {"lineseparator", "", "zl"},
    {"paragraphseparator", "", "zp"},
    {"other", "", "c"},
    {"control", "", "cc"},
    {"format", "", "cf"},
    {"privateuse", "", "co"},
    {"surrogate", "", "cs"},
    {"unassigned", "", "cn"}};

std::string in_brackets(const CharacterRanges& ranges) {
  std::string out;
  for (auto& r : ranges)
    out += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", std::uint32_t(r.first), std::uint32_t(r.last));
  return out;
}
bool is_valid(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE at = 0;
  auto* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                             PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}
// Returns PCRE2's expression for a property, or nothing if its version lacks the property. A script
// means the property Script, not Script_Extensions.
std::string library_property(const std::string& name) {
  auto capital = name;
  capital[0] = char(std::toupper(static_cast<unsigned char>(name[0])));
  // Before version 10.40, names are case-sensitive, and those of scripts have no prefix.
  for (auto& spelling : {"sc:" + name, name, capital})
    if (auto out = "\\p{" + spelling + "}"; is_valid(out)) return out;
  return {};
}

// Characters: those of one bracket of PCRE2, and expressions that match one character each.
struct CharacterSet {
  std::string inside;
  std::vector<std::string> others;
};
std::string expression_of(const CharacterSet& set, bool negated) {
  const bool one_property =
      set.inside.starts_with("\\p{") && set.inside.find('}') + 1 == set.inside.size();
  std::string bracket;
  if (one_property && negated && set.others.empty()) return "\\P" + set.inside.substr(2);
  if (one_property)
    bracket = set.inside;
  else if (!set.inside.empty())
    bracket = (negated && set.others.empty() ? "[^" : "[") + set.inside + "]";
  if (set.others.empty() && bracket.empty()) return negated ? kAnyCharacter : "(?!)";
  if (set.others.empty()) return bracket;
  auto all = fmt::format("{}", fmt::join(set.others, "|"));
  if (!bracket.empty()) all += "|" + bracket;
  return negated ? fmt::format("(?:(?!{}){})", all, kAnyCharacter) : "(?:" + all + ")";
}

class PatternTranslator {
 public:
  PatternTranslator(std::string_view pattern, bool exact) : pattern_(pattern), exact_(exact) {}

  std::string translate() {
    while (at_ < pattern_.size()) next();
    return std::move(out_);
  }
  CharacterRanges changed() { return joined(std::move(changed_)); }

 private:
  bool eat(std::string_view text) {
    if (!pattern_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  // Returns the text until `end`, which is skipped too.
  std::string until(std::string_view end) {
    const auto found = pattern_.find(end, at_);
    if (found == pattern_.npos)
      fail("Tokenizer", "the pattern {} is malformed: {} is missing", pattern_, end);
    auto out = std::string(pattern_.substr(at_, found - at_));
    at_ = found + end.size();
    return out;
  }
  void add_atom(const std::string& text) {
    atom_ = out_.size();
    out_ += text;
  }

  void next() {
    if (eat("["))
      add_atom(bracket());
    else if (eat("\\") && at_ < pattern_.size())
      escape();
    else if (eat("(?#"))
      until(")");
    else if (eat("("))
      open_group();
    else if (eat(")"))
      close_group();
    else if (pattern_[at_] != '{' || !interval())
      character();
  }
  void character() {
    const bool quantifier = std::string_view("*+?").find(pattern_[at_]) != std::string_view::npos;
    const auto length = utf8_length(pattern_[at_]);
    if (!quantifier) atom_ = out_.size();
    out_ += pattern_.substr(at_, length);
    at_ += length;
  }
  void open_group() {
    groups_.push_back(out_.size());
    out_ += "(";
    if (!eat("?")) return;
    out_ += "?";
    // Options are letters: (?im-x: or (?i)
    const auto end = pattern_.find_first_not_of("imx-", at_);
    if (end == pattern_.npos || (pattern_[end] != ':' && pattern_[end] != ')')) return;
    for (; at_ < end; ++at_) out_ += pattern_[at_] == 'm' ? 's' : pattern_[at_];
  }
  void close_group() {
    out_ += ")";
    if (groups_.empty()) return;  // PCRE2 reports it
    atom_ = groups_.back();
    groups_.pop_back();
  }
  // Translates {n}, {n,}, {,m} and {n,m}. Returns false if it is other text.
  bool interval() {
    const auto end = pattern_.find('}', at_);
    if (end == pattern_.npos) return false;
    auto range = std::string(pattern_.substr(at_ + 1, end - at_ - 1));
    if (range.find_first_of("0123456789") == range.npos ||
        range.find_first_not_of("0123456789,") != range.npos)
      return false;
    if (range.starts_with(',')) range.insert(0, "0");
    at_ = end + 1;
    out_ += "{" + range + "}";
    if (at_ < pattern_.size() && pattern_[at_] == '+') {  // possessive in PCRE2
      out_.insert(atom_, "(?:");
      out_ += ")";
    }
    return true;
  }

  // Translates an escape outside of brackets.
  void escape() {
    CharacterSet set;
    const char kind = pattern_[at_];
    if (kind == 'b' || kind == 'B') {
      ++at_;
      const auto word = expression_of(words(), false);
      const char first = kind == 'b' ? '!' : '=', second = kind == 'b' ? '=' : '!';
      return add_atom(
          fmt::format("(?:(?<={})(?{}{})|(?<!{})(?{}{}))", word, first, word, word, second, word));
    }
    if (kind == 'O') {
      ++at_;
      return add_atom(kAnyCharacter);
    }
    if (kind == 'w' || kind == 'W') {
      ++at_;
      return add_atom(expression_of(words(), kind == 'W'));
    }
    if (add_class(set)) return add_atom(expression_of(set, false));
    add_atom(literal());
  }
  // \w outside of brackets
  CharacterSet words() {
    auto set = named("word");
    set.inside += kSuperscripts;
    return set;
  }
  // Translates an escape of one character.
  std::string literal() {
    if (eat("u")) {
      const auto code = pattern_.substr(at_, 4);
      at_ += code.size();
      return fmt::format("\\x{{{}}}", code);
    }
    if (eat("Q")) return "Q";  // PCRE2 quotes with \Q and \E
    if (eat("E")) return "E";
    const auto length = utf8_length(pattern_[at_]);
    at_ += length;
    return "\\" + std::string(pattern_.substr(at_ - length, length));
  }
  // Translates a class such as \s or \p{L} into a set. Returns false if the escape is no class.
  bool add_class(CharacterSet& set) {
    const char kind = pattern_[at_];
    const auto found = std::string_view("pPwWdDsShH").find(kind);
    if (found == std::string_view::npos) return false;
    ++at_;
    bool negated = found % 2 == 1;
    std::string name = found < 4 ? "word" : found < 6 ? "digit" : found < 8 ? "space" : "xdigit";
    if (kind == 'p' || kind == 'P') {
      if (!eat("{")) {  // a letter in Oniguruma
        set.inside += kind;
        return true;
      }
      if (eat("^")) negated = !negated;
      name = until("}");
    }
    add_named(set, name, negated);
    return true;
  }
  void add_named(CharacterSet& set, const std::string& name, bool negated) {
    const auto more = named(name);
    if (negated) {
      set.others.push_back(expression_of(more, true));
    } else {
      set.inside += more.inside;
      set.others.insert(set.others.end(), more.others.begin(), more.others.end());
    }
  }
  CharacterSet named(const std::string& name) {
    CharacterSet set;
    const auto normalized = normalized_name(name);
    const auto* found = std::find_if(std::begin(kNamedClasses), std::end(kNamedClasses),
                                     [&](auto& c) { return c.name == normalized; });
    if (found == std::end(kNamedClasses)) {
      add_property(set, normalized, name);
      return set;
    }
    set.inside = found->characters;
    std::string_view properties = found->properties;
    while (!properties.empty()) {
      const auto end = std::min(properties.find(' '), properties.size());
      add_property(set, std::string(properties.substr(0, end)), name);
      properties.remove_prefix(std::min(end + 1, properties.size()));
    }
    if (found->negated) return {{}, {expression_of(set, true)}};
    return set;
  }
  void add_property(CharacterSet& set, const std::string& property, const std::string& name) {
    auto characters = library_property(property);
    const auto difference = difference_of(property);
    if (!is_valid(characters) || (characters.empty() && difference.added.empty()))
      fail("Tokenizer", "the pattern {} has the unknown property {}", printable(pattern_),
           printable(name));
    for (auto* part : {&difference.added, &difference.removed})
      changed_.insert(changed_.end(), part->begin(), part->end());
    if (exact_) characters += in_brackets(difference.added);
    if (exact_ && !difference.removed.empty())
      set.others.push_back(
          fmt::format("(?:(?![{}])[{}])", in_brackets(difference.removed), characters));
    else
      set.inside += characters;
  }

  // Translates [:name:] or [:^name:] inside of brackets. Returns false if it is other text.
  bool posix_class(CharacterSet& set) {
    const auto rest = pattern_.substr(at_);
    if (!rest.starts_with("[:")) return false;
    const bool negated = rest.substr(2).starts_with('^');
    const std::size_t begin = negated ? 3 : 2, end = rest.find(":]", begin);
    if (end == rest.npos) return false;
    const auto name = std::string(rest.substr(begin, end - begin));
    if (name.empty() ||
        !std::all_of(name.begin(), name.end(), [](char c) { return c >= 'a' && c <= 'z'; }))
      return false;
    at_ += end + 2;
    add_named(set, name, negated);
    return true;
  }
  // Translates a set after its opening bracket.
  std::string bracket() {
    const bool negated = eat("^");
    std::vector<std::string> operands;  // intersected with the set
    CharacterSet set;
    if (eat("]")) set.inside = "\\]";
    for (bool after_class = false; !eat("]");) {
      if (at_ == pattern_.size())
        fail("Tokenizer", "the pattern {} is malformed: ] is missing", printable(pattern_));
      // A hyphen after a class is a character, and not a range.
      if (after_class && eat("-")) set.inside += "\\-";
      after_class = false;
      if (posix_class(set)) continue;
      if (eat("[")) {
        set.others.push_back(bracket());
      } else if (eat("&&")) {
        operands.push_back(expression_of(std::exchange(set, {}), false));
      } else if (eat("\\") && at_ < pattern_.size()) {
        after_class = add_class(set);
        if (!after_class) set.inside += literal();
      } else if (pattern_[at_] != ']') {
        set.inside += pattern_[at_++];
      }
    }
    if (operands.empty()) return expression_of(set, negated);
    auto all = fmt::format("(?={})", fmt::join(operands, ")(?="));
    all += expression_of(set, false);
    return negated ? fmt::format("(?:(?!{}){})", all, kAnyCharacter) : "(?:" + all + ")";
  }

  std::string_view pattern_;
  bool exact_;
  std::size_t at_ = 0;
  std::string out_;
  std::size_t atom_ = 0;             // start of the last atom in out_
  std::vector<std::size_t> groups_;  // starts of the open groups in out_
  CharacterRanges changed_;
};

}  // namespace

TranslatedPattern translated_pattern(const std::string& oniguruma) {
  PatternTranslator library(oniguruma, false), exact(oniguruma, true);
  return {library.translate(), exact.translate(), exact.changed()};
}

}  // namespace haliax
