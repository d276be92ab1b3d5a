// Rows of which masks of positions hide the end, as those of a causal text: the points after what a
// row sees have all the same values, so that one of them stands for all. What is summed must be 0
// there, which is looked up when the step runs.
#pragma once
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "program/program.h"

namespace haliax::cpu {

// nearer ones, and a few numbers, sum to no more than an i32 holds
constexpr std::int64_t far_position = 1 << 26;

// It holds at the first points of a row: where `constant`, with these positions added or
// subtracted, is greater than 0 (or_equal: or 0).
struct RowMask {
  bool or_equal = false;
  std::int64_t constant = 0;
  std::vector<std::pair<int, int>> positions = {};  // a number of an iota, and 1 or -1
};
struct MaskedRows {
  std::vector<RowMask> masks;  // hidden are the points at which none holds
  std::vector<int> zero;       // instructions that must be 0 there
};
// Of a step with this one inner dim; nullopt: its rows have to be walked to their ends.
std::optional<MaskedRows> masked_rows(const program::Fused&, int dim);

}  // namespace haliax::cpu
