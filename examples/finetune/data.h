// Sequences of tokens for training and validation.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace finetune {

// Tokens that are divided into sequences of one length. The last sequences are for validation.
class Sequences {
 public:
  // The documents follow each other, so a sequence may have parts of several. Raises unless there
  // is at least one sequence for training.
  Sequences(const std::vector<std::vector<int>>& documents, std::int64_t length, double validation,
            std::int64_t seed);
  std::int64_t training() const { return training_; }             // number of sequences
  std::int64_t validation() const { return count_ - training_; }  // number of sequences
  // The tokens of some sequences, and the number of the document of each token.
  struct Part {
    std::vector<std::int32_t> ids, segments;
  };
  // Returns `count` sequences for a training step, one after the other. Each pass over the data has
  // an order of its own.
  Part batch(std::int64_t step, std::int64_t count) const;
  Part held_out(std::int64_t k) const;  // sequence k for validation

 private:
  void append(std::int64_t sequence, Part& out) const;

  std::vector<std::int32_t> tokens_, documents_;  // by token
  std::int64_t length_, count_, training_, seed_;
};

// Returns the documents of a text file, which blank lines separate. Raises if it cannot be read.
std::vector<std::string> documents_of(const std::string& path);

}  // namespace finetune
