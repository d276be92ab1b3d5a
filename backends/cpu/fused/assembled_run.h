// Run: calls an assembled function on a tile.
#pragma once
#include "tile_values.h"

namespace haliax::cpu {

class AssembledRun {
 public:
  AssembledRun(TileValues& values, Prefetcher& prefetcher)
      : values_(values), prefetcher_(prefetcher) {}
  // `points`: number of elements.
  void run(const Op& op, std::int64_t points);

 private:
  AssembledCode code_for(const AssembledOps& ops, bool by_row, std::int64_t n) const;
  std::int64_t columns_of_rows(const Op& op, const AssembledOps& ops) const;
  void close_gaps(const AssembledOps::Input& in, std::int64_t points);

  TileValues& values_;
  Prefetcher& prefetcher_;
};

}  // namespace haliax::cpu
