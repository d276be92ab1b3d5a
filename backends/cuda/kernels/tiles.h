// Attention scores, and values computed from them row by row, as tiles in registers
// (device/tile.h).
//
// In      the steps of a loop body.
// Out     a TileGroup, whose actions run in place of the steps. A wide value has one element per
//         row and column, and only steps of the body access it. It is never materialized: each
//         reader recomputes it, tile by tile, from matmuls and elementwise instructions. Passes
//         over all columns compute the results of the readers: row reductions and matmuls. There
//         are as few passes as the dependencies allow.
// Always  each pass reads the values that the original steps read.
//
// For example, the body of the forward pass of attention is s = q k^T, m = max(s),
// p = exp(s - m), l = sum(p), o = (p / l) v. Here s, p and p / l are wide. One pass can compute m,
// l and o (see Scaled).
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <set>

#include "codes.h"
#include "kernel_source.h"

namespace haliax::cuda {

// A matrix of lines x terms, with strides in elements. If a loop runs over blocks of the matrix,
// the view is that of the first block.
struct TileOperand {
  program::View view = {};
  std::int64_t line = 0, term = 0;
  friend bool operator==(const TileOperand&, const TileOperand&) = default;
};
// A matmul with a wide operand or result.
// - makes         tile = x y^T, contracted over terms; `out` is the tile
// - over_columns  out = tile y, contracted over the columns
// - over_rows     out = tile^T x, contracted over the rows
struct TileProduct {
  enum class Kind { makes, over_columns, over_rows } kind = Kind::makes;
  TileOperand x = {};    // rows x terms; over_columns: the tile
  TileOperand y = {};    // columns x terms; over_rows: the tile
  TileOperand out = {};  // over_columns: rows x terms; over_rows: columns x terms
  std::int64_t terms = 1;
  DType dtype = DType::bf16;  // the dtype of both operands
  // adds: accumulates into `out`; filled: skipped blocks are 0, otherwise they are undefined
  bool adds = false, filled = false;
  int value = -1;          // the instruction of the tile: the result (makes) or an operand
  int at = 0;              // index of the first of its steps
  bool has_flags = false;  // true: a flag per block of columns, false for skipped blocks
  program::View flag = {};
  std::int64_t flag_step = 0;
  // Returns the number of terms, rounded up to the depth of mma.sync.
  int depth() const { return int((terms + 15) / 16 * 16); }
};
// One action of a group: a step, a read of flags, or a pass over the columns.
struct TileAction {
  const program::Step* step = nullptr;  // a step that runs unchanged
  int flags = -1;                       // the matmul whose flags are read
  // The results of a pass: reductions and stores (instructions), and matmuls (indices in
  // TileGroup::products).
  std::vector<int> folds = {}, products = {}, stores = {};
  // `top` is a maximum that this pass computes. The early reductions and matmuls depend on it, and
  // the same pass computes them from the running maximum (Scaled).
  int top = -1;
  std::vector<int> early_reductions = {}, early_products = {};
  // The earlier action whose early results this pass completes, since it did not process all
  // blocks of columns. Matmuls add the other blocks; reductions are computed again over all blocks.
  int remainder_of = -1;
  bool is_pass() const { return !step && flags < 0; }
  std::vector<int> all_folds() const { return joined(folds, early_reductions); }
  std::vector<int> all_products() const { return joined(products, early_products); }
  std::set<int> pending() const;  // reductions that are unknown until the pass ends
  static std::vector<int> joined(std::vector<int> a, const std::vector<int>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
};
// All tile computations of a body, over one iteration space: the dims of the rows, then the dims of
// the columns.
struct TileGroup {
  program::Dims rows, columns;
  std::int64_t width = 0;              // columns per block that has a flag
  std::vector<program::Instr> code;    // all instructions; args index this list
  std::vector<program::Dims> strides;  // per load, store and iota, along the space
  // per instruction: the matmul that computes it, or -1; the index of its original step
  std::vector<int> product_of, home;
  std::vector<TileProduct> products;
  std::vector<TileAction> actions;
  std::set<int> unused;  // slots that are never materialized

  // Returns this instruction and all instructions that it depends on. Reductions are in the result,
  // their operands are not. For example, given m = max(s) and p = exp(s - m), the sources of p are
  // p, s - m, s and m.
  std::set<int> sources(int instr) const;
  // Returns true if one of these reductions is among the sources of the instruction.
  bool waits(int instr, const std::set<int>& folds) const;
  // Returns the bytes of shared memory for the results of all reductions.
  std::int64_t fold_result_bytes() const;
  std::int64_t fold_result_offset(int fold) const;
  // Returns the bytes of shared memory that the largest pass requires.
  std::int64_t stage_bytes() const;
  // Returns the index of the first step of which the pass computes a part.
  int first_of(const TileAction& pass) const;
  // Returns the registers per thread for tiles, operands and sums, in the largest pass.
  int registers() const;
};

// The instructions in a skipped block of columns. There the tile of a matmul is 0 if it is filled,
// and undefined otherwise. No result may depend on an undefined value, so a select between it and
// another value becomes the other value. The states of an instruction are
// - unknown  undefined
// - inner    one value per element
// - row      one value per row
struct SkippedBlock {
  enum class State { unknown, inner, row };
  std::vector<program::Instr> code;
  std::vector<State> states;
  explicit SkippedBlock(const TileGroup&);
  // Returns true if the operand of the reduction has one value per row, and the reduction can
  // include it for any number of columns without computing them.
  bool folds(const TileGroup&, int fold) const;

 private:
  // Replaces the instruction by its form in a skipped block, and returns its state.
  State simplify(const TileGroup&, std::size_t);
};
// The blocks of columns that a pass processes: all blocks if `always`, otherwise each block that at
// least one of the matmuls in `flags` computes.
struct NeededBlocks {
  std::set<int> flags = {};
  bool always = false;
};
NeededBlocks needed_blocks(const TileGroup&, const SkippedBlock&, const std::vector<int>& folds,
                           const std::vector<int>& products);

// A value that is linear in exp(x - shift), where shift is computed from the maximum of x. With
// another shift, the value changes by a factor: exp(x - a) = exp(x - b) * exp(b - a). A sum can
// therefore start with the maximum of the columns so far, and is rescaled when the maximum grows,
// as in online softmax.
struct Scaled {
  int shift = -1;  // an instruction with one value per row, without lossless casts
  // row values, unknown until the pass ends, by which it is multiplied (true: divided)
  std::vector<std::pair<int, bool>> factors = {};
};
// Returns the scaled form of a value, or nullopt if it has another form.
// - top        the maximum.
// - pending    `top` and other reductions that are unknown until the pass ends.
// - may_round  accepts values that are rounded to 16-bit floats. They are then rounded before the
//              scaling, with the same relative error. This holds for operands of matmuls. A
//              reduction must instead add the rounded values that other readers use.
std::optional<Scaled> scaled(const TileGroup&, int value, int top, const std::set<int>& pending,
                             bool may_round);
// Returns h if the instruction multiplies h by a row value that depends on `pending`, or divides h
// by it; otherwise -1.
int without_factor(const TileGroup&, int instr, const std::set<int>& pending);

inline bool is_16_bit(DType d) { return d == DType::bf16 || d == DType::f16; }
// The largest size, in bytes, of a value of the body that has memory of its own. Larger values may
// share memory.
inline constexpr std::int64_t small_bytes = 32 << 10;
// Finds the tile group of the steps of a body. is_own returns true for a slot (no alias) that only
// these steps access. Returns nullptr if the steps do not fit; they then run one by one.
std::unique_ptr<TileGroup> tile_group(const std::vector<program::Step>&, const program::Program&,
                                      const std::function<bool(int)>& is_own);
// Returns the kernel source of a pass, or of an action that reads the flags of matmul N into the
// variable `flagsN`. The results of reductions begin at the last argument, in bytes of shared
// memory.
std::string tile_source(const TileGroup&, const TileAction&, NestContext&,
                        std::int64_t results_start);

}  // namespace haliax::cuda
