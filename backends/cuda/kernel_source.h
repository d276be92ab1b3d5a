// A step of a Program as kernels: their text, and with what they are launched. The text depends on
// the codes, the dtypes and which strides are 0, 1 or other; sizes, strides, places and numbers are
// arguments, so steps that are alike share a kernel.
#pragma once
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "product.h"

namespace haliax::cuda {

inline constexpr int kArenaSlot = -2;  // in place of a slot: the arena, where scratch lies
// kMarks numbers that the host reads when a kernel has failed (Launch::parts)
inline constexpr int kMarksSlot = -5;
inline constexpr int kMarks = 1024;
// An argument of a kernel: a number, or an address in a slot. What loops add to it depends on their
// turns.
struct KernelArgument {
  int slot = -1;
  std::int64_t value = 0;                                // bytes from the start of the slot
  std::vector<std::pair<int, std::int64_t>> loops = {};  // loop variable, what a turn adds
  bool writes = false;                                   // something is stored there
  friend bool operator==(const KernelArgument&, const KernelArgument&) = default;
};
struct Launch {
  std::string source = {};  // of the kernel, which is called NAME
  std::vector<KernelArgument> arguments = {};
  std::int64_t blocks = 1;
  int threads = 1;
  const char* bounds = "1024";  // most threads of a block, as __launch_bounds__ has it
  std::int64_t shared = 0;      // bytes, of each block
  bool waits = false;           // its threads wait for each other
  // Of a nest: block b marks b % kMarks with the number of the one that it makes, from 1 on.
  std::vector<const program::Step*> parts = {};
  // instead, of the library: words are where a, b and out lie
  std::optional<Product> product = {};
};

// What steps know of the kernel that they are a part of (nest.h): its arguments are theirs, a text
// is what one block does, and loop variables that the kernel counts are l0, l1, ...
struct NestContext {
  struct Place {
    const char* from = "";   // an address that the kernel knows by this name
    std::int64_t bytes = 0;  // behind it
  };
  std::vector<KernelArgument> arguments = {};
  std::set<int> loops = {};          // that it counts
  std::map<int, Place> places = {};  // of slots that lie in it
};
inline constexpr int kNestThreads = 256;  // of a block of such a kernel

// bytes: shared memory that each card has for a block
inline constexpr std::int64_t kMinSharedLimit = 99 << 10;

// One after the other. Nothing for steps without points. Raises for steps that are no kernels:
// loops, collectives, custom ones. near: bytes of shared memory that a block may have.
std::vector<Launch> launches_of(const program::Step&, NestContext* = nullptr,
                                std::int64_t shared_limit = kMinSharedLimit);
std::string kernel_source(std::size_t words, const std::string& body, const char* bounds);
Launch guarded(Launch, KernelArgument flag);  // that does nothing where the bool there is false

// Several in one, each made by as many blocks as it would have by itself: the same bits. Their
// texts, threads and shared bytes are the same. Words that differ are arguments of each, others of
// all; how many launches fit:
inline constexpr std::int64_t kMaxArguments = 4096 / 8;     // what CUDA takes as arguments
std::size_t most_joined(const std::vector<bool>& differs);  // by word
Launch joined(const std::vector<Launch>&);

// ---- for those who write them ----
const char* element_of(DType);  // its type in a kernel
// as kernel.h's constant() takes them
std::int64_t bits_of(DType, double number, std::int64_t integer);

std::string fold_of(program::Monoid);             // kernel.h's
std::int64_t start_bits(program::Monoid, DType);  // what it starts from
// Positions up to here, and a step beyond the end, fit in 32 bits.
inline constexpr std::int64_t kMax32BitPosition = std::int64_t(1) << 30;

class SourceWriter {
 public:
  explicit SourceWriter(NestContext* nest = nullptr) : nest_(nest) {}
  // Its place among the arguments, as text.
  std::string argument(KernelArgument);
  std::string argument(std::int64_t value) { return argument(KernelArgument{-1, value}); }
  void line(const std::string& source) {
    body_ += std::string(std::size_t(2 * depth_), ' ') + source + "\n";
  }
  void open(const std::string& source) {
    line(source + " {");
    ++depth_;
  }
  void close(const char* behind = "") {
    --depth_;
    line(std::string("}") + behind);
  }
  // The address of the view's first element, and its offset at a point of which the indices are i0,
  // i1, ...
  std::string base(const program::View&, bool writes = false);
  std::string at(const program::View&, const program::Dims& strides);
  std::string sum_of(const program::Dims& strides);  // of the indices times these; empty: 0
  // Declares i0, i1, ... from a position among their points, the last one fastest; first: the
  // number of the first. few: of the last dim there are only every so many, and its size is how
  // many of these.
  void indices(const std::string& position, const program::Dims&, std::size_t first = 0,
               int few = 1);
  // 256 threads a block, as many blocks as there is work for. Without bounds, a thread has 64
  // registers, as of 1,024, or 80 where there is much to keep in them.
  Launch launch(std::int64_t points, bool waits = false, const char* bounds = nullptr);
  bool far = false;  // positions need 64 bits

 private:
  NestContext* nest_;
  std::string body_;
  std::vector<KernelArgument> arguments_;
  int depth_ = 1;
};
bool needs_64_bits(const program::Dims&, const std::vector<const program::View*>&);

// Of one instruction: its value, or what stores it. Operands are v0, v1, ..., by their places in
// the code; strides: of a load, a store or an iota.
std::string instruction_source(const std::vector<program::Instr>& code, int which,
                               const program::Dims& strides, NestContext*);
// blocks 0: nothing to do
Launch fused_launch(const program::Fused&, NestContext* = nullptr,
                    std::int64_t shared_limit = kMinSharedLimit);
// Folds of so much, for so few points, that more threads are wanted: parts are folded first, and
// then what came out. Scratch: bytes, 0 where that is not worth it; place: of it, in the arena.
std::int64_t fused_scratch(const program::Fused&);
std::vector<Launch> fused_in_two(const program::Fused&, std::int64_t place);

}  // namespace haliax::cuda
