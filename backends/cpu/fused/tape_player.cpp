// Run: the ops of a tape, each by one call of a kernel per tile.
#include "tape_player.h"

#include <cstring>

#include "assembled_run.h"
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
      return AssembledRun(values, ahead_).run(op, n);
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
