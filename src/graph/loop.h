// A loop is one node. Its body is an open graph over the loop index. A node that does not vary with
// the index is outside of the loop, so loop-invariant nodes need neither capture nor hoisting.
#pragma once
#include <unordered_map>

#include "graph/node.h"

namespace haliax {

enum class ResultKind : std::uint8_t {
  stack,  // one block per iteration, concatenated along the axis
  fold,   // accumulated by a monoid: acc = acc * value
  carry,  // state of a scan: `carry` in the next iteration is `value` of this one
};
struct LoopResult {
  ResultKind kind = ResultKind::stack;
  Monoid monoid = Monoid::sum;
  Nodes value;         // one per body
  NodePtr start = {};  // initial value of a fold (optional) or a carry
  NodePtr carry = {};  // the placeholder in the body
  // flag that is carried unchanged, the condition of a conditional: a loop whose only iteration
  // runs if the flag is true
  bool is_condition = false;
  // no value: keeps the side effects of an iteration alive and in order
  bool effect = false;
  friend bool operator==(const LoopResult&, const LoopResult&) = default;
};
// The origin of a loop.
enum class LoopOrigin : std::uint8_t {
  user,    // scan, fold, cond, and their gradients
  region,  // a tiled region of chunked_reduce or attention: iterations that masks zero are skipped
  ring,    // an iteration of a ring that may be skipped
  batch,   // batched matmuls, one slice at a time
  select,  // a side of a select with one flag
};
// The index of a loop over `axis`: iteration t starts at position start + t * chunk. `depth`
// distinguishes the index from an equal index of an enclosing loop with the same origin.
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
// slice: `size` positions (start, start + step, ...). drop: the size is 1 and the result lacks the
// axis. place: writes the operand at these positions of a zero array. A dynamic start is the last
// operand and is added to `start`.
struct SliceAttr {
  Name axis;
  std::int64_t start = 0, size = 1, step = 1;
  bool drop = false;
  Attr attr() const { return {.names = {axis}, .ints = {start, size, step, drop}}; }
  static SliceAttr of(const Attr& a) {
    auto& i = a.ints;
    return {a.names[0], i[0], i[1], i[2], i[3] != 0};
  }
  static SliceAttr of(const Node& n) { return of(n.attr); }
};
// The values that a loop saves for its gradient.
enum class Save : std::uint8_t { all, carries, nothing };
struct Loop : Payload {
  Axis axis;             // the loop axis, with its full size
  Nodes index;           // one per body: [full tiles, remainder]
  bool drop = false;     // true: slices lack the axis (scan); false: slices have it
  bool reverse = false;  // last iteration first
  Save save = Save::all;
  Names saved_names = {};  // checkpoint names of further values to save
  // loop over tiles of scores: matmuls skip blocks that masks make 0
  bool of_scores = false;
  // sums and extremes of tiles: the order of iterations changes only the rounding
  bool any_order = false;
  std::vector<LoopResult> results;
  std::string form, why;  // for reports: the form that was chosen, and the reason
  std::vector<const Node*> held() const override;
};
// Returns the index of this result in the loop. Adds the result unless the loop has an equal one.
std::size_t add_result(Loop&, const LoopResult&);

// Returns the node of a loop. Its operands are found in the bodies: the nodes that the bodies
// slice, the nodes that they read in full, and the starts.
NodePtr make_loop(Loop);
LoopOrigin origin_of(const Loop&);
// Returns the condition of a conditional; null for other loops.
const LoopResult* condition_of(const Loop&);
// Returns the loop of a loop node or of one of its results.
const Loop& loop_of(const Node&);
// Returns result k of a loop.
NodePtr loop_result(NodeRef loop, std::size_t k);
// Prints a graph, one line per node, with loop bodies indented. `memory` lists the axes of some
// nodes in the order of their layout.
std::string to_string(const Nodes& roots, const std::unordered_map<const Node*, Axes>& memory = {});
extern const Op kLoop, kResult;
// Returns the number of iterations of a body.
std::int64_t trips(const Loop&, std::size_t body);
// Returns the values of one iteration, one per result.
Nodes values_of(const Loop&, std::size_t body);
// Returns true if the node is computed in each iteration of this body. All bodies share the
// carries, which vary with the first index.
bool varies_in(const Node&, const Loop&, std::size_t body);

// Nodes that the body reads and that do not vary with the loop. `slices` are read one part per
// iteration, `invariants` in full.
struct LoopInputs {
  Nodes slices, invariants;
};
LoopInputs inputs_of(const Loop&);
// Returns true for x[t], where t is this index of a scan and x has the axis of the scan with its
// full size. False for a row t of another axis, a window that starts at t, or x[2 t].
bool is_iteration_slice(const Node&, const Node& index);
// Returns true if the node is cheap to compute from constants and positions alone. Such a node is
// recomputed where it is read rather than stored.
bool is_generated(NodeRef);

// A custom gradient over several results. The operands are the computed results, then the
// arguments.
struct CustomVjp : Payload {
  std::size_t results = 0;
  // Returns the cotangents, one per argument; null for an argument without one.
  virtual Nodes backward(const Nodes& operands, const Nodes& cotangents) const = 0;
  // Returns the fault of these operands for the verifier, or "" if there is none.
  virtual std::string fault(const Nodes& operands) const = 0;
};
extern const Op kCustomVjp;
inline const CustomVjp& custom_vjp_of(const Node& custom) {
  return static_cast<const CustomVjp&>(*custom.attr.payload);
}
NodePtr make_custom_vjp(Nodes operands, std::shared_ptr<const CustomVjp>);
NodePtr custom_vjp_result(NodeRef custom, std::size_t k);

}  // namespace haliax
