// The steps of a loop body as parts of a tile group, and their order.
#pragma once
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "program/views.h"
#include "tiles.h"

namespace haliax::cuda {

// Calls f(view, writes) for each view of a step, and of the steps of its body.
template <class F> void each_view_within(const program::Step& s, const F& f) {
  each_view(s, f);
  each_step(s.body, [&](auto& inner) { each_view(inner, f); });
}
// Returns the strides of the dims that are not 1.
program::Dims strides_of(const program::Dims& dims, program::Dims strides);
inline program::View bare(program::View v) {  // without strides
  v.strides.clear();
  return v;
}

// The steps of the body. is_own: see tile_group.
struct TileBody {
  const std::vector<program::Step>& steps;
  const program::Program& program;
  const std::function<bool(int)>& is_own;

  // Returns the slot whose memory a slot shares, or the slot itself.
  int root(int slot) const { return slot < 0 ? slot : program.memory(slot); }
  // Returns true if two slots may share memory. Small slots of the body do not.
  bool overlap(int x, int y) const {
    auto &a = program.slot(x), &b = program.slot(y);
    auto shares = [&](int slot) { return is_own(slot) && program.slot(slot).bytes > small_bytes; };
    return x == y || (shares(x) && shares(y) && a.offset < b.offset + b.bytes &&
                      b.offset < a.offset + a.bytes);
  }
};

// A part of the computation: a step, a read of flags, a matmul, a reduction or a store.
struct TileNode {
  int at = 0;
  const program::Step* step = nullptr;
  int flags = -1, product = -1, fold = -1, store = -1;
  std::set<int> reads = {}, writes = {};  // slots
  std::set<int> folds = {};               // reductions that it depends on
  bool is_tile() const { return product >= 0 || fold >= 0; }
};

// The parts that the steps compute, in the order of the steps.
struct FoundTiles {
  TileGroup group = {};
  std::vector<TileNode> nodes = {};
};

// Finds the parts (tile_finder.cpp). Returns nullopt if the steps do not fit.
std::optional<FoundTiles> find_parts(const TileBody&);
// Orders the parts, and groups them into the actions of the group (tile_schedule.cpp). Returns
// false if there is no such order.
bool schedule_parts(const TileBody&, FoundTiles&);

}  // namespace haliax::cuda
