// The graph: immutable, hash-consed nodes. On one thread equal nodes are the same node, so common
// subexpressions need no pass. Nodes of different threads are never equal, so threads do not affect
// each other's graphs.
//
// Nodes refer to axes only by name. An operand may lack axes of the result (it is broadcast) or
// have them in another order. Users see the order of a node's axes; the compiler chooses the layout
// in memory.
#pragma once
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/lock.h"
#include "graph/value.h"
#include "haliax/array.h"
#include "haliax/mesh.h"
#include "program/program.h"

namespace haliax {

using program::Code;
using program::Monoid;
using Nodes = std::vector<NodePtr>;
using NodeRef = const NodePtr&;  // a parameter; the caller keeps the node alive

// The rule of an op along one axis of an operand or of its result. Meshes and chunks partition the
// iteration space of an op. The iteration space has the axes of the result and of the operands,
// under names that the op chooses (`point`), which are mostly the names of the axes.
struct Along {
  enum class Way : std::uint8_t {
    map,  // position by position
    // reduces the axis by the monoid: sum, prod, max or min; ops with other reductions need the
    // full axis
    fold,
    full,  // needs the full axis at once
    // moves positions by known offsets: a slice, a concatenation, padding
    shift,
    // the axis of a table that ids index; positions that are absent yield the identity of the
    // monoid
    pick,
    // splits the axis into several (unflatten) or makes it part of one axis (flatten), without
    // changing values; see RegroupAttr
    regroup,
  };
  Way way = Way::map;
  Name point = {};  // axis of the iteration space
  Monoid monoid = Monoid::sum;
};
// A segment of an axis whose positions an op shifts. Positions [to, to + size) of the result are
// the positions from, from + step, ... of an operand. Segments are in order; positions between them
// are 0.
struct AxisSegment {
  std::size_t operand = 0;
  std::int64_t from = 0, to = 0, size = 0, step = 1;
};
// A block of an axis: the shard of a device, a chunk, or the position of an iteration.
struct Block {
  Name axis;
  NodePtr start;  // the first position, a scalar
  std::int64_t size = 0;
  bool drop = false;  // size is 1 and the value lacks the axis
  friend bool operator==(const Block&, const Block&) = default;
};
// The operands in which an op is linear, and therefore the partial sums that commute with it.
// - no: none
// - one: one operand at a time (matmul, sum over an axis)
// - all: all operands together (add)
// - moves: the op only moves data, so that it commutes with every monoid
enum class Linear : std::uint8_t { no, one, all, moves };
enum class Kind : std::uint8_t {
  leaf,    // data, input, constant, iota, index, carry
  map,     // elementwise: `code`
  reduce,  // reduces the axes that the result lacks
  // matmul: sums the elementwise product of two operands over the axes that the result lacks
  contract,
  view,  // other axes, offset or strides of the same memory
  step,  // moves or sorts data, in one step of the program
  loop,
  result,
  // the value of in[0], with a mark for a transform: custom gradient, barrier, constraint
  wrap,
};

class Emit;
struct Place;
struct BlockScan;
// selects the result instead of an operand
inline constexpr std::size_t kResultSide = std::size_t(-1);
// The rules of an op, as plain data. Passes know an op only through these fields.
struct Op {
  const char* name;
  Kind kind;
  Code code = Code::constant;  // map, reduce
  Linear linear = Linear::no;
  // Returns the cotangents of the inputs, in matching axes; null for an input without one.
  Nodes (*grad)(NodeRef out, NodeRef g) = nullptr;
  // Kind::view: returns the place of the result
  Place (*view)(const Node&, const Place& in, Emit&) = nullptr;
  // Kind::view: returns the place of the operand, given the place of the result, or no place if
  // strides cannot express it. Null for transparent views, whose axes are matched by name, and for
  // views that hide elements.
  Place (*unview)(const Node&, const Place& out) = nullptr;
  void (*lower)(const Node&, Emit&) = nullptr;  // Kind::step: pushes the steps
  // Returns the rule along an axis; null: the rule follows from the kind, see along().
  Along (*along)(const Node&, std::size_t operand, Name axis) = nullptr;
  // Returns the op on blocks of the table (rule `pick`) or of the result (ops without operands,
  // such as iota). Operands and axes are those of the blocks.
  NodePtr (*on_block)(const Node&, Nodes in, const Axes&, const std::vector<Block>&) = nullptr;
  // Returns a mask of the ids that are in range of the full axis, for ops that fill positions out
  // of range; null: the op fills none.
  NodePtr (*in_range)(const Node&, const Nodes& in) = nullptr;
  // Returns the segments of the axis (rule `shift`).
  std::vector<AxisSegment> (*segments)(const Node&) = nullptr;
  // Returns the linearity in one operand, if operands differ or dtypes matter; null: `linear`.
  Linear (*linear_in)(const Node&, std::size_t operand) = nullptr;
  // Returns which operands make the result 0 wherever they are 0, encoded as a linearity. Null:
  // `linear_in`.
  Linear (*zero_in)(const Node&, std::size_t operand) = nullptr;
  // Returns the monoid by which the op accumulates its other operands into in[0], which it may
  // overwrite. Returns nothing if the op sets elements of in[0]. Null for ops of other kinds.
  std::optional<Monoid> (*accumulates)(const Node&) = nullptr;
  // Returns a fault of a node that `along` does not cover, or "" if there is none. For the
  // verifier.
  std::string (*fault)(const Node&) = nullptr;
  // Returns the same value as ops that need only blocks of an axis that this op needs in full.
  // `blocks` is their number. Returns null if the op has no such form.
  NodePtr (*blockwise)(NodeRef, Name axis, int blocks) = nullptr;
  // The same as a scan over the blocks; see ops/block_scan.h.
  std::optional<BlockScan> (*block_scan)(NodeRef, const Nodes& picked) = nullptr;
  // Leaf, view: recomputed where it is read. Map: free to recompute on a mesh.
  bool cheap = false;
  bool placeholder = false;  // stands for an array while a function is traced
};
// Returns the rule of an operand, or of the result (kResultSide). By default, elementwise ops map;
// reductions and contractions reduce the axes that the result lacks; a view or a step needs every
// axis in full.
Along along(const Node&, std::size_t operand, Name axis);
Linear linear_in(const Node&, std::size_t operand);
Linear zero_in(const Node&, std::size_t operand);
bool accumulates(const Node&, Monoid);
// Returns true if the op maps along every axis, position by position.
bool maps(const Node&);
// Returns true for a view that maps: the values of its operand, under other names or broadcast
// along more axes.
bool is_transparent_view(const Node&);
// Returns true for a transparent view that keeps the names of the axes.
bool keeps_names(const Node&);
// Return the name of an axis of the result in an operand, and of an axis of an operand in the
// result. Return the name itself if the op does not map along the axis.
Name name_in_operand(const Node&, std::size_t operand, Name),
    name_in_result(const Node&, std::size_t operand, Name);
// Returns true for positions: a leaf that any device or iteration computes on its block.
bool is_position(const Node&);
// Returns true if the node only waits for the operand and reads no value of it.
bool is_order_only(const Node&, std::size_t operand);

// True if only the backward pass created a node. The flag does not depend on the order of creation:
// forward code that creates an equal node, before or after, clears it. Passes have no source
// location and leave it unchanged. Reports read the flag, and `strict` reads it to recognize
// parameters. One rewrite reads it, `defer_normalization`: a NaN of a backward value is also in the
// forward pass.
class BackwardOnly {
 public:
  BackwardOnly(bool on = false) : on_(on) {}
  BackwardOnly(const BackwardOnly& other) : on_(bool(other)) {}
  BackwardOnly& operator=(const BackwardOnly& other) {
    on_.store(bool(other), std::memory_order_relaxed);
    return *this;
  }
  operator bool() const { return on_.load(std::memory_order_relaxed); }
  void never() const {
    if (*this) on_.store(false, std::memory_order_relaxed);
  }

 private:
  mutable std::atomic<bool> on_;
};

// The source location at which a node was created, and the mapping in scope.
struct Origin {
  SourceLocation at;
  Name module;
  Name scope = {};           // names of `nn::NameScope`, joined by dots
  Name weight_created = {};  // location of the weight, if the layer has no known path
  std::shared_ptr<const Mapping> mapping;
  BackwardOnly backward = {};
  // id of the node of the user's code; nodes that passes substitute keep it
  std::uint64_t traced = 0;
};

// Data that only some ops have: a loop, a custom gradient.
struct Payload {
  virtual ~Payload() = default;
  // Returns the nodes that the payload holds, once per reference.
  virtual std::vector<const Node*> held() const { return {}; }
};
struct Attr {
  Names names = {};
  std::vector<std::int64_t> ints = {};
  double number = 0;
  std::shared_ptr<const Payload> payload = {};
  // Numbers are compared by their bits.
  friend bool operator==(const Attr& a, const Attr& b) {
    return a.names == b.names && a.ints == b.ints && a.payload == b.payload &&
           std::bit_cast<std::uint64_t>(a.number) == std::bit_cast<std::uint64_t>(b.number);
  }
};

class Node : public std::enable_shared_from_this<Node> {
 public:
  const Op* op = nullptr;
  Nodes in;
  Axes axes;
  DType dtype = DType::f32;
  Attr attr;
  std::uint64_t id = 0;           // larger than the ids of all inputs
  std::vector<const Node*> free;  // loop indices and carries that the node varies with, by id
  Origin origin;

  // The mutable members. A value is set once. A donated value is gone for good, and `donated`
  // describes the recipient.
  NodeValue value;
  Donation donated;
  mutable FieldPath field;  // for messages
  // newest id at the time when an equal node was last created
  mutable std::atomic<std::uint64_t> last_created{0};
  mutable std::uint64_t claimed = 0;  // by the evaluation that computes it (runtime/evaluate.cpp)
  std::shared_ptr<const Placement> placement;  // mesh and sharding of the value; null: unsharded

  std::int64_t size() const { return axis_size(axes); }
  std::int64_t bytes() const { return size() * bytes_of(dtype); }
  bool varies_with(const Node* index) const;
  Node() = default;
  Node(const Node&) = delete;
  ~Node();  // not recursive, for chains of any length

 private:
  friend NodePtr make(const Op&, Nodes, Axes, DType, Attr);
  std::uint64_t hash_ = 0, domain_ = 0;  // nodes of different domains are never equal
  mutable const Node* next_ = nullptr;   // next node in the same bucket of the table
  friend struct Cons;
};

// Returns a new node, or the equal node that exists. Raises if the result would have more than
// most_elements elements.
NodePtr make(const Op&, Nodes in, Axes, DType, Attr = {});
// limit for an axis and an array, so that byte counts do not overflow
inline constexpr std::int64_t most_elements = std::int64_t(1) << 60;
// Raises if an array of these axes would have more elements.
void check_elements(const char* op, const Axes&);
// Returns a node that holds a value. It is equal to no other node.
NodePtr make_data(BufferPtr, Axes, DType);
// References that nodes drop on detach, and that may be the last ones. To be destroyed outside of a
// GraphWriter.
struct DetachedInputs {
  Nodes in = {};
  std::vector<std::shared_ptr<const Payload>> payloads = {};
  ~DetachedInputs();  // not recursive
};
// Makes a node that has a value drop its op, inputs and attributes. In a GraphWriter.
void detach(const Node&, DetachedInputs&);
std::uint64_t newest_id();
// Returns an id that no node has; all later nodes have larger ids.
std::uint64_t fresh_id();

// ---- the context of a thread ----
class Gradients;
// A call of a function with tracers in place of its arguments. Tracers, and nodes that depend on
// them, have no values outside of it.
struct Trace {
  const char* by;     // jit, checkpoint, eval_shape
  SourceLocation at;  // location of the user's call; empty: unknown
  std::shared_ptr<const Trace> outer;
  mutable std::uint64_t last = 0;  // id of the newest node when the trace ended
};
std::uint64_t fresh_domain();
struct Context {
  // equal nodes within one domain are the same node: one domain per thread, and one per compilation
  std::uint64_t domain = fresh_domain();
  Origin origin = {};
  bool in_layer = false;          // a layer has set origin.at, so that inner calls keep it
  SourceLocation last_call = {};  // location of the latest library call in user code
  int loop_depth = 0;             // number of enclosing traced loops; distinguishes equal indices
  Axes hidden = {};               // axes that enclosing vmaps hide, outermost first
  // inside shard_map: the hidden axis of each mesh axis
  std::vector<std::pair<std::string, Axis>> shards = {};
  // number of enclosing grad, vmap, scan and jit calls: values may be read, but nodes keep their
  // inputs
  int tracing = 0;
  std::shared_ptr<const Trace> trace = {};         // innermost
  int chunked_calls = 0;                           // enclosing calls of chunked_reduce
  std::optional<std::int64_t> scores_budget = {};  // JitOptions::scores_budget of the enclosing jit
  std::shared_ptr<const Mesh> mesh = {};           // mesh in scope; its mapping is in `origin`
  // records the gradients that are computed; null: no record
  std::shared_ptr<Gradients> gradients = {};
  bool in_jit = false;  // nodes are computed later, and more than once
  NodePtr effect = {};  // newest pending effect (ops/effect.h), or null
};
Context& context();

// Nodes created in the scope equal no node from outside of it.
class NodeDomainScope {
 public:
  NodeDomainScope() { context().domain = fresh_domain(); }
  ~NodeDomainScope() { context().domain = outer_; }
  NodeDomainScope(const NodeDomainScope&) = delete;

 private:
  std::uint64_t outer_ = context().domain;
};

// Sets the location of the user's code for the length of a scope. Within a layer, the location of
// the caller and the path of the module apply. The scope is a graph reader (graph/lock.h), except
// for a layer, since its body may be user code.
class CallSite {
 public:
  enum Kind { op, layer };
  // `weight`: of a layer; the module of its field becomes the module of the origin.
  [[nodiscard("give it a name")]] explicit CallSite(SourceLocation at, Kind kind = op,
                                                    const NamedArray* weight = nullptr);
  ~CallSite();
  CallSite(const CallSite&) = delete;

 private:
  SourceLocation at_;
  Name module_, scope_, weight_created_;
  bool in_layer_, reads_;
};

// Sets the origin for the length of a scope: nodes created in it get the origin of another node.
class OriginScope {
 public:
  OriginScope() = default;
  explicit OriginScope(const Origin& of) { context().origin = of; }
  ~OriginScope() { context().origin = std::move(outer_); }
  OriginScope(const OriginScope&) = delete;
  void operator()(const Origin& of) { context().origin = of; }

 private:
  Origin outer_ = context().origin;
};

// Returns the known parts of an origin for messages, as in "model.cpp:41, in mlp.up".
std::string where_of(const Origin&);
// Returns the name of a field for messages, without the level that Stacked adds.
Name module_path(std::string field);
// Raises an Error with the message "[op] text; file:line, in module".
[[noreturn]] void fail(const std::string& op, const std::string& text);
// Returns the message "[op] text; file:line, in module".
std::string failure_at(const Origin&, const std::string& op, const std::string& text);
[[noreturn]] void fail_at(const Origin&, const std::string& op, const std::string& text);

// Returns the axis of the node with this name, or null.
inline const Axis* find(const Node& n, Name a) { return find_axis(n.axes, a); }
inline bool has(const Axes& axes, Name a) { return find_axis(axes, a) != nullptr; }
inline bool has(const Names& names, Name a) {
  return std::find(names.begin(), names.end(), a) != names.end();
}

}  // namespace haliax
