// A program for each device of a mesh, run by threads of this process.
#pragma once
#include "runtime/run.h"
#include "transforms/partition.h"

namespace haliax {

struct MeshProgram {
  Mesh mesh;
  std::vector<Sharding> in, out;                 // of inputs and results
  std::vector<std::pair<Axes, DType>> inputs, results;   // whole
  std::vector<Compiled> devices;                 // simulated: the first alone, which has the largest blocks, and nothing that runs
  std::vector<Move> moves;
  double sent_bytes = 0, calls = 0;              // per device
  std::size_t fullest = 0;                       // the device that needs most memory

  // Whole arrays in, whole arrays out: a device takes its block of each.
  void run(const std::vector<const std::byte*>& arguments, const std::vector<std::byte*>& outs);
};

struct MeshOptions {
  std::string backend;
  std::vector<bool> donated = {};                // by input
  PartitionOptions partition = {};
  bool simulated = false;                        // planned, not run
  bool strict = false;                           // raises for a gather that nobody asked for
};
// Arrays that the graph captured are whole on every device.
MeshProgram compile_for_mesh(const Nodes& roots, const Nodes& inputs, const std::vector<Sharding>& in, const std::vector<Sharding>& out, const Mesh&,
                             const MeshOptions&);

}  // namespace haliax
