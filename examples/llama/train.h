// A Llama trained on numbers that follow a rule, on one device or a mesh; and the ways to lay out its hidden states there.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "model.h"

namespace llama {

// How a mesh is used: its axis `data` cuts the batch, and along it each weight; `model` the heads, the MLP and the vocabulary, and
// between layers nothing (all-reduce) or the positions (reduce-scatter).
struct Mode {
  std::string name;
  bool scatters = false;
  bool again = false;                   // see Stream
};
std::vector<Mode> modes();

struct Run {
  Config config;
  int steps = 100;
  double learning_rate = 3e-3;
  std::string policy = "f32";
  std::optional<Mesh> mesh = {};        // none: one device, and the mode is nothing
  Mode mode = {};
  bool speaks = false;                  // the loss, now and then
};
struct Trained {
  std::vector<double> losses;           // of each step
  double seconds = 0;                   // of a step, the fastest
  JitReport report;
};
Trained train(const Run&);
JitReport planned(const Run&);          // of a step that does not run

}  // namespace llama
