// A fused step without its masks, for turns in which these hold everywhere: those of a causal text
// behind the diagonal, say.
#pragma once
#include <optional>

#include "step.h"

namespace haliax::cpu {

// Masks are what choices go by and comparisons of positions say. Found in the step, before it is
// planned.
class Unmasked {
 public:
  explicit Unmasked(const program::Fused&);
  // There are such masks, and they change from turn to turn.
  bool exists() const { return exists_; }
  const program::Fused& fused() const { return fused_; }  // makes the same, where they hold
  bool holds(const Frame&);                               // at all points of the step

 private:
  struct Bounds {
    std::int64_t low, high;
  };
  struct Positions {  // of an iota
    Place place;
    std::int64_t start = 0, reach = 0;  // of the first point; what the last one adds
  };
  std::optional<Bounds> bounds(std::size_t i, const Frame&) const;
  bool is_position(const program::Instr&) const;
  void drop_masks();

  program::Fused fused_;
  std::vector<program::Instr> code_;    // with its masks, up to the last of their comparisons
  std::vector<bool> known_, compared_;  // made of positions and numbers; a comparison of two such
  std::vector<Positions> positions_;
  std::vector<std::optional<Bounds>> bounds_;  // of each, when it runs; none: not known
  bool exists_ = false;
};

}  // namespace haliax::cpu
