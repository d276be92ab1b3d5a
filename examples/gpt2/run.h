// Training and sampling behind a plain interface, so that the command line compiles apart from the model.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gpt2 {

struct RunOptions {
  std::int64_t layers = 4, heads = 4, embed = 128, seq_len = 128, vocab = 256, batch = 8, seed = 0;
  double learning_rate = 1e-3, dropout = 0, weight_decay = 0.1;
  bool untied = false, chunked_loss = false;
  std::string policy = "f32", checkpointing = "none", activation = "gelu_new", backend = "cpu";
  int threads = 0;
};

// Language model over byte values.
class Run {
 public:
  explicit Run(const RunOptions&);             // new weights
  Run(const RunOptions&, const std::string& weights);   // a file of `save`, or a GPT-2 of Hugging Face; sizes come from the file
  ~Run();

  const RunOptions& options() const;
  std::int64_t parameters() const;
  // ids (batch, position) -> the loss before the step.
  double step(const std::vector<std::int32_t>& ids, double learning_rate);
  // `count` tokens after the prompt; temperature 0 takes the likeliest.
  std::vector<std::int32_t> sample(std::vector<std::int32_t> prompt, int count, double temperature, std::int64_t seed) const;
  void save(const std::string& path) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpt2
