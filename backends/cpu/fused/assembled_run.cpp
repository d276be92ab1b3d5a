// Run: calls an assembled function on a tile.
#include "assembled_run.h"

#include "backends/cpu/assemble/assemble.h"

namespace haliax::cpu {
namespace {

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

// Returns the variant for outputs at their present addresses. A non-temporal store needs a full
// cache line: rows of n elements must not share one.
AssembledCode AssembledRun::code_for(const AssembledOps& ops, bool by_row, std::int64_t n) const {
  constexpr std::int64_t line = 64;
  bool fits = ops.variants.non_temporal != nullptr;
  for (auto& out : ops.out) {
    if (!fits || !out.non_temporal) continue;
    void* const to = values_.values[out.value];
    const std::int64_t row = n * bytes_of(out.stored), distance = values_.gaps[out.value].row_bytes;
    fits = to != values_.home_of(std::size_t(out.value)) &&
           (!by_row || (row % line == 0 && distance % line == 0)) &&
           reinterpret_cast<std::uintptr_t>(to) % line == 0;
  }
  return fits ? ops.variants.non_temporal : ops.variants.plain;
}
// Returns the length of the rows that an assembled function is called for: that of the rows of the
// tile, or of an input or output with gaps between rows. 0: all elements are one row.
std::int64_t AssembledRun::columns_of_rows(const Op& op, const AssembledOps& ops) const {
  if (ops.by_row) return values_.columns();
  if (!ops.may_have_gaps) return 0;
  for (auto& in : ops.in)
    if (auto columns = values_.gaps[in.value].columns; columns > 0) return columns;
  for (auto& out : ops.out) {
    Runs runs;
    if (out.may_have_gaps) values_.memory_of(op, out.into, runs);
    if (has_gaps(runs)) return runs.size[1];
  }
  return 0;
}
// Copies a value with gaps between rows to its register.
void AssembledRun::close_gaps(const AssembledOps::Input& in, std::int64_t points) {
  auto& gaps = values_.gaps[in.value];
  const auto bytes = bytes_of(in.stored);
  void* const to = values_.home_of(std::size_t(in.value));
  kernels().copy_rows(int(bytes), to, {gaps.columns, 1}, values_.value(in.value),
                      {gaps.row_bytes / bytes, 1}, points / gaps.columns, gaps.columns);
  values_.value(in.value) = to;
  gaps = {};
}
// Calls an assembled function once for all elements, or once per row.
void AssembledRun::run(const Op& op, std::int64_t points) {
  using Broadcast = AssembledOps::Broadcast;
  const AssembledOps& ops = values_.plan.assembled[std::size_t(op.assembled_index)];
  const std::int64_t columns = columns_of_rows(op, ops), n = columns > 0 ? columns : points,
                     rows = points / n;
  for (auto& in : ops.in)
    if (auto its = values_.gaps[in.value].columns; its > 0 && its != columns)
      close_gaps(in, points);
  auto row_bytes = [&](const TileValues::Gaps& gaps, Stored stored) {
    return gaps.columns > 0 ? gaps.row_bytes : n * bytes_of(stored);
  };
  AssembledArguments arguments(n);
  for (auto& in : ops.in) {
    auto* x = static_cast<std::uint32_t*>(values_.value(in.value));
    if (in.broadcast == Broadcast::each)
      arguments.add_array(x, row_bytes(values_.gaps[in.value], in.stored));
    else if (in.broadcast == Broadcast::along_row)
      arguments.add_array(x, 0);
    else
      arguments.add_scalar(x, in.broadcast == Broadcast::of_row);
  }
  for (auto& out : ops.out) {  // after the inputs, because a value may be both
    values_.use_store_memory(op, out.value, out.into, points, out.may_have_gaps ? columns : 0);
    arguments.add_array(values_.value(out.value), row_bytes(values_.gaps[out.value], out.stored));
  }

  AssembledCall& call = arguments.call;
  const auto code = code_for(ops, rows > 1, n);
  for (std::int64_t row = 0;;) {
    if (!ops.code.fetches_inputs) {
      const void* prefetch = prefetcher_.next_lines(n / 16);
      call.prefetch = prefetch ? prefetch : call.array[0];
    }
    code(&call);
    if (++row == rows) return;
    arguments.set_row(row);
  }
}

}  // namespace haliax::cpu
