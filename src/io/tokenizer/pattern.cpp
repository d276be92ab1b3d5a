// Patterns by PCRE2, with Unicode properties and its just-in-time compiler.
#include "io/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <nlohmann/json.hpp>

#include "graph/fail.h"
#include "io/file.h"
#include "io/tokenizer/pattern_syntax.h"
#include "io/tokenizer/unicode.h"

namespace haliax {
namespace {

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
  auto translated = translated_pattern(expression);
  code_ = compiled(translated.library, expression);
  exact_code_ = code_;
  if (!translated.changed.empty()) exact_code_ = compiled(translated.exact, expression);
  changed_ = CharacterFinder(std::move(translated.changed));
}

Pattern::Matches::Matches(const Pattern& pattern, std::string_view text)
    : pattern_(pattern), text_(text) {
  if (!pattern_.code_) return;
  auto& code = pattern_.changed_.found_in(text) ? pattern_.exact_code_ : pattern_.code_;
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
