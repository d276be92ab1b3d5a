// A Program, and what runs it.
#pragma once
#include <memory>

#include "base/idle.h"
#include "graph/node.h"
#include "program/program.h"
#include "runtime/device_memory.h"

namespace haliax {

struct Compiled {
  std::shared_ptr<const program::Program> program;
  std::unique_ptr<program::Executable> executable;
  DeviceMemory memory = {};                                // of the device that it runs on
  Nodes captured;                                          // arrays of the graph, given after the inputs
  mutable Idle<Buffer> arenas = {};                        // one for each call at a time
};

}  // namespace haliax
