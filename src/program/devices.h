// The backends that are linked in, by the functions that make them.
#pragma once
#include <memory>

#include "program/program.h"

namespace haliax::cpu {
std::unique_ptr<program::Device> make_cpu_device(int threads);   // 0: HALIAX_THREADS, or else all cores
void set_threads(int);
}  // namespace haliax::cpu

namespace haliax::reference {
std::unique_ptr<program::Device> make_reference_device();
}

namespace haliax::cuda {
std::unique_ptr<program::Device> make_simulated_device();   // CUDA's kernels on the host
}
