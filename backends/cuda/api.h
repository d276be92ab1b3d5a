// The interface of the CUDA backend to a machine: a table of functions. Two implementations exist:
// CUDA itself (nvidia/gpu_api.cpp) and a simulation on the host (sim/). Code above this interface
// does not depend on the implementation. All functions raise errors with the message of the
// machine.
//
// A Program becomes a Sequence (engine/sequence.h) of Launches (kernels/kernel_source.h), which run
// through this table. The folders, from the lowest to the highest:
//
// device   headers that the source of kernels contains
// kernels  kernels of the steps of a Program: their plans and their source
// nvidia   the driver, NVRTC, cuBLASLt and NCCL, opened at run time; the table for CUDA
// engine   runs Programs through a table: sequences, graphs, streams, memory, collectives
// sim      the simulation
//
// This header and its neighbors are above `kernels` and below the other folders. `nvidia` and
// `engine` do not include each other. The plugins (plugin.cpp, dry.cpp) are above all folders.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gpu.h"
#include "haliax/error.h"
#include "kernels/kernel_source.h"

namespace haliax::cuda {

using Handle = void*;  // an object of the machine; null: none
struct Kernel {
  std::string name, source;  // source of the generated part; equal sources have equal names
};
// One transfer of a group of sends and receives.
struct Transfer {
  int peer = 0;  // rank of the other device
  bool sends = false;
  void* at = nullptr;
  std::int64_t bytes = 0;
};
// An error that is found after the call that caused it. The device runs nothing more.
struct Fault : Error {
  using Error::Error;
};
// The device runs nothing more, because a peer in another process will not complete its part.
struct Lost : Fault {
  using Fault::Fault;
};
// Raises an error if the peers in other processes will not complete their part. `waited`: how long
// the caller has waited for them so far.
using Check = std::function<void(std::chrono::nanoseconds waited)>;

struct Api {
  const char* name;  // name of the backend

  // The machine.
  Gpus (*gpus)();  // the GPUs, and any obstacle to their use; queried on each call
  std::int64_t (*free_bytes)(int device);  // free memory of the device

  // Memory, aligned to 256 bytes. Allocation and release are ordered in a stream: later work of the
  // stream may write to allocated memory at once.
  void* (*allocate)(Handle stream, std::int64_t bytes);  // null: out of memory
  void (*release)(Handle stream, void*);                 // never raises
  void* (*allocate_host)(std::int64_t bytes);  // host memory for copies; not ordered in a stream
  void (*release_host)(void*);                 // not ordered: no copy may be in flight

  // Copies, ordered in a stream. Host memory must come from allocate_host.
  void (*put)(Handle stream, void* to, const void* from_host, std::int64_t bytes);
  void (*get)(Handle stream, void* to_host, const void* from, std::int64_t bytes);
  void (*copy)(Handle stream, void* to, const void* from, std::int64_t bytes);

  // Streams: work of one stream runs in order, work of two streams in any order.
  Handle (*make_stream)(int device);
  void (*end_stream)(Handle);   // the stream must be idle
  void (*wait)(Handle stream);  // blocks the host until the stream is idle; raises a Fault
  // Ordered in the stream: stores a number in host memory, visible to the host at once.
  void (*mark)(Handle stream, std::int64_t* host, std::int64_t);

  // Events: the position in a stream at which the event was last recorded.
  Handle (*make_event)(int device);
  void (*end_event)(Handle);
  void (*record)(Handle event, Handle stream);  // ordered
  // ordered: later work of the stream waits for the event
  void (*follow)(Handle stream, Handle event);
  void (*wait_event)(Handle event);           // blocks the host; returns at once if never recorded
  double (*seconds)(Handle from, Handle to);  // between two completed events

  // Kernels: returns a handle for each. A kernel is compiled only once.
  std::vector<Handle> (*compile)(int device, const std::vector<Kernel>&);
  // Ordered. The words are copied.
  void (*launch)(Handle stream, Handle kernel, const Launch&, const std::int64_t* words);

  // Matmuls (kernels/product.h). A matmul is prepared once.
  // The handle lives as long as the program.
  Handle (*make_product)(int device, const Product&, const CudaOptions&);
  // Returns one handle for each of the best `most` algorithms.
  std::vector<Handle> (*make_products)(int device, const Product&, const CudaOptions&, int most);
  std::int64_t (*workspace)();  // bytes that multiply may write
  // Ordered.
  void (*multiply)(Handle stream, Handle product, const void* a, const void* b, void* out,
                   void* workspace);

  // Graphs: work of a stream, and of streams that follow it, is captured instead of run. During the
  // capture, this thread must not wait, and must not allocate or release memory.
  void (*begin_graph)(Handle stream);
  Handle (*end_graph)(Handle stream);
  void (*drop_graph)(Handle graph);
  Handle (*instantiate)(Handle graph);  // an executable instance of the graph
  // Replaces the addresses of an instance. Returns false if the steps differ.
  bool (*update)(Handle instance, Handle graph);
  void (*run_graph)(Handle stream, Handle instance);  // ordered; any number of times
  void (*end_instance)(Handle instance);
  // A conditional node of a graph, where the machine supports it (has_ifs). The kernel is launched
  // with the words, as in launch. This function sets the last word, which the kernel passes to
  // kSetCondition, together with a flag that enables the node. Work of the returned stream, until
  // end_if, is the body of the node. Later work of the other stream runs after it. A graph with
  // conditional nodes must contain no transfers.
  bool (*has_ifs)();
  Handle (*begin_if)(Handle stream, Handle kernel, const Launch&, std::int64_t* words);
  void (*end_if)(Handle inside);

  // Communication with other devices. Devices that join with the same id become ranks 0, 1, ... of
  // one communicator. join blocks until all ranks have joined. check: null if all ranks are in this
  // process. Otherwise a thread that waits for the device calls it, and raises its error as Lost.
  std::string (*make_id)();
  Handle (*join)(const std::string& id, int ranks, int rank, int device, const Check& check);
  // Ordered. All transfers run together.
  void (*exchange)(Handle communicator, Handle stream, const std::vector<Transfer>&);
  void (*abort)(Handle communicator);  // ends transfers in flight; no later transfer runs
  void (*leave)(Handle communicator);  // frees the communicator
};
const Api& simulated();  // sim/sim.cpp

// The CUDA function that a kernel calls to enable or disable a conditional node. Its arguments are
// the last word of the launch, and the flag.
inline constexpr const char* kSetCondition = "cudaGraphSetConditional";
// Returns the source that precedes all kernels. It ends inside of an open namespace. host: for the
// host's compiler.
std::string prelude(bool host);
Kernel named(const std::string& source);  // names the kernel by a hash of its source
// Returns the source for the GPU compiler.
inline std::string source_for_gpu(const Kernel& k) { return prelude(false) + k.source + "}\n"; }

}  // namespace haliax::cuda
