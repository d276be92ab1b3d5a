// The primitives, as nodes with explicit axes. What users call (include/haliax/ops.h) is composed
// of these, and so are all gradients.
#pragma once
#include "graph/axes.h"
#include "graph/node.h"

namespace haliax {
enum class LoopOrigin : std::uint8_t;  // graph/loop.h
struct SliceAttr;
}  // namespace haliax

namespace haliax::prim {

using G = const NodePtr&;  // as rules, gradients and builders take nodes

// ---- leaves ----
// Never equal to another. Of the trace that is given, or the innermost.
NodePtr input(const Axes&, DType, Name path = {}, std::shared_ptr<const Trace> = {});
const std::shared_ptr<const Trace>& trace_of(const Node& input);
NodePtr number(double, DType);  // a scalar of any dtype
NodePtr integer(std::int64_t, DType);
NodePtr filled(double, DType, const Axes&);  // a number, broadcast
NodePtr extreme(DType, bool largest);        // of all values; of floats an infinity
NodePtr identity(Monoid, DType);             // what a fold starts from
// what `take` gives for an index outside: NaN, or the least integer (largest if unsigned)
NodePtr picked_outside(DType);
NodePtr zeros_like(const NodePtr&);
// to count to `size` in: i32, or i64 where that is too small
DType position_dtype(std::int64_t size);
NodePtr iota(const Axis&, DType), iota(const Axis&);  // (axis): the position, in that dtype
NodePtr flat_position(const Axes&, DType);            // row-major, over all of the axes
// The index of a loop over `axis`: turn t starts at `start` + t * chunk. Canonical: equal arguments
// give the same node.
NodePtr index(const Axis&, std::int64_t start, std::int64_t chunk, int depth,
              LoopOrigin = LoopOrigin{});
NodePtr index_of(const Node& other);  // of the same loop, in the domain in scope
std::int64_t index_chunk(const Node& index);
std::int64_t index_start(const Node& index);
// what a scan carries; never equal to another
NodePtr carry(const NodePtr& index, const Axes&, DType);
bool is_number(const NodePtr&, double value);  // this number, possibly broadcast
bool is_number(const NodePtr&);
bool needs_no_memory(const Node&);  // a number, positions: as good as its value
// without the `fit` around it; of a broadcast number: itself
const NodePtr& stripped(const NodePtr&);
extern const Op kInput, kNumber, kIota, kIndex, kCarry;

// ---- map: result axes are those of the operands, by first appearance, unless given ----
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
NodePtr scale(const NodePtr&, double);  // times a number
NodePtr less(const NodePtr&, const NodePtr&), less_equal(const NodePtr&, const NodePtr&),
    equal(const NodePtr&, const NodePtr&);
// of two bools
NodePtr both(const NodePtr&, const NodePtr&), either(const NodePtr&, const NodePtr&);
NodePtr is_nan(const NodePtr&), is_finite(const NodePtr&);
NodePtr select(const NodePtr& c, const NodePtr& a, const NodePtr& b);
// of all of these axes
NodePtr select(const NodePtr& c, const NodePtr& a, const NodePtr& b, const Axes&);
NodePtr fma(const NodePtr& a, const NodePtr& b, const NodePtr& c);
NodePtr threefry(Code word, const NodePtr& k0, const NodePtr& k1, const NodePtr& high,
                 const NodePtr& low);
// The block of such an op. constexpr: ops are there before anything runs, so that a program may
// compute while its own globals are made. `grad`: of the result and its cotangent; what it gives
// may have more axes than the operands, the gradient walk sums them away. What only one public op
// is made of stands above that op, and is not declared here.
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

// ---- folds and products ----
NodePtr reduce(Monoid, const NodePtr&, const Axes& kept);  // axes not kept are folded away
// Flat position over `over`, in that order, in position_dtype.
NodePtr argreduce(bool largest, const NodePtr&, const Axes& kept, const Axes& over);
NodePtr sum(const NodePtr&, const Axes& over);
const Op& pairwise(Monoid);  // what it does with two: add, multiply, maximum, minimum
inline bool combines(const Node& n, Monoid m) { return n.op == &pairwise(m); }
NodePtr contract(const NodePtr&, const NodePtr&, const Axes& kept, DType out);
NodePtr contract(const NodePtr&, const NodePtr&, const Axes& kept);
extern const Op kSum, kProd, kMax, kMin, kArgmax, kArgmin, kContract;

// ---- shape ----
// the same values in these axes: reordered, broadcast to new ones
NodePtr fit(const NodePtr&, const Axes&);
// the same op of other operands, in other sizes of its axes
NodePtr rebuilt(const Node&, Nodes in, const Axes&);
// to these axes: the rest summed, new ones broadcast
NodePtr sum_to(const NodePtr&, const Axes&);
NodePtr rename(const NodePtr&, const Names& from, const Names& to);
// `size` positions from `start` in steps; drop: size is 1 and the axis goes. `dynamic`: a scalar
// added to start.
NodePtr slice(const NodePtr&, Name axis, std::int64_t start, std::int64_t size,
              std::int64_t step = 1, bool drop = false, NodePtr dynamic = {});
NodePtr slice(const NodePtr&, const SliceAttr&, NodePtr dynamic = {});
// The part that belongs to this turn of a loop; x itself if it lacks the axis.
NodePtr slice_at(const NodePtr& x, const NodePtr& index, bool drop);
// Zeros of the whole axis with x placed where `slice` with the same arguments would read.
NodePtr place(const NodePtr& x, const Axes& whole, Name axis, std::int64_t start, std::int64_t step,
              bool drop, NodePtr dynamic = {});
// row-major in the order given, in the place of the first
NodePtr flatten(const NodePtr&, const Names& old, const Axis& flat);
NodePtr unflatten(const NodePtr&, Name flat, const Axes& parts);
NodePtr concat(const Nodes&, const Axis& whole);
NodePtr pad(const NodePtr&, Name axis, std::int64_t before, std::int64_t after,
            const NodePtr& value);
extern const Op kFit, kRename, kSlice, kPlace, kFlatten, kUnflatten, kConcat;

// ---- picking, order, running sums (pick.cpp) ----
using Where = std::vector<std::pair<Name, NodePtr>>;  // axis of the table, ids
// of a gather, or scatter: ids are the operands from there on
Where picks_of(const Node&, std::size_t first);
// Counted from the start of an axis of this size, in a signed dtype that tells positions from what
// lies outside.
NodePtr signed_ids(const NodePtr& ids, std::int64_t size);
NodePtr gather(const NodePtr& table, const Where&, const Axes& out, program::Outside);
NodePtr scatter(const NodePtr& base, const NodePtr& updates, const Where&, program::Update,
                bool clamp);
NodePtr argsort(const NodePtr&, Name axis), sort(const NodePtr&, Name axis);
NodePtr cumulative(Monoid, const NodePtr&, Name axis, bool reverse);
extern const Op kGather, kScatter, kArgsort, kSort, kCumulative;

// ---- wraps: the value of in[0] (wraps.cpp) ----
// made again, not before `after` is there
NodePtr barrier(const NodePtr& x, const NodePtr& after);
// Cut as the mapping says. by: the op that wants it.
NodePtr sharding_constraint(const NodePtr& x, std::shared_ptr<const Mapping>,
                            const char* by = "shard");
struct ShardingConstraint : Payload {
  std::shared_ptr<const Mapping> mapping;
  const char* by = "";
};
inline const ShardingConstraint& sharding_constraint_of(const Node& n) {
  return static_cast<const ShardingConstraint&>(*n.attr.payload);
}
// x, unlike any other node: what a gradient is taken by
NodePtr tracer(const NodePtr& x, Name path = {});
// The borders of a region that is computed chunk by chunk along an axis, around arrays that have
// it. Equal ones are the same region, so that what two losses of one array share is shared. attr: a
// ChunkKey.
NodePtr enter(const NodePtr&, const Attr&region), leave(const NodePtr&, const Attr&region);
NodePtr gradient_barrier(const NodePtr&);  // x; its cotangent is not there before it is
extern const Op kBarrier, kShardingConstraint, kTracer, kEnter, kLeave, kGradientBarrier;
// a wrap; operands: value, x, e = exp(x - top), sum of e, top; names: the axes
extern const Op kLogsumexp;

// ---- all ops, for the registry test ----
std::vector<const Op*> all_ops();
bool register_ops(std::initializer_list<const Op*>);  // true

}  // namespace haliax::prim
