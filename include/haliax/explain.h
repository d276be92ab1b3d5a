// What a compiled function takes: memory, traffic, time. For tests, and in a table for people.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace [[gnu::visibility("default")]] haliax {

// How fast a device and its links are. 0: not known, and then it takes no time.
struct LinkSpeed {
  std::string axis = {};   // a mesh axis, or the call raises; empty: all that are not named
  double bytes_per_s = 0;  // that a device sends
  double latency_s = 0;    // of one step around a ring
};
struct MachineSpeed {
  double flops = 0;  // of a device, per second
  std::vector<LinkSpeed> links = {};
};

// A call of a collective.
struct CollectiveReport {
  // all-gather, reduce-scatter, all-reduce, all-to-all, permute or ring; mesh axes: data+model
  std::string kind, over;
  // What moves: a parameter, "gradient of" some, "new" (updated), "part of" an op, or the op that
  // made it.
  std::string array;
  std::string axes;  // of the whole array; where arrays share a call, of each
  int arrays = 1;
  double bytes = 0, turns = 1;  // sent per device on a ring, each time; how often
  // blocks of keys that a mask hides from a device are not sent to it; known when it runs
  bool at_most = false;
  std::string loop;          // axes walked around it, outermost first; of a ring then its mesh axis
  std::string cause, where;  // the op that wants it, or "result"; file:line, in module
  std::string asked;         // of a gather or a ring: by what it was asked for; empty: by nobody
  double seconds = 0;        // estimated, all turns
};
// Planned bytes on one device when most are in use. All of them make argument_bytes + peak_bytes.
struct MemoryReport {
  // parameters, optimiser, inputs, gradients, activations, results, gathered, scratch (of steps),
  // gaps
  std::string purpose;
  std::int64_t bytes = 0;
};

}  // namespace haliax
