// Reads documents, and divides their tokens into sequences.
#include "data.h"

#include <haliax/error.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <random>

namespace finetune {

Sequences::Sequences(const std::vector<std::vector<int>>& documents, std::int64_t length,
                     double validation, std::int64_t seed)
    : length_(length), seed_(seed) {
  for (std::size_t d = 0; d < documents.size(); ++d) {
    tokens_.insert(tokens_.end(), documents[d].begin(), documents[d].end());
    documents_.insert(documents_.end(), documents[d].size(), std::int32_t(d));
  }
  count_ = std::int64_t(tokens_.size()) / length;
  training_ = count_ - std::int64_t(double(count_) * validation);
  if (training_ < 1)
    throw haliax::Error("[finetune] the data have " + std::to_string(tokens_.size()) +
                        " tokens, less than one sequence of " + std::to_string(length) +
                        " for training; use more data or a smaller --length");
}
Sequences::Part Sequences::batch(std::int64_t step, std::int64_t count) const {
  Part out;
  std::vector<std::int64_t> order(std::size_t(training_), 0);
  std::int64_t pass = -1;
  for (std::int64_t k = step * count; k < (step + 1) * count; ++k) {
    if (k / training_ != pass) {
      pass = k / training_;
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), std::mt19937_64(std::uint64_t(seed_ + pass)));
    }
    append(order[std::size_t(k % training_)], out);
  }
  return out;
}
Sequences::Part Sequences::held_out(std::int64_t k) const {
  Part out;
  append(training_ + k, out);
  return out;
}
void Sequences::append(std::int64_t sequence, Part& out) const {
  const auto from = sequence * length_;
  auto copy = [&](const std::vector<std::int32_t>& all, std::vector<std::int32_t>& to) {
    to.insert(to.end(), all.begin() + from, all.begin() + from + length_);
  };
  copy(tokens_, out.ids);
  copy(documents_, out.segments);
}

std::vector<std::string> documents_of(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw haliax::Error("[finetune] cannot read " + path);
  std::vector<std::string> out(1);
  for (std::string line; std::getline(in, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") == line.npos)
      out.emplace_back();
    else
      out.back() += line + "\n";
  }
  std::erase_if(out, [](auto& text) { return text.empty(); });
  return out;
}

}  // namespace finetune
