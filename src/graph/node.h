// The graph: frozen, hash-consed nodes. On one thread equal nodes are the same node, so common
// subexpressions need no pass; what a thread makes does not depend on what others do.
//
// Nodes speak of axes only by name. An operand may lack axes of the result (it is broadcast) or
// have them in another order; the order of a node's axes is what users see, the layout in memory is
// the compiler's.
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

// What an op does along one axis of an operand (or of its result). To cut an op is to cut its
// points: these have the axes of the result and of the operands, by names of the op's own, which
// are mostly theirs.
struct Along {
  enum class Way : std::uint8_t {
    map,  // position by position
    // folds it away by the monoid; for others than sum, prod, max and min an op needs the axis
    // whole
    fold,
    full,  // needs all of it at once
    // positions move by numbers that are known: a slice, a concatenation, a place among zeros
    shift,
    // of a table: ids say which positions are read, or written; what is not there gives the
    // identity of the monoid
    pick,
    // becomes several axes (unflatten), or a part of one axis (flatten): RegroupAttr. Values only
    // move
    regroup,
  };
  Way way = Way::map;
  Name point = {};
  Monoid monoid = Monoid::sum;
};
// Of an axis along which positions move: the result's positions [to, to + size) are positions from,
// from + step, ... of an operand. In order; what lies between them is 0.
struct AxisSegment {
  std::size_t operand = 0;
  std::int64_t from = 0, to = 0, size = 0, step = 1;
};
// A block of an axis: a device's, or a chunk.
struct Block {
  Name axis;
  NodePtr start;
  std::int64_t size = 0;
};
// In what an op is linear, hence which pending sums may ride through it: none; one operand at a
// time (product, sum over an axis); all operands together (add); or it only moves data, whatever
// the monoid.
enum class Linear : std::uint8_t { no, one, all, moves };
enum class Kind : std::uint8_t {
  leaf,      // data, input, number, iota, index, carry
  map,       // point by point: `code`
  reduce,    // folds away the axes that the result lacks
  contract,  // sums a product of two over the axes that the result lacks
  view,      // other axes, offset or strides on the same memory
  step,      // moves or sorts data: one step of the program
  loop,
  result,
  // the value of in[0]; says something to a transform: custom gradient, barrier, constraint
  wrap,
};

class Emit;
struct Place;
struct BlockScan;
// in place of the number of an operand
inline constexpr std::size_t kResultSide = std::size_t(-1);
struct Op {
  const char* name;
  Kind kind;
  Code code = Code::constant;  // map, reduce
  Linear linear = Linear::no;
  // cotangents of the inputs, in axes that fit; null: none
  Nodes (*grad)(const NodePtr& out, const NodePtr& g) = nullptr;
  Place (*view)(const Node&, const Place& in, Emit&) = nullptr;  // Kind::view
  void (*lower)(const Node&, Emit&) = nullptr;                   // Kind::step
  // The rule along axes; null: by kind, see along(). Passes know of an op what its fields here say,
  // and nothing else.
  Along (*along)(const Node&, std::size_t operand, Name axis) = nullptr;
  // The op given only blocks: of the table, if `along` says pick; of the result, if it has no
  // operands (iota). Operands and axes are those of the blocks.
  NodePtr (*on_block)(const Node&, Nodes in, const Axes&, const std::vector<Block>&) = nullptr;
  // Likewise: which of the ids are positions, if what lies outside of all blocks is filled in;
  // null: nothing is.
  NodePtr (*in_range)(const Node&, const Nodes& in) = nullptr;
  std::vector<AxisSegment> (*segments)(const Node&) = nullptr;  // where `along` says shift
  // where operands differ, or dtypes matter; null: `linear`
  Linear (*linear_in)(const Node&, std::size_t operand) = nullptr;
  // It is 0 wherever it would be if it were linear so; null: `linear_in`.
  Linear (*zero_in)(const Node&, std::size_t operand) = nullptr;
  // It starts from in[0], which it may write over, and adds what its other operands say by this
  // monoid; none: it sets it.
  std::optional<Monoid> (*accumulates)(const Node&) = nullptr;
  // What is wrong with a node of it, beside what `along` says of its axes; empty: nothing. For the
  // verifier.
  std::string (*fault)(const Node&) = nullptr;
  // The same value by ops that need only blocks, so many, of an axis which this one needs whole.
  // Null: there is no such way.
  NodePtr (*blockwise)(const NodePtr&, Name axis, int blocks) = nullptr;
  // likewise, in one walk: ops/in_turns.h
  std::optional<BlockScan> (*block_scan)(const NodePtr&, const Nodes& picked) = nullptr;
  bool cheap = false;  // leaf, view: made again wherever it is read
};
// Of an operand, or of the result (kResultSide). Point-wise ops map; reductions and contractions
// fold what the result lacks; a view or a step that says nothing needs every axis whole.
Along along(const Node&, std::size_t operand, Name axis);
Linear linear_in(const Node&, std::size_t operand);
Linear zero_in(const Node&, std::size_t operand);
bool accumulates(const Node&, Monoid);
bool maps(const Node&);  // along every axis, position by position
// a view that maps: its operand's values, under other names or spread over more axes
bool is_transparent_view(const Node&);
bool keeps_names(const Node&);  // and calls axes what they are called there
// What an operand calls an axis of the result, and the other way round, where the op maps along it;
// else the name itself.
Name name_in_operand(const Node&, std::size_t operand, Name),
    name_in_result(const Node&, std::size_t operand, Name);
// for the operand to be there, however it lies
bool is_order_only(const Node&, std::size_t operand);

// Was a node made by the walk for gradients alone? That does not depend on who made it first: where
// a line of forward code makes an equal node, before or after, it was not. (Passes have no line of
// their own, and say nothing.) Reports read it, and `strict` for what is a parameter.
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

// Where a node was made, and under which compute mapping.
struct Origin {
  SourceLocation at;
  Name module;
  Name weight_created = {};  // of a layer that no path is known of: where its weight was made
  std::shared_ptr<const Mapping> mapping;
  BackwardOnly backward = {};
  // id of the node that the user's code made; what passes put in its place keeps it
  std::uint64_t traced = 0;
};

struct Payload {  // what only some ops carry: a loop, a custom gradient
  virtual ~Payload() = default;
  // nodes that it holds, as often as it does
  virtual std::vector<const Node*> held() const { return {}; }
};
struct Attr {
  Names names = {};
  std::vector<std::int64_t> ints = {};
  double number = 0;
  std::shared_ptr<const Payload> payload = {};
  friend bool operator==(const Attr& a, const Attr& b) {  // numbers by their bits
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
  std::uint64_t id = 0;           // inputs are older than their users
  std::vector<const Node*> free;  // the loop indices and carries it varies with, by id
  Origin origin;

  // The one thing that changes: a value, once computed, is kept; a donated one is gone for good,
  // and says where to.
  NodeValue value;
  Donation donated;
  mutable FieldPath field;  // for messages
  // when an equal one was last made: the newest id then
  mutable std::atomic<std::uint64_t> last_created{0};
  mutable std::uint64_t claimed = 0;           // by who computes it (runtime/evaluate.cpp)
  std::shared_ptr<const Placement> placement;  // of a value that a mesh made; null: whole

  std::int64_t size() const { return axis_size(axes); }
  std::int64_t bytes() const { return size() * bytes_of(dtype); }
  bool varies_with(const Node* index) const;
  Node() = default;
  Node(const Node&) = delete;
  ~Node();  // without recursion, however long the chain

 private:
  friend NodePtr make(const Op&, Nodes, Axes, DType, Attr);
  std::uint64_t hash_ = 0, domain_ = 0;  // equal to none of another domain
  mutable const Node* next_ = nullptr;   // of those in one place of the table of nodes
  friend struct Cons;
};

// The node itself, or the equal one that exists. Raises for more elements than there can be.
NodePtr make(const Op&, Nodes in, Axes, DType, Attr = {});
// of an axis or an array: numbers of bytes do not overflow
inline constexpr std::int64_t most_elements = std::int64_t(1) << 60;
NodePtr make_data(BufferPtr, Axes, DType);  // never equal to another
// What nodes forget, which may die with it: let go outside of a GraphWriter.
struct DetachedInputs {
  Nodes in = {};
  std::vector<std::shared_ptr<const Payload>> payloads = {};
  ~DetachedInputs();  // without recursion
};
void detach(const Node&,
            DetachedInputs&);  // in a GraphWriter: a node with a value forgets its recipe
std::uint64_t newest_id();
std::uint64_t fresh_id();  // of no node: all that are made from here on are newer

// ---- what is being traced, on this thread ----
class Gradients;
// A function that is called with stand-ins for its arguments: they, and what becomes of them, have
// no values outside of it.
struct Trace {
  const char* by;     // jit, checkpoint, eval_shape
  SourceLocation at;  // where the user called it; empty: not known
  std::shared_ptr<const Trace> outer;
  mutable std::uint64_t last = 0;  // when it ended: the id of the newest node
};
std::uint64_t fresh_domain();
struct Context {
  // nodes are equal to others of it: of this thread, or of what is being compiled
  std::uint64_t domain = fresh_domain();
  Origin origin = {};
  bool fixed = false;        // a layer has said where its caller is
  SourceLocation last = {};  // where the user's code called the library the last time
  int loop_depth = 0;  // of the traced loops: keeps an index apart from an equal one around it
  Axes hidden = {};    // by the vmaps around, outermost first
  // inside shard_map: what stands for each mesh axis, hidden
  std::vector<std::pair<std::string, Axis>> shards = {};
  // inside grad, vmap, scan or jit: values may be asked for, but nothing is forgotten
  int tracing = 0;
  std::shared_ptr<const Trace> trace = {};         // the innermost
  int chunked_calls = 0;                           // of chunked_reduce, around
  std::optional<std::int64_t> scores_budget = {};  // of the jit around: see JitOptions
  std::shared_ptr<const Mesh> mesh = {};           // in scope; the mapping is the origin's
  // those that are taken are noted there, if anybody wants to know
  std::shared_ptr<Gradients> gradients = {};
  bool in_jit = false;  // what is made runs later, and more than once
  NodePtr effect = {};  // the newest of what is to be done (see ops/effect.h); null: nothing is
};
Context& context();

// Nodes made in the scope equal none from outside of it.
class NodeDomainScope {
 public:
  NodeDomainScope() { context().domain = fresh_domain(); }
  ~NodeDomainScope() { context().domain = outer_; }
  NodeDomainScope(const NodeDomainScope&) = delete;

 private:
  std::uint64_t outer_ = context().domain;
};

// Set for the length of a scope: where the user's code is. Inside a layer the caller's place and
// the module's path hold. But for a layer, whose inside may be the user's code, its graph is read
// in the scope (graph/lock.h).
class CallSite {
 public:
  [[nodiscard("give it a name")]] explicit CallSite(SourceLocation at, bool layer = false,
                                                    const NamedArray* weight = nullptr);
  ~CallSite();
  CallSite(const CallSite&) = delete;

 private:
  SourceLocation at_;
  Name module_, weight_created_;
  bool fixed_, reads_;
};

// Set for the length of a scope: nodes made in it are due to others, whose origins they take.
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

std::string where_of(const Origin&);  // model.cpp:41, in mlp.up; what is known of it
// The name of a field for people: without the level that Stacked adds.
Name module_path(std::string field);
// `[op] text; file:line, in module` as an Error.
[[noreturn]] void fail(const std::string& op, const std::string& text);
// The message of an error: `[op] text; file:line, in module`.
std::string failure_at(const Origin&, const std::string& op, const std::string& text);
[[noreturn]] void fail_at(const Origin&, const std::string& op, const std::string& text);

// Is this name an axis of the node; its size.
inline const Axis* find(const Node& n, Name a) { return find_axis(n.axes, a); }
inline bool has(const Axes& axes, Name a) { return find_axis(axes, a) != nullptr; }
inline bool has(const Names& names, Name a) {
  return std::find(names.begin(), names.end(), a) != names.end();
}

}  // namespace haliax
