// Compiled steps. The life of a step has three stages. The first comment of a file names its stage.
//   plan     once per Program: chooses tiles, blocks and kernels, and emits machine code
//   run      once per execution: CompiledStep::run reads addresses from the Frame, and divides the
//            work into blocks for the threads
//   kernel   many times per run, on one thread: a function of kernels.h, or emitted machine code,
//            computes a tile or a block
// For example, a matmul is planned in matmul/matmul_plan.cpp, runs in matmul/contract.cpp, and its
// kernels are in kernels/matmul.inc.
//
// executable.cpp compiles a step by the `make` function of its kind. The functions are in folders:
//   fused/     plan and run: fused steps, as tapes of ops over tiles
//   matmul/    plan and run: contractions, and fused steps that are stencils
//   move/      plan and run: copies, gathers, scatters, sorts and running sums
//   assemble/  plan and kernel: machine code for elementwise ops of fused steps
//   loops/     plan and kernel: machine code for loops with small steps
//   kernels/   kernel: the functions of kernels.h, for each instruction set
// isa.cpp selects the instruction set, and custom.cpp runs functions of the user.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "program/profile.h"

namespace haliax::cpu {

using program::Dims;

// The state of one run, which every compiled step receives.
struct Frame {
  std::byte* const* slots = nullptr;  // base address of each slot
  std::int64_t* loops = nullptr;      // value of each loop variable
  program::Communicator* communicator = nullptr;
  std::int64_t* calls = nullptr;  // per call index, the id of the collective in flight; 0: none
  // receives the start and the end of each step; usually null
  program::Recorder* recorder = nullptr;
};

// A step that is ready to run. All decisions are made at compile time; run() only computes and
// allocates no memory.
class CompiledStep {
 public:
  virtual ~CompiledStep() = default;
  virtual void run(Frame&) = 0;
  // Returns the fraction for Recorder::end, for the most recent run.
  virtual double computed_fraction(const Frame&) const { return 1; }
};

// The address of the first element of a view.
class Place {
 public:
  Place() = default;
  explicit Place(const program::View&);
  std::byte* at(const Frame& frame) const {
    if (slot_ < 0) return nullptr;
    std::byte* p = frame.slots[slot_] + offset_;
    return terms_.empty() ? p : p + (loop_offset(frame) * bytes_);
  }
  std::int64_t loop_offset(const Frame&) const;  // sum of the terms, in elements
  bool exists() const { return slot_ >= 0; }

 private:
  int slot_ = -1;
  std::int64_t offset_ = 0, bytes_ = 0;  // offset in bytes; bytes per element
  std::vector<program::Term> terms_;
};

// The scratch memory of a step. It is part of the arena if the Program reserves enough; otherwise
// the step owns its own block.
class Scratch {
 public:
  Scratch(const program::Step&, int arena_slot, std::int64_t bytes);
  std::byte* at(const Frame& frame) const {
    return own_ ? aligned_ : frame.slots[arena_slot_] + offset_;
  }

 private:
  int arena_slot_ = 0;
  std::int64_t offset_ = 0;
  std::unique_ptr<std::byte[]> own_;
  std::byte* aligned_ = nullptr;
};

// The arguments of the functions below, in addition to the step.
struct Context {
  const program::Program& program;
  int arena_slot = 0;  // index of the extra entry of Frame::slots that holds the arena
  int workers = 1;     // maximum number of threads of a step
  // Return true if two slots may share memory, and if they are the same memory.
  bool overlap(int slot_a, int slot_b) const;
  bool same(int slot_a, int slot_b) const;
};

std::unique_ptr<CompiledStep> make_fused(const program::Step&, const Context&);
std::unique_ptr<CompiledStep> make_contract(const program::Step&, const Context&);
std::unique_ptr<CompiledStep> make_gather(const program::Step&, const Context&);
std::unique_ptr<CompiledStep> make_scatter(const program::Step&, const Context&);
std::unique_ptr<CompiledStep> make_sort(const program::Step&, const Context&);
std::unique_ptr<CompiledStep> make_cumulative(const program::Step&, const Context&);
std::unique_ptr<CompiledStep> make_copy(const program::Step&, const Context&);
std::unique_ptr<CompiledStep> make_custom(const program::Step&);

std::int64_t fused_scratch(const program::Step&);
std::int64_t contract_scratch(const program::Step&, int workers);
std::int64_t sort_scratch(const program::Step&, int workers);

}  // namespace haliax::cpu
