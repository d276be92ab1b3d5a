// Ops that need a whole axis, in one walk along it: what is known so far is carried from block to
// block. `by_blocks` folds what all blocks say, which suits blocks that are there at once, as on a
// mesh; in chunks each such fold would be a walk of its own.
#pragma once
#include <functional>
#include <optional>

#include "ops/prim.h"

namespace haliax {

struct BlockScan {
  Name axis = {};    // walked: of what is read
  Nodes reads = {};  // a turn is given the blocks of these; they need not be the operands
  Nodes start = {};  // what is known before the first turn
  // which of what is known in the end is the op's value; behind it, what is picked there
  std::size_t value = 0;
  // instead each turn makes a block of the value: the last that `next` gives
  bool running = false;
  // name under which the positions found so far lie in `start` and `next` (the op says `axis`)
  Name positions = {};
  std::optional<bool> reverse = {};  // the last block first? None: whichever comes
  std::function<Nodes(const Nodes& known, const Nodes& blocks, const Block&, bool reverse)> next =
      {};
};

namespace prim {

// What Op::in_turns of these ops is. `picked`: what is taken from tables at the positions that the
// op finds.
std::optional<BlockScan> extreme_block_scan(const NodePtr&, const Nodes& picked);  // argmax, argmin
// the first of an argsort
std::optional<BlockScan> first_block_scan(const NodePtr&, const Nodes& picked);
std::optional<BlockScan> cumulative_block_scan(const NodePtr&, const Nodes& picked);

}  // namespace prim
}  // namespace haliax
