// Training and sampling behind a plain interface, so that the command line compiles apart from the
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
  // hold the logits of a whole batch; else the loss walks the positions in chunks
  bool full_logits = false;
  std::int64_t loss_memory = 0;  // bytes of logits in a chunk; 0: chosen by the library
  std::string policy = "f32", checkpointing = "none", activation = "gelu_new", backend = "cpu";
  int threads = 0;
  std::string mesh;  // data=4,model=2: see layout.h; empty: one device
};

// The options with the sizes of the model in a file: one of `save`, or a GPT-2 of Hugging Face,
// whose heads are taken to be 64 wide.
RunOptions sizes_of(const std::string& weights, RunOptions);

// What a training step takes beside weights, optimiser and batch, in bytes, exact: with the loss in
// chunks, and with all logits.
struct Planned {
  std::int64_t chunked, full_logits;
};

// A model, its optimiser and its random numbers.
class Run {
 public:
  explicit Run(const RunOptions&);
  ~Run();
  void load(const std::string& weights);  // raises unless the sizes are those of the options

  std::int64_t parameters() const;
  Planned planned() const;  // compiles both, runs none
  // ids (batch, position) -> the loss before the step.
  double step(const std::vector<std::int32_t>& ids, double learning_rate);
  // `count` tokens after the prompt; temperature 0 takes the likeliest.
  std::vector<std::int32_t> sample(std::vector<std::int32_t> prompt, int count, double temperature,
                                   std::int64_t seed) const;
  void save(const std::string& path) const;

  // ---- checkpoints: weights, optimiser, steps made, position in the text, random numbers ----
  // From here on into this folder, into which no other job may write. With `resume` the last one
  // there is loaded, if there is any: returns its steps, and `position` gets that of the data.
  // Without it raises if there is one.
  std::int64_t open_checkpoints(const std::string& folder, int keep, bool resume,
                                std::int64_t& position);
  // in the background; raises what went wrong with the one before
  void save_checkpoint(std::int64_t position);
  void finish_checkpoints();  // until the last is on the disk

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpt2
