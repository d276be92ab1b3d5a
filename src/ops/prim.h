// The primitives, as nodes with explicit axes. The public ops (include/haliax/ops.h) and all
// gradients are composed of them. Defined in leaves.cpp, elementwise.cpp, fold.cpp (reductions and
// contractions), shape.cpp, pick.cpp (gather and scatter), order.cpp and wraps.cpp.
//
// Ops on parts of an axis: block.h (one block alone), block_scan.h (one block after another, with
// a state), blockwise.h (all blocks at once, then combined).
#pragma once
#include "graph/axes.h"
#include "graph/loop.h"

namespace haliax {
struct SliceAttr;
}  // namespace haliax

namespace haliax::prim {

// ---- leaves ----
// Creates an input of the given trace, or of the innermost one. Never equal to another node.
NodePtr input(const Axes&, DType, Name path = {}, std::shared_ptr<const Trace> = {});
const std::shared_ptr<const Trace>& trace_of(const Node& input);
NodePtr number(double, DType);  // a scalar of any dtype
NodePtr integer(std::int64_t, DType);
NodePtr filled(double, DType, const Axes&);  // a number, broadcast
NodePtr extreme(DType, bool largest);        // extreme value of the dtype (floats: an infinity)
NodePtr identity(Monoid, DType);             // neutral element of a reduction
// Returns the value of `take` for an index out of range: NaN, or the minimum (maximum if unsigned).
NodePtr picked_outside(DType);
NodePtr zeros_like(NodeRef);
NodePtr one(NodeRef like);  // a scalar of the dtype of `like`
// Returns the dtype of positions up to `size`: i32, or i64 where i32 is too small.
DType position_dtype(std::int64_t size);
NodePtr iota(const Axis&, DType), iota(const Axis&);  // (axis): positions, in the dtype
NodePtr flat_position(const Axes&, DType);            // row-major position over all axes
// Returns the index of a loop over `axis`: iteration t starts at `start` + t * chunk. Canonical:
// equal arguments return the same node.
NodePtr index(const Axis&, std::int64_t start, std::int64_t chunk, int depth,
              LoopOrigin = LoopOrigin::user);
NodePtr index_of(const Node& other);  // the index of the same loop in the node domain in scope
std::int64_t index_chunk(const Node& index);
std::int64_t index_start(const Node& index);
// Creates the placeholder of a value that a scan carries. Never equal to another node.
NodePtr carry(NodeRef index, const Axes&, DType);
// Create the index of a conditional, and a conditional whose only result is its condition. It is a
// loop of one iteration, which runs if the flag (bool, without axes) is true. Otherwise each carry
// keeps its start.
NodePtr conditional_index(int depth, LoopOrigin = LoopOrigin::user);
Loop conditional(NodeRef index, NodeRef flag);
bool is_number(NodeRef, double value);  // true for this number, also when broadcast
bool is_number(NodeRef);
bool needs_no_memory(const Node&);  // true for a number or positions, which are never stored
// Returns the operand of a `fit`, such as the number of a broadcast number; otherwise the node
// itself.
NodeRef stripped(NodeRef);
extern const Op kInput, kNumber, kIota, kIndex, kCarry;

// ---- map: the result has the axes of the operands, by first appearance, unless given ----
NodePtr map(const Op&, Nodes in, DType, const Axes* axes = nullptr);
NodePtr map(const Op&, Nodes in, Axes, DType);
NodePtr cast(NodeRef, DType);
NodePtr bitcast(NodeRef, DType);
NodePtr neg(NodeRef), exp(NodeRef), log(NodeRef), sqrt(NodeRef), rsqrt(NodeRef), abs(NodeRef),
    sign(NodeRef), tanh(NodeRef), sigmoid(NodeRef), sin(NodeRef), cos(NodeRef), square(NodeRef),
    logical_not(NodeRef), stop_gradient(NodeRef), reciprocal(NodeRef);
NodePtr add(NodeRef, NodeRef), sub(NodeRef, NodeRef), mul(NodeRef, NodeRef), div(NodeRef, NodeRef),
    max(NodeRef, NodeRef), min(NodeRef, NodeRef), pow(NodeRef, NodeRef);
NodePtr scale(NodeRef, double);  // multiplies by a scalar
NodePtr less(NodeRef, NodeRef), less_equal(NodeRef, NodeRef), equal(NodeRef, NodeRef);
// Logical and, logical or. Both operands are bool.
NodePtr both(NodeRef, NodeRef), either(NodeRef, NodeRef);
NodePtr is_nan(NodeRef), is_finite(NodeRef);
NodePtr select(NodeRef c, NodeRef a, NodeRef b);
// The same, with these result axes.
NodePtr select(NodeRef c, NodeRef a, NodeRef b, const Axes&);
NodePtr fma(NodeRef a, NodeRef b, NodeRef c);
NodePtr threefry(Code word, NodeRef k0, NodeRef k1, NodeRef high, NodeRef low);
// Returns an elementwise op. constexpr: ops are constant-initialized, so that a program may compute
// while its own globals are initialized. `grad` receives the result and its cotangent. The
// cotangents that it returns may have more axes than the operands; `vjp` sums the extra axes. An op
// that only one public op uses is defined next to this public op and is not declared here.
constexpr Op map_op(const char* name, Code code, Nodes (*grad)(NodeRef o, NodeRef g) = nullptr,
                    Linear linear = Linear::no,
                    Linear (*linear_in)(const Node&, std::size_t operand) = nullptr,
                    Linear (*zero_in)(const Node&, std::size_t operand) = nullptr) {
  return {.name = name,
          .kind = haliax::Kind::map,
          .code = code,
          .linear = linear,
          .grad = grad,
          .linear_in = linear_in,
          .zero_in = zero_in};
}
extern const Op kCast, kAdd, kSub, kMul, kDiv, kStop, kSelect, kNeg;
extern const Op kBitcast, kAbs, kSign, kExp, kLog, kLog1p, kSqrt, kRsqrt, kSin, kCos, kTanh,
    kSigmoid, kErf, kErfinv, kFloor, kCeil, kRound, kTrunc, kNot, kBitNot, kIsFinite, kIsNan,
    kIsInf;
extern const Op kPow, kMaximum, kMinimum, kRem, kMod, kFloorDiv, kLess, kLessEqual, kEqual,
    kNotEqual, kBitAnd, kBitOr;

// ---- reductions and contractions ----
// Reduces over the axes that are not in `remaining`.
NodePtr reduce(Monoid, NodeRef, const Axes& remaining);
// Returns the flat position over `over`, in this order, in position_dtype.
NodePtr argreduce(bool largest, NodeRef, const Axes& remaining, const Axes& over);
NodePtr sum(NodeRef, const Axes& over);
const Op& pairwise(Monoid);  // the monoid as a binary op: add, multiply, maximum, minimum
inline bool combines(const Node& n, Monoid m) { return n.op == &pairwise(m); }
bool reduces(const Node&, Monoid);  // true for a reduction by this monoid
bool tests_equality(const Node&);   // true for x == y and x != y
bool selects(const Node&);          // true for select(condition, a, b)
NodePtr contract(NodeRef, NodeRef, const Axes& remaining, DType out);
NodePtr contract(NodeRef, NodeRef, const Axes& remaining);
extern const Op kSum, kProd, kMax, kMin, kArgmax, kArgmin, kContract;

// ---- shape ----
// Returns the same values with these axes, reordered and broadcast along new ones.
NodePtr fit(NodeRef, const Axes&);
// Creates a node, or a simpler node with the same values (simplify.h). Builders and rewriters use
// it. `map` does not: the arithmetic of users creates nodes as written, since x + 0 is a copy that
// may be donated.
NodePtr build(const Op&, Nodes in, Axes, DType, Attr = {});
// Returns the same op with other operands and other sizes of its axes.
NodePtr rebuilt(const Node&, Nodes in, const Axes&);
// Returns x with these axes: sums over the axes that are missing and broadcasts along new ones.
NodePtr sum_to(NodeRef, const Axes&);
NodePtr rename(NodeRef, const Names& from, const Names& to);
// Returns `size` positions (start, start + step, ...). drop: size is 1 and the result lacks the
// axis. `dynamic`: a scalar that is added to start.
NodePtr slice(NodeRef, Name axis, std::int64_t start, std::int64_t size, std::int64_t step = 1,
              bool drop = false, NodePtr dynamic = {});
NodePtr slice(NodeRef, const SliceAttr&, NodePtr dynamic = {});
// Returns the part at one position, without the axis.
NodePtr at_position(NodeRef, Name axis, std::int64_t position);
// Returns the slice of x for one iteration of the loop; x itself if it lacks the axis.
NodePtr slice_at(NodeRef x, NodeRef index, bool drop);
// Returns zeros with the axes `full`, with x at the positions that `slice` with the same arguments
// would read.
NodePtr place(NodeRef x, const Axes& full, Name axis, std::int64_t start, std::int64_t step = 1,
              bool drop = false, NodePtr dynamic = {});
// Merges axes, row-major in the given order, at the position of the first one.
NodePtr flatten(NodeRef, const Names& old, const Axis& flat);
NodePtr unflatten(NodeRef, Name flat, const Axes& parts);
NodePtr concat(const Nodes&, const Axis& full);
NodePtr pad(NodeRef, Name axis, std::int64_t before, std::int64_t after, NodeRef value);
extern const Op kFit, kRename, kSlice, kPlace, kFlatten, kUnflatten, kConcat;

// ---- gather and scatter (pick.cpp), sorts and running sums (order.cpp) ----
// The ids that index one axis of a table: positions along the axis, with any axes.
struct AxisIds {
  Name axis;
  NodePtr ids;
};
// Returns the indexed axes of a gather or scatter with their ids, which are the operands from
// `first` on.
std::vector<AxisIds> picks_of(const Node&, std::size_t first);
// Returns ids that count from the start of an axis of this size, in a signed dtype that
// distinguishes valid positions from positions out of range.
NodePtr signed_ids(NodeRef ids, std::int64_t size);
NodePtr gather(NodeRef table, const std::vector<AxisIds>& picks, const Axes& out, program::Outside);
NodePtr scatter(NodeRef base, NodeRef updates, const std::vector<AxisIds>& picks, program::Update,
                bool clamp = false);
NodePtr argsort(NodeRef, Name axis), sort(NodeRef, Name axis);
NodePtr cumulative(Monoid, NodeRef, Name axis, bool reverse = false);
extern const Op kGather, kScatter, kArgsort, kSort, kCumulative;

// ---- wraps: nodes with the value of in[0] (wraps.cpp) ----
// Recomputes x, once `after` has been computed.
NodePtr barrier(NodeRef x, NodeRef after);
// Returns x, which is 0 at the positions at or after `counts` along an axis. counts: i64, the first
// axes of x, before the axis. Where the result is exchanged between devices, only the other
// positions are sent.
NodePtr counted_rows(NodeRef x, NodeRef counts, Name axis);
// Returns counted_rows of x with 0 at these positions.
NodePtr first_rows(NodeRef x, NodeRef counts, Name axis);
bool counts_rows(const Node&);  // true for counted_rows; its second operand is the counts
// Constrains the sharding of x to the mapping. by: the op that requires it. of_gradient: the
// mapping of the gradient; null: it has no constraint.
NodePtr sharding_constraint(NodeRef x, std::shared_ptr<const Mapping>, const char* by = "shard",
                            std::shared_ptr<const Mapping> of_gradient = nullptr);
struct ShardingConstraint : Payload {
  std::shared_ptr<const Mapping> mapping, of_gradient;
  const char* by = "";
};
inline const ShardingConstraint& sharding_constraint_of(const Node& n) {
  return static_cast<const ShardingConstraint&>(*n.attr.payload);
}
// Returns x as a node that is unlike any other: gradients are computed with respect to it.
NodePtr tracer(NodeRef x, Name path = {});
// The boundaries of a region that is computed tile by tile along an axis, around arrays that have
// the axis. Equal attributes mean the same region, so that two losses of one array share their
// common parts. attr: a ChunkKey.
NodePtr enter(NodeRef, const Attr&region), leave(NodeRef, const Attr&region);
NodePtr gradient_barrier(NodeRef);
// Returns x with a name, by which a checkpoint policy saves it. checkpoint_name_of: the name of
// such a node.
NodePtr checkpoint_name(NodeRef x, Name);
std::optional<Name> checkpoint_name_of(const Node&);
extern const Op kBarrier, kShardingConstraint, kTracer, kEnter, kLeave, kGradientBarrier,
    kCheckpointName, kCountedRows;
// A wrap. Operands: value, x, e = exp(x - top), sum of e, top. Attribute: the reduced axes.
extern const Op kLogsumexp;

// ---- list of all ops, for the registry test ----
std::vector<const Op*> all_ops();
bool register_ops(std::initializer_list<const Op*>);  // returns true

}  // namespace haliax::prim
