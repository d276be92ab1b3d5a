// A Program as a sequence of device operations: launches, matmuls, groups of sends and receives,
// and host steps.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "../api.h"
#include "program/program.h"

namespace haliax::cuda {

// A transfer whose address is computed at run time.
struct Message {
  int peer = 0;
  bool sends = false;
  KernelArgument at = {};
  std::int64_t bytes = 0;
};
struct Item {
  enum class Kind : std::uint8_t { launch, product, exchange, loop, collective, host, conditional };
  Kind kind = Kind::launch;
  const program::Step* step = nullptr;  // the step that it implements
  Launch launch = {};
  Handle created = nullptr;            // kernel or matmul
  std::vector<Message> messages = {};  // transfers of an exchange
  // The body of a loop, of a collective (which runs in its own stream), or of a conditional node of
  // a graph.
  std::vector<Item> body = {};
  // flag of the enclosing conditional; the host checks it before host steps and collectives
  int flag = -1;
  Handle ready = nullptr, finished = nullptr;  // events of a collective
};

// Conditionals become conditional nodes of a graph (Api::begin_if). This is not possible without a
// graph, without machine support, or if exchanges would be in the same graph. In these cases each
// conditional has a flag in memory of the executable, addressed by a special slot of
// KernelArgument. Kernels check the flag themselves. Library matmuls cannot check it and always
// run. If a skipped result would be visible outside, the matmul writes to memory of the executable
// (the shadow), and a kernel that checks the flag copies the result.
inline constexpr int kFlagSlot = -3, kShadowSlot = -4;

struct Sequence {
  std::vector<Item> items;
  int flags = 0;                  // bytes of flags
  std::int64_t shadow_bytes = 0;  // bytes of shadow results
  bool needs_host = false;        // some step runs on the host, or needs the host to check flags
  bool communicates = false;      // with other devices
  bool multiplies = false;        // by library matmuls
};
struct SequenceOptions {
  bool marks = false;              // nests record the step that they run (kernels/nest.h)
  bool conditional_nodes = false;  // conditionals become nodes of the graph
};
// Returns the sequence without handles. shared_limit: bytes of shared memory that a block may use
// (kernels/nest.h).
Sequence sequence_of(const program::Program&, std::int64_t shared_limit, SequenceOptions = {});
// Merges several launches into one where possible.
void join_equal(Sequence&, const program::Program&);
std::int64_t steps_in_graph(const std::vector<Item>&);  // including all iterations of loops

// A part of a collective: a step (a copy or a fused step), or a group of messages. Only the parts
// use the step's scratch memory.
struct Part {
  program::Step step = {};
  std::vector<Message> messages = {};  // instead of a step
};
std::vector<Part> parts_of(const program::Step&, const program::Program&);
// Returns the bytes of scratch memory for the parts. Messages transfer contiguous memory only, so
// arrays and boxes that are not contiguous are packed and unpacked there. Blocks to reduce are
// received there.
std::int64_t collective_scratch(const program::Collective&);

}  // namespace haliax::cuda
