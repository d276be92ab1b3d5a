// What the backend asks of a machine: a table of functions with two fillings, CUDA itself and a simulation on the host.
#pragma once
#include <string>
#include <vector>

#include "text.h"

namespace haliax::cuda {

struct Kernel {
  std::string name, text;  // of the generated part; the same text has the same name
};
struct Api {
  const char* name;
  // Handles, one for each kernel. What was compiled before is not compiled again.
  std::vector<void*> (*compile)(const std::vector<Kernel>&);
  // In order with everything else on this queue. words: one for each argument.
  void (*launch)(void* kernel, const Launch&, const std::int64_t* words);
  void (*multiply)(const Product&, const void* a, const void* b, void* out);   // likewise
};
const Api& simulated();  // sim/sim.cpp

// All that a kernel's text stands on, by its compiler's needs.
std::string prelude(bool host);

}  // namespace haliax::cuda
