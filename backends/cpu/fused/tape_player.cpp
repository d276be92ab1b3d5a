// Run: the ops of a tape, each by one call of a kernel per tile.
#include "tape_player.h"

#include <cstring>

#include "backends/cpu/assemble/assemble.h"
#include "non_temporal.h"

namespace haliax::cpu {
namespace {

// Broadcasts one value per row, or one row to all rows.
void expand(const Op& op, void* out, const void* in, std::int64_t rows, std::int64_t columns,
            bool by_row) {
  const RowStrides from = by_row ? RowStrides{1, 0} : RowStrides{0, 1};
  kernels().copy_rows(cpu::bytes_of(op.lane), out, {columns, 1}, in, from, rows, columns);
}
void splat(const Op& op, void* out, const void* in, std::int64_t n) {
  kernels().copy_rows(cpu::bytes_of(op.lane), out, {n, 1}, in, {0, 0}, 1, n);
}

// The arguments of an assembled function, for one row after another.
class AssembledArguments {
 public:
  explicit AssembledArguments(std::int64_t n) {
    call.points = n / 16 * 16;
    call.rest = (1 << n % 16) - 1;  // mask of the lanes after the last full vector
  }
  // row_bytes: distance of rows; 0 for a row that all rows share
  void add_array(void* x, std::int64_t row_bytes) {
    call.array[arrays_] = x;
    row_bytes_[arrays_++] = row_bytes;
  }
  void add_scalar(const std::uint32_t* x, bool differs_by_row) {
    call.scalar[scalars_] = *x;
    by_row_[scalars_++] = differs_by_row ? x : nullptr;
  }
  // Advances from row - 1 to `row`.
  void set_row(std::int64_t row) {
    for (int k = 0; k < arrays_; ++k)
      call.array[k] = static_cast<char*>(call.array[k]) + row_bytes_[k];
    for (int k = 0; k < scalars_; ++k)
      if (by_row_[k]) call.scalar[k] = by_row_[k][row];
  }
  AssembledCall call;

 private:
  int arrays_ = 0, scalars_ = 0;
  std::int64_t row_bytes_[most_arrays];
  const std::uint32_t* by_row_[most_scalars];  // values of all rows; null: one value
};

}  // namespace

// Calls f(row, column) for each row whose id is within the tile.
template <class F> void TapePlayer::each_picked(const Op& op, int ids, const F& f) {
  const Access& access = values.plan.accesses[std::size_t(op.access)];
  std::int64_t start = values.run.bases[std::size_t(op.access)].start;
  for (int d = 0; d < values.plan.dims; ++d)
    start += values.tile.at[d] * access.strides[std::size_t(d)];
  const void* id = values.value(ids);
  const bool is_i64 = values.width_of(ids) == 8;
  for (std::int64_t row = 0; row < values.tile.outer; ++row) {
    const std::int64_t k = op.from[1] == Extent::one ? 0 : row;
    const std::int64_t at = (is_i64 ? static_cast<const std::int64_t*>(id)[k]
                                    : static_cast<const std::int32_t*>(id)[k]) -
                            start;
    if (at >= 0 && at < values.tile.inner) f(row, at);
  }
}
void TapePlayer::play(const Op& op) {
  const std::int64_t n = points_of(op.extent, values.tile.outer, values.tile.inner);
  if (!op.fetching && op.kind != Op::assembled) ahead_.fetch(n / 64);
  switch (op.kind) {
    case Op::map:
      return map(op, n);
    case Op::map_rows:
      values.use_store_memory(op, n);
      return map_rows(op);
    case Op::assembled:
      return run_assembled(op, n);
    case Op::load:
      return load(op, n);
    case Op::iota:
      return iota(op);
    case Op::store:
      return store(op);
    case Op::reduce:
      return reduce(op);
    case Op::pick:
      return pick(op);
    case Op::poke:
      return poke(op, n);
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
    case Op::check_zero:
      return check_zero(op);
    case Op::recode:
      op.store_rows(values.value(op.in[1]), {0, 1}, values.value(op.in[0]), 1, n);
      op.load_rows(values.value(op.out), values.value(op.in[1]), {0, 1}, 1, n);
      return;
  }
}
void TapePlayer::map(const Op& op, std::int64_t n) {
  values.use_store_memory(op, n);
  const void* in[4];
  for (int k = 0; k < 4; ++k) in[k] = op.in[k] >= 0 ? values.value(op.in[k]) : nullptr;
  call(op, values.value(op.out), in, n);
}
void TapePlayer::reduce(const Op& op) {
  const std::size_t r = std::size_t(op.reduction);
  const auto& reduction = values.plan.reductions[r];
  const Tile& tile = values.tile;
  if (values.plan.inner_major)
    reduction.lanes(values.accumulator(r), values.value(op.in[0]), tile.inner, tile.outer,
                    pitch_of(op.in[0]), tile.position);
  else
    reduction.rows(values.accumulator(r), values.value(op.in[0]), tile.outer, tile.inner,
                   tile.position);
}
// Reduces the element that the id of each row selects.
void TapePlayer::pick(const Op& op) {
  const auto& reduction = values.plan.reductions[std::size_t(op.reduction)];
  const char* x = static_cast<const char*>(values.value(op.in[0]));
  const int width = values.width_of(op.in[0]);
  each_picked(op, op.in[1], [&](std::int64_t row, std::int64_t at) {
    reduction.rows(values.accumulator(std::size_t(op.reduction)) + row * reduction.bytes,
                   x + (row * values.tile.inner + at) * width, 1, 1, values.tile.position + at);
  });
}
// Copies a tile, and changes the element that the id of each row selects.
void TapePlayer::poke(const Op& op, std::int64_t n) {
  values.use_store_memory(op, n);
  char* out = static_cast<char*>(values.value(op.out));
  const char *x = static_cast<const char*>(values.value(op.in[0])),
             *change = static_cast<const char*>(values.value(op.in[1]));
  const int width = values.width_of(op.out);
  if (x != out) std::memcpy(out, x, std::size_t(n * width));
  each_picked(op, op.in[2], [&](std::int64_t row, std::int64_t at) {
    char* here = out + (row * values.tile.inner + at) * width;
    const void* in[4] = {here, change + (op.from[0] == Extent::one ? 0 : row) * width};
    op.kernel(here, in, 1);
  });
}
// Checks the elements that represent the hidden ones. Sets hides_nonzero if one of them is
// nonzero.
void TapePlayer::check_zero(const Op& op) {
  if (visible_points == 0) return;
  const void* x = values.value(op.in[0]);
  const bool is_f64 = cpu::bytes_of(op.lane) == 8;
  for (auto last = values.tile.inner - 1; last < values.tile.outer * values.tile.inner;
       last += values.tile.inner)
    hides_nonzero |=
        is_f64 ? static_cast<const double*>(x)[last] != 0 : static_cast<const float*>(x)[last] != 0;
}
void TapePlayer::call(const Op& op, void* out, const void* const* in, std::int64_t n) {
  if (op.fetching)
    op.fetching(out, in, n, ahead_);
  else
    op.kernel(out, in, n);
}
// Returns the distance between rows of a tile in the lanes layout.
std::int64_t TapePlayer::pitch_of(int v) const {
  return v == pitched_ && values.values[v] != values.home_of(std::size_t(v)) ? pitch_
                                                                             : values.tile.outer;
}
// Applies a binary kernel row by row. For an operand with one value per row, the kernel is the
// variant that reads a single value (Shape), and the operand advances by one value. A full tile
// advances by one row. One row for all rows does not advance.
void TapePlayer::map_rows(const Op& op) {
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
void TapePlayer::schedule_prefetch(const Access& access, const std::byte* memory,
                                   std::int64_t bytes) {
  if (values.plan.only_reduces) return;
  if (prefetched == next_tile) ahead_.set(memory + bytes, bytes);
  if (prefetched != next_row) return;
  std::int64_t offset = 0;
  for (int d = 0; d < values.plan.outer_dims; ++d)
    offset += (next.at[d] - values.tile.at[d]) * access.strides[std::size_t(d)];
  ahead_.set(memory + offset * haliax::bytes_of(access.dtype), bytes);
}

// Returns the variant for outputs at their present addresses. A non-temporal store needs a full
// cache line: rows of n elements must not share one.
AssembledCode TapePlayer::code_for(const AssembledOps& ops, bool by_row, std::int64_t n) const {
  constexpr std::int64_t line = 64;
  bool fits = ops.variants.non_temporal != nullptr;
  for (auto& out : ops.out) {
    if (!fits || !out.non_temporal) continue;
    void* const to = values.values[out.value];
    const std::int64_t row = n * bytes_of(out.stored), distance = values.gaps[out.value].row_bytes;
    fits = to != values.home_of(std::size_t(out.value)) &&
           (!by_row || (row % line == 0 && distance % line == 0)) &&
           reinterpret_cast<std::uintptr_t>(to) % line == 0;
  }
  return fits ? ops.variants.non_temporal : ops.variants.plain;
}
// Returns the length of the rows that an assembled function is called for: that of the rows of the
// tile, or of an input or output with gaps between rows. 0: all elements are one row.
std::int64_t TapePlayer::columns_of_rows(const Op& op, const AssembledOps& ops) const {
  if (ops.by_row) return values.columns();
  if (!ops.may_have_gaps) return 0;
  for (auto& in : ops.in)
    if (auto columns = values.gaps[in.value].columns; columns > 0) return columns;
  for (auto& out : ops.out) {
    Runs runs;
    if (out.may_have_gaps) values.memory_of(op, out.into, runs);
    if (has_gaps(runs)) return runs.size[1];
  }
  return 0;
}
// Copies a value with gaps between rows to its register.
void TapePlayer::close_gaps(const AssembledOps::Input& in, std::int64_t points) {
  auto& gaps = values.gaps[in.value];
  const auto bytes = bytes_of(in.stored);
  void* const to = values.home_of(std::size_t(in.value));
  kernels().copy_rows(int(bytes), to, {gaps.columns, 1}, values.value(in.value),
                      {gaps.row_bytes / bytes, 1}, points / gaps.columns, gaps.columns);
  values.value(in.value) = to;
  gaps = {};
}
// Calls an assembled function once for all elements, or once per row.
void TapePlayer::run_assembled(const Op& op, std::int64_t points) {
  using Broadcast = AssembledOps::Broadcast;
  const AssembledOps& ops = values.plan.assembled[std::size_t(op.assembled_index)];
  const std::int64_t columns = columns_of_rows(op, ops), n = columns > 0 ? columns : points,
                     rows = points / n;
  for (auto& in : ops.in)
    if (auto its = values.gaps[in.value].columns; its > 0 && its != columns) close_gaps(in, points);
  auto row_bytes = [&](const TileValues::Gaps& gaps, Stored stored) {
    return gaps.columns > 0 ? gaps.row_bytes : n * bytes_of(stored);
  };
  AssembledArguments arguments(n);
  for (auto& in : ops.in) {
    auto* x = static_cast<std::uint32_t*>(values.value(in.value));
    if (in.broadcast == Broadcast::each)
      arguments.add_array(x, row_bytes(values.gaps[in.value], in.stored));
    else if (in.broadcast == Broadcast::along_row)
      arguments.add_array(x, 0);
    else
      arguments.add_scalar(x, in.broadcast == Broadcast::of_row);
  }
  for (auto& out : ops.out) {  // after the inputs, because a value may be both
    values.use_store_memory(op, out.value, out.into, points, out.may_have_gaps ? columns : 0);
    arguments.add_array(values.value(out.value), row_bytes(values.gaps[out.value], out.stored));
  }

  AssembledCall& call = arguments.call;
  const auto code = code_for(ops, rows > 1, n);
  for (std::int64_t row = 0;;) {
    if (!ops.code.fetches_inputs) {
      const void* prefetch = ahead_.next_lines(n / 16);
      call.prefetch = prefetch ? prefetch : call.array[0];
    }
    code(&call);
    if (++row == rows) return;
    arguments.set_row(row);
  }
}
void TapePlayer::load(const Op& op, std::int64_t n) {
  const Access& access = values.plan.accesses[std::size_t(op.access)];
  Runs runs;
  const std::int64_t bytes = haliax::bytes_of(access.dtype);
  std::byte* memory = values.memory_of(op, op.access, runs);
  const bool as_stored = values.plan.values[std::size_t(op.out)].stored != Stored::word;
  if (op.may_have_gaps) values.gaps[op.out] = {};
  if ((access.direct && (runs.count == 0 || dense(runs, n))) || (as_stored && dense(runs, n))) {
    values.value(op.out) = memory;
    schedule_prefetch(access, memory, n * bytes);
    return;
  }
  if (op.may_have_gaps && has_gaps(runs)) {
    values.value(op.out) = memory;
    values.gaps[op.out] = {.columns = runs.size[1], .row_bytes = runs.stride[0] * bytes};
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
  const auto width = as_stored ? bytes : cpu::bytes_of(op.lane);
  runs.each_rows([&](std::int64_t offset, std::int64_t position, RowStrides strides,
                     std::int64_t rows, std::int64_t count) {
    void* const to = reg + position * width;
    const void* const from = memory + offset * bytes;
    if (as_stored)
      kernels().copy_rows(int(bytes), to, {count, 1}, from, strides, rows, count);
    else
      op.load_rows(to, from, strides, rows, count);
  });
}
void TapePlayer::store(const Op& op) {
  const Access& access = values.plan.accesses[std::size_t(op.access)];
  Runs runs;
  const std::int64_t bytes = haliax::bytes_of(access.dtype);
  std::byte* memory = values.memory_of(op, op.access, runs);
  const char* reg = static_cast<const char*>(values.value(op.in[0]));
  if (static_cast<const void*>(reg) == memory) return;  // written there directly
  const bool as_stored = op.stored != Stored::word;
  const auto width = as_stored ? bytes : cpu::bytes_of(lane_type_of(access.dtype));
  const std::int64_t n = points_of(op.extent, values.tile.outer, values.tile.inner);
  if (access.non_temporal && width == bytes && dense(runs, n))
    return copy_non_temporal(memory, reinterpret_cast<const std::byte*>(reg), n * bytes);
  runs.each_rows([&](std::int64_t offset, std::int64_t position, RowStrides strides,
                     std::int64_t rows, std::int64_t count) {
    void* const to = memory + offset * bytes;
    const void* const from = reg + position * width;
    if (as_stored)
      kernels().copy_rows(int(bytes), to, strides, from, {count, 1}, rows, count);
    else
      op.store_rows(to, strides, from, rows, count);
  });
}
void TapePlayer::iota(const Op& op) {
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

}  // namespace haliax::cpu
