// Text as tokens: its bytes.
#pragma once
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace gpt2 {

// The text of files, and of all text files below folders, in the order of their names. Raises for what cannot be read and for no
// text.
std::string read_text(const std::vector<std::string>& paths);

// Windows of the text at random places.
class Batches {
 public:
  Batches(std::string text, std::int64_t batch, std::int64_t seq_len,
          std::uint64_t seed);       // raises for a text shorter than a window
  std::vector<std::int32_t> next();  // (batch, position)

 private:
  std::string text_;
  std::int64_t batch_, seq_len_;
  std::mt19937_64 random_;
};

}  // namespace gpt2
