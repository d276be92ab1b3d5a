// The variant of a fused step without its masks, for iterations in which all masks hold at all
// elements. For example, causal attention needs no mask in tiles below the diagonal.
#pragma once
#include <optional>

#include "step.h"

namespace haliax::cpu {

// Finds the masks of a step before the step is planned, and builds the variant without masks. A
// mask is the predicate of a select that is computed from comparisons of positions, for example
// select(key <= query, score, -inf), where `key` and `query` are iotas.
class Unmasked {
 public:
  explicit Unmasked(const program::Fused&);
  // Returns true if the step has a select that the variant drops, and a position that depends on a
  // loop index. Without such a position, `holds` would be constant over all iterations.
  bool exists() const { return exists_; }
  // Returns the variant. It computes the same results if all comparisons hold.
  const program::Fused& fused() const { return fused_; }
  // Returns true if the bounds of the positions prove that all comparisons hold at all elements of
  // the step, for the loop indices of the frame.
  bool holds(const Frame&);

 private:
  struct Bounds {
    std::int64_t low, high;
  };
  struct Positions {  // the values of an iota
    Place place;
    std::int64_t start = 0, reach = 0;  // first value; last value - first value
  };
  std::optional<Bounds> bounds(std::size_t i, const Frame&) const;
  bool is_position(const program::Instr&) const;
  void drop_masks();

  program::Fused fused_;
  std::vector<program::Instr> code_;  // original code up to the last comparison
  // per instruction: computed from positions and constants only; a comparison of two such values
  std::vector<bool> known_, compared_;
  std::vector<Positions> positions_;
  std::vector<std::optional<Bounds>> bounds_;  // per instruction, in the current run; none: unknown
  bool exists_ = false;
};

}  // namespace haliax::cpu
