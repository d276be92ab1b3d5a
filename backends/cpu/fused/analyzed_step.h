// Plan: a fused step with the facts that its plan needs. The passes of fused_plan.cpp, in order:
//   analyze        which instructions are needed, and which dims are rows
//   choose_tiles   the order of dims, and the sizes of tiles
//   find_masks     the masks that hide ends of rows
//   classify       where each instruction is computed
//   TapeBuilder    the tapes
//   assemble, store_in_place, place_registers   changes of the tapes, and memory of the values
#pragma once
#include <optional>
#include <vector>

#include "fused.h"
#include "masks.h"
#include "program/fused.h"

namespace haliax::cpu {

struct InstrFacts {
  bool needed = false;
  bool uniform = false;   // same for all elements
  bool constant = false;  // known at compile time
  bool varies = false;    // depends on the inner element
  bool fixed = false;     // same for all tiles
  bool inner = false;     // computed in the inner tapes
  bool position = false;  // an iota that identifies an element of a row
  bool as_bytes = false;  // a load of bools that are only reduced, as bytes; such a reduction
  Extent extent = Extent::one;
  int level = 0;
  int access = -1, value = -1, reduction = -1;  // indices into the lists of FusedPlan
};

struct AnalyzedStep {
  program::Fused fused;
  std::vector<InstrFacts> facts;  // per instruction
  int outer = 0;                  // number of dims that are rows; the other dims are inner ones
  bool is_empty = false;          // no inner elements
  bool elementwise = false;       // every instruction is computed at every element
  bool reduces = false;
  bool only_reduces = true;      // inner instructions are loads
  bool has_element_ops = false;  // some ops affect one element of a row (one_hot.h)
  std::optional<MaskedRows> masked;

  const program::Instr& instr(int i) const { return fused.code[static_cast<std::size_t>(i)]; }
  InstrFacts& info(int i) { return facts[static_cast<std::size_t>(i)]; }
  const InstrFacts& info(int i) const { return facts[static_cast<std::size_t>(i)]; }
  int count() const { return static_cast<int>(fused.code.size()); }
  // Returns true if the instruction stores a value per inner element.
  bool is_inner_store(int i) const {
    return is_store(instr(i).code) && (elementwise || instr(i).inner);
  }
  // Returns the last level with a pass over the inner elements.
  int last_pass() const;
  // Returns true if tiles are boxes of all dims, without rows.
  bool flat() const { return elementwise && outer == 0; }
};

struct TileLimits {
  std::int64_t elements;  // size of an inner box
  bool may_join;          // a tile may hold several rows
  bool may_keep;          // a full row may stay in registers across levels
};

// Simplifies the step, and sets `needed`, `position`, `level`, the rows and the flags.
AnalyzedStep analyze(const program::Fused&);
// Sets the accesses, dims and boxes of the plan.
void choose_tiles(AnalyzedStep&, FusedPlan&, const TileLimits&);
// Sets `masked`, if the rows of the plan have ends that masks hide.
void find_masks(AnalyzedStep&, const FusedPlan&);
// Sets the other facts of the instructions, and the reductions of the plan.
void classify(AnalyzedStep&, FusedPlan&);

}  // namespace haliax::cpu
