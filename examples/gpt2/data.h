// Text as tokens: its bytes.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <haliax/data.h>

namespace gpt2 {

// The text of files, and of all text files below folders, in the order of their names. Raises for
// what cannot be read and for no text.
std::string read_text(const std::vector<std::string>& paths);

// Windows of the text, each byte of it the first of one, in random order: all of them once before
// any comes again.
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
