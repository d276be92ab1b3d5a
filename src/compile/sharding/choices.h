// Decisions that differ from the default, to communicate fewer bytes. `best_plan` (search.cpp)
// compares the plans that follow from them.
#pragma once
#include <compare>
#include <map>

#include "transforms/sharding.h"

namespace haliax::partitioning {

// The decision on one op. If two alternatives of an op save bytes, the one that is listed first is
// tried first.
enum class Choice : std::uint8_t {
  // A partial sum stays partial through an op that enlarges it, such as `place`. This pays if it is
  // then added to partial sums of that size.
  keep_partial,
  // An axis that the op requires in full: its mesh axes move to another axis of the operand, even
  // if the array is small.
  move_axes,
  // An axis that the op requires in full: it is all-gathered. The op does not run by blocks and
  // uses no all-to-all.
  gather,
  preferred,  // the preferred sharding of the result has priority
  usual,      // the default order, see OpShardings::work_of
  operand,    // the sharding of an operand has priority
};
struct OpChoice {
  Choice choice = Choice::usual;
  int operand = -1;  // Choice::operand: its number
  OpChoice(Choice c, int k = -1) : choice(c), operand(k) {}
  friend auto operator<=>(const OpChoice&, const OpChoice&) = default;
};
struct Choices {
  std::map<int, OpChoice> ops;  // by node
  // The sharding in which a loop stacks a result, by loop and result.
  std::map<std::pair<int, std::size_t>, Sharding> stacks;
};

}  // namespace haliax::partitioning
