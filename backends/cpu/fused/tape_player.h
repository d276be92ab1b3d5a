// Run: plays the tapes of a fused step on one tile.
#pragma once
#include "tile_values.h"

namespace haliax::cpu {

class TapePlayer {
 public:
  explicit TapePlayer(const FusedRun& run) : values(run) {}
  void play(const Tape& tape) {
    for (const Op& op : tape) play(op);
  }
  // Drops the prefetches of the previous tile.
  void start_tile() { ahead_.drop(); }
  TileValues values;
  Tile next;                        // the next outer box
  std::int64_t visible_points = 0;  // elements per row; 0: all
  bool hides_nonzero = false;       // some hidden element was nonzero
  enum { nothing, next_tile, next_row } prefetched = next_tile;

 private:
  void play(const Op& op);
  // Ops, in the order of Op::Kind. n: number of elements.
  void map(const Op& op, std::int64_t n);
  void map_rows(const Op& op);
  void load(const Op& op, std::int64_t n);
  void iota(const Op& op);
  void store(const Op& op);
  void reduce(const Op& op);
  void pick(const Op& op);
  void poke(const Op& op, std::int64_t n);
  void check_zero(const Op& op);

  void call(const Op& op, void* out, const void* const* in, std::int64_t n);
  void schedule_prefetch(const Access& access, const std::byte* memory, std::int64_t bytes);
  std::int64_t pitch_of(int v) const;
  template <class F> void each_picked(const Op& op, int ids, const F& f);

  int pitched_ = -1;  // the value that aliases memory with a row pitch
  std::int64_t pitch_ = 0;
  Prefetcher ahead_;
};

}  // namespace haliax::cpu
