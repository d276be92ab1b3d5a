// Turns of a loop that are not worth making.
#pragma once
#include "graph/loop.h"

namespace haliax {

// What a turn makes, in parts that have no product in common and end by different masks: two heads in one walk, each with its own tokens.
struct TurnPart {
  NodePtr flag = {};   // without axes: where it is false, all of this is 0, since it stands under masks that are false throughout. Null where
                       // that cannot be known, or not at a small price
  std::vector<std::pair<std::size_t, NodePtr>> values = {};   // of which result; of a sum what is added to it, one after another
};
std::vector<TurnPart> turn_parts(const Loop&, std::size_t body, bool may_end);   // may_end off: one part, no flag

}  // namespace haliax
