// The CPU backend: contractions run in oneDNN or in kernels of this backend, all other steps in
// fused loops.
#pragma once
#include <memory>

#include "program/program.h"

namespace haliax::cpu {

// threads: 0 selects HALIAX_THREADS, or all cores if the variable is not set.
std::unique_ptr<program::Device> make_cpu_device(int threads = 0);
void set_threads(int count);

}  // namespace haliax::cpu
