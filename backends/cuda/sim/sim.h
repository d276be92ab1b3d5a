// The interface of tests to the simulated machine.
#pragma once
#include <cstdint>
#include <string>

namespace haliax::cuda {

// Counts in this process so far.
struct SimulationCounts {
  // queued or captured in a graph
  std::int64_t kernels = 0, products = 0, copies = 0, exchanges = 0;
  std::int64_t texts = 0;                               // distinct kernel sources
  std::int64_t instances = 0, updates = 0, graphs = 0;  // created, updated, run
  std::int64_t taken = 0, grown = 0;  // allocations; those that extended the used address range
  std::int64_t waits = 0;             // waits of the host
  std::int64_t sent = 0;              // bytes sent between devices
  std::int64_t ifs = 0;               // conditional nodes of graphs
};
SimulationCounts simulation_counts();
struct SimulatedMemory {
  std::int64_t now = 0, most = 0;  // bytes; most: since the previous query
};
SimulatedMemory simulated_memory(int device);
void set_simulated_memory(int device, std::int64_t bytes);
// The number of GPUs (default: 64), and the index of the first one within its host.
void set_simulated_gpus(int, int first = 0);
void inject_fault(int device, const std::string& why);  // empty: clears an earlier fault

}  // namespace haliax::cuda
