// Attention as tiles in registers; see tiles.h.
#include "tiles.h"

#include <algorithm>

#include "tile_finder.h"

namespace haliax::cuda {

using namespace program;

std::set<int> TileGroup::sources(int instr) const {
  std::set<int> out;
  auto walk = [&](auto& self, int i) -> void {
    if (!out.insert(i).second || (i != instr && is_reduction(code[std::size_t(i)].code))) return;
    for (int a : operands(code[std::size_t(i)])) self(self, a);
  };
  walk(walk, instr);
  return out;
}
std::int64_t TileGroup::fold_result_offset(int fold) const {
  std::int64_t before = 0;
  for (int i = 0; i < fold; ++i) before += is_reduction(code[std::size_t(i)].code);
  return before * points(rows) * 8;
}
int TileGroup::first_of(const TileAction& pass) const {
  int first = 1 << 30;
  for (int p : pass.all_products()) first = std::min(first, products[std::size_t(p)].at);
  for (auto& all : {pass.all_folds(), pass.stores})
    for (int i : all) first = std::min(first, home[std::size_t(i)]);
  return first;
}
std::int64_t TileGroup::fold_result_bytes() const {
  return aligned(fold_result_offset(int(code.size())));
}

std::unique_ptr<TileGroup> tile_group(const std::vector<Step>& steps, const Program& p,
                                      const std::function<bool(int)>& is_own) {
  const TileBody body{steps, p, is_own};
  auto found = find_parts(body);
  if (!found || !schedule_parts(body, *found)) return nullptr;
  return std::make_unique<TileGroup>(std::move(found->group));
}

}  // namespace haliax::cuda
