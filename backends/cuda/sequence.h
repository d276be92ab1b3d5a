// A Program as what is asked of a device, in order: launches, products, groups of sends and
// receives, and what the host does.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "api.h"
#include "program/program.h"

namespace haliax::cuda {

struct Message {  // a transfer, at a place that is known when the program runs
  int peer = 0;
  bool sends = false;
  KernelArgument at = {};
  std::int64_t bytes = 0;
};
struct Item {
  enum class Kind : std::uint8_t { launch, product, exchange, loop, collective, host, part };
  Kind kind = Kind::launch;
  const program::Step* step = nullptr;  // what it comes from
  Launch launch = {};
  Handle made = nullptr;               // its kernel, or its product
  std::vector<Message> messages = {};  // of an exchange
  // Of a loop; of a collective, which has a stream of its own; of a part of a graph that its kernel
  // may leave out.
  std::vector<Item> body = {};
  int flag = -1;  // of its turn; the host looks at it before its own steps and collectives
  Handle ready = nullptr, finished = nullptr;  // of a collective: events
};

// Turns that may end early (Skip) are parts of a graph (Api::begin_if). Where there is no graph,
// the machine has no such parts, or exchanges would share the graph with them, these turns have a
// flag each, in memory of the executable: a Word's slot in place of a slot. Kernels look at it by
// themselves. Products of the library cannot, and are made in vain; where their result is seen from
// outside of what is left out, they are made in memory of the executable, too, and a kernel takes
// them from there.
inline constexpr int kFlagSlot = -3, kShadowSlot = -4;

struct Sequence {
  std::vector<Item> items;
  int flags = 0;                  // bytes of them
  std::int64_t shadow_bytes = 0;  // bytes for such products
  bool needs_host = false;    // a step of the host's, or one that the host must look at flags for
  bool communicates = false;  // to other devices
  bool multiplies = false;    // by the library
};
struct SequenceOptions {
  bool marks = false;  // nests say which step they make (nest.h)
  bool parts = false;  // what flags skip are parts of the graph instead
};
// Without handles. near_bytes: shared memory that a block of threads may have (nest.h).
Sequence sequence_of(const program::Program&, std::int64_t shared_limit, SequenceOptions = {});
// launches, where one can be made of several
void join_equal(Sequence&, const program::Program&);
std::int64_t steps_in_graph(const std::vector<Item>&);  // with all turns of loops

// What a collective is made of, by steps of these kinds: copies, fused steps, exchanges. Only they
// need the places of a step's scratch, `scratch` bytes.
struct Part {
  program::Step step = {};
  std::vector<Message> messages = {};  // instead
};
std::vector<Part> parts_of(const program::Step&, const program::Program&);
std::int64_t collective_scratch(const program::Collective&);

}  // namespace haliax::cuda
