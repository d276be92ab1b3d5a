// Plan and run: correlations.
#include "correlation.h"

#include <algorithm>
#include <optional>

#include "backends/cpu/kernels.h"
#include "base/thread_pool.h"
#include "flush_subnormals.h"
#include "program/matrices.h"

namespace haliax::cpu {
namespace {

using program::Contract;
using program::MatrixDim;
using program::MatrixDims;
using program::offset_at;
using program::points;

constexpr std::int64_t least_correlated = 1 << 15;  // multiplications
constexpr std::int64_t fewest_taps = 4, most_correlated_taps = 4096;
constexpr std::int64_t fewest_columns = 8;
// Elements per call of the kernel. The sums of the calls are added in f64.
constexpr std::int64_t most_elements = 1 << 12;

// Strides `a` are those of x, the operand with windows, and strides `b` are those of y.
struct CorrelationPlan {
  bool swapped = false;  // x is operand b of the contraction
  MatrixDims batch, taps, outer;
  MatrixDim rows, columns;  // dims of the sum; `outer` has the others
};

std::optional<CorrelationPlan> plan_correlation(const Contract& c) {
  auto is_float_type = [](DType type) { return type == DType::f32 || type == DType::bf16; };
  if (c.a.dtype != c.b.dtype || !is_float_type(c.a.dtype) || !is_float_type(c.out.dtype)) return {};
  auto s = program::dims_of(c);
  CorrelationPlan p;
  p.swapped = points(s.m) == 1;
  if (p.swapped) s.swap_operands();
  const std::int64_t taps = points(s.m), terms = points(s.k);
  if (points(s.n) != 1 || taps < fewest_taps || taps > most_correlated_taps) return {};
  if (terms < 4 * taps || points(s.batch) * taps * terms < least_correlated) return {};
  if (!program::reads_windows(c)) return {};
  s.normalize();
  auto take_largest = [&](auto accepts) -> std::optional<MatrixDim> {
    auto best = s.k.end();
    for (auto d = s.k.begin(); d != s.k.end(); ++d)
      if (accepts(*d) && (best == s.k.end() || d->n > best->n)) best = d;
    if (best == s.k.end()) return {};
    auto taken = *best;
    s.k.erase(best);
    return taken;
  };
  auto columns = take_largest(
      [](const MatrixDim& d) { return d.a == 1 && d.b == 1 && d.n >= fewest_columns; });
  if (!columns) return {};
  p.columns = *columns;
  p.rows = take_largest([](const MatrixDim&) { return true; }).value_or(MatrixDim());
  p.batch = s.batch;
  p.taps = s.m;
  p.outer = s.k;
  return p;
}

class CorrelationStep final : public CompiledStep {
 public:
  CorrelationStep(const Contract& c, CorrelationPlan plan)
      : plan_(std::move(plan)), x_(plan_.swapped ? c.b : c.a), y_(plan_.swapped ? c.a : c.b),
        out_(c.out), type_(c.a.dtype), out_type_(c.out.dtype), accumulate_(c.accumulate) {
    const std::int64_t taps = points(plan_.taps);
    for (std::int64_t t = 0; t < taps; ++t) {
      offsets_.push_back(offset_at(plan_.taps, &MatrixDim::a, t));
      out_offsets_.push_back(offset_at(plan_.taps, &MatrixDim::out, t));
    }
    blocks_ = parts_of(taps, Correlation::most_taps);
    per_block_ = parts_of(taps, blocks_);
    blocks_ = parts_of(taps, per_block_);
    columns_ = std::min(plan_.columns.n, most_elements);
    rows_ = std::clamp<std::int64_t>(most_elements / columns_, 1, plan_.rows.n);
  }
  void run(Frame& frame) override {
    const std::byte *x = x_.at(frame), *y = y_.at(frame);
    std::byte* out = out_.at(frame);
    parallel_for(points(plan_.batch) * blocks_, threads(), [&](std::int64_t task, int) {
      const FlushSubnormals flush;
      const std::int64_t batch = task / blocks_, first = task % blocks_ * per_block_;
      const std::int64_t bytes = haliax::bytes_of(type_);
      double sums[Correlation::most_taps] = {};
      const int taps = int(std::min(per_block_, std::int64_t(offsets_.size()) - first));
      sum(x + offset_at(plan_.batch, &MatrixDim::a, batch) * bytes,
          y + offset_at(plan_.batch, &MatrixDim::b, batch) * bytes, first, taps, sums);
      const std::int64_t at = offset_at(plan_.batch, &MatrixDim::out, batch);
      for (int t = 0; t < taps; ++t)
        write(out + (at + out_offsets_[std::size_t(first + t)]) * haliax::bytes_of(out_type_),
              sums[t]);
    });
  }

 private:
  static std::int64_t parts_of(std::int64_t n, std::int64_t part) { return (n + part - 1) / part; }
  // Adds the sums of some taps, for one position of the batch.
  void sum(const std::byte* x, const std::byte* y, std::int64_t first, int taps,
           double* sums) const {
    const std::int64_t bytes = haliax::bytes_of(type_);
    const auto& p = plan_;
    float part[Correlation::most_taps];
    Correlation s{};
    s.x_row = p.rows.a;
    s.y_row = p.rows.b;
    s.type = type_;
    s.taps = taps;
    s.offsets = offsets_.data() + first;
    s.sums = part;
    for (std::int64_t o = 0; o < points(p.outer); ++o)
      for (std::int64_t row = 0; row < p.rows.n; row += rows_)
        for (std::int64_t column = 0; column < p.columns.n; column += columns_) {
          s.n = std::min(columns_, p.columns.n - column);
          s.rows = std::min(rows_, p.rows.n - row);
          s.x = x + (offset_at(p.outer, &MatrixDim::a, o) + row * p.rows.a + column) * bytes;
          s.y = y + (offset_at(p.outer, &MatrixDim::b, o) + row * p.rows.b + column) * bytes;
          kernels().correlation(s);
          for (int t = 0; t < taps; ++t) sums[t] += double(part[t]);
        }
  }
  void write(std::byte* to, double sum) const {
    float before = 0;
    if (accumulate_) kernels().load(out_type_)(&before, to, 1, 1);
    const auto all = float(sum + double(before));
    kernels().store(out_type_)(to, &all, 1, 1);
  }

  CorrelationPlan plan_;
  Place x_, y_, out_;
  DType type_, out_type_;
  bool accumulate_;
  std::vector<std::int64_t> offsets_, out_offsets_;  // by tap, in elements
  std::int64_t blocks_ = 1, per_block_ = 1;          // blocks of taps
  std::int64_t rows_ = 1, columns_ = 1;              // per call of the kernel
};

}  // namespace

std::unique_ptr<CompiledStep> make_correlation(const program::Step& step) {
  auto plan = plan_correlation(step.contract);
  return plan ? std::make_unique<CorrelationStep>(step.contract, std::move(*plan)) : nullptr;
}
bool is_correlation(const program::Step& step) {
  return plan_correlation(step.contract).has_value();
}

}  // namespace haliax::cpu
