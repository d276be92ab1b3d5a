// The CPU backend: contractions by oneDNN, everything else by fused loops of our own.
#pragma once
#include <memory>

#include "program/program.h"

namespace haliax::cpu {

// 0: HALIAX_THREADS, or else all cores
std::unique_ptr<program::Device> make_cpu_device(int threads = 0);
void set_threads(int count);

}  // namespace haliax::cpu
