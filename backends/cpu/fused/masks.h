// Plan: masks of positions, which compare positions along dims and loop indices, as in causal
// attention. Two optimizations use them:
// - Where all masks hold at all elements of a step, a variant of the step without masks runs. For
//   example, attention needs no mask in tiles below the diagonal.
// - All elements of a row that masks hide at its end have equal values. The step computes one of
//   them and copies it to the others. They must add 0 to every sum. This is checked when the step
//   runs, and otherwise the full row is computed.
#pragma once
#include <optional>
#include <utility>

#include "backends/cpu/step.h"

namespace haliax::cpu {

// A mask that holds where
//   constant + sum of sign * position > 0    (or_equal: >= 0).
// For example, key < query + 1 is {constant = 1, positions = {query, 1}, {key, -1}}. The mask is
// valid only if the magnitudes of its constants and positions add up to less than `limit`.
// Otherwise its sums may overflow their dtype.
struct PositionMask {
  bool or_equal = false;
  std::int64_t constant = 0, magnitude = 0;  // magnitude: of the constants
  std::int64_t limit = std::int64_t(1) << 40;
  std::vector<std::pair<int, int>> positions = {};  // iota and sign (1 or -1)
};

// The masks that decide which elements at the end of a row are hidden.
struct MaskedRows {
  std::vector<PositionMask> masks;  // an element is hidden if no mask holds there
  std::vector<int> zero;            // instructions that must be 0 at hidden elements
};
// Analyzes a step whose only inner dim is `dim`. In the result, iotas are instruction indices.
// Returns nullopt if the step must compute full rows.
std::optional<MaskedRows> masked_rows(const program::Fused&, int dim);

// Finds the masks of a step before the step is planned, and builds the variant without masks.
class Unmasked {
 public:
  explicit Unmasked(const program::Fused&);
  // Returns true if the step has a select that the variant drops, and a position that depends on a
  // loop index. Without such a position, `holds` would be constant over all iterations.
  bool exists() const { return exists_; }
  // Returns the variant. It computes the same results if all masks hold.
  const program::Fused& fused() const { return fused_; }
  // Returns true if the ranges of the positions prove that all masks hold at all elements of the
  // step, for the loop indices of the frame.
  bool holds(const Frame&) const;

 private:
  struct Range {  // the values of a position in the step
    Place place;
    std::int64_t start, reach;  // first value; last value - first value
    int sign;                   // as in PositionMask::positions
  };
  void drop_masks(std::vector<bool> holds);

  program::Fused fused_;
  std::vector<std::pair<PositionMask, std::vector<Range>>> masks_;
  bool exists_ = false;
};

}  // namespace haliax::cpu
