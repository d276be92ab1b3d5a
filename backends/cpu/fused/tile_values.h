// Run: the tile of a fused step that a thread computes, and where its values are in memory.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/cpu/workspace.h"
#include "fused.h"

namespace haliax::cpu {

struct Tile {
  std::int64_t at[max_dims] = {}, size[max_dims] = {};
  std::int64_t outer = 1, inner = 1;  // number of elements
  std::int64_t position = 0;          // index of the first inner element

  // Sets the tile to box number `box` of the dims [first, last). Returns its number of elements.
  static std::int64_t set(const FusedPlan& plan, Tile& tile, int first, int last,
                          std::int64_t box) {
    std::int64_t points = 1;
    for (int d = last - 1; d >= first; --d) {
      std::int64_t boxes = (plan.size[d] + plan.box[d] - 1) / plan.box[d];
      tile.at[d] = box % boxes * plan.box[d];
      tile.size[d] = std::min(plan.box[d], plan.size[d] - tile.at[d]);
      points *= tile.size[d];
      box /= boxes;
    }
    return points;
  }
  void set_outer(const FusedPlan& plan, std::int64_t box) {
    outer = set(plan, *this, 0, plan.outer_dims, box);
  }
  void set_inner(const FusedPlan& plan, std::int64_t box) {
    inner = set(plan, *this, plan.outer_dims, plan.dims, box);
    position = 0;
    for (int d = plan.outer_dims; d < plan.dims; ++d) position = position * plan.size[d] + at[d];
  }
};

// The layout of a tile in memory: nested runs with constant strides, innermost last, merged where
// possible.
struct Runs {
  int count = 0;
  std::int64_t size[max_dims + 1], stride[max_dims + 1];

  void add(std::int64_t n, std::int64_t step) {
    if (n == 1) return;
    if (count > 0 && stride[count - 1] == step * n) {
      size[count - 1] *= n;
      stride[count - 1] = step;
    } else {
      size[count] = n;
      stride[count++] = step;
    }
  }
  // Calls f(offset in memory, position in the register, strides, rows, n) for each pair of the
  // innermost runs. A single run is one row.
  template <class F> void each_rows(const F& f) const {
    if (count < 2)
      return f(std::int64_t(0), std::int64_t(0), RowStrides{0, count == 0 ? 1 : stride[0]},
               std::int64_t(1), count == 0 ? std::int64_t(1) : size[0]);
    const int row = count - 2, last = count - 1;
    std::int64_t index[max_dims + 1] = {}, memory = 0, position = 0;
    for (;;) {
      f(memory, position, RowStrides{stride[row], stride[last]}, size[row], size[last]);
      position += size[row] * size[last];
      int d = row - 1;
      for (; d >= 0; --d) {
        memory += stride[d];
        if (++index[d] < size[d]) break;
        memory -= stride[d] * size[d];
        index[d] = 0;
      }
      if (d < 0) return;
    }
  }
};

// Returns the offset of a tile in a view, in elements, and adds its layout to `runs`.
inline std::int64_t locate(const FusedPlan& plan, const Tile& tile, const Op& op,
                           const Access& access, Runs& runs) {
  std::int64_t offset = 0;
  const int end = op.outer_access ? plan.outer_dims : plan.dims;
  for (int d = 0; d < end; ++d) offset += tile.at[d] * access.strides[std::size_t(d)];
  if (op.extent == Extent::one) return offset;  // a single element: `runs` stays empty
  auto add = [&](int first, int last) {
    for (int d = first; d < last; ++d) runs.add(tile.size[d], access.strides[std::size_t(d)]);
  };
  const bool outer = varies_by_outer(op.extent),
             inner = !op.outer_access && varies_by_inner(op.extent);
  if (plan.inner_major && inner) add(plan.outer_dims, plan.dims);
  if (outer) add(0, plan.outer_dims);
  if (!plan.inner_major && inner) add(plan.outer_dims, plan.dims);
  return offset;
}
// Returns true if the runs are rows of contiguous values with gaps between them, which are long
// enough to be read and written in place.
inline bool has_gaps(const Runs& runs) {
  constexpr std::int64_t shortest_row = 32;
  return runs.count == 2 && runs.stride[1] == 1 && runs.size[1] >= shortest_row;
}
// Returns true if the rows of a full tile have gaps between them in memory. Smaller tiles, at the
// ends of dims, may have none.
inline bool is_accessed_with_gaps(const FusedPlan& plan, const Op& op, int access) {
  if (op.outer_access || !plan.is_full(op.extent)) return false;
  Tile tile;
  std::copy_n(plan.box, plan.dims, tile.size);
  Runs runs;
  locate(plan, tile, op, plan.accesses[std::size_t(access)], runs);
  return has_gaps(runs);
}
// Returns true if the runs are n contiguous values, or one value.
inline bool dense(const Runs& runs, std::int64_t n) {
  return runs.count == 0 ? n == 1 : runs.count == 1 && runs.size[0] == n && runs.stride[0] == 1;
}

// The memory of a step during a run, which all threads share.
struct FusedRun {
  struct Base {
    std::byte* memory = nullptr;
    std::int64_t start = 0;  // iota
  };
  const FusedPlan& plan;
  std::byte* pool = nullptr;
  std::byte* partials = nullptr;  // reductions of chunks, in the scratch memory
  std::vector<Base> bases = {};   // by access

  void* pool_value(int v) const { return pool + plan.values[std::size_t(v)].offset; }
};

// The tile that a thread computes, and the location of its values.
struct TileValues {
  explicit TileValues(const FusedRun& in)
      : run(in), plan(in.plan), registers(workspace()),
        values(reinterpret_cast<void**>(registers + (plan.register_bytes + 63) / 64 * 64)),
        gaps(reinterpret_cast<Gaps*>(values + plan.values.size())) {
    for (std::size_t v = 0; v < plan.values.size(); ++v) {
      values[v] = home_of(v);
      gaps[v] = {};
    }
  }
  // Returns the memory of a step for the values of a plan, in addition to its registers.
  static std::int64_t bytes(const FusedPlan& plan) {
    return std::int64_t(plan.values.size() * (sizeof(void*) + sizeof(Gaps)));
  }
  void* home_of(std::size_t v) const {
    const Register& r = plan.values[v];
    return (r.home == Register::pool ? run.pool : registers) + r.offset;
  }
  std::byte* accumulator(std::size_t r) const { return registers + plan.accumulator_offset[r]; }
  void*& value(int v) { return values[v]; }
  int width_of(int v) const { return cpu::bytes_of(plan.values[std::size_t(v)].lane); }
  std::int64_t rows() const { return plan.inner_major ? tile.inner : tile.outer; }
  std::int64_t columns() const { return plan.inner_major ? tile.outer : tile.inner; }
  std::int64_t locate(const Op& op, const Access& access, Runs& runs) const {
    return cpu::locate(plan, tile, op, access, runs);
  }
  std::byte* memory_of(const Op& op, int number, Runs& runs) const {
    const Access& access = plan.accesses[std::size_t(number)];
    return run.bases[std::size_t(number)].memory +
           locate(op, access, runs) * haliax::bytes_of(access.dtype);
  }
  // Lets an op write its result directly to the memory of its store, if that memory is dense, or if
  // it has gaps between rows of `columns` elements (0: no gaps are allowed).
  void use_store_memory(const Op& op, std::int64_t n) { use_store_memory(op, op.out, op.into, n); }
  void use_store_memory(const Op& op, int out, int into, std::int64_t n, std::int64_t columns = 0) {
    if (into < 0) return;
    Runs runs;
    std::byte* memory = memory_of(op, into, runs);
    const bool with_gaps = columns > 0 && has_gaps(runs) && runs.size[1] == columns;
    value(out) = with_gaps || dense(runs, n) ? memory : home_of(std::size_t(out));
    gaps[out] = {};
    if (with_gaps) {
      const auto bytes = haliax::bytes_of(plan.accesses[std::size_t(into)].dtype);
      gaps[out] = {.columns = columns, .row_bytes = runs.stride[0] * bytes};
    }
  }

  const FusedRun& run;
  const FusedPlan& plan;
  std::byte* const registers;
  void** const values;
  // The rows of a value that aliases memory with gaps between rows. Rows may also repeat (distance
  // 0) or overlap.
  struct Gaps {
    std::int64_t columns = 0;    // elements per row; 0: no gaps
    std::int64_t row_bytes = 0;  // distance of rows
  };
  Gaps* const gaps;
  Tile tile;
};

}  // namespace haliax::cpu
