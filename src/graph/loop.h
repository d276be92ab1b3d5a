// A loop is one node. Its body is an open graph over the loop's index: what does not vary with the
// index lies outside by itself, so nothing is captured by hand and nothing needs hoisting.
#pragma once
#include <unordered_map>

#include "graph/node.h"

namespace haliax {

enum class Fold : std::uint8_t {
  stack,  // one block for each turn, put back together along the axis
  fold,   // accumulated by a monoid: acc = acc * value
  carry,  // raw state: the next turn sees the value as `carry` (scan)
};
struct LoopResult {
  Fold fold = Fold::stack;
  Monoid monoid = Monoid::sum;
  Nodes value;         // one for each body
  NodePtr start = {};  // what a fold or a carry starts from (fold: may be empty)
  NodePtr carry = {};  // the placeholder
  // a flag, carried as it starts: where it is false, the loop makes no turn
  bool is_guard = false;
  // no value: keeps what a turn does to the world outside alive, and in order
  bool effect = false;
  friend bool operator==(const LoopResult&, const LoopResult&) = default;
};
// What created a loop.
enum class LoopOrigin : std::uint8_t {
  user,    // scan, fold, cond, and their gradients
  region,  // a tiled region of chunked_reduce or attention: iterations that masks zero are skipped
  ring,    // an iteration of a ring that may be skipped
  batch,   // batched matmuls, one slice at a time
};
// The index of a loop over `axis`: iteration t starts at start + t * chunk. depth: distinguishes it
// from an equal index of a loop around with the same origin.
struct IndexAttr {
  Axis axis;
  std::int64_t start = 0, chunk = 1;
  int depth = 0;
  LoopOrigin origin = LoopOrigin::user;
  Attr attr() const {
    return {.names = {axis.name}, .ints = {axis.size, start, chunk, depth, int(origin)}};
  }
  static IndexAttr of(const Node& n) {
    auto& i = n.attr.ints;
    return {Axis(n.attr.names[0], i[0]), i[1], i[2], int(i[3]), LoopOrigin(i[4])};
  }
};
// What a loop keeps for its gradient.
enum class Save : std::uint8_t { all, carries, nothing };
struct Loop : Payload {
  Axis axis;             // walked: its whole size
  Nodes index;           // one for each body: [full chunks, what is left over]
  bool drop = false;     // turns see slices without the axis (scan) or chunks with it
  bool reverse = false;  // the last turn first
  Save save = Save::all;
  // of chunks of scores: blocks of products that masks make 0 are left out
  bool of_scores = false;
  // sums and extremes of chunks: which one comes first makes no difference but of rounding
  bool any_order = false;
  std::vector<LoopResult> results;
  std::string form, why;  // for reports: what was decided about it
  std::vector<const Node*> held() const override;
};

// The loop as a node: its operands are found by a walk over the bodies (what they read a slice of,
// or whole; the starts).
NodePtr make_loop(Loop);
LoopOrigin origin_of(const Loop&);
const Loop& loop_of(const Node&);  // of a loop node or of a result
NodePtr loop_result(const NodePtr& loop, std::size_t k);
// For people: one line a node, bodies of loops indented. `memory`: the axes of some nodes in the
// order in which they lie.
std::string to_string(const Nodes& roots, const std::unordered_map<const Node*, Axes>& memory = {});
extern const Op kLoop, kResult;
std::int64_t trips(const Loop&, std::size_t body);
Nodes values_of(const Loop&, std::size_t body);  // what a turn of it makes, for each result
// Is it made in each turn of this body? Bodies share the carries, which vary with the first index.
bool varies_in(const Node&, const Loop&, std::size_t body);

// Nodes of the body that the loop does not have to make: they do not vary with it. Slices: what it
// reads a part of each turn.
struct LoopInputs {
  Nodes slices, invariants;
};
LoopInputs inputs_of(const Loop&);
// Nothing but numbers and positions below, and cheap: made again wherever it is read rather than
// kept.
bool is_generated(const NodePtr&);

// A custom gradient over several results: operands are the results as computed, then the arguments.
struct CustomVjp : Payload {
  std::size_t results = 0;
  // one for each argument; null: none
  virtual Nodes backward(const Nodes& operands, const Nodes& cotangents) const = 0;
  // what cannot be, for the verifier; empty: nothing
  virtual std::string fault(const Nodes& operands) const = 0;
};
extern const Op kCustomVjp;
inline const CustomVjp& custom_vjp_of(const Node& custom) {
  return static_cast<const CustomVjp&>(*custom.attr.payload);
}
NodePtr make_custom_vjp(Nodes operands, std::shared_ptr<const CustomVjp>);
NodePtr custom_vjp_result(const NodePtr& custom, std::size_t k);

}  // namespace haliax
