// Scores, and what is made of them row by row, as tiles that lie in registers alone
// (device/tile.h). Of the steps of a body, what is as wide as a row and lives among them is never
// stored: whoever reads it makes it again, tile by tile, from the products and the instructions
// that it comes from. What those who read it leave behind, folds of rows and products, is made in
// passes over all columns, as few as their order allows.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <set>

#include "codes.h"
#include "kernel_source.h"

namespace haliax::cuda {

// lines x terms, strides in elements; of what loops over its blocks, the first
struct TileOperand {
  program::View view = {};
  std::int64_t line = 0, term = 0;
  friend bool operator==(const TileOperand&, const TileOperand&) = default;
};
struct TileProduct {
  enum class Kind { makes, over_columns, over_rows } kind = Kind::makes;
  TileOperand x = {};    // rows x terms; of products over columns: the tile
  TileOperand y = {};    // columns x terms; of products over rows: the tile
  TileOperand out = {};  // over columns: rows x terms; over rows: columns x terms
  std::int64_t terms = 1;
  DType dtype = DType::bf16;          // of both operands
  bool adds = false, filled = false;  // filled: 0 where it is left out, else anything
  int value = -1;                     // the instruction that it is, or that it multiplies
  int at = 0;                         // among the steps
  bool has_flags = false;             // of each block of columns: is it made?
  program::View flag = {};
  std::int64_t flag_step = 0;
  int depth() const { return int((terms + 15) / 16 * 16); }
};
struct TileAction {
  const program::Step* step = nullptr;                      // as it is
  int flags = -1;                                           // those of this product are read
  std::vector<int> folds = {}, products = {}, stores = {};  // a pass makes these
  // Folds and products that wait for a maximum which this pass makes, too: they are made with the
  // maximum so far (Scaled).
  int top = -1;
  std::vector<int> early_reductions = {}, early_products = {};
  // what this action made early, where there are more blocks than it walked over
  int remainder_of = -1;
  bool is_pass() const { return !step && flags < 0; }
  std::vector<int> all_folds() const { return joined(folds, early_reductions); }
  std::vector<int> all_products() const { return joined(products, early_products); }
  std::set<int> pending() const;  // folds that are not known before the end of the pass
  static std::vector<int> joined(std::vector<int> a, const std::vector<int>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
};
// All that is made of the columns of `rows` points, over one space: the dims of the rows, then
// those of the columns.
struct TileGroup {
  program::Dims rows, columns;
  std::int64_t width = 0;              // columns of a block that has a flag
  std::vector<program::Instr> code;    // of all fused steps; args are those here
  std::vector<program::Dims> strides;  // of a load, a store or an iota, along the space
  // which product an instruction is, or -1; the step that it comes from
  std::vector<int> product_of, home;
  std::vector<TileProduct> products;
  std::vector<TileAction> actions;
  std::set<int> unused;  // slots that are never in memory

  std::set<int> sources(int instr) const;  // itself and what it is made of, as far back as folds
  bool waits(int instr, const std::set<int>& folds) const;  // is it made of one of these?
  std::int64_t fold_result_bytes() const;  // of shared memory, for the results of folds
  std::int64_t fold_result_offset(int fold) const;
  std::int64_t stage_bytes() const;            // of shared memory, that the largest pass takes
  int first_of(const TileAction& pass) const;  // step that it makes something of
  int registers() const;  // that a thread has for tiles, operands and sums, in the largest pass
};

// What becomes of the instructions of a block that is left out. There a tile is 0 if it is filled,
// else nothing that anybody may look at: who chooses between it and something else takes the other.
struct SkippedBlock {
  enum class State { unknown, inner, row };
  std::vector<program::Instr> code;
  std::vector<State> states;
  explicit SkippedBlock(const TileGroup&);
  // has it one value for a row, that can be folded any number of times?
  bool folds(const TileGroup&, int fold) const;

 private:
  State look(const TileGroup&, std::size_t);
};
// Blocks of columns that a pass walks over: those that one of these products does not leave out, or
// all of them.
struct NeededBlocks {
  std::set<int> flags = {};
  bool always = false;
};
NeededBlocks needed_blocks(const TileGroup&, const SkippedBlock&, const std::vector<int>& folds,
                           const std::vector<int>& products);

// A value that is linear in exp(x - shift), where shift is made of the maximum of x, is known up to
// a factor as soon as anything is subtracted in its place. So sums of it may begin with the maximum
// of the columns so far, and are scaled when that grows.
struct Scaled {
  int shift = -1;  // a value of a row, without casts that change nothing
  // values of rows, yet unknown, that it is multiplied with; true: divided by
  std::vector<std::pair<int, bool>> factors = {};
};
// top: the maximum; pending: it and other folds that are not known yet; may_round: to narrow
// floats, before it is scaled. So are values that are multiplied, by as much as they would be
// behind it. Sums of what others see rounded are to be sums of that.
std::optional<Scaled> scaled(const TileGroup&, int value, int top, const std::set<int>& pending,
                             bool may_round);
// h, if this instruction is h times (or by) such a factor.
int without_factor(const TileGroup&, int instr, const std::set<int>& pending);

inline bool is_16_bit(DType d) { return d == DType::bf16 || d == DType::f16; }
// What else lives among the steps lies in memory of its own, if it takes no more than this.
inline constexpr std::int64_t small_bytes = 32 << 10;
// is_own: does this slot (an own one, not an alias) live among the steps? Nothing: they are made
// one by one.
std::unique_ptr<TileGroup> tile_group(const std::vector<program::Step>&, const program::Program&,
                                      const std::function<bool(int)>& is_own);
// The text of a pass, or that gives a product's flags to the variable `flagsN`.
std::string tile_source(const TileGroup&, const TileAction&, NestContext&, std::int64_t kept_start);

}  // namespace haliax::cuda
