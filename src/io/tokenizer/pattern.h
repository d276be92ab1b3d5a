// Patterns of tokenizers: a string, or a regular expression in the syntax of Oniguruma.
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "io/tokenizer/properties.h"

namespace haliax {

class Pattern {
 public:
  // From {"String": text} or {"Regex": text}, or from a string.
  explicit Pattern(const nlohmann::json&);
  static Pattern literal(std::string text);
  static Pattern regex(const std::string& expression);

  struct Match {
    std::size_t begin, end;
  };
  // Iterates over the matches in a valid text, from left to right.
  class Matches {
   public:
    Matches(const Pattern&, std::string_view text);
    ~Matches();
    Matches(const Matches&) = delete;
    bool next(Match&);

   private:
    const Pattern& pattern_;
    std::string_view text_;
    std::size_t at_ = 0;
    const void* code_ = nullptr;  // of PCRE2
    void* data_ = nullptr;
  };
  // Returns the text with all matches replaced.
  std::string replaced(std::string_view text, std::string_view by) const;

 private:
  Pattern() = default;
  void compile(const std::string& expression);
  std::string literal_;
  std::shared_ptr<void> code_;        // null: a string
  std::shared_ptr<void> exact_code_;  // for strings with one of the characters `changed_`
  CharacterFinder changed_;           // characters that PCRE2 may classify differently
};

}  // namespace haliax
