// What tests ask of the simulated machine.
#pragma once
#include <cstdint>
#include <string>

namespace haliax::cuda {

// So far, in this process.
struct SimulationCounts {
  // asked for, also where a graph is written down
  std::int64_t kernels = 0, products = 0, copies = 0, exchanges = 0;
  std::int64_t texts = 0;                               // that differ
  std::int64_t instances = 0, updates = 0, graphs = 0;  // made, changed, run
  std::int64_t taken = 0, grown = 0;  // pieces of memory; of those, where there was none before
  std::int64_t waits = 0;             // of the host
  std::int64_t sent = 0;              // bytes, from card to card
  std::int64_t ifs = 0;               // parts of graphs that may be left out
};
SimulationCounts simulation_counts();
struct SimulatedMemory {
  std::int64_t now = 0, most = 0;  // bytes; most: since this was asked last
};
SimulatedMemory simulated_memory(int device);
void set_simulated_memory(int device, std::int64_t bytes);
// how many there are: 64; which of its host the first is
void set_simulated_gpus(int, int first = 0);
void inject_fault(int device, const std::string& why);  // the device fails; empty: it is as new

}  // namespace haliax::cuda
