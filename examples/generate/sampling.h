// Selects a token from logits.
#pragma once
#include <limits>

#include "haliax/haliax.h"

namespace generate {

using namespace haliax;

struct Sampling {
  static constexpr bool is_static = true;
  double temperature = 0;  // 0: the most likely token
  std::int64_t top_k = 0;  // selects among the k most likely tokens; 0: all
  double top_p = 1;        // selects among the most likely tokens with this total probability
  bool operator==(const Sampling&) const = default;
};

// logits (vocab) -> id ()
inline NamedArray sample(NamedArray logits, const Key& key, const Sampling& options) {
  if (options.temperature == 0) return argmax(logits, "vocab");
  constexpr double never = -std::numeric_limits<double>::infinity();
  logits = logits / options.temperature;
  if (options.top_k > 0 && options.top_k < logits.axis_size("vocab")) {
    auto largest = top_k(logits, "vocab", options.top_k).first;
    logits = where(logits < min(largest), never, logits);
  }
  if (options.top_p < 1) {
    auto probabilities = softmax(logits, "vocab");
    auto sorted = flip(sort(probabilities, "vocab"), "vocab");
    // A token counts if the more likely ones have a total below top_p. The first one always counts.
    auto before = cumsum(sorted, "vocab") - sorted;
    auto least = min(where(before < options.top_p || sorted == max(sorted), sorted, 2.));
    logits = where(probabilities < least, never, logits);
  }
  return random::categorical(key, logits, "vocab");
}

}  // namespace generate
