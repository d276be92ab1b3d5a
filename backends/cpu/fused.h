// A fused step as tapes of operations over tiles.
//
// The points of a step are outer points times inner points. Both spaces are cut in boxes; a tile is
// one outer box times one inner box and lies in registers (arrays in L1) in either order: rows,
// [outer][inner], when the inner dimensions are the contiguous ones; lanes, [inner][outer], when
// the outer ones are (sums over a batch). Reductions cut the code in levels: what is on level p
// needs the results of reductions of level p - 1. For each outer box and level: the outer tape,
// then the inner tape over all inner boxes.
#pragma once
#include "kernels.h"
#include "masked_rows.h"
#include "step.h"
#include "workspace.h"

namespace haliax::cpu {

constexpr int max_dims = 16;

// values: 1, one for each outer point of a tile, each inner one, each point
enum class Extent : std::uint8_t { one, outer, inner, full };
constexpr Extent operator|(Extent a, Extent b) {
  return static_cast<Extent>(static_cast<int>(a) | static_cast<int>(b));
}
constexpr std::int64_t points_of(Extent e, std::int64_t outer, std::int64_t inner) {
  return ((static_cast<int>(e) & 1) ? outer : 1) * ((static_cast<int>(e) & 2) ? inner : 1);
}

struct Access {  // a view, or an iota, in walk order
  Place place;
  program::View view;  // as in the program
  Dims strides;        // in elements
  DType dtype = DType::f32;
  bool iota = false;
  std::int64_t start = 0;  // iota: its value at the origin
  bool direct = false;     // registers may be the memory itself
  // and where it is lanes, whatever lies between rows: reductions alone read it
  bool only_reduced = false;
};

// What a map does, for who makes other code of it.
struct PointOp {
  enum Action : std::uint8_t { nothing, code, exp_of_difference, round, convert } action = nothing;
  program::Code what = program::Code::add;  // code
  LaneType from = LaneType::f32;            // of the operands; of a choice, of both sides
  DType to = DType::f32;                    // of the result
};

struct Op {
  enum Kind : std::uint8_t {
    map,
    map_rows,
    load,
    iota,
    store,
    reduce,
    pick,
    poke,
    finish,
    expand,
    splat,
    recode,
    assembled,
    zero
  };
  Kind kind = map;
  Extent extent = Extent::one;  // how many values
  bool outer_access = false;    // load, store, iota: at the outer point
  // map_rows, expand: how many values the operands have; poke: what is added; pick, poke: ids
  Extent from[2] = {Extent::full, Extent::full};
  LaneType lane = LaneType::f32;           // of the result
  int out = -1, in[4] = {-1, -1, -1, -1};  // numbers of values
  int access = -1, reduction = -1;
  // map, map_rows, poke: the access of the store that the result is for: made there
  int into = -1;
  PointOp point;     // map, map_rows
  bool one[4] = {};  // map: operands that are one value for all points
  int which = -1;    // assembled: of the plan's, where its operands stand
  Kernel kernel = nullptr;
  FetchingKernel fetching = nullptr;  // map: in place of a kernel
  Load load_run = nullptr;
  Store store_run = nullptr;
};
using Tape = std::vector<Op>;

// Several ops as one (assemble.h): what is made at a point. Values are numbered: the inputs come
// first, then the result of each op.
struct PointCode {
  struct Op {
    PointOp action;
    int args[4] = {-1, -1, -1, -1};
  };
  // one value for all points, or one for each; as f32 lies in memory as bf16
  enum class Input : std::uint8_t { one, array, bf16 };
  struct Output {
    int value;
    bool bf16 = false;  // it is one, and goes to memory as such
  };
  std::vector<Input> inputs;
  std::vector<Op> ops;
  std::vector<Output> outputs;  // each once
  bool fetches_inputs = false;  // ahead of where they are read, in place of what the call says
};
struct AssembledCall;
using AssembledCode = void (*)(const AssembledCall*);
struct AssembledOps {
  // a value for each point, for all, for each row, one row for all
  enum class Broadcast : std::uint8_t { each, one, of_row, along_row };
  struct Input {
    int value;
    Broadcast broadcast;
    bool narrow = false;  // may be bf16 in memory
    friend bool operator==(const Input&, const Input&) = default;
  };
  struct Output {
    int value;
    int into = -1;        // as Op::into
    bool narrow = false;  // there it is bf16
  };
  std::vector<Input> in;
  std::vector<Output> out;
  bool by_row = false;  // called row by row
  PointCode point;
  AssembledCode code = nullptr;
  AssembledCode bf16_code = nullptr;  // where all that may be bf16 in memory are; null: never
};

struct Register {  // where a value lies
  enum Home : std::uint8_t { none, pool, outer, inner };
  Home home = none;
  LaneType lane = LaneType::f32;
  Extent extent = Extent::one;  // how many values
  std::int64_t offset = 0;      // bytes, in the pool or the workspace
  // it may be bf16 in memory, where that lies dense: assembled ops alone read it
  bool narrow = false;
};

struct FusedPlan {
  int dims = 0, outer_dims = 0;  // walk order: outer dims, then inner dims
  std::int64_t size[max_dims], box[max_dims];
  bool inner_major = false;       // tiles are [inner][outer]
  bool serial = false;            // one point after the other
  bool single_inner_box = false;  // one inner box: values stay in registers from level to level
  // what is read is folded, and nothing else: nothing is gained by fetching it ahead
  bool only_reduces = true;
  // what is read of an outer box stays in the second cache from level to level
  bool stays_in_cache = false;
  // Rows are the outer points and columns the inner ones, or the other way round.
  Extent row() const { return inner_major ? Extent::inner : Extent::outer; }
  std::int64_t outer_points = 1, inner_points = 1, outer_boxes = 1, inner_boxes = 1;
  std::int64_t outer_box = 1, inner_box = 1;  // points of a full box
  // the inner space of an outer box is cut in this many parts that run side by side
  std::int64_t chunks = 1;
  std::int64_t blocks = 1, boxes_per_block = 1;

  std::vector<Access> accesses;
  std::vector<Reduction> reductions;
  std::vector<int> reduction_level;
  std::vector<Register> values;
  Tape prologue;                   // what is the same for all tiles; run once, into the pool
  Tape constants;                  // run when compiled, into the pool
  std::vector<Tape> outer, inner;  // by level
  Tape outer_stores;
  std::vector<AssembledOps> assembled;
  // their positions are accesses; none: rows are walked to their ends
  std::vector<RowMask> row_masks;
  std::vector<int> filled;  // accesses of the stores whose hidden points are filled in
  int levels = 1;
  std::size_t last_pass() const {  // the level of the last sweep over the inner points
    std::size_t level = inner.size();
    while (level > 1 && inner[level - 1].empty()) --level;
    return level - 1;
  }

  std::int64_t pool_bytes = 0, register_bytes = 0;
  std::vector<std::int64_t> accumulator_offset;  // in the workspace
  std::vector<std::int64_t> partial_offset;      // in the scratch, [chunk][outer point]
  std::int64_t scratch_bytes = 0;
  std::vector<std::pair<int, double>> numbers;  // constants: value -> number
  std::vector<std::pair<int, std::int64_t>> integers;
};

// Without a context slots with different numbers are taken to be different memory.
FusedPlan plan_fused(const program::Fused&, const Context*);
// Calls f for each value that an op reads, or makes.
template <class F> void each_read(const FusedPlan& plan, const Op& op, const F& f) {
  for (int v : op.in)
    if (v >= 0) f(v);
  if (op.kind == Op::assembled)
    for (auto& in : plan.assembled[static_cast<std::size_t>(op.which)].in) f(in.value);
}
template <class F> void each_made(const FusedPlan& plan, const Op& op, const F& f) {
  if (op.out >= 0) f(op.out);
  if (op.kind == Op::assembled)
    for (auto& out : plan.assembled[static_cast<std::size_t>(op.which)].out) f(out.value);
}
inline bool same_memory(const Context* context, int slot_a, int slot_b) {
  return slot_a == slot_b || (context && context->overlap(slot_a, slot_b));
}
// What is made for a store is made where it will be (Op::into), unless that memory is read after it
// has been made.
void store_in_place(FusedPlan&, const Context*);
void place_registers(FusedPlan&);

}  // namespace haliax::cpu
