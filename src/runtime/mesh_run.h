// One Program for each device of a mesh that this process owns, and a call that runs them on the
// threads of the devices.
#pragma once
#include "runtime/run.h"

namespace haliax {

struct MeshProgram {
  Mesh mesh;
  std::vector<Sharding> in, out;                        // shardings of inputs and results
  std::vector<bool> donated;                            // by input: its memory may be overwritten
  std::vector<std::pair<Axes, DType>> inputs, results;  // unsharded
  int first = 0;                                        // first device of this process
  // The Programs of the devices of this process. Simulated: only the first device, which has the
  // largest blocks, and nothing runs.
  std::vector<Compiled> devices;
  std::vector<PlannedCollective> collectives;
  double sent_bytes = 0, calls = 0;  // per device
  // Overlap was requested, but blocks are uneven, so collectives do not overlap.
  bool uneven = false;
  std::size_t largest_device = 0;  // index in `devices` of the one that needs the most memory

  // Runs the Programs. A device reads its block of each argument in place if an earlier call stored
  // the block there or if the block is contiguous; otherwise it gets a copy. A donated argument is
  // overwritten only if the caller passes it on (`may_overwrite`) and no other owner holds the
  // block.
  struct Created {
    std::vector<BufferPtr> results;
    std::int64_t split_bytes = 0;  // bytes copied to split arguments into blocks
  };
  Created run(const std::vector<BufferPtr>& arguments,
              const std::vector<bool>& may_overwrite) const;
};

// Runs the stages after `run_global`, which follow options.mesh, in, out and partition. Arrays that
// the graph captured are replicated on every device. `simulated`: compiles without an executable.
// Raises for an unrequested gather if the options are strict.
MeshProgram compile_for_mesh(Compilation&, const std::string& backend, bool simulated);

}  // namespace haliax
