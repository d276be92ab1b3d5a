// One method in a process of its own: what its plan promises, and what the process really holds
// while it runs.
#pragma once
#include "methods.h"

namespace chunked_loss {

struct Measured {
  std::string error;                // nothing: it ran
  double loss = 0, seconds = 0;     // of a run; the median of several
  double planned = 0, peak = 0;     // bytes beyond the inputs: by the plan; really held
  int contractions = 0, loops = 0;  // in the program
  // bytes held beyond the inputs during the first run, at even distances
  std::vector<double> curve;
  double span = 0;  // seconds of that run
};
constexpr std::size_t curve_points = 160;

// Traces, compiles and runs `method` with its gradients.
Measured measure(const Method&, const Sizes&, int threads, int runs);

}  // namespace chunked_loss
