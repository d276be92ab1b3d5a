// A program for each device of a mesh that this process has, run by its threads.
#pragma once
#include "runtime/run.h"

namespace haliax {

struct MeshProgram {
  Mesh mesh;
  std::vector<Sharding> in, out;  // of inputs and results
  std::vector<bool> donated;      // by input: their memory may be written over
  std::vector<std::pair<Axes, DType>> inputs, results;  // whole
  int first = 0;                                        // of this process's devices
  // those; simulated: the first alone, which has the largest blocks; nothing runs
  std::vector<Compiled> devices;
  std::vector<PlannedCollective> moves;
  double sent_bytes = 0, calls = 0;  // per device
  // overlap was asked for, but blocks are not even: calls stay where they are
  bool uneven = false;
  std::size_t largest_device = 0;  // of them, the one that needs most memory

  // A device takes its block of each argument: where it lies, if it was left there by an earlier
  // call or is in one piece; else a copy. Of what is donated it takes no memory but blocks that the
  // caller gives up (`given`) and nobody else has.
  struct Made {
    std::vector<BufferPtr> results;
    std::int64_t split_bytes = 0;  // copied to give each device its block
  };
  Made run(const std::vector<BufferPtr>& arguments, const std::vector<bool>& given) const;
  class MeshCall;
};

// What follows the stages of the whole (run_global): options.mesh, in, out and partition say how.
// Arrays that the graph captured are whole on every device. `simulated`: planned, not run. Raises
// for a gather that nobody asked for, if the options are strict.
MeshProgram compile_for_mesh(Compilation&, const std::string& backend, bool simulated);

}  // namespace haliax
