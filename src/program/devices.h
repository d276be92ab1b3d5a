// The backends that are linked in, by the functions that make them.
#pragma once
#include <memory>

#include "program/program.h"

namespace haliax::cpu {
// 0: HALIAX_THREADS, or else all cores
std::unique_ptr<program::Device> make_cpu_device(int threads);
}  // namespace haliax::cpu

namespace haliax::reference {
std::unique_ptr<program::Device> make_reference_device();
}

// Steps in memory that the host may not touch: for tests.
namespace haliax::separate_memory {
std::unique_ptr<program::Device> make_separate_memory_device();  // the cpu's
struct Counts {
  std::int64_t runs = 0, puts = 0, gets = 0, copies = 0, bytes = 0;  // asked for so far; in use
};
Counts counts(int device);
// The next run on it that returns early fails with this. Null: none does, and a device that has
// failed goes on.
void inject_error(int device, const char* what);
}  // namespace haliax::separate_memory

namespace haliax::cuda {
std::unique_ptr<program::Device> make_simulated_device();  // CUDA on the host
}
