// Plan and run: vector-matrix products, such as those of a model that generates one token at a
// time. They read each element of the matrix once, so memory bandwidth bounds their time.
#include <algorithm>
#include <cstring>
#include <optional>

#include "backends/cpu/kernels.h"
#include "backends/cpu/workspace.h"
#include "base/thread_pool.h"
#include "flush_subnormals.h"
#include "gemv.h"
#include "program/matrices.h"

namespace haliax::cpu {
namespace {

using program::Contract;
using program::ContractDims;
using program::MatrixDim;
using program::MatrixDims;
using program::offset_at;
using program::points;

struct GemvPlan {
  bool swapped = false;  // the matrix is operand a of the contraction
  MatrixDim n, k;  // dims of the matrix; `a`: strides of the vector x, `b`: strides of the matrix w
  MatrixDims outer;         // one vector-matrix product per element
  bool rows_are_n = false;  // w is stored as (n, k), else as (k, n)
  std::int64_t n_block = 1, n_blocks = 1, k_block = 1, k_blocks = 1;  // depend on the sizes only
  std::int64_t tasks() const { return points(outer) * n_blocks * k_blocks; }
  // Returns the size of the partial sums if k is split: (outer element, part of k, n).
  std::int64_t partial_floats() const { return k_blocks > 1 ? points(outer) * k_blocks * n.n : 0; }
};
constexpr std::int64_t kMostColumns = 2048;  // per pass
constexpr std::int64_t kMostX = 1 << 15;     // floats of x at a time
constexpr std::int64_t kTaskWork = 1 << 15;  // multiplications per task
constexpr std::int64_t kLeastTasks = 16;
constexpr std::int64_t kShortestSide = 8;       // columns and summed positions of a matrix
constexpr std::int64_t kSmallestMatrix = 2048;  // elements
std::int64_t parts_of(std::int64_t n, std::int64_t block) { return (n + block - 1) / block; }

bool is_read(DType type) { return type == DType::f32 || type == DType::bf16; }

// Splits n, and k if there are too few tasks otherwise.
void choose_blocks(GemvPlan& plan) {
  const std::int64_t n = plan.n.n, k = plan.k.n, matrices = points(plan.outer),
                     most_tasks = std::max<std::int64_t>(1, n * k / kTaskWork);  // per matrix
  plan.k_block = k;
  if (plan.rows_are_n) {
    const std::int64_t tasks =
        std::min(most_tasks, std::max<std::int64_t>(1, 4 * kLeastTasks / matrices));
    plan.n_block = parts_of(parts_of(n, tasks), 4) * 4;
  } else {
    plan.n_block = parts_of(parts_of(n, parts_of(n, kMostColumns)), 16) * 16;
    const std::int64_t tasks = matrices * parts_of(n, plan.n_block),
                       k_parts = std::min(most_tasks, parts_of(kLeastTasks, tasks));
    plan.k_block = std::min(kMostX, parts_of(parts_of(k, k_parts), 8) * 8);
  }
  plan.n_blocks = parts_of(n, plan.n_block);
  plan.k_blocks = parts_of(k, plan.k_block);
}
std::optional<GemvPlan> plan_gemv(const Contract& c) {
  auto dims = program::dims_of(c);
  GemvPlan plan;
  plan.swapped = points(dims.n) == 1;
  if (plan.swapped) dims.swap_operands();
  if (points(dims.m) != 1 || points(dims.n) < kShortestSide || points(dims.k) < kShortestSide)
    return {};
  const std::int64_t work = points(dims.n) * points(dims.k);
  // for small contractions, LoopContractStep accumulates in f64
  if (work < kSmallestMatrix || work * points(dims.batch) < kTaskWork) return {};
  if (!is_read(c.a.dtype) || !is_read(c.b.dtype) || !is_read(c.out.dtype)) return {};
  dims.normalize();
  if (dims.k.size() != 1) return {};
  plan.k = dims.k[0];
  plan.rows_are_n = plan.k.b == 1;
  std::size_t chosen = 0;  // the dim of n that becomes the n of the matrix
  for (std::size_t d = 0; d < dims.n.size(); ++d)
    if (plan.rows_are_n ? dims.n[d].n > dims.n[chosen].n : dims.n[d].b == 1) chosen = d;
  plan.n = dims.n[chosen];
  if (plan.rows_are_n ? plan.k.n > kMostX || plan.n.b == 0 : plan.n.b != 1 || plan.k.b == 0)
    return {};
  plan.outer = dims.batch;
  for (std::size_t d = 0; d < dims.n.size(); ++d)
    if (d != chosen) plan.outer.push_back(dims.n[d]);
  choose_blocks(plan);
  return plan;
}

class GemvStep final : public CompiledStep {
 public:
  GemvStep(const program::Step& step, const Context& context, GemvPlan plan)
      : plan_(std::move(plan)), x_(plan_.swapped ? step.contract.b : step.contract.a),
        w_(plan_.swapped ? step.contract.a : step.contract.b), out_(step.contract.out),
        x_type_(plan_.swapped ? step.contract.b.dtype : step.contract.a.dtype),
        w_type_(plan_.swapped ? step.contract.a.dtype : step.contract.b.dtype),
        out_type_(step.contract.out.dtype), contract_(step.contract),
        varies_along_k_(contract_.block_mask.k.size > 0), along_(along()),
        scratch_(step, context.arena_slot, plan_.partial_floats() * 4),
        workers_(static_cast<int>(std::min<std::int64_t>(plan_.tasks(), threads()))) {
    if (along_.size > 0) flags_.emplace(contract_.block_mask.flags);
  }
  void run(Frame& frame) override {
    const Arrays at{
        .x = x_.at(frame),
        .w = w_.at(frame),
        .out = out_.at(frame),
        .partial = plan_.k_blocks > 1 ? reinterpret_cast<float*>(scratch_.at(frame)) : nullptr,
        .flags = flags_at(frame)};
    parallel_for(plan_.tasks(), workers_, [&](std::int64_t task, int) {
      const FlushSubnormals flush;
      run_task(at, task);
    });
    if (at.partial) add_partial_sums(at);
  }

  double computed_fraction(const Frame& frame) const override {
    return flags_ ? program::computed_fraction(contract_, flags_at(frame)) : 1;
  }

 private:
  using Flags = Contract::BlockMask::Flags;
  struct Arrays {
    const std::byte *x, *w;
    std::byte* out;
    float* partial;              // (outer element, part of k, n); null if k is not split
    const unsigned char* flags;  // the block mask; null: all blocks are computed
  };
  // A range of columns and of k, for one element of the outer dims.
  struct Range {
    std::int64_t outer_element, n, columns, k, depth;
  };
  static int bytes_of(DType type) { return haliax::bytes_of(type); }
  void run_task(const Arrays& at, std::int64_t task) const {
    const auto& p = plan_;
    const std::int64_t n = task % p.n_blocks * p.n_block, k_part = task / p.n_blocks % p.k_blocks,
                       outer_element = task / p.n_blocks / p.k_blocks, k = k_part * p.k_block;
    const std::int64_t end = std::min(p.n.n, n + p.n_block);
    float* partial =
        at.partial ? at.partial + (outer_element * p.k_blocks + k_part) * p.n.n : nullptr;
    // columns whose sums fit into the workspace and the first-level cache
    for (std::int64_t first = n; first < end; first += kMostColumns) {
      const Range range{.outer_element = outer_element,
                        .n = first,
                        .columns = std::min(kMostColumns, end - first),
                        .k = k,
                        .depth = std::min(p.k_block, p.k.n - k)};
      float* sums = partial ? partial + first : reinterpret_cast<float*>(workspace());
      multiply_computed(at, range, sums);
      if (!partial) store(at.out, outer_element, first, range.columns, sums);
    }
  }
  void add_partial_sums(const Arrays& at) const {
    const auto& p = plan_;
    const std::int64_t blocks = points(p.outer) * p.n_blocks;
    parallel_for(blocks, blocks > 64 ? workers_ : 1, [&](std::int64_t block, int) {
      const FlushSubnormals flush;
      const std::int64_t n = block % p.n_blocks * p.n_block, outer_element = block / p.n_blocks,
                         count = std::min(p.n_block, p.n.n - n);
      float* sum = at.partial + outer_element * p.k_blocks * p.n.n + n;
      for (std::int64_t k_part = 1; k_part < p.k_blocks; ++k_part)
        for (std::int64_t j = 0; j < count; ++j) sum[j] += sum[k_part * p.n.n + j];
      store(at.out, outer_element, n, count, sum);
    });
  }
  // Returns the side of the matrix whose blocks may be skipped. Size 0: no side, also if flags run
  // along both sides or along one of several dims.
  Flags along() const {
    const Contract& c = contract_;
    const auto& s = c.block_mask;
    const auto& n = plan_.swapped ? s.m : s.n;
    if (s.flags.slot < 0 || (n.size > 0) == varies_along_k_) return {};
    const bool single_dim =
        varies_along_k_ ? points(c.k) == plan_.k.n : points(plan_.swapped ? c.m : c.n) == plan_.n.n;
    return !single_dim ? Flags() : varies_along_k_ ? s.k : n;
  }
  const unsigned char* flags_at(const Frame& frame) const {
    return flags_ ? reinterpret_cast<const unsigned char*>(flags_->at(frame)) : nullptr;
  }
  // Calls f for the positions in blocks that are computed, for each contiguous range. The result at
  // other positions is 0 or the previous value of an accumulation.
  template <class F>
  void each_computed(const unsigned char* flags, std::int64_t first, std::int64_t count,
                     F f) const {
    const std::int64_t end = first + count, block = along_.size;
    auto is_computed = [&](std::int64_t at) { return flags[at / block * along_.stride] != 0; };
    // end of the block
    auto block_end = [&](std::int64_t at) { return std::min(end, (at / block + 1) * block); };
    for (std::int64_t at = first; at < end;) {
      std::int64_t next = block_end(at);
      const bool computed = is_computed(at);
      while (next < end && is_computed(next) == computed) next = block_end(next);
      if (computed) f(at, next - at);
      at = next;
    }
  }
  // sums (columns) = x (depth) w (depth, columns), without the blocks that the mask skips
  void multiply_computed(const Arrays& at, const Range& r, float* sums) const {
    std::memset(sums, 0, static_cast<std::size_t>(r.columns) * 4);
    if (!at.flags) return multiply(at, r, sums);
    Range part = r;
    if (varies_along_k_)
      return each_computed(at.flags, r.k, r.depth, [&](std::int64_t k, std::int64_t depth) {
        part.k = k;
        part.depth = depth;
        multiply(at, part, sums);
      });
    each_computed(at.flags, r.n, r.columns, [&](std::int64_t n, std::int64_t columns) {
      part.n = n;
      part.columns = columns;
      multiply(at, part, sums + (n - r.n));
    });
  }
  // y (columns) += x (depth) w (depth, columns)
  void multiply(const Arrays& at, const Range& r, float* y) const {
    const auto& p = plan_;
    const std::byte* x = at.x + (offset_at(p.outer, &MatrixDim::a, r.outer_element) + r.k * p.k.a) *
                                    bytes_of(x_type_);
    const std::byte* w =
        at.w + (offset_at(p.outer, &MatrixDim::b, r.outer_element) + r.n * p.n.b + r.k * p.k.b) *
                   bytes_of(w_type_);
    const bool is_dense = x_type_ == DType::f32 && p.k.a == 1;
    auto* converted = reinterpret_cast<float*>(workspace()) + kMostColumns;
    if (!is_dense) kernels().load(x_type_)(converted, x, p.k.a, r.depth);
    kernels().gemv({.n = r.columns,
                    .k = r.depth,
                    .x = is_dense ? reinterpret_cast<const float*>(x) : converted,
                    .w = w,
                    .pitch = p.rows_are_n ? p.n.b : p.k.b,
                    .type = w_type_,
                    .rows_are_n = p.rows_are_n,
                    .y = y});
  }
  void store(std::byte* out, std::int64_t outer_element, std::int64_t n, std::int64_t count,
             float* sums) const {
    const auto& p = plan_;
    std::byte* to = out + (offset_at(p.outer, &MatrixDim::out, outer_element) + n * p.n.out) *
                              bytes_of(out_type_);
    if (contract_.accumulate) {
      auto* before = reinterpret_cast<float*>(workspace()) + kMostColumns;
      kernels().load(out_type_)(before, to, p.n.out, count);
      for (std::int64_t j = 0; j < count; ++j) sums[j] += before[j];
    }
    kernels().store(out_type_)(to, sums, p.n.out, count);
  }

  GemvPlan plan_;
  Place x_, w_, out_;
  DType x_type_, w_type_, out_type_;
  const Contract& contract_;
  bool varies_along_k_;
  Flags along_;
  std::optional<Place> flags_;
  Scratch scratch_;
  int workers_;
};
static_assert((kMostColumns + kMostX) * 4 <= workspace_bytes);

}  // namespace

std::unique_ptr<CompiledStep> make_gemv(const program::Step& step, const Context& context) {
  auto plan = plan_gemv(step.contract);
  return plan ? std::make_unique<GemvStep>(step, context, *plan) : nullptr;
}
std::optional<std::int64_t> gemv_scratch(const program::Step& step) {
  auto plan = plan_gemv(step.contract);
  return plan ? std::optional(plan->partial_floats() * 4) : std::nullopt;
}

}  // namespace haliax::cpu
