// Training and sampling with a small interface, so that the command line compiles without the
// model.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gpt2 {

struct RunOptions {
  std::int64_t layers = 4, heads = 4, embed = 128, seq_len = 64, vocab = 256, batch = 16, seed = 0;
  double learning_rate = 4e-3, dropout = 0, weight_decay = 0.1;
  bool untied = false;
  // Materializes the logits of a full batch; otherwise the loss iterates over chunks of positions.
  bool full_logits = false;
  std::int64_t loss_memory = 0;  // bytes of logits per chunk; 0: the default of the library
  std::string policy = "f32", checkpointing = "none", activation = "gelu_new", backend = "cpu";
  int threads = 0;
  std::string mesh;  // data=4,model=2: see layout.h; empty: one device
};

// Returns the options with the model sizes of a file: one that `save` wrote, or a GPT-2 of Hugging
// Face, for which a head size of 64 is assumed.
RunOptions sizes_of(const std::string& weights, RunOptions);

// The exact memory of a training step, in bytes, in addition to weights, optimizer state and batch:
// with the loss in chunks, and with all logits.
struct Planned {
  std::int64_t chunked, full_logits;
};

// A model, its optimizer and its random keys.
class Run {
 public:
  explicit Run(const RunOptions&);
  ~Run();
  void load(const std::string& weights);  // raises unless the file has the sizes of the options

  std::int64_t parameters() const;
  Planned planned() const;  // compiles both variants without running them
  // Runs a step on ids (batch, position) and returns the loss before the update.
  double step(const std::vector<std::int32_t>& ids, double learning_rate);
  // Returns `count` tokens after the prompt. Temperature 0 selects the most likely token.
  std::vector<std::int32_t> sample(std::vector<std::int32_t> prompt, int count, double temperature,
                                   std::int64_t seed) const;
  void save(const std::string& path) const;

  // ---- checkpoints: weights, optimizer state, step count, data position, random keys ----
  // Saves to this folder from now on; no other run may write to it. With `resume`, loads the latest
  // checkpoint if there is one, returns its steps and sets `position` to the data position. Without
  // `resume`, raises if there is a checkpoint.
  std::int64_t open_checkpoints(const std::string& folder, int keep, bool resume,
                                std::int64_t& position);
  // Saves in the background. Raises the error of the previous save.
  void save_checkpoint(std::int64_t position);
  void finish_checkpoints();  // waits until the last save is on disk

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpt2
