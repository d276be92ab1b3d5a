// Plan: a fused step as tapes of operations over tiles.
//
// The iteration space is outer elements times inner elements. Both spaces are split into boxes. A
// tile is one outer box times one inner box, and its values are stored in registers (arrays in the
// L1 cache). There are two layouts:
// - rows, [outer][inner]: when the inner dims are contiguous in memory;
// - lanes, [inner][outer]: when the outer dims are contiguous (sums over a batch).
// Reductions divide the code into levels: code on level p + 1 reads results of reductions on
// level p. For each outer box and level, the outer tape runs first, then the inner tape over all
// inner boxes. For example, softmax:
//   level 0: inner loads x and reduces its maximum
//   level 1: outer finishes the maximum; inner computes exp(x - max) and reduces its sum
//   level 2: outer finishes the sum; inner divides and stores
#pragma once
#include "backends/cpu/kernels.h"
#include "backends/cpu/step.h"
#include "backends/cpu/workspace.h"
#include "masks.h"

namespace haliax::cpu {

constexpr int max_dims = 16;

// number of values: 1, one per outer element of a tile, one per inner element, or one per element
enum class Extent : std::uint8_t { one, outer, inner, full };
constexpr Extent operator|(Extent a, Extent b) {
  return static_cast<Extent>(static_cast<int>(a) | static_cast<int>(b));
}
constexpr std::int64_t points_of(Extent e, std::int64_t outer, std::int64_t inner) {
  return ((static_cast<int>(e) & 1) ? outer : 1) * ((static_cast<int>(e) & 2) ? inner : 1);
}
constexpr bool varies_by_outer(Extent e) { return static_cast<int>(e) & 1; }
constexpr bool varies_by_inner(Extent e) { return static_cast<int>(e) & 2; }

// A view or an iota, with its dims in iteration order.
struct Access {
  Place place;
  program::View view;  // as in the Program
  Dims strides;        // in elements
  DType dtype = DType::f32;
  bool iota = false;
  std::int64_t start = 0;     // iota: value at the origin
  bool direct = false;        // registers may alias the memory
  bool non_temporal = false;  // a store that bypasses the caches, see mark_non_temporal
  // registers may alias memory in the lanes layout with any row pitch, because only reductions read
  // them
  bool only_reduced = false;
};

// The operation of a map, for passes that generate other code for it.
struct MapOp {
  enum Kind : std::uint8_t { nothing, instruction, exp_of_difference, round, convert };
  Kind kind = nothing;
  program::Code code = program::Code::add;  // for `instruction`
  LaneType from = LaneType::f32;  // lane type of the operands; for `select`, of the two choices
  DType to = DType::f32;          // dtype of the result
};

// How the elements of an array are stored: in the four bytes of a lane, or in fewer.
enum class Stored : std::uint8_t { word, bf16, boolean };
constexpr std::int64_t bytes_of(Stored s) {
  return s == Stored::word ? 4 : s == Stored::bf16 ? 2 : 1;
}
constexpr Stored stored_as(DType d) {
  return d == DType::bf16 ? Stored::bf16 : d == DType::boolean ? Stored::boolean : Stored::word;
}

struct Op {
  enum Kind : std::uint8_t {
    map,       // a kernel over all elements
    map_rows,  // the same row by row: an operand may have one value per row, or one row for all
    load,
    iota,
    store,
    reduce,     // adds a tile, in[0], to the accumulators of a reduction
    pick,       // a reduction that reads in[0] at one position per row, in[1] (one_hot.h)
    poke,       // adds in[1] to in[0] at one position per row, in[2], or subtracts it (one_hot.h)
    finish,     // accumulators to values
    expand,     // broadcasts in[0], which is one value per row, or one row
    splat,      // broadcasts in[0], which is one value
    recode,     // bitcast of in[0] through memory, in[1]
    assembled,  // several maps as one function; AssembledOps has the operands
    check_zero  // checks that the elements of in[0] that a mask hides are 0
  };
  Kind kind = map;
  Extent extent = Extent::one;  // number of values
  bool outer_access = false;    // load, store, iota: accessed once per outer element
  // map_rows, expand: extents of the operands; poke: extent of the added value; pick, poke: extent
  // of the ids
  Extent from[2] = {Extent::full, Extent::full};
  LaneType lane = LaneType::f32;           // lane type of the result
  int out = -1, in[4] = {-1, -1, -1, -1};  // indices of values
  int access = -1, reduction = -1;
  // map, map_rows, poke: the access of the store that consumes the result; the result is written
  // there directly
  int into = -1;
  MapOp map_op;              // map, map_rows
  bool scalar[4] = {};       // map: operands that are one value for all elements
  int assembled_index = -1;  // into FusedPlan::assembled
  Kernel kernel = nullptr;
  FetchingKernel fetching = nullptr;  // map: used instead of `kernel`
  LoadRows load_rows = nullptr;
  StoreRows store_rows = nullptr;
  // store: the elements of the value, otherwise those of memory; reduce: those of the tile
  Stored stored = Stored::word;
  // load: the value may alias rows of memory with gaps between them, because only assembled ops
  // read it
  bool may_have_gaps = false;
};
using Tape = std::vector<Op>;

// Several ops as one function (assemble/assemble.h), for one element. Values are numbered: inputs
// first, then the result of each op. For example, exp(x - y) for an array x and a scalar y has the
// inputs {array, one}, the ops {sub(0, 1), exp(2)} and the output 3.
struct MapCode {
  struct Op {
    MapOp map;
    int args[4] = {-1, -1, -1, -1};
  };
  struct Input {
    bool is_array;  // one value per element; otherwise one value for all
    Stored stored = Stored::word;
  };
  struct Output {
    int value;
    Stored stored = Stored::word;
    bool non_temporal = false;  // in memory on cache lines of its own
  };
  std::vector<Input> inputs;
  std::vector<Op> ops;
  std::vector<Output> outputs;  // each value once
  bool fetches_inputs = false;  // prefetch ahead in the inputs instead of AssembledCall::prefetch
};
struct AssembledCall;
using AssembledCode = void (*)(const AssembledCall*);
// Machine code of assembled ops; null: none.
struct AssembledVariants {
  AssembledCode plain = nullptr;
  AssembledCode non_temporal = nullptr;  // with non-temporal stores
};
struct AssembledOps {
  // one value per element; one for all; one per row; one row shared by all rows
  enum class Broadcast : std::uint8_t { each, one, of_row, along_row };
  struct Input {
    int value;
    Broadcast broadcast;
    Stored stored = Stored::word;
    friend bool operator==(const Input&, const Input&) = default;
  };
  struct Output {
    int value;
    int into = -1;  // as Op::into
    Stored stored = Stored::word;
    bool non_temporal = false;
    // the value may be written to rows of `into` with gaps between them; only the store reads it
    bool may_have_gaps = false;
  };
  std::vector<Input> in;
  std::vector<Output> out;
  bool may_have_gaps = false;  // some input or output may
  bool by_row = false;         // called once per row
  MapCode code;
  AssembledVariants variants;
};

// The storage of a value.
struct Register {
  enum Home : std::uint8_t { none, pool, outer, inner };
  Home home = none;
  LaneType lane = LaneType::f32;
  Extent extent = Extent::one;  // number of values
  std::int64_t offset = 0;      // in bytes, in the pool or the workspace
  // bf16 or bools: a load that is only read by assembled ops, or by reductions of bytes
  Stored stored = Stored::word;
};

struct FusedPlan {
  int dims = 0, outer_dims = 0;  // dims in iteration order: outer dims, then inner dims
  std::int64_t size[max_dims], box[max_dims];
  bool inner_major = false;       // tiles are [inner][outer]
  bool serial = false;            // one element after another
  bool single_inner_box = false;  // one inner box: values stay in registers across levels
  // all inputs are only reduced, so prefetching brings no gain
  bool only_reduces = true;
  // the inputs of an outer box stay in the second-level cache across levels
  bool stays_in_cache = false;
  // Rows are the outer elements and columns the inner ones; the other way round if inner_major.
  Extent row() const { return inner_major ? Extent::inner : Extent::outer; }
  // Returns true for one value per element of a tile.
  bool is_full(Extent e) const {
    return points_of(e, outer_box, inner_box) == outer_box * inner_box;
  }
  std::int64_t outer_points = 1, inner_points = 1, outer_boxes = 1, inner_boxes = 1;
  std::int64_t outer_box = 1, inner_box = 1;  // elements of a full box
  // number of parts of the inner space of an outer box that run in parallel
  std::int64_t chunks = 1;
  std::int64_t blocks = 1, boxes_per_block = 1;

  std::vector<Access> accesses;
  std::vector<Reduction> reductions;
  std::vector<int> reduction_level;
  std::vector<Register> values;
  Tape prologue;   // values that are the same for all tiles; runs once per run, into the pool
  Tape constants;  // runs at compile time, into the pool
  std::vector<Tape> outer, inner;  // by level
  Tape outer_stores;
  std::vector<AssembledOps> assembled;
  // the positions are accesses; empty: all rows are iterated to their ends
  std::vector<PositionMask> row_masks;
  std::vector<int> filled;  // accesses of the stores whose masked elements are filled in afterwards
  int levels = 1;
  // Returns the level of the last pass over the inner elements.
  std::size_t last_pass() const {
    std::size_t level = inner.size();
    while (level > 1 && inner[level - 1].empty()) --level;
    return level - 1;
  }

  std::int64_t pool_bytes = 0, register_bytes = 0;
  std::vector<std::int64_t> accumulator_offset;  // in the workspace
  std::vector<std::int64_t> partial_offset;      // in the scratch memory, [chunk][outer element]
  std::int64_t scratch_bytes = 0;
  std::vector<std::pair<int, double>> float_constants;  // by value index
  std::vector<std::pair<int, std::int64_t>> integer_constants;
};

// Without a context, slots with different indices are assumed to be different memory.
FusedPlan plan_fused(const program::Fused&, const Context*);
// Calls f for each value that an op reads; each_created calls f for each value that an op computes.
template <class F> void each_read(const FusedPlan& plan, const Op& op, const F& f) {
  for (int v : op.in)
    if (v >= 0) f(v);
  if (op.kind == Op::assembled)
    for (auto& in : plan.assembled[static_cast<std::size_t>(op.assembled_index)].in) f(in.value);
}
template <class F> void each_created(const FusedPlan& plan, const Op& op, const F& f) {
  if (op.out >= 0) f(op.out);
  if (op.kind == Op::assembled)
    for (auto& out : plan.assembled[static_cast<std::size_t>(op.assembled_index)].out) f(out.value);
}
inline bool same_memory(const Context* context, int slot_a, int slot_b) {
  return slot_a == slot_b || (context && context->overlap(slot_a, slot_b));
}
// Marks stores of large arrays, which the step does not read, as non-temporal: they write around
// the caches. A cached store would read each line first, and evict data that is still in use.
void mark_non_temporal(FusedPlan&, const Context*);
// Lets ops write results directly to the memory of their store (Op::into), unless that memory is
// read after the result is computed.
void store_in_place(FusedPlan&, const Context*);
void place_registers(FusedPlan&);

}  // namespace haliax::cpu
