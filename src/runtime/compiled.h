// A Program with the executable and the memory that run it.
#pragma once
#include <memory>
#include <vector>

#include "base/object_pool.h"
#include "devices/device_memory.h"
#include "graph/node.h"
#include "program/program.h"

namespace haliax {

// The memory of one call: the arena of its steps, and the addresses of its arguments and results.
struct CallMemory {
  std::unique_ptr<Buffer> arena;
  std::vector<void*> arguments = {}, results = {};
};
struct Compiled {
  std::shared_ptr<const program::Program> program;
  std::unique_ptr<program::Executable> executable;
  DeviceMemory memory = {};  // memory of the device that runs it
  Nodes captured;            // arrays of the graph, which follow the inputs as arguments
  mutable ObjectPool<CallMemory> idle = {};      // memory for reuse, one entry per concurrent call
  std::unique_ptr<CallMemory> for_call() const;  // allocates another entry
};

}  // namespace haliax
