// Runs one method in a process of its own: its planned memory, and the resident memory during the
// run.
#pragma once
#include "methods.h"

namespace chunked_loss {

struct Measured {
  std::string error;                // empty if it ran
  double loss = 0, seconds = 0;     // seconds per run, the median of several runs
  double planned = 0, peak = 0;     // bytes in addition to the inputs: planned, and resident
  int contractions = 0, loops = 0;  // counts in the program
  // Bytes in addition to the inputs during the first run, equally spaced in time.
  std::vector<double> curve;
  double span = 0;  // seconds of the first run
};
constexpr std::size_t curve_points = 160;

// Traces, compiles and runs `method` with its gradients.
Measured measure(const Method&, const Sizes&, int threads, int runs);

}  // namespace chunked_loss
