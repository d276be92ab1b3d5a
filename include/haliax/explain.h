// Reports of a compiled function: collectives, memory by purpose, and the speed of a machine for
// estimates. See docs/how-to/debugging.md.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace [[gnu::visibility("default")]] haliax {

/// The speed of the links along a mesh axis.
struct LinkSpeed {
  std::string axis = {};  ///< Mesh axis. Empty: all mesh axes without an entry.
  /// Bytes per second that a device sends. 0: unknown; no time is estimated.
  double bytes_per_s = 0;
  double latency_s = 0;  ///< Seconds per step of a ring.
};
/// The speed of a machine, for `JitOptions::speed`. A value of 0 is unknown, and counts as no time.
struct MachineSpeed {
  double flops = 0;  ///< Floating-point operations per second of a device.
  /// Links, by mesh axis. A mesh axis that the mesh lacks raises.
  std::vector<LinkSpeed> links = {};
};

/// A collective of a compiled function.
struct CollectiveReport {
  /// `all-gather`, `reduce-scatter`, `all-reduce`, `all-to-all`, `permute` or `ring`.
  std::string kind;
  std::string over;  ///< Mesh axes: `data+model`.
  /// The communicated array: a parameter, `gradient of` a parameter, `new` (updated) and a
  /// parameter, `part of` an op, or the op that computes it.
  std::string array;
  /// Axes of the full array. A collective of several arrays lists the axes of each.
  std::string axes;
  int arrays = 1;    ///< Number of arrays that share the collective.
  double bytes = 0;  ///< Bytes sent per device and execution, with a ring.
  double turns = 1;  ///< Executions per call of the function.
  /// True if `bytes` is an upper bound: blocks of keys that a mask hides from a device are not
  /// sent.
  bool at_most = false;
  /// Axes of the loops that contain the collective, outermost first. For a ring, also its mesh
  /// axis.
  std::string loop;
  std::string cause;  ///< The op that requires the collective, or `result`.
  std::string where;  ///< Source location and module of that op: `model.cpp:41, in blocks.mlp`.
  /// The reason of an all-gather or ring: `parameter`, `constraint`, `result`, `gradient` or
  /// `blocks`. Empty: none; the option `strict` raises for it.
  std::string asked;
  double seconds = 0;  ///< Estimated time of all executions.
};
/// Bytes of one purpose on one device at the memory peak. The sum over all purposes is
/// `JitReport::argument_bytes + JitReport::peak_bytes`.
struct MemoryReport {
  /// `parameters`, `optimizer` (optimizer state), `inputs`, `gradients`, `activations`, `results`,
  /// `gathered` (weights), `scratch` (of steps) or `gaps` (unused bytes of the arena).
  std::string purpose;
  std::int64_t bytes = 0;  ///< Planned bytes.
};

}  // namespace haliax
