// What the backend asks of a machine: a table of functions with two fillings, CUDA itself (card/)
// and a simulation on the host (sim/). Nothing above it knows which. All of them raise with the
// machine's own words.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gpu.h"
#include "haliax/error.h"
#include "kernel_source.h"

namespace haliax::cuda {

using Handle = void*;  // of what the machine keeps; null: none
struct Kernel {
  std::string name, source;  // of the generated part; the same text has the same name
};
// Part of a group of sends and receives.
struct Transfer {
  int peer = 0;  // the other's rank
  bool sends = false;
  void* at = nullptr;
  std::int64_t bytes = 0;
};
// A fault that is found behind the call that caused it: the device runs nothing more.
struct Fault : Error {
  using Error::Error;
};
// it runs nothing more because another one, of another process, will not do its part
struct Lost : Fault {
  using Fault::Fault;
};
// Raises if the other processes that one waits for, for so long already, will not do their part.
using Check = std::function<void(std::chrono::nanoseconds waited)>;

struct Api {
  const char* name;  // of the backend

  // The machine.
  Gpus (*gpus)();                          // which there are, and what is in their way; asked anew
  std::int64_t (*free_bytes)(int device);  // of its memory

  // Memory, aligned to 256 bytes. Taken and given back in the order of a stream: whoever takes it
  // next, there, may write at once.
  void* (*allocate)(Handle stream, std::int64_t bytes);  // null: there is not enough
  void (*release)(Handle stream, void*);                 // raises nothing
  void* (*allocate_host)(std::int64_t bytes);            // of the host, for copies; at once
  void (*release_host)(void*);                           // at once: no copy may be under way

  // Copies, in the order of a stream. Host memory is take_host's.
  void (*put)(Handle stream, void* to, const void* from_host, std::int64_t bytes);
  void (*get)(Handle stream, void* to_host, const void* from, std::int64_t bytes);
  void (*copy)(Handle stream, void* to, const void* from, std::int64_t bytes);

  // Streams: what is asked of one is done in order, what is asked of two in any.
  Handle (*make_stream)(int device);
  void (*end_stream)(Handle);   // with nothing left to do
  void (*wait)(Handle stream);  // the host, until all is done; raises a Fault
  // in order: stores a number where the host sees it at once
  void (*mark)(Handle stream, std::int64_t* host, std::int64_t);

  // Events: a point in a stream, the one where it was recorded last.
  Handle (*make_event)(int device);
  void (*end_event)(Handle);
  void (*record)(Handle event, Handle stream);  // in order
  void (*follow)(Handle stream, Handle event);  // in order: what comes behind waits for it
  void (*wait_event)(Handle event);             // the host; at once if it was never recorded
  double (*seconds)(Handle from, Handle to);    // between two events that have come

  // Kernels: a handle for each. What was compiled before is not compiled again.
  std::vector<Handle> (*compile)(int device, const std::vector<Kernel>&);
  // in order; words are copied
  void (*launch)(Handle stream, Handle kernel, const Launch&, const std::int64_t* words);

  // Products of matrices (product.h): what it takes to make one is found out once.
  // lives as long as the program
  Handle (*make_product)(int device, const Product&, const CudaOptions&);
  // by each of its first algorithms
  std::vector<Handle> (*make_products)(int device, const Product&, const CudaOptions&, int most);
  std::int64_t (*workspace)();  // bytes that multiply may write
  // in order
  void (*multiply)(Handle stream, Handle product, const void* a, const void* b, void* out,
                   void* workspace);

  // Graphs: what is asked of a stream, and of those that follow it, is written down instead of
  // done. Meanwhile this thread must not wait, nor take or give memory.
  void (*begin_graph)(Handle stream);
  Handle (*end_graph)(Handle stream);
  void (*drop_graph)(Handle graph);
  Handle (*instantiate)(Handle graph);  // of that, something to run
  // the same steps at other addresses; false: they are others
  bool (*update)(Handle instance, Handle graph);
  void (*run_graph)(Handle stream, Handle instance);  // in order, as often as one likes
  void (*end_instance)(Handle instance);
  // A part of a graph that may be left out, where the machine has such a thing (has_ifs). The
  // kernel is launched, with words as launch has them, the last of which is set here: it tells
  // whether the part runs (kTells). What is asked of the stream that comes back, until it is ended,
  // is that part; what is asked of the other one afterwards comes behind. No exchange may be in
  // such a graph.
  bool (*has_ifs)();
  Handle (*begin_if)(Handle stream, Handle kernel, const Launch&, std::int64_t* words);
  void (*end_if)(Handle inside);

  // Speaking to other devices. Those that join with the same id are ranks 0, 1, ... of one
  // communicator, and wait for each other. check: null where they are all of this process; else
  // whoever waits for the device asks it, and raises what it says as Lost.
  std::string (*make_id)();
  Handle (*join)(const std::string& id, int ranks, int rank, int device, const Check& check);
  // in order: all at once
  void (*exchange)(Handle communicator, Handle stream, const std::vector<Transfer>&);
  void (*abort)(Handle communicator);  // what is under way ends somehow; none is run any more
  void (*leave)(Handle communicator);  // frees it
};
const Api& simulated();  // sim/sim.cpp

// What a kernel calls to tell it, of CUDA's own: the last word of its launch, and whether the part
// runs.
inline constexpr const char* kSetCondition = "cudaGraphSetConditional";
// All that a kernel's text stands on, by its compiler's needs.
std::string prelude(bool host);
Kernel named(const std::string& source);  // by its text
// that a card's compiler takes
inline std::string source_for_gpu(const Kernel& k) { return prelude(false) + k.source + "}\n"; }

}  // namespace haliax::cuda
