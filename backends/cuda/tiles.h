// Scores, and what is made of them row by row, as tiles that lie in registers alone (device/tile.h). Of the steps of a body, what
// is as wide as a row and lives among them is never stored: whoever reads it makes it again, tile by tile, from the products and
// the instructions that it comes from. What those who read it leave behind, folds of rows and products, is made in passes over
// all columns, as few as their order allows.
#pragma once
#include <functional>
#include <memory>
#include <set>

#include "codes.h"
#include "text.h"

namespace haliax::cuda {

struct TileOperand {                             // lines x terms, strides in elements; of what loops over its blocks, the first
  program::View view = {};
  std::int64_t line = 0, term = 0;
  friend bool operator==(const TileOperand&, const TileOperand&) = default;
};
struct TileProduct {
  enum class Kind { makes, over_columns, over_rows } kind = Kind::makes;
  TileOperand x = {};                            // rows x terms; of products over columns: the tile
  TileOperand y = {};                            // columns x terms; of products over rows: the tile
  TileOperand out = {};                          // over columns: rows x terms; over rows: columns x terms
  std::int64_t terms = 1;
  DType dtype = DType::bf16;                     // of both operands
  bool adds = false, filled = false;             // filled: 0 where it is left out, else anything
  int value = -1;                                // the instruction that it is, or that it multiplies
  int at = 0;                                    // among the steps
  bool has_flags = false;                        // of each block of columns: is it made?
  program::View flag = {};
  std::int64_t flag_step = 0;
  int depth() const { return int((terms + 15) / 16 * 16); }
};
struct TileAction {
  const program::Step* step = nullptr;           // as it is
  int flags = -1;                                // those of this product are read
  std::vector<int> folds = {}, products = {}, stores = {};   // a pass makes these
  bool is_pass() const { return !step && flags < 0; }
};
// All that is made of the columns of `rows` points, over one space: the dims of the rows, then those of the columns.
struct TileGroup {
  program::Dims rows, columns;
  std::int64_t width = 0;                        // columns of a block that has a flag
  std::vector<program::Instr> code;              // of all fused steps; args are those here
  std::vector<program::Dims> strides;            // of a load, a store or an iota, along the space
  std::vector<int> tile_of, home;                // which product an instruction is, or -1; the step that it comes from
  std::vector<TileProduct> products;
  std::vector<TileAction> actions;
  std::set<int> unused;                          // slots that are never in memory

  std::set<int> sources(int instr) const;        // itself and what it is made of, as far back as folds
  std::int64_t kept_bytes() const;               // of shared memory, for the results of folds
  std::int64_t kept_at(int fold) const;
  std::int64_t stage_bytes() const;              // of shared memory, that the largest pass takes
  int first_of(const TileAction& pass) const;    // step that it makes something of
  int registers() const;                         // that a thread has for tiles, operands and sums, in the largest pass
};

inline bool is_narrow(DType d) { return d == DType::bf16 || d == DType::f16; }
// What else lives among the steps lies in memory of its own, if it takes no more than this.
inline constexpr std::int64_t small_bytes = 32 << 10;
// is_own: does this slot (an own one, not an alias) live among the steps? Nothing: they are made one by one.
std::unique_ptr<TileGroup> tile_group(const std::vector<program::Step>&, const program::Program&,
                                      const std::function<bool(int)>& is_own);
// The text of a pass, or that gives a product's flags to the variable `flagsN`.
std::string tile_text(const TileGroup&, const TileAction&, Around&, std::int64_t kept_start);

}  // namespace haliax::cuda
