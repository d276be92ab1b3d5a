// Plan and run: vector-matrix products, such as those of a model that generates one token at a
// time. They read each element of the matrix once, so memory bandwidth bounds their time.
#include <algorithm>
#include <cstring>
#include <optional>

#include "base/thread_pool.h"
#include "gemv.h"
#include "kernels.h"
#include "program/matrices.h"
#include "workspace.h"

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
// columns per pass; floats of x at a time; multiplications per task
constexpr std::int64_t widest = 2048, most_x = 1 << 15, enough = 1 << 15;
constexpr std::int64_t least_tasks = 16;
std::int64_t parts_of(std::int64_t n, std::int64_t block) { return (n + block - 1) / block; }

bool is_read(DType type) { return type == DType::f32 || type == DType::bf16; }

std::optional<GemvPlan> plan_gemv(const Contract& c) {
  auto s = program::dims_of(c);
  GemvPlan p;
  p.swapped = points(s.n) == 1;
  if (p.swapped) s.swap_operands();
  if (points(s.m) != 1 || points(s.n) < 8 || points(s.k) < 8) return {};
  const std::int64_t work = points(s.n) * points(s.k);
  // for small contractions, LoopContractStep accumulates in f64
  if (work < 2048 || work * points(s.batch) < enough) return {};
  if (!is_read(c.a.dtype) || !is_read(c.b.dtype) || !is_read(c.out.dtype)) return {};
  s.normalize();
  if (s.k.size() != 1) return {};
  p.k = s.k[0];
  std::size_t at = 0;  // the dim of n that becomes the n of the matrix
  for (std::size_t d = 0; d < s.n.size(); ++d)
    if (p.k.b == 1 ? s.n[d].n > s.n[at].n : s.n[d].b == 1) at = d;
  p.n = s.n[at];
  p.rows_are_n = p.k.b == 1;
  if (p.k.n > most_x && p.rows_are_n) return {};
  if (!p.rows_are_n && p.n.b != 1) return {};
  if ((p.rows_are_n ? p.n.b : p.k.b) == 0) return {};
  p.outer = s.batch;
  for (std::size_t d = 0; d < s.n.size(); ++d)
    if (d != at) p.outer.push_back(s.n[d]);

  const std::int64_t matrices = points(p.outer), each = p.n.n * p.k.n;
  p.k_block = p.k.n;
  if (p.rows_are_n) {
    const std::int64_t requested = std::clamp<std::int64_t>(
        each / enough, 1, std::max<std::int64_t>(1, 4 * least_tasks / matrices));
    p.n_block = parts_of(parts_of(p.n.n, requested), 4) * 4;
  } else {
    p.n_block = parts_of(parts_of(p.n.n, parts_of(p.n.n, widest)), 16) * 16;
    const std::int64_t tasks = matrices * parts_of(p.n.n, p.n_block);
    const std::int64_t requested = std::clamp<std::int64_t>(
        parts_of(least_tasks, tasks), 1, std::max<std::int64_t>(1, each / enough));
    p.k_block = std::min(most_x, parts_of(parts_of(p.k.n, requested), 8) * 8);
  }
  p.n_blocks = parts_of(p.n.n, p.n_block);
  p.k_blocks = parts_of(p.k.n, p.k_block);
  return p;
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
    const auto& p = plan_;
    const std::byte *x = x_.at(frame), *w = w_.at(frame);
    std::byte* out = out_.at(frame);
    auto* partial = p.k_blocks > 1 ? reinterpret_cast<float*>(scratch_.at(frame)) : nullptr;
    const auto* flags = flags_at(frame);
    parallel_for(p.tasks(), workers_, [&](std::int64_t task, int) {
      const std::int64_t in = task % p.n_blocks, ik = task / p.n_blocks % p.k_blocks,
                         point = task / p.n_blocks / p.k_blocks;
      const std::int64_t n = in * p.n_block, k = ik * p.k_block,
                         count = std::min(p.n_block, p.n.n - n);
      float* y = partial ? partial + (point * p.k_blocks + ik) * p.n.n + n
                         : reinterpret_cast<float*>(workspace());
      // columns whose sums fit into the workspace and the first-level cache
      for (std::int64_t done = 0; done < count; done += widest) {
        const std::int64_t some = std::min(widest, count - done);
        float* sums = partial ? y + done : y;
        std::memset(sums, 0, static_cast<std::size_t>(some) * 4);
        const std::byte* of_x = x + offset_at(p.outer, &MatrixDim::a, point) * bytes_of(x_type_);
        const std::int64_t of_w = offset_at(p.outer, &MatrixDim::b, point), first = n + done,
                           depth = std::min(p.k_block, p.k.n - k);
        auto make = [&](std::int64_t i, std::int64_t columns, std::int64_t j, std::int64_t rows) {
          multiply(of_x, w + (of_w + i * p.n.b + j * p.k.b) * bytes_of(w_type_), sums + (i - first),
                   columns, j, rows);
        };
        if (!flags)
          make(first, some, k, depth);
        else if (varies_along_k_)
          each_shown(flags, k, depth,
                     [&](std::int64_t j, std::int64_t rows) { make(first, some, j, rows); });
        else
          each_shown(flags, first, some,
                     [&](std::int64_t i, std::int64_t columns) { make(i, columns, k, depth); });
        if (!partial) store(out, point, n + done, some, sums);
      }
    });
    if (!partial) return;
    const std::int64_t blocks = points(p.outer) * p.n_blocks;
    parallel_for(blocks, blocks > 64 ? workers_ : 1, [&](std::int64_t block, int) {
      const std::int64_t n = block % p.n_blocks * p.n_block, point = block / p.n_blocks,
                         count = std::min(p.n_block, p.n.n - n);
      float* sum = partial + point * p.k_blocks * p.n.n + n;
      for (std::int64_t ik = 1; ik < p.k_blocks; ++ik)
        for (std::int64_t j = 0; j < count; ++j) sum[j] += sum[ik * p.n.n + j];
      store(out, point, n, count, sum);
    });
  }

  double computed_fraction(const Frame& frame) const override {
    return flags_ ? program::computed_fraction(contract_, flags_at(frame)) : 1;
  }

 private:
  using Flags = Contract::BlockMask::Flags;
  static int bytes_of(DType type) { return haliax::bytes_of(type); }
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
  void each_shown(const unsigned char* flags, std::int64_t first, std::int64_t count, F f) const {
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
  // y (n) += x (k ... k + depth) w
  void multiply(const std::byte* x, const std::byte* w, float* y, std::int64_t n, std::int64_t k,
                std::int64_t depth) const {
    const auto& p = plan_;
    x += k * p.k.a * bytes_of(x_type_);
    const bool is_dense = x_type_ == DType::f32 && p.k.a == 1;
    auto* converted = reinterpret_cast<float*>(workspace()) + widest;
    if (!is_dense) kernels().load(x_type_)(converted, x, p.k.a, depth);
    kernels().gemv({.n = n,
                    .k = depth,
                    .x = is_dense ? reinterpret_cast<const float*>(x) : converted,
                    .w = w,
                    .pitch = p.rows_are_n ? p.n.b : p.k.b,
                    .type = w_type_,
                    .rows_are_n = p.rows_are_n,
                    .y = y});
  }
  void store(std::byte* out, std::int64_t point, std::int64_t n, std::int64_t count,
             float* sums) const {
    const auto& p = plan_;
    std::byte* to =
        out + (offset_at(p.outer, &MatrixDim::out, point) + n * p.n.out) * bytes_of(out_type_);
    if (contract_.accumulate) {
      auto* before = reinterpret_cast<float*>(workspace()) + widest;
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
static_assert((widest + most_x) * 4 <= workspace_bytes);

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
