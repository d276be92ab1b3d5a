// Executes the tapes of a fused step.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "assemble.h"
#include "base/thread_pool.h"
#include "stencil.h"

namespace haliax::cpu {
namespace {

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

// Broadcasts one value per row, or one row to all rows.
void expand(const Op& op, void* out, const void* in, std::int64_t rows, std::int64_t columns,
            bool by_row) {
  const RowStrides from = by_row ? RowStrides{1, 0} : RowStrides{0, 1};
  kernels().copy_rows(cpu::bytes_of(op.lane), out, {columns, 1}, in, from, rows, columns);
}
void splat(const Op& op, void* out, const void* in, std::int64_t n) {
  kernels().copy_rows(cpu::bytes_of(op.lane), out, {n, 1}, in, {0, 0}, 1, n);
}
// Returns true if the runs are n contiguous values, or one value.
bool dense(const Runs& runs, std::int64_t n) {
  return runs.count == 0 ? n == 1 : runs.count == 1 && runs.size[0] == n && runs.stride[0] == 1;
}

// The memory of a step during a run, which all threads share.
struct FusedRun {
  struct Base {
    std::byte* memory;
    std::int64_t start;  // iota
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
        values(reinterpret_cast<void**>(registers + (plan.register_bytes + 63) / 64 * 64)) {
    for (std::size_t v = 0; v < plan.values.size(); ++v) values[v] = home_of(v);
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
  // Returns the offset of the tile in a view, in elements, and adds its layout to `runs`.
  std::int64_t locate(const Op& op, const Access& access, Runs& runs) const {
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
  std::byte* memory_of(const Op& op, int number, Runs& runs) const {
    const Access& access = plan.accesses[std::size_t(number)];
    return run.bases[std::size_t(number)].memory +
           locate(op, access, runs) * haliax::bytes_of(access.dtype);
  }
  // Lets an op write its result directly to the memory of its store, if that memory is dense.
  void aim(const Op& op, std::int64_t n) { aim(op, op.out, op.into, n); }
  void aim(const Op& op, int out, int into, std::int64_t n) {
    if (into < 0) return;
    Runs runs;
    std::byte* memory = memory_of(op, into, runs);
    value(out) = dense(runs, n) ? memory : home_of(std::size_t(out));
  }

  const FusedRun& run;
  const FusedPlan& plan;
  std::byte* const registers;
  void** const values;
  Tile tile;
};

// Copies x to the n positions after it.
void repeat(std::byte* x, std::int64_t bytes, std::int64_t step, std::int64_t n) {
  auto as = [&](auto type) {
    using T = decltype(type);
    T* to = reinterpret_cast<T*>(x);
    if (step == 1 && *to == 0)
      std::memset(to + 1, 0, std::size_t(n) * sizeof(T));
    else
      for (std::int64_t k = 1; k <= n; ++k) to[k * step] = *to;
  };
  bytes == 1   ? as(std::uint8_t())
  : bytes == 2 ? as(std::uint16_t())
  : bytes == 4 ? as(std::uint32_t())
               : as(std::uint64_t());
}
// Returns the number of elements to compute per row: all elements that a mask leaves visible in
// some row of the tile, and at least one more. The last computed element represents the hidden
// ones. Returns 0 if full rows must be computed. For example, given the mask key <= query and a
// tile of the queries 10 to 13, query 13 sees keys 0 to 13, and 16 elements are computed.
std::int64_t visible_points_of(const FusedRun& run, const Tile& tile) {
  const FusedPlan& plan = run.plan;
  constexpr std::int64_t unit = 16;
  std::int64_t most = 0;
  for (const PositionMask& mask : plan.row_masks) {
    std::int64_t value = mask.constant;  // at the first element of the first row
    std::int64_t step = 0;               // decrease per element
    std::int64_t grows[max_dims] = {};   // increase per row, along each dim
    std::int64_t magnitude = mask.magnitude;
    for (auto [number, sign] : mask.positions) {
      const Access& iota = plan.accesses[std::size_t(number)];
      std::int64_t at = run.bases[std::size_t(number)].start, reach = 0;
      for (int d = 0; d < plan.outer_dims; ++d) {
        const std::int64_t stride = iota.strides[std::size_t(d)];
        at += tile.at[d] * stride;
        reach += (tile.size[d] - 1) * std::abs(stride);
        grows[d] += sign * stride;
      }
      const std::int64_t stride = iota.strides[std::size_t(plan.dims - 1)];
      magnitude += std::abs(at) + reach + std::abs(stride) * plan.inner_points;
      value += sign * at;
      step -= sign * stride;
    }
    if (magnitude >= mask.limit) return 0;
    for (int d = 0; d < plan.outer_dims; ++d)
      value += (tile.size[d] - 1) * std::max<std::int64_t>(0, grows[d]);
    const std::int64_t points = mask.or_equal ? value / step + 1 : (value + step - 1) / step;
    most = std::max(most, value < 0 ? 0 : points);
  }
  const std::int64_t shown = (most / unit + 1) * unit;
  return shown < plan.inner_points ? shown : 0;
}
// Fills the hidden elements of the rows of a tile with the last visible one.
void fill_ends(const FusedRun& run, const Tile& tile, std::int64_t visible_points) {
  const FusedPlan& plan = run.plan;
  const std::int64_t left = plan.inner_points - visible_points;
  for (int number : plan.filled) {
    const Access& access = plan.accesses[std::size_t(number)];
    const std::int64_t bytes = haliax::bytes_of(access.dtype),
                       step = access.strides[std::size_t(plan.dims - 1)];
    std::int64_t last = (visible_points - 1) * step;
    Runs rows;
    for (int d = 0; d < plan.outer_dims; ++d) {
      last += tile.at[d] * access.strides[std::size_t(d)];
      rows.add(tile.size[d], access.strides[std::size_t(d)]);
    }
    std::byte* const memory = run.bases[std::size_t(number)].memory + last * bytes;
    rows.each_rows([&](std::int64_t offset, std::int64_t, RowStrides strides, std::int64_t outer,
                       std::int64_t inner) {
      for (std::int64_t o = 0; o < outer; ++o)
        for (std::int64_t r = 0; r < inner; ++r)
          repeat(memory + (offset + o * strides.row + r * strides.column) * bytes, bytes, step,
                 left);
    });
  }
}

// Runs tapes on the tile of a thread.
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
  bool masks_more = false;          // some hidden element was nonzero
  enum { nothing, next_tile, next_row } prefetched = next_tile;

 private:
  void play(const Op& op) {
    const std::int64_t n = points_of(op.extent, values.tile.outer, values.tile.inner);
    if (!op.fetching && op.kind != Op::assembled) ahead_.fetch(n / 64);
    switch (op.kind) {
      case Op::map: {
        values.aim(op, n);
        const void* in[4];
        for (int k = 0; k < 4; ++k) in[k] = op.in[k] >= 0 ? values.value(op.in[k]) : nullptr;
        return call(op, values.value(op.out), in, n);
      }
      case Op::map_rows:
        values.aim(op, n);
        return map_rows(op);
      case Op::assembled:
        return run_assembled(op, n);
      case Op::load:
        return load(op, n);
      case Op::iota:
        return iota(op);
      case Op::store:
        return store(op);
      case Op::reduce: {
        const std::size_t r = std::size_t(op.reduction);
        if (values.plan.inner_major)
          values.plan.reductions[r].lanes(values.accumulator(r), values.value(op.in[0]),
                                          values.tile.inner, values.tile.outer, pitch_of(op.in[0]),
                                          values.tile.position);
        else
          values.plan.reductions[r].rows(values.accumulator(r), values.value(op.in[0]),
                                         values.tile.outer, values.tile.inner,
                                         values.tile.position);
        return;
      }
      case Op::pick: {
        const auto& reduction = values.plan.reductions[std::size_t(op.reduction)];
        const char* x = static_cast<const char*>(values.value(op.in[0]));
        const int width = values.width_of(op.in[0]);
        return each_point(op, op.in[1], [&](std::int64_t row, std::int64_t at) {
          reduction.rows(values.accumulator(std::size_t(op.reduction)) + row * reduction.bytes,
                         x + (row * values.tile.inner + at) * width, 1, 1,
                         values.tile.position + at);
        });
      }
      case Op::poke: {
        values.aim(op, n);
        char* out = static_cast<char*>(values.value(op.out));
        const char *x = static_cast<const char*>(values.value(op.in[0])),
                   *change = static_cast<const char*>(values.value(op.in[1]));
        const int width = values.width_of(op.out);
        if (x != out) std::memcpy(out, x, std::size_t(n * width));
        return each_point(op, op.in[2], [&](std::int64_t row, std::int64_t at) {
          char* here = out + (row * values.tile.inner + at) * width;
          const void* in[4] = {here, change + (op.from[0] == Extent::one ? 0 : row) * width};
          op.kernel(here, in, 1);
        });
      }
      case Op::finish: {
        const std::size_t r = std::size_t(op.reduction);
        return values.plan.reductions[r].finish(values.value(op.out), values.accumulator(r),
                                                values.tile.outer);
      }
      case Op::expand:
        return expand(op, values.value(op.out), values.value(op.in[0]), values.rows(),
                      values.columns(), op.from[0] == values.plan.row());
      case Op::splat:
        return splat(op, values.value(op.out), values.value(op.in[0]), n);
      case Op::zero:
        return expect_zero(op);
      case Op::recode:
        op.store_rows(values.value(op.in[1]), {0, 1}, values.value(op.in[0]), 1, n);
        op.load_rows(values.value(op.out), values.value(op.in[1]), {0, 1}, 1, n);
        return;
    }
  }
  // Checks the elements that represent the hidden ones. Sets masks_more if one of them is
  // nonzero.
  void expect_zero(const Op& op) {
    if (visible_points == 0) return;
    const void* x = values.value(op.in[0]);
    const bool wide = cpu::bytes_of(op.lane) == 8;
    for (auto last = values.tile.inner - 1; last < values.tile.outer * values.tile.inner;
         last += values.tile.inner)
      masks_more |=
          wide ? static_cast<const double*>(x)[last] != 0 : static_cast<const float*>(x)[last] != 0;
  }
  void call(const Op& op, void* out, const void* const* in, std::int64_t n) {
    if (op.fetching)
      op.fetching(out, in, n, ahead_);
    else
      op.kernel(out, in, n);
  }
  // Returns the distance between rows of a tile in the lanes layout.
  std::int64_t pitch_of(int v) const {
    return v == pitched_ && values.values[v] != values.home_of(std::size_t(v)) ? pitch_
                                                                               : values.tile.outer;
  }
  // Calls f(row, column) for each row whose id is within the tile.
  template <class F> void each_point(const Op& op, int ids, const F& f) {
    const Access& access = values.plan.accesses[std::size_t(op.access)];
    std::int64_t start = values.run.bases[std::size_t(op.access)].start;
    for (int d = 0; d < values.plan.dims; ++d)
      start += values.tile.at[d] * access.strides[std::size_t(d)];
    const void* id = values.value(ids);
    const bool wide = values.width_of(ids) == 8;
    for (std::int64_t row = 0; row < values.tile.outer; ++row) {
      const std::int64_t k = op.from[1] == Extent::one ? 0 : row;
      const std::int64_t at = (wide ? static_cast<const std::int64_t*>(id)[k]
                                    : static_cast<const std::int32_t*>(id)[k]) -
                              start;
      if (at >= 0 && at < values.tile.inner) f(row, at);
    }
  }
  // Applies a binary kernel row by row. For an operand with one value per row, the kernel is the
  // variant that reads a single value (Shape), and the operand advances by one value. A full tile
  // advances by one row. One row for all rows does not advance.
  void map_rows(const Op& op) {
    std::int64_t step[2];  // bytes from row to row
    const void* in[4] = {};
    for (int k = 0; k < 2; ++k) {
      in[k] = values.value(op.in[k]);
      const Register& r = values.plan.values[std::size_t(op.in[k])];
      step[k] = cpu::bytes_of(r.lane) * (op.from[k] == values.plan.row() ? 1
                                         : op.from[k] == Extent::full    ? values.columns()
                                                                         : 0);
    }
    char* out = static_cast<char*>(values.value(op.out));
    const std::int64_t n = values.columns(), out_step = n * cpu::bytes_of(op.lane);
    for (std::int64_t r = values.rows(); r > 0; --r, out += out_step) {
      call(op, out, in, n);
      for (int k = 0; k < 2; ++k) in[k] = static_cast<const char*>(in[k]) + step[k];
    }
  }

  // Schedules a prefetch. The next tile usually follows this one in memory.
  void expect(const Access& access, const std::byte* memory, std::int64_t bytes) {
    if (values.plan.only_reduces) return;
    if (prefetched == next_tile) ahead_.set(memory + bytes, bytes);
    if (prefetched != next_row) return;
    std::int64_t offset = 0;
    for (int d = 0; d < values.plan.outer_dims; ++d)
      offset += (next.at[d] - values.tile.at[d]) * access.strides[std::size_t(d)];
    ahead_.set(memory + offset * haliax::bytes_of(access.dtype), bytes);
  }

  // Returns true if all values that may be bf16 in memory are dense there. Otherwise loads the
  // dense inputs into registers as f32.
  bool are_16_bit(const Op& op, const AssembledOps& ops, std::int64_t points) {
    bool all = ops.bf16_code != nullptr;
    for (auto& in : ops.in)
      all &= !in.narrow || values.value(in.value) != values.home_of(std::size_t(in.value));
    for (auto& out : ops.out) {
      if (!out.narrow) continue;
      values.aim(op, out.value, out.into, points);
      all &= values.value(out.value) != values.home_of(std::size_t(out.value));
    }
    if (all) return true;
    for (auto& in : ops.in) {
      void*& x = values.value(in.value);
      const auto home = values.home_of(std::size_t(in.value));
      if (!in.narrow || x == home) continue;
      const auto extent = values.plan.values[std::size_t(in.value)].extent;
      kernels().load(DType::bf16)(home, x, 1,
                                  points_of(extent, values.tile.outer, values.tile.inner));
      x = home;
    }
    for (auto& out : ops.out)
      if (out.narrow) values.value(out.value) = values.home_of(std::size_t(out.value));
    return false;
  }
  // Calls an assembled function once for all elements, or once per row (by_row). After each row,
  // arrays advance by `step` bytes, which is 0 for a row that all rows share, and scalars that
  // differ by row are read again.
  void run_assembled(const Op& op, std::int64_t points) {
    using Broadcast = AssembledOps::Broadcast;
    const AssembledOps& ops = values.plan.assembled[std::size_t(op.which)];
    const std::int64_t count = ops.by_row ? values.rows() : 1,
                       n = ops.by_row ? values.columns() : points;
    AssembledCall call;
    call.points = n / 16 * 16;
    call.rest = (1 << n % 16) - 1;  // mask of the lanes after the last full vector
    const bool narrow = are_16_bit(op, ops, points);
    int arrays = 0, scalars = 0;
    std::int64_t step[most_arrays];
    const std::uint32_t* of_row[most_scalars];
    for (auto& in : ops.in) {
      auto* x = static_cast<std::uint32_t*>(values.value(in.value));
      if (in.broadcast == Broadcast::each || in.broadcast == Broadcast::along_row) {
        call.array[arrays] = x;
        step[arrays++] = in.broadcast == Broadcast::each ? (narrow && in.narrow ? 2 : 4) * n : 0;
      } else {
        call.scalar[scalars] = *x;
        of_row[scalars++] = in.broadcast == Broadcast::of_row ? x : nullptr;
      }
    }
    for (auto& out : ops.out)  // after the inputs, because a value may be both
      if (!out.narrow) values.aim(op, out.value, out.into, points);
    for (auto& out : ops.out) {
      call.array[arrays] = values.value(out.value);
      step[arrays++] = (narrow && out.narrow ? 2 : 4) * n;
    }

    for (std::int64_t r = 0;;) {
      if (!ops.point.fetches_inputs) {
        const void* prefetch = ahead_.next_lines(n / 16);
        call.prefetch = prefetch ? prefetch : call.array[0];
      }
      (narrow ? ops.bf16_code : ops.code)(&call);
      if (++r == count) return;
      for (int k = 0; k < arrays; ++k) call.array[k] = static_cast<char*>(call.array[k]) + step[k];
      for (int k = 0; k < scalars; ++k)
        if (of_row[k]) call.scalar[k] = of_row[k][r];
    }
  }
  void load(const Op& op, std::int64_t n) {
    const Access& access = values.plan.accesses[std::size_t(op.access)];
    Runs runs;
    const std::int64_t bytes = haliax::bytes_of(access.dtype);
    std::byte* memory = values.memory_of(op, op.access, runs);
    if ((access.direct && (runs.count == 0 || dense(runs, n))) ||
        (values.plan.values[std::size_t(op.out)].narrow && dense(runs, n))) {
      values.value(op.out) = memory;
      expect(access, memory, n * bytes);
      return;
    }
    if (access.only_reduced && runs.count == 2 && runs.stride[1] == 1 &&
        runs.size[1] == values.tile.outer) {
      values.value(op.out) = memory;
      pitched_ = op.out;
      pitch_ = runs.stride[0];
      return;
    }
    char* reg = static_cast<char*>(values.value(op.out) = values.home_of(std::size_t(op.out)));
    const int width = cpu::bytes_of(op.lane);
    runs.each_rows([&](std::int64_t offset, std::int64_t position, RowStrides strides,
                       std::int64_t rows, std::int64_t count) {
      op.load_rows(reg + position * width, memory + offset * bytes, strides, rows, count);
    });
  }
  void store(const Op& op) {
    const Access& access = values.plan.accesses[std::size_t(op.access)];
    Runs runs;
    const std::int64_t bytes = haliax::bytes_of(access.dtype);
    std::byte* memory = values.memory_of(op, op.access, runs);
    const char* reg = static_cast<const char*>(values.value(op.in[0]));
    if (static_cast<const void*>(reg) == memory) return;  // written there directly
    const int width = cpu::bytes_of(lane_type_of(access.dtype));
    runs.each_rows([&](std::int64_t offset, std::int64_t position, RowStrides strides,
                       std::int64_t rows, std::int64_t count) {
      op.store_rows(memory + offset * bytes, strides, reg + position * width, rows, count);
    });
  }
  void iota(const Op& op) {
    const Access& access = values.plan.accesses[std::size_t(op.access)];
    Runs runs;
    const std::int64_t start =
        values.run.bases[std::size_t(op.access)].start + values.locate(op, access, runs);
    runs.each_rows([&](std::int64_t offset, std::int64_t position, RowStrides strides,
                       std::int64_t rows, std::int64_t count) {
      char* reg = static_cast<char*>(values.value(op.out)) + position * cpu::bytes_of(op.lane);
      kernels().count(op.lane, reg, start + offset, strides, rows, count);
    });
  }

  int pitched_ = -1;  // the value that aliases memory with a row pitch
  std::int64_t pitch_ = 0;
  Prefetcher ahead_;
};

// The state of one thread while it processes boxes. process_box runs all levels of a box. If the
// inner space is split into chunks, reduce_chunk runs in parallel, level by level, and
// store_results follows.
class Worker {
 public:
  explicit Worker(const FusedRun& run) : run_(run), plan_(run.plan) {}
  // Runs a tape that writes to the pool, for a full tile.
  void run_once(const Tape& tape) {
    tile_.outer = tile_.inner = 1;
    for (int d = 0; d < plan_.dims; ++d)
      (d < plan_.outer_dims ? tile_.outer : tile_.inner) *= tile_.size[d] = plan_.box[d];
    player_.play(tape);
  }
  // Processes one of the boxes [first, end).
  void process_box(std::int64_t box, std::int64_t first, std::int64_t end) {
    tile_.set_outer(plan_, box);
    if (box + 1 < end) player_.next.set_outer(plan_, box + 1);
    // If a hidden element of one box was nonzero, hidden elements of later boxes are assumed to
    // be nonzero, too.
    player_.visible_points =
        plan_.row_masks.empty() || player_.masks_more ? 0 : visible_points_of(run_, tile_);
    run_levels(box, first, end);
    if (player_.visible_points == 0) return;
    if (!player_.masks_more) return fill_ends(run_, tile_, player_.visible_points);
    player_.visible_points = 0;
    run_levels(box, first, end);
  }
  void run_levels(std::int64_t box, std::int64_t first, std::int64_t end) {
    for (std::size_t r = 0; r < plan_.reductions.size(); ++r)
      plan_.reductions[r].init(player_.values.accumulator(r), tile_.outer);
    const std::size_t last_pass = plan_.last_pass();
    for (std::size_t level = 0; level < std::size_t(plan_.levels); ++level) {
      player_.play(plan_.outer[level]);
      // A row that several passes read stays in the second-level cache. The next row joins it,
      // prefetched during the last pass.
      if (plan_.single_inner_box || plan_.stays_in_cache)
        player_.prefetched = box + 1 < end && (plan_.single_inner_box || level == last_pass)
                                 ? TapePlayer::next_row
                             : level == 0 && box == first ? TapePlayer::next_tile
                                                          : TapePlayer::nothing;
      run_inner_boxes(level, 0, plan_.inner_boxes);
      if (player_.visible_points > 0 && player_.masks_more) return;
    }
    player_.play(plan_.outer_stores);
  }
  // Processes one chunk of the inner space of a box, for one level. Stores its partial reductions
  // in the scratch memory.
  void reduce_chunk(int level, std::int64_t box, std::int64_t chunk) {
    tile_.set_outer(plan_, box);
    play_outer(level, box);
    for (std::size_t r = 0; r < plan_.reductions.size(); ++r)
      if (plan_.reduction_level[r] == level)
        plan_.reductions[r].init(player_.values.accumulator(r), tile_.outer);
    const std::int64_t boxes = (plan_.inner_boxes + plan_.chunks - 1) / plan_.chunks;
    run_inner_boxes(std::size_t(level), chunk * boxes,
                    std::min(plan_.inner_boxes, (chunk + 1) * boxes));
    for (std::size_t r = 0; r < plan_.reductions.size(); ++r)
      if (plan_.reduction_level[r] == level)
        std::memcpy(partial(r, chunk, box), player_.values.accumulator(r),
                    std::size_t(tile_.outer * plan_.reductions[r].bytes));
  }
  void store_results(std::int64_t box) {
    tile_.set_outer(plan_, box);
    play_outer(plan_.levels - 1, box);
    player_.play(plan_.outer_stores);
  }

 private:
  std::byte* partial(std::size_t r, std::int64_t chunk, std::int64_t box) const {
    return run_.partials + plan_.partial_offset[r] +
           (chunk * plan_.outer_boxes + box) * plan_.outer_box * plan_.reductions[r].bytes;
  }
  // Runs the outer tapes up to a level. Merges the reductions that they need, in the order of the
  // chunks.
  void play_outer(int level, std::int64_t box) {
    for (std::size_t r = 0; r < plan_.reductions.size(); ++r) {
      if (plan_.reduction_level[r] >= level) continue;
      plan_.reductions[r].init(player_.values.accumulator(r), tile_.outer);
      for (std::int64_t chunk = 0; chunk < plan_.chunks; ++chunk)
        plan_.reductions[r].merge(player_.values.accumulator(r), partial(r, chunk, box),
                                  tile_.outer);
    }
    for (int l = 0; l <= level; ++l) player_.play(plan_.outer[std::size_t(l)]);
  }
  void run_inner_boxes(std::size_t level, std::int64_t first, std::int64_t last) {
    const Tape& tape = plan_.inner[level];
    if (tape.empty()) return;
    for (std::int64_t box = first; box < last; ++box) {
      tile_.set_inner(plan_, box);
      if (player_.visible_points > 0)
        tile_.inner = tile_.size[plan_.dims - 1] = player_.visible_points;
      player_.start_tile();
      player_.play(tape);
    }
  }

  const FusedRun& run_;
  const FusedPlan& plan_;
  TapePlayer player_{run_};
  Tile& tile_ = player_.values.tile;
};

class FusedStep final : public CompiledStep {
 public:
  FusedStep(const program::Step& step, const Context& context)
      : plan_(plan_fused(step.fused, &context)),
        scratch_(step, context.arena_slot, plan_.scratch_bytes) {
    pool_memory_ = std::make_unique<std::byte[]>(std::size_t(plan_.pool_bytes) + 64);
    run_.pool =
        pool_memory_.get() + (64 - reinterpret_cast<std::uintptr_t>(pool_memory_.get()) % 64) % 64;
    run_.bases.resize(plan_.accesses.size());
    set_constants();
    Worker(run_).run_once(plan_.constants);
  }

  void run(Frame& frame) override {
    if (plan_.outer_boxes == 0 ||
        (plan_.inner_boxes == 0 && plan_.reductions.empty() && plan_.outer_stores.empty()))
      return;
    for (std::size_t a = 0; a < run_.bases.size(); ++a) {
      const Access& access = plan_.accesses[a];
      run_.bases[a] = access.iota ? FusedRun::Base{nullptr, access.start + access.view.offset +
                                                                access.place.loop_offset(frame)}
                                  : FusedRun::Base{access.place.at(frame), 0};
    }
    if (!plan_.prologue.empty()) Worker(run_).run_once(plan_.prologue);
    run_.partials = plan_.scratch_bytes ? scratch_.at(frame) : nullptr;
    const int workers = threads();
    if (plan_.chunks == 1) {
      parallel_for(plan_.blocks, workers, [this](std::int64_t block, int) {
        Worker worker(run_);
        const std::int64_t first = block * plan_.boxes_per_block,
                           end = std::min(plan_.outer_boxes, first + plan_.boxes_per_block);
        for (std::int64_t box = first; box < end; ++box) worker.process_box(box, first, end);
      });
      return;
    }
    for (int level = 0; level < plan_.levels; ++level) {
      if (plan_.inner[std::size_t(level)].empty()) continue;
      parallel_for(plan_.outer_boxes * plan_.chunks, workers,
                   [this, level](std::int64_t block, int) {
                     Worker(run_).reduce_chunk(level, block / plan_.chunks, block % plan_.chunks);
                   });
    }
    if (plan_.outer_stores.empty()) return;
    Worker worker(run_);
    for (std::int64_t box = 0; box < plan_.outer_boxes; ++box) worker.store_results(box);
  }

 private:
  void set_constants() {
    for (auto [v, x] : plan_.numbers) {
      if (plan_.values[std::size_t(v)].lane == LaneType::f64)
        *static_cast<double*>(run_.pool_value(v)) = x;
      else
        *static_cast<float*>(run_.pool_value(v)) = static_cast<float>(x);
    }
    for (auto [v, x] : plan_.integers) {
      if (cpu::bytes_of(plan_.values[std::size_t(v)].lane) == 8)
        *static_cast<std::int64_t*>(run_.pool_value(v)) = x;
      else
        *static_cast<std::uint32_t*>(run_.pool_value(v)) = static_cast<std::uint32_t>(x);
    }
  }

  FusedPlan plan_;
  Scratch scratch_;
  std::unique_ptr<std::byte[]> pool_memory_;
  FusedRun run_{plan_};
};

// A step with masks, and its variant without masks for runs in which all masks hold.
class MaskedStep final : public CompiledStep {
 public:
  MaskedStep(const program::Step& step, const Context& context, Unmasked unmasked)
      : unmasked_(std::move(unmasked)), masked_(step, context),
        plain_(with(step, unmasked_.fused()), context) {}
  void run(Frame& frame) override { (unmasked_.holds(frame) ? plain_ : masked_).run(frame); }

 private:
  static program::Step with(program::Step step, program::Fused fused) {
    step.fused = std::move(fused);
    return step;
  }
  Unmasked unmasked_;
  FusedStep masked_, plain_;
};

}  // namespace

std::unique_ptr<CompiledStep> make_fused(const program::Step& step, const Context& context) {
  if (auto created = make_stencil(step, context)) return created;
  if (Unmasked unmasked(step.fused); unmasked.exists())
    return std::make_unique<MaskedStep>(step, context, std::move(unmasked));
  return std::make_unique<FusedStep>(step, context);
}
std::int64_t fused_scratch(const program::Step& step) {
  const auto& code = step.fused.code;
  if (std::none_of(code.begin(), code.end(), [](auto& in) { return is_reduction(in.code); }))
    return 0;  // only reductions have partial results
  auto bytes = plan_fused(step.fused, nullptr).scratch_bytes;
  if (Unmasked unmasked(step.fused); unmasked.exists())
    bytes = std::max(bytes, plan_fused(unmasked.fused(), nullptr).scratch_bytes);
  return bytes;
}

}  // namespace haliax::cpu
