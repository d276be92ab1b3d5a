// The kernels of a step of a Program: their source, and the parameters of their launch. The source
// depends only on instructions, dtypes and which strides are 0, 1 or other. Sizes, strides,
// addresses and numbers are arguments, so similar steps share a kernel.
#pragma once
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "product.h"

namespace haliax::cuda {

inline constexpr int kArenaSlot = -2;  // special slot: the arena, for scratch memory
// special slot: kMarks integers that the host reads after a kernel has failed (Launch::parts)
inline constexpr int kMarksSlot = -5;
inline constexpr int kMarks = 1024;
// An argument of a kernel: a number, or an address in a slot. Loop variables may add to it.
struct KernelArgument {
  int slot = -1;
  std::int64_t value = 0;  // number, or bytes from the start of the slot
  std::vector<std::pair<int, std::int64_t>> loops = {};  // (loop variable, increment per iteration)
  bool writes = false;                                   // the kernel stores there
  friend bool operator==(const KernelArgument&, const KernelArgument&) = default;
};
struct Launch {
  std::string source = {};  // kernel source; the kernel is called NAME
  std::vector<KernelArgument> arguments = {};
  std::int64_t blocks = 1;
  int threads = 1;
  const char* bounds = "1024";  // arguments of __launch_bounds__
  std::int64_t shared = 0;      // bytes of shared memory per block
  bool waits = false;           // threads synchronize with each other
  // The steps of a nest. Block b sets mark b % kMarks to the index of the current part, counted
  // from 1.
  std::vector<const program::Step*> parts = {};
  // A library matmul instead of a kernel. The arguments are the addresses of a, b and out.
  std::optional<Product> product = {};
};

// The enclosing kernel of steps that are part of a nest (nest.h). The steps add their arguments to
// it, their source is the work of one block, and loop variables are l0, l1, ...
struct NestContext {
  struct Place {
    const char* from = "";   // variable of the kernel that holds a base address
    std::int64_t bytes = 0;  // offset from it
  };
  std::vector<KernelArgument> arguments = {};
  std::set<int> loops = {};          // loop variables that the kernel iterates over
  std::map<int, Place> places = {};  // slots in shared memory or in a parallel slot
};
// multiprocessors of the GPU for which the work of a step is divided (H100, H200)
inline constexpr int kMultiprocessors = 132;
inline constexpr int kNestThreads = 256;  // threads per block of a nest

// bytes of shared memory per block that every supported GPU has
inline constexpr std::int64_t kMinSharedLimit = 99 << 10;

// Returns the launches of a step, in order. The result is empty for steps without elements. Raises
// an error for steps that are not kernels: loops, collectives. shared_limit: bytes of shared memory
// that a block may use.
std::vector<Launch> launches_of(const program::Step&, NestContext* = nullptr,
                                std::int64_t shared_limit = kMinSharedLimit);
std::string kernel_source(std::size_t words, const std::string& body, const char* bounds);
Launch guarded(Launch, KernelArgument flag);  // does nothing if the bool at `flag` is false

// Merges several launches into one, each with its own number of blocks, so results are bitwise
// identical. The launches must have equal sources, threads and shared bytes. Arguments that differ
// are stored per launch, others once. most_joined returns the number of launches that fit:
inline constexpr std::int64_t kMaxArguments = 4096 / 8;     // limit of CUDA
std::size_t most_joined(const std::vector<bool>& differs);  // by argument
Launch joined(const std::vector<Launch>&);

// ---- for writers of kernels ----
const char* element_of(DType);  // C++ type of an element in kernels
// Returns the bits of a constant, for constant() of kernel.h.
std::int64_t bits_of(DType, double number, std::int64_t integer);

std::string fold_of(program::Monoid);             // functor of kernel.h
std::int64_t start_bits(program::Monoid, DType);  // start value of a reduction
// Positions up to this limit, and one step beyond the end, fit in 32 bits.
inline constexpr std::int64_t kMax32BitPosition = std::int64_t(1) << 30;

class SourceWriter {
 public:
  explicit SourceWriter(NestContext* nest = nullptr) : nest_(nest) {}
  // Adds an argument, and returns its expression.
  std::string argument(KernelArgument);
  std::string argument(std::int64_t value) { return argument(KernelArgument{-1, value}); }
  void line(const std::string& source) {
    body_ += std::string(std::size_t(2 * depth_), ' ') + source + "\n";
  }
  void open(const std::string& source) {
    line(source + " {");
    ++depth_;
  }
  void close(const char* suffix = "") {
    --depth_;
    line(std::string("}") + suffix);
  }
  // Return the address of the first element of a view, and the offset of the element with indices
  // i0, i1, ...
  std::string base(const program::View&, bool writes = false);
  std::string at(const program::View&, const program::Dims& strides);
  // Returns the sum of indices times strides, such as "i0 * I(a.w[3]) + i1"; "" if all strides are
  // 0.
  std::string sum_of(const program::Dims& strides);
  // Declares the indices i0, i1, ... of a position in row-major order. first: number of the first
  // index. few: the last dim is counted in chunks of this size, and its size is the number of
  // chunks.
  void indices(const std::string& position, const program::Dims&, std::size_t first = 0,
               int few = 1);
  // Returns the launch, with 256 threads per block and as many blocks as there is work for. Default
  // bounds: at most 64 registers per thread, or 80 for kernels with many arguments or 64-bit
  // positions.
  Launch launch(std::int64_t points, bool waits = false, const char* bounds = nullptr);
  bool needs_64_bits = false;  // positions require 64 bits

 private:
  NestContext* nest_;
  std::string body_;
  std::vector<KernelArgument> arguments_;
  int depth_ = 1;
};

// Returns the source of one instruction: its value, or its store. Operands are v0, v1, ..., by
// their indices in the code. strides: of a load, a store or an iota.
std::string instruction_source(const std::vector<program::Instr>& code, int which,
                               const program::Dims& strides, NestContext*);
// Returns a launch with 0 blocks if there is no work.
Launch fused_launch(const program::Fused&, NestContext* = nullptr,
                    std::int64_t shared_limit = kMinSharedLimit);
// Long reductions with few results, which would occupy too few threads, run in two passes: partial
// reductions first, then their combination. fused_scratch returns the scratch bytes, or 0 if this
// is not worthwhile. place: offset of the scratch memory in the arena.
std::int64_t fused_scratch(const program::Fused&);
std::vector<Launch> fused_in_two(const program::Fused&, std::int64_t place);

}  // namespace haliax::cuda
