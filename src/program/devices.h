// Constructors of the backends that are linked in.
#pragma once
#include <memory>

#include "program/program.h"

namespace haliax::cpu {
// Creates the CPU device. `threads` 0 selects HALIAX_THREADS or, if it is unset, all cores.
std::unique_ptr<program::Device> make_cpu_device(int threads);
}  // namespace haliax::cpu

namespace haliax::reference {
std::unique_ptr<program::Device> make_reference_device();
}

// A test device whose memory the host must not access.
namespace haliax::separate_memory {
// Creates a device that runs the steps of the cpu backend.
std::unique_ptr<program::Device> make_separate_memory_device();
struct Counts {
  // totals so far; `bytes` is the memory in use
  std::int64_t runs = 0, puts = 0, gets = 0, copies = 0, bytes = 0;
};
Counts counts(int device);
// Makes the next run on the device that returns early fail with this message. With null, no run
// fails, and a device that has failed works again.
void inject_error(int device, const char* what);
}  // namespace haliax::separate_memory

namespace haliax::cuda {
std::unique_ptr<program::Device> make_simulated_device();  // CUDA, simulated on the host
}
