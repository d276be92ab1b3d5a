// Translation of regular expressions from the syntax of Oniguruma to that of PCRE2.
#pragma once
#include <string>

#include "io/tokenizer/properties.h"

namespace haliax {

struct TranslatedPattern {
  std::string library;      // its classes are those of PCRE2
  std::string exact;        // its classes are those of the package `tokenizers`; slower
  CharacterRanges changed;  // characters for which the classes differ
};
// Raises an error if a bracket is not closed, or a property is unknown.
TranslatedPattern translated_pattern(const std::string& oniguruma);

}  // namespace haliax
