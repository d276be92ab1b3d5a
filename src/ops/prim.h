// The primitives, as nodes with explicit axes. The public ops (include/haliax/ops.h) and all
// gradients are composed of them.
#pragma once
#include "graph/axes.h"
#include "graph/loop.h"

namespace haliax {
struct SliceAttr;
}  // namespace haliax

namespace haliax::prim {

using G = const NodePtr&;  // parameter type of rules, gradients and builders

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
NodePtr zeros_like(const NodePtr&);
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
NodePtr carry(const NodePtr& index, const Axes&, DType);
// Create the index of a conditional, and a conditional whose only result is its condition. It is a
// loop of one iteration, which runs if the flag (bool, without axes) is true. Otherwise each carry
// keeps its start.
NodePtr conditional_index(int depth, LoopOrigin = LoopOrigin::user);
Loop conditional(const NodePtr& index, const NodePtr& flag);
bool is_number(const NodePtr&, double value);  // true for this number, also when broadcast
bool is_number(const NodePtr&);
bool needs_no_memory(const Node&);  // true for a number or positions, which are never stored
// Returns the operand of a `fit`, such as the number of a broadcast number; otherwise the node
// itself.
const NodePtr& stripped(const NodePtr&);
extern const Op kInput, kNumber, kIota, kIndex, kCarry;

// ---- map: the result has the axes of the operands, by first appearance, unless given ----
NodePtr map(const Op&, Nodes in, DType, const Axes* axes = nullptr);
NodePtr map(const Op&, Nodes in, Axes, DType);
NodePtr cast(const NodePtr&, DType);
NodePtr bitcast(const NodePtr&, DType);
NodePtr neg(const NodePtr&), exp(const NodePtr&), log(const NodePtr&), sqrt(const NodePtr&),
    rsqrt(const NodePtr&), abs(const NodePtr&), sign(const NodePtr&), tanh(const NodePtr&),
    sigmoid(const NodePtr&), sin(const NodePtr&), cos(const NodePtr&), square(const NodePtr&),
    logical_not(const NodePtr&), stop_gradient(const NodePtr&), reciprocal(const NodePtr&);
NodePtr add(const NodePtr&, const NodePtr&), sub(const NodePtr&, const NodePtr&),
    mul(const NodePtr&, const NodePtr&), div(const NodePtr&, const NodePtr&),
    max(const NodePtr&, const NodePtr&), min(const NodePtr&, const NodePtr&),
    pow(const NodePtr&, const NodePtr&);
NodePtr scale(const NodePtr&, double);  // multiplies by a scalar
NodePtr less(const NodePtr&, const NodePtr&), less_equal(const NodePtr&, const NodePtr&),
    equal(const NodePtr&, const NodePtr&);
// Logical and, logical or. Both operands are bool.
NodePtr both(const NodePtr&, const NodePtr&), either(const NodePtr&, const NodePtr&);
NodePtr is_nan(const NodePtr&), is_finite(const NodePtr&);
NodePtr select(const NodePtr& c, const NodePtr& a, const NodePtr& b);
// The same, with these result axes.
NodePtr select(const NodePtr& c, const NodePtr& a, const NodePtr& b, const Axes&);
NodePtr fma(const NodePtr& a, const NodePtr& b, const NodePtr& c);
NodePtr threefry(Code word, const NodePtr& k0, const NodePtr& k1, const NodePtr& high,
                 const NodePtr& low);
// Returns an elementwise op. constexpr: ops are constant-initialized, so that a program may compute
// while its own globals are initialized. `grad` receives the result and its cotangent. The
// cotangents that it returns may have more axes than the operands; `vjp` sums the extra axes. An op
// that only one public op uses is defined next to this public op and is not declared here.
constexpr Op map_op(const char* name, Code code,
                    Nodes (*grad)(const NodePtr& o, const NodePtr& g) = nullptr,
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
NodePtr reduce(Monoid, const NodePtr&, const Axes& remaining);
// Returns the flat position over `over`, in this order, in position_dtype.
NodePtr argreduce(bool largest, const NodePtr&, const Axes& remaining, const Axes& over);
NodePtr sum(const NodePtr&, const Axes& over);
const Op& pairwise(Monoid);  // the monoid as a binary op: add, multiply, maximum, minimum
inline bool combines(const Node& n, Monoid m) { return n.op == &pairwise(m); }
bool reduces(const Node&, Monoid);  // true for a reduction by this monoid
bool tests_equality(const Node&);   // true for x == y and x != y
bool selects(const Node&);          // true for select(condition, a, b)
NodePtr contract(const NodePtr&, const NodePtr&, const Axes& remaining, DType out);
NodePtr contract(const NodePtr&, const NodePtr&, const Axes& remaining);
extern const Op kSum, kProd, kMax, kMin, kArgmax, kArgmin, kContract;

// ---- shape ----
// Returns the same values with these axes, reordered and broadcast along new ones.
NodePtr fit(const NodePtr&, const Axes&);
// Creates a node, or a simpler node with the same values (simplify.h). Builders and rewriters use
// it. `map` does not: the arithmetic of users creates nodes as written, since x + 0 is a copy that
// may be donated.
NodePtr build(const Op&, Nodes in, Axes, DType, Attr = {});
// Returns the same op with other operands and other sizes of its axes.
NodePtr rebuilt(const Node&, Nodes in, const Axes&);
// Returns x with these axes: sums over the axes that are missing and broadcasts along new ones.
NodePtr sum_to(const NodePtr&, const Axes&);
NodePtr rename(const NodePtr&, const Names& from, const Names& to);
// Returns `size` positions (start, start + step, ...). drop: size is 1 and the result lacks the
// axis. `dynamic`: a scalar that is added to start.
NodePtr slice(const NodePtr&, Name axis, std::int64_t start, std::int64_t size,
              std::int64_t step = 1, bool drop = false, NodePtr dynamic = {});
NodePtr slice(const NodePtr&, const SliceAttr&, NodePtr dynamic = {});
// Returns the slice of x for one iteration of the loop; x itself if it lacks the axis.
NodePtr slice_at(const NodePtr& x, const NodePtr& index, bool drop);
// Returns zeros with the axes `full`, with x at the positions that `slice` with the same arguments
// would read.
NodePtr place(const NodePtr& x, const Axes& full, Name axis, std::int64_t start, std::int64_t step,
              bool drop, NodePtr dynamic = {});
// Merges axes, row-major in the given order, at the position of the first one.
NodePtr flatten(const NodePtr&, const Names& old, const Axis& flat);
NodePtr unflatten(const NodePtr&, Name flat, const Axes& parts);
NodePtr concat(const Nodes&, const Axis& full);
NodePtr pad(const NodePtr&, Name axis, std::int64_t before, std::int64_t after,
            const NodePtr& value);
extern const Op kFit, kRename, kSlice, kPlace, kFlatten, kUnflatten, kConcat;

// ---- gather and scatter (pick.cpp), sorts and running sums (order.cpp) ----
using Where = std::vector<std::pair<Name, NodePtr>>;  // pairs of an axis of the table and its ids
// Returns the indexed axes of a gather or scatter with their ids, which are the operands from
// `first` on.
Where picks_of(const Node&, std::size_t first);
// Returns ids that count from the start of an axis of this size, in a signed dtype that
// distinguishes valid positions from positions out of range.
NodePtr signed_ids(const NodePtr& ids, std::int64_t size);
NodePtr gather(const NodePtr& table, const Where&, const Axes& out, program::Outside);
NodePtr scatter(const NodePtr& base, const NodePtr& updates, const Where&, program::Update,
                bool clamp);
NodePtr argsort(const NodePtr&, Name axis), sort(const NodePtr&, Name axis);
NodePtr cumulative(Monoid, const NodePtr&, Name axis, bool reverse);
extern const Op kGather, kScatter, kArgsort, kSort, kCumulative;

// ---- wraps: nodes with the value of in[0] (wraps.cpp) ----
// Recomputes x, once `after` has been computed.
NodePtr barrier(const NodePtr& x, const NodePtr& after);
// Returns x, which is 0 at the positions at or after `counts` along an axis. counts: i64, the first
// axes of x, before the axis. Where the result is exchanged between devices, only the other
// positions are sent.
NodePtr counted_rows(const NodePtr& x, const NodePtr& counts, Name axis);
// Returns counted_rows of x with 0 at these positions.
NodePtr first_rows(const NodePtr& x, const NodePtr& counts, Name axis);
bool counts_rows(const Node&);  // true for counted_rows; its second operand is the counts
// Constrains the sharding of x to the mapping. by: the op that requires it. of_gradient: the
// mapping of the gradient; null: it has no constraint.
NodePtr sharding_constraint(const NodePtr& x, std::shared_ptr<const Mapping>,
                            const char* by = "shard",
                            std::shared_ptr<const Mapping> of_gradient = nullptr);
struct ShardingConstraint : Payload {
  std::shared_ptr<const Mapping> mapping, of_gradient;
  const char* by = "";
};
inline const ShardingConstraint& sharding_constraint_of(const Node& n) {
  return static_cast<const ShardingConstraint&>(*n.attr.payload);
}
// Returns x as a node that is unlike any other: gradients are computed with respect to it.
NodePtr tracer(const NodePtr& x, Name path = {});
// The boundaries of a region that is computed tile by tile along an axis, around arrays that have
// the axis. Equal attributes mean the same region, so that two losses of one array share their
// common parts. attr: a ChunkKey.
NodePtr enter(const NodePtr&, const Attr&region), leave(const NodePtr&, const Attr&region);
NodePtr gradient_barrier(const NodePtr&);
// Returns x with a name, by which a checkpoint policy saves it. checkpoint_name_of: the name of
// such a node.
NodePtr checkpoint_name(const NodePtr& x, Name);
std::optional<Name> checkpoint_name_of(const Node&);
extern const Op kBarrier, kShardingConstraint, kTracer, kEnter, kLeave, kGradientBarrier,
    kCheckpointName, kCountedRows;
// A wrap. Operands: value, x, e = exp(x - top), sum of e, top. Attribute: the reduced axes.
extern const Op kLogsumexp;

// ---- list of all ops, for the registry test ----
std::vector<const Op*> all_ops();
bool register_ops(std::initializer_list<const Op*>);  // returns true

}  // namespace haliax::prim
