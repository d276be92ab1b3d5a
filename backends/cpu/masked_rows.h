// Rows whose tail is hidden by a positional mask, as in causal attention. All hidden elements of a
// row have equal values, so the step computes one of them and copies it to the others. Hidden
// elements must add 0 to every sum; this is checked when the step runs, and otherwise the full row
// is computed.
#pragma once
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "program/program.h"

namespace haliax::cpu {

// The bound of positions and constants in a mask. A sum of a few values below it fits in an i32, so
// the mask does not overflow.
constexpr std::int64_t far_position = 1 << 26;

// A mask that holds at the first elements of each row, where
//   constant + sum of sign * position > 0    (or_equal: >= 0).
// For example, key < query + 1 is {constant = 1, positions = {query, 1}, {key, -1}}.
struct RowMask {
  bool or_equal = false;
  std::int64_t constant = 0;
  std::vector<std::pair<int, int>> positions = {};  // iota and sign (1 or -1)
};
struct MaskedRows {
  std::vector<RowMask> masks;  // an element is hidden if no mask holds there
  std::vector<int> zero;       // instructions that must be 0 at hidden elements
};
// Analyzes a step whose only inner dim is `dim`. In the result, iotas are instruction indices.
// Returns nullopt if the step must compute full rows.
std::optional<MaskedRows> masked_rows(const program::Fused&, int dim);

}  // namespace haliax::cpu
