// Run: contractions. Batch, m, n and k dims of any count and with any strides become a set of
// matmuls (program/matrices.h). Blocks of them run in oneDNN or in a kernel of this backend.
#include <bit>
#include <optional>

#include "backends/cpu/kernels.h"
#include "backends/cpu/move/strided_copy.h"
#include "base/thread_pool.h"
#include "correlation.h"
#include "flush_subnormals.h"
#include "gemm.h"
#include "gemv.h"
#include "loop_contract.h"
#include "matmul_plan.h"

namespace haliax::cpu {
namespace {

using program::MatrixDim;
using program::offset_at;

class MatmulStep final : public CompiledStep {
 public:
  MatmulStep(const program::Step& step, const Context& context, std::unique_ptr<MatmulPlan> plan)
      : plan_(std::move(plan)), contract_(step.contract),
        a_(plan_->choice.swapped ? contract_.b : contract_.a),
        b_(plan_->choice.swapped ? contract_.a : contract_.b), out_(contract_.out),
        scratch_(step, context.arena_slot, plan_->scratch()),
        in_bytes_(haliax::bytes_of(contract_.a.dtype)),
        out_bytes_(haliax::bytes_of(contract_.out.dtype)) {
    if (plan_->choice.pack_a.used)
      copy_a_ = Copier(plan_->choice.pack_a.dims, plan_->choice.pack_a.from,
                       plan_->choice.pack_a.to, in_bytes_);
    if (plan_->choice.pack_b.used)
      copy_b_ = Copier(plan_->choice.pack_b.dims, plan_->choice.pack_b.from,
                       plan_->choice.pack_b.to, in_bytes_);
    if (auto& copy = plan_->choice.pack_out; copy.used)
      copy_out_ = Copier(copy.dims, copy.from, copy.to, out_bytes_);
    calls_.resize(call_index(plan_->workers, 0, false));
    for (int worker = 0; worker < plan_->workers; ++worker)
      for (int edge = 0; edge < MatmulPlan::edges; ++edge)
        for (const bool accumulate : {false, true})
          if (auto& gemm = plan_->gemms[edge][accumulate])
            calls_[call_index(worker, edge, accumulate)].emplace(gemm);
    if (auto mask = mask_without_flags()) {
      block_mask_ = *mask;
      flags_.emplace(contract_.block_mask.flags);
    }
  }
  void run(Frame& frame) override {
    const MatmulPlan& p = *plan_;
    std::byte* scratch = p.scratch() ? scratch_.at(frame) : nullptr;
    const std::byte *a = a_.at(frame), *b = b_.at(frame);
    std::byte* const result = out_.at(frame);
    std::byte* out =
        p.choice.pack_out.used ? scratch + p.packed_a_bytes + p.packed_b_bytes : result;
    if (p.choice.pack_a.used) a = copied(copy_a_, a, scratch);
    if (p.choice.pack_b.used) b = copied(copy_b_, b, scratch + p.packed_a_bytes);
    auto block_mask = block_mask_;
    if (flags_) block_mask.flags = reinterpret_cast<const unsigned char*>(flags_->at(frame));
    parallel_for(p.tasks(), p.workers, [&](std::int64_t task, int worker) {
      const FlushSubnormals flush;
      run_block({a, b, out, scratch}, block_mask, task, worker);
    });
    if (p.choice.pack_out.used) copied(copy_out_, out, result);
  }
  double computed_fraction(const Frame& frame) const override {
    return flags_ ? program::computed_fraction(
                        contract_, reinterpret_cast<const unsigned char*>(flags_->at(frame)))
                  : 1;
  }

 private:
  struct Operands {
    const std::byte *a, *b;
    std::byte *out, *scratch;
  };
  void run_block(const Operands& at, KernelBlockMask block_mask, std::int64_t task, int worker) {
    const MatmulPlan& p = *plan_;
    const auto& c = p.choice;
    const std::int64_t m_index = task % p.m_blocks, n_index = task / p.m_blocks % p.n_blocks,
                       rest = task / p.m_blocks / p.n_blocks, group = rest % p.groups,
                       outer = rest / p.groups;
    const std::int64_t m = m_index * p.m_block, n = n_index * p.n_block, g = group * p.group;
    const bool is_last_m = p.group > 1 ? group == p.groups - 1 : m_index == p.m_blocks - 1;
    const int edge = MatmulPlan::edge_of(is_last_m, n_index == p.n_blocks - 1);
    const std::int64_t a = offset_at(c.outer, &MatrixDim::a, outer) + g * p.group_dim.a + m * c.m.a;
    const std::int64_t b = offset_at(c.outer, &MatrixDim::b, outer) + g * p.group_dim.b + n * c.n.b;
    const std::int64_t out = offset_at(c.outer, &MatrixDim::out, outer) + g * p.group_dim.out +
                             m * c.m.out + n * c.n.out;
    std::byte* slice = at.scratch + p.packed() + worker * p.slice;
    block_mask.m.first = m;
    block_mask.n.first = n;
    for (std::int64_t k = 0; k < p.k_points; ++k) {
      const bool accumulate = contract_.accumulate || k > 0;
      calls_[call_index(worker, edge, accumulate)]->run(
          at.a + (a + offset_at(c.k_outer, &MatrixDim::a, k)) * in_bytes_,
          at.b + (b + offset_at(c.k_outer, &MatrixDim::b, k)) * in_bytes_,
          at.out + out * out_bytes_, slice, {block_mask, p.taps});
    }
  }
  // Returns the block mask without its flags, if the matrices run along the same dims as the flags.
  // Otherwise returns nullopt: all blocks are computed, which is also correct.
  std::optional<KernelBlockMask> mask_without_flags() const {
    auto& s = contract_.block_mask;
    auto& c = plan_->choice;
    if (s.flags.slot < 0 || !plan_->kernel || plan_->kernel->only_small || plan_->group != 1 ||
        plan_->k_points != 1)
      return {};
    if (!plan_->taps.empty() && s.k.size != 0) return {};  // kernels sum the full range of k
    KernelBlockMask out;
    out.zero = s.zero;
    auto set_side = [](KernelBlockMask::Side& side,
                       const program::Contract::BlockMask::Flags& flags, const program::Dims& dims,
                       const MatrixDim& d) {
      if (flags.size == 0) return true;
      side = {.shift = std::countr_zero(std::uint64_t(flags.size)), .stride = flags.stride};
      return std::has_single_bit(std::uint64_t(flags.size)) && program::points(dims) == d.n;
    };
    auto &m = c.swapped ? c.n : c.m, &n = c.swapped ? c.m : c.n;
    auto &of_m = c.swapped ? out.n : out.m, &of_n = c.swapped ? out.m : out.n;
    bool all = set_side(of_m, s.m, contract_.m, m) && set_side(of_n, s.n, contract_.n, n) &&
               set_side(out.k, s.k, contract_.k, c.k);
    return all ? std::optional(out) : std::nullopt;
  }
  // Copies in parallel. Returns `to`.
  static const std::byte* copied(const Copier& copier, const std::byte* from, std::byte* to) {
    parallel_for(copier.blocks(), threads(),
                 [&](std::int64_t block, int) { copier.run(from, to, block); });
    return to;
  }
  static std::size_t call_index(int worker, int edge, bool accumulate) {
    return static_cast<std::size_t>((worker * MatmulPlan::edges + edge) * 2 + accumulate);
  }
  std::unique_ptr<MatmulPlan> plan_;
  const program::Contract& contract_;
  Place a_, b_, out_;
  KernelBlockMask block_mask_;  // without the flags
  std::optional<Place> flags_;
  Scratch scratch_;
  int in_bytes_, out_bytes_;
  Copier copy_a_, copy_b_, copy_out_;
  std::vector<std::optional<GemmCall>> calls_;  // [worker][edge][accumulate]
};

// Returns a contraction to a single number as a fused step, the sum of a[k] * b[k]. It reads both
// operands in place, where a matmul would copy them.
std::optional<program::Step> as_sum(const program::Step& step) {
  using program::Code;
  using program::Instr;
  const program::Contract& c = step.contract;
  const auto dims = program::dims_of(c);
  const bool is_number =
      program::points(dims.batch) * program::points(dims.m) * program::points(dims.n) == 1;
  const bool is_float = c.a.dtype == DType::f32 || c.a.dtype == DType::bf16;
  if (!is_number || !is_float || c.a.dtype != c.b.dtype || c.accumulate) return {};

  program::Fused fused;
  fused.dims = c.k;
  auto& code = fused.code;
  const auto add = [&](Instr in) {
    code.push_back(std::move(in));
    return static_cast<int>(code.size()) - 1;
  };
  const auto load = [&](program::View view) {
    view.strides.erase(view.strides.begin(), view.strides.end() - std::ptrdiff_t(c.k.size()));
    const int x = add({.code = Code::load, .dtype = view.dtype, .inner = true, .view = view});
    if (view.dtype == DType::f32) return x;
    return add({.code = Code::cast, .args = {x, -1, -1, -1}, .inner = true});
  };
  const int a = load(c.a), b = load(c.b);
  const int product = add({.code = Code::mul, .args = {a, b, -1, -1}, .inner = true});
  int sum = add({.code = Code::reduce_sum, .args = {product, -1, -1, -1}});
  if (c.out.dtype != DType::f32)
    sum = add({.code = Code::cast, .dtype = c.out.dtype, .args = {sum, -1, -1, -1}});
  Instr store{.code = Code::store, .dtype = c.out.dtype, .args = {sum, -1, -1, -1}, .view = c.out};
  store.view.strides.assign(c.k.size(), 0);
  add(std::move(store));

  program::Step out = step;
  out.kind = program::Kind::fused;
  out.fused = std::move(fused);
  return out;
}

}  // namespace

std::unique_ptr<CompiledStep> make_contract(const program::Step& step, const Context& context) {
  if (const auto sum = as_sum(step)) return make_fused(*sum, context);
  if (auto created = make_correlation(step)) return created;
  if (auto created = make_gemv(step, context)) return created;
  if (auto plan = plan_matmul(step.contract, context.workers))
    return std::make_unique<MatmulStep>(step, context, std::move(plan));
  return make_loop_contract(step.contract);
}
std::int64_t contract_scratch(const program::Step& step, int workers) {
  if (const auto sum = as_sum(step)) return fused_scratch(*sum);
  if (is_correlation(step)) return 0;
  if (auto bytes = gemv_scratch(step)) return *bytes;
  auto plan = plan_matmul(step.contract, workers);
  return plan ? plan->scratch() : 0;
}

}  // namespace haliax::cpu
