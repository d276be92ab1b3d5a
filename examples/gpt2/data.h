// Text as tokens: one token per byte.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <haliax/data.h>

namespace gpt2 {

// Returns the text of files, and of all text files in folders, ordered by name. Raises if a file
// cannot be read or if there is no text.
std::string read_text(const std::vector<std::string>& paths);

// Windows of the text in random order. A window starts at each byte; every window occurs once
// before any is repeated.
class Batches {
 public:
  Batches(std::string text, std::int64_t batch, std::int64_t seq_len,
          std::int64_t seed);        // raises for a text shorter than a window
  std::vector<std::int32_t> next();  // (batch, position)
  std::int64_t position() const { return loader_.position(); }
  void seek(std::int64_t position) { loader_.seek(position); }

 private:
  haliax::TokenLoader loader_;
};

}  // namespace gpt2
