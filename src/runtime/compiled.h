// A Program, and what runs it.
#pragma once
#include <memory>
#include <vector>

#include "base/object_pool.h"
#include "graph/node.h"
#include "program/program.h"
#include "devices/device_memory.h"

namespace haliax {

// What a call works with: where its steps keep what they make, and the lists of what it reads and
// writes.
struct CallMemory {
  std::unique_ptr<Buffer> arena;
  std::vector<void*> arguments = {}, results = {};
};
struct Compiled {
  std::shared_ptr<const program::Program> program;
  std::unique_ptr<program::Executable> executable;
  DeviceMemory memory = {};                      // of the device that it runs on
  Nodes captured;                                // arrays of the graph, given after the inputs
  mutable ObjectPool<CallMemory> idle = {};      // one for each call at a time
  std::unique_ptr<CallMemory> for_call() const;  // one more
};

}  // namespace haliax
