// What a step becomes when an Executable is compiled, and what it sees when it runs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "program/profile.h"

namespace haliax::cpu {

using program::Dims;

struct Frame {
  std::byte* const* slots = nullptr;  // where each slot lies
  std::int64_t* loops = nullptr;      // the value of each loop variable
  program::Communicator* communicator = nullptr;
  std::int64_t* calls = nullptr;          // of each number, the call that goes on; 0: none does
  program::Recorder* recorder = nullptr;  // who is told what runs; mostly nobody
  bool iteration_skipped = false;         // the rest of this turn is skipped
};

// Everything is decided when it is made: run() only computes, and allocates nothing.
class CompiledStep {
 public:
  virtual ~CompiledStep() = default;
  virtual void run(Frame&) = 0;
  // as Recorder::end has it; of the run that ended last
  virtual double computed_fraction(const Frame&) const { return 1; }
};

// A view's first element.
class Place {
 public:
  Place() = default;
  explicit Place(const program::View&);
  std::byte* at(const Frame& frame) const {
    if (slot_ < 0) return nullptr;
    std::byte* p = frame.slots[slot_] + offset_;
    return terms_.empty() ? p : p + (loop_offset(frame) * bytes_);
  }
  std::int64_t loop_offset(const Frame&) const;  // the sum of the terms, in elements
  bool exists() const { return slot_ >= 0; }

 private:
  int slot_ = -1;
  std::int64_t offset_ = 0, bytes_ = 0;  // of one element
  std::vector<program::Term> terms_;
};

// Scratch of a step: inside the plan, or memory of its own for a program that was planned without.
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

// What the makers below need besides the step.
struct Context {
  const program::Program& program;
  int arena_slot = 0;  // an extra entry of Frame::slots: the arena
  int workers = 1;     // threads that a step may use
  // Whether two slots may share memory; whether they are the same memory.
  bool overlap(int slot_a, int slot_b) const;
  bool same(int slot_a, int slot_b) const;
};

std::int64_t product(const Dims&);

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
