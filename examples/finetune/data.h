// Sequences of tokens for training and validation.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace finetune {

// Tokens that are divided into sequences of one length. The last sequences are for validation.
class Sequences {
 public:
  // Raises unless there is at least one sequence for training.
  Sequences(std::vector<int> tokens, std::int64_t length, double validation, std::int64_t seed);
  std::int64_t training() const { return training_; }             // number of sequences
  std::int64_t validation() const { return count_ - training_; }  // number of sequences
  // Returns the tokens of `count` sequences for a training step, one after the other. Each pass
  // over the data has an order of its own.
  std::vector<std::int32_t> batch(std::int64_t step, std::int64_t count) const;
  // Returns the tokens of sequence k for validation.
  std::vector<std::int32_t> held_out(std::int64_t k) const;

 private:
  void append(std::int64_t sequence, std::vector<std::int32_t>& out) const;

  std::vector<int> tokens_;
  std::int64_t length_, count_, training_, seed_;
};

// Returns the documents of a text file, which blank lines separate. Raises if it cannot be read.
std::vector<std::string> documents_of(const std::string& path);

}  // namespace finetune
