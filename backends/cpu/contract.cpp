// Contractions. Batch, m, n and k dims of any count and with any strides become a set of matmuls
// (program/matrices.h). Blocks of them run in oneDNN or in a kernel of this backend.
#include <algorithm>
#include <bit>
#include <optional>
#include <string>

#include "base/thread_pool.h"
#include "correlation.h"
#include "gemm.h"
#include "kernels.h"
#include "vector_product.h"
#include "program/matrices.h"
#include "strided_copy.h"
#include "workspace.h"

namespace haliax::cpu {
namespace {

using program::Contract;
using program::ContractDims;
using program::MatrixDim;
using program::MatrixDims;
using program::MatrixStride;
using program::offset_at;
using program::points;

struct MatmulPlan {
  const ProductKernel* kernel = nullptr;  // kernel of this backend; null: oneDNN
  program::MatrixProducts choice;
  std::int64_t group = 1, outer_points = 1, k_points = 1;
  std::int64_t m_block = 1, n_block = 1, m_blocks = 1, n_blocks = 1, groups = 1;
  MatrixDim group_dim;           // the batch dim within a primitive (stride 0 if group == 1)
  std::vector<ProductTap> taps;  // the positions of k_outer, if one matmul of the kernel sums them
  // Blocks at the end of m (or of the group) and of n may be smaller, and have matmuls of their
  // own.
  static constexpr int edges = 4;
  static int edge_of(bool last_m, bool last_n) { return last_m + 2 * last_n; }
  std::shared_ptr<const Gemm> gemms[edges][2];  // [edge][accumulate]
  std::int64_t slice = 0;                       // bytes of scratch per worker
  int threads = 1, workers = 1;
  std::int64_t packed_a_bytes = 0, packed_b_bytes = 0, packed_out_bytes = 0;

  std::int64_t tasks() const { return outer_points * groups * m_blocks * n_blocks; }
  std::int64_t packed() const { return packed_a_bytes + packed_b_bytes + packed_out_bytes; }
  std::int64_t scratch() const { return packed() + slice * workers; }
};

constexpr std::int64_t tiny = 32 * 1024;   // multiplications
constexpr std::int64_t most_summed = 528;  // columns of a block whose matmuls are summed
std::int64_t round_up(std::int64_t x, std::int64_t unit) { return (x + unit - 1) / unit * unit; }

// Chooses blocks for a kernel of this backend, about one per thread. Results do not depend on the
// blocks, so the split with the shortest estimated time is used. A block packs its part of b, at a
// cost of about 24 multiplications per element. It also reads its rows of a, or packs them if they
// are stored by columns.
void choose_own_blocks(MatmulPlan& p, std::int64_t macs, std::int64_t matrices) {
  const auto& c = p.choice;
  auto count = [](std::int64_t n, std::int64_t block) { return (n + block - 1) / block; };
  auto block = [&](std::int64_t n, std::int64_t parts, std::int64_t unit) {
    return parts == 1 ? n : round_up(count(n, parts), unit);
  };
  const std::int64_t parts =
      std::clamp<std::int64_t>(count(p.threads, matrices), 1, count(macs, 1 << 22));
  const std::int64_t row = c.m.a == 1 && c.k.a > 1 ? 24 : 4;
  std::int64_t best = -1;
  for (std::int64_t across = 1; across <= parts; ++across) {
    const std::int64_t n = block(c.n.n, across, 16),
                       m = block(c.m.n, count(parts, count(c.n.n, n)), 8);
    const std::int64_t blocks = count(c.m.n, m) * count(c.n.n, n);
    // estimated time per value of k, in multiplications
    const std::int64_t time = count(blocks * matrices, p.threads) * (m * n + 24 * n + row * m);
    if (best >= 0 && time >= best) continue;
    best = time;
    p.m_block = m;
    p.n_block = n;
    p.m_blocks = count(c.m.n, m);
    p.n_blocks = count(c.n.n, n);
  }
  if (p.kernel->only_small && p.m_block * c.k.n > most_packed) {
    p.m_block = block(c.m.n, count(c.m.n, most_packed / c.k.n / 32 * 32), 32);
    p.m_blocks = count(c.m.n, p.m_block);
  }
  // Sums over k_outer pass over their block again and again, so it should stay in the cache.
  if (p.k_points > 1 && p.n_block > most_summed) {
    p.n_block = block(c.n.n, count(c.n.n, most_summed), 48);
    p.n_blocks = count(c.n.n, p.n_block);
  }
  // more columns than a block holds at once: two blocks per thread, as threads differ in speed
  if (p.n_blocks > 1 && p.n_block >= 800) {
    p.n_block = block(c.n.n, 2 * p.n_blocks, 48);
    p.n_blocks = count(c.n.n, p.n_block);
  }
}
// Chooses the blocks of the matmuls. For oneDNN they depend on the sizes only. Columns are split
// first, so that each block of columns reads its part of b once.
void choose_blocks(MatmulPlan& p) {
  auto& c = p.choice;
  const std::int64_t terms = std::max<std::int64_t>(1, std::int64_t(p.taps.size()));
  const std::int64_t macs = c.m.n * c.n.n * c.k.n * terms;
  if (macs < (1 << 19) && !c.outer.empty()) {  // small matrices: several per call
    auto widest = std::max_element(c.outer.begin(), c.outer.end(),
                                   [](auto& x, auto& y) { return x.n < y.n; });
    if (widest->out != 0) {
      p.group_dim = *widest;
      c.outer.erase(widest);
      p.group = std::min(p.group_dim.n, std::max<std::int64_t>(1, (1 << 20) / macs));
      p.groups = (p.group_dim.n + p.group - 1) / p.group;
    }
  }
  p.outer_points = points(c.outer);
  p.k_points = points(c.k_outer);
  const std::int64_t matrices = p.outer_points * p.groups;
  if (p.kernel && p.group == 1) return choose_own_blocks(p, macs, matrices);
  const std::int64_t total = macs * p.k_points * p.outer_points * (p.groups * p.group);
  // At most 16 parts with at least 2 Mi multiplications each. oneDNN is fastest with tall parts: at
  // least 192 columns by at least 512 rows.
  std::int64_t parts = 1;
  while (parts < 16 && parts * 2 * (1 << 21) <= total) parts *= 2;
  parts = p.group > 1 ? 1 : std::max<std::int64_t>(1, parts / std::max<std::int64_t>(1, matrices));
  const std::int64_t n_parts = std::clamp<std::int64_t>(c.n.n / 192, 1, parts);
  const std::int64_t m_parts =
      std::clamp<std::int64_t>(c.m.n / 512, 1, std::max<std::int64_t>(1, parts / n_parts));
  p.n_block = std::min(c.n.n, round_up((c.n.n + n_parts - 1) / n_parts, n_parts > 1 ? 64 : 1));
  p.m_block = std::min(c.m.n, round_up((c.m.n + m_parts - 1) / m_parts, m_parts > 1 ? 32 : 1));
  p.n_blocks = (c.n.n + p.n_block - 1) / p.n_block;
  p.m_blocks = (c.m.n + p.m_block - 1) / p.m_block;
}

GemmShape gemm_shape(const MatmulPlan& p, const Contract& c, std::int64_t g, std::int64_t m,
                     std::int64_t n, bool accumulate) {
  const auto& x = p.choice;
  GemmShape s;
  s.g = g;
  s.m = m;
  s.n = n;
  s.k = x.k.n;
  // The stride of a dim of size 1 is arbitrary; use the stride of a dense matrix.
  auto dense = [](std::int64_t(&stride)[3], std::int64_t group, std::int64_t rows, std::int64_t row,
                  std::int64_t cols, std::int64_t col) {
    stride[0] = group;
    if (cols == 1) col = rows == 1 || row != 1 ? 1 : rows;
    if (rows == 1) row = col == 1 ? std::max<std::int64_t>(cols, 1) : 1;
    if (cols == 1 && row < 1) row = 1;
    stride[1] = row;
    stride[2] = col;
  };
  dense(s.a_stride, p.group_dim.a, m, x.m.a, s.k, x.k.a);
  dense(s.b_stride, p.group_dim.b, s.k, x.k.b, n, x.n.b);
  dense(s.out_stride, p.group_dim.out, m, x.m.out, n, x.n.out);
  s.a = p.choice.swapped ? c.b.dtype : c.a.dtype;
  s.b = p.choice.swapped ? c.a.dtype : c.b.dtype;
  s.out = c.out.dtype;
  s.accumulate = accumulate;
  s.own_kernel = p.kernel != nullptr;
  return s;
}

// Times of parts of a contraction by a kernel of this backend, in multiplications. Fitted to
// convolutions on one thread with AVX-512.
constexpr double packed_element = 10,
                 gathered_element = 24;  // into a panel; gathered: no unit stride
constexpr double row_element = 2.4;      // rows that are read in place
constexpr double result_element = 24, one_matmul = 5400;
constexpr double copied_element = 6, copied_run = 140;  // contiguous runs
constexpr double large_copied_element = 34;             // a copy that does not stay in the cache
constexpr double moved_element = 60;                    // runs of one element
constexpr std::int64_t most_cached = 1 << 18;           // elements of a copy

double time_of(const program::Packing& p) {
  if (!p.used) return 0;
  std::int64_t run = 1;  // elements that are contiguous in both arrays
  for (std::size_t d = p.dims.size(); d-- > 0 && p.from[d] == run && p.to[d] == run;)
    run *= p.dims[d];
  const double element = p.elements > most_cached ? large_copied_element : copied_element;
  return double(p.elements) * (run > 1 ? element + copied_run / double(run) : moved_element);
}
double time_of(const program::MatrixProducts& p) {
  const auto &m = p.m, &n = p.n, &k = p.k;
  auto panel = [](std::int64_t inner, std::int64_t outer) {
    return inner == 1 || outer == 1 ? packed_element : gathered_element;
  };
  const double left = k.a == 1 ? row_element : panel(m.a, k.a), right = panel(n.b, k.b);
  const double sums = double(round_up(m.n, 8) * round_up(n.n, 16));
  const double matmul = double(k.n) * (sums + left * double(m.n) + right * double(n.n)) +
                        result_element * double(m.n * n.n) + one_matmul;
  return time_of(p.pack_a) + time_of(p.pack_b) + time_of(p.pack_out) +
         double(points(p.outer) * points(p.k_outer)) * matmul;
}

// Returns the matrices of a contraction of windows, whose copy would be larger than the array. A
// kernel of this backend reads the windows in place, or from a copy if that is faster.
std::optional<program::MatrixProducts> window_matrices(const Contract& c, MatmulPlan& p,
                                                       bool unsplit_k) {
  const auto* kernel = product_kernel(c.a.dtype);
  if (!kernel || kernel->only_small || !program::reads_windows(c)) return {};
  if (kernel->sums_taps) unsplit_k = false;
  std::optional<program::MatrixProducts> best;
  double shortest = 0;
  for (auto& choice : program::window_products(c, unsplit_k)) {
    p.choice = choice;
    const double time = time_of(choice);
    if (best && time >= shortest) continue;
    if (!uses_own_kernel(gemm_shape(p, c, 1, choice.m.n, choice.n.n, c.accumulate))) continue;
    best = choice;
    shortest = time;
  }
  return best;
}

// Replaces the matmuls of k_outer by one matmul, which sums their terms before it rounds.
void sum_in_kernel(MatmulPlan& p) {
  auto& outer = p.choice.k_outer;
  const auto count = points(outer);
  for (std::int64_t k = 0; count > 1 && k < count; ++k)
    p.taps.push_back({offset_at(outer, &MatrixDim::a, k), offset_at(outer, &MatrixDim::b, k)});
  outer = {};
}
// Returns null if the contraction must run in LoopContractStep.
std::unique_ptr<MatmulPlan> plan_matmul(const Contract& c, int threads) {
  const bool dtypes =
      c.a.dtype == c.b.dtype && (c.a.dtype == DType::f32 || c.a.dtype == DType::bf16);
  const auto s = program::dims_of(c);
  const std::int64_t total = points(s.batch) * points(s.m) * points(s.n) * points(s.k);
  if (!dtypes || total <= tiny) return nullptr;
  // partial sums over k_outer must not be rounded
  const bool unsplit_k = c.out.dtype != DType::f32;
  auto p = std::make_unique<MatmulPlan>();
  p->threads = threads;
  auto choice = window_matrices(c, *p, unsplit_k);
  if (!choice) choice = program::matrix_products(c, unsplit_k, false, false, true);
  if (!choice) return nullptr;
  p->choice = *choice;
  if (uses_own_kernel(gemm_shape(*p, c, 1, choice->m.n, choice->n.n, c.accumulate)))
    p->kernel = product_kernel(c.a.dtype);
  if (p->kernel && p->kernel->sums_taps) sum_in_kernel(*p);
  choose_blocks(*p);
  const std::int64_t m_edge = p->choice.m.n - (p->m_blocks - 1) * p->m_block,
                     n_edge = p->choice.n.n - (p->n_blocks - 1) * p->n_block;
  const std::int64_t g_edge = p->group_dim.n - (p->groups - 1) * p->group;
  for (int edge = 0; edge < MatmulPlan::edges; ++edge)
    for (int accumulate = 0; accumulate < 2; ++accumulate) {
      if (accumulate == 0 ? c.accumulate : !c.accumulate && p->k_points == 1) continue;
      const bool first = edge & 1, second = edge & 2;
      p->gemms[edge][accumulate] = find_gemm(
          gemm_shape(*p, c, first && p->group > 1 ? g_edge : p->group, first ? m_edge : p->m_block,
                     second ? n_edge : p->n_block, accumulate));
      if (!p->gemms[edge][accumulate]) return nullptr;
      p->slice =
          std::max(p->slice, round_up(scratch_bytes(*p->gemms[edge][accumulate], p->taps), 64));
    }
  const std::int64_t bytes = haliax::bytes_of(c.a.dtype);
  p->packed_a_bytes = p->choice.pack_a.used ? round_up(p->choice.pack_a.elements * bytes, 64) : 0;
  p->packed_b_bytes = p->choice.pack_b.used ? round_up(p->choice.pack_b.elements * bytes, 64) : 0;
  p->packed_out_bytes =
      p->choice.pack_out.used
          ? round_up(p->choice.pack_out.elements * haliax::bytes_of(c.out.dtype), 64)
          : 0;
  p->workers = static_cast<int>(std::clamp<std::int64_t>(p->tasks(), 1, p->threads));
  return p;
}

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
    if (auto mask = blocks()) {
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
    if (p.choice.pack_a.used) a = packed(copy_a_, a, scratch);
    if (p.choice.pack_b.used) b = packed(copy_b_, b, scratch + p.packed_a_bytes);
    auto block_mask = block_mask_;
    if (flags_) block_mask.flags = reinterpret_cast<const unsigned char*>(flags_->at(frame));
    parallel_for(p.tasks(), p.workers, [&](std::int64_t task, int worker) {
      const std::int64_t im = task % p.m_blocks, in = task / p.m_blocks % p.n_blocks,
                         rest = task / p.m_blocks / p.n_blocks;
      const std::int64_t ig = rest % p.groups, outer = rest / p.groups;
      const auto& c = p.choice;
      const std::int64_t m = im * p.m_block, n = in * p.n_block, g = ig * p.group;
      const bool is_last_m = p.group > 1 ? ig == p.groups - 1 : im == p.m_blocks - 1;
      const int edge = MatmulPlan::edge_of(is_last_m, in == p.n_blocks - 1);
      const std::int64_t at_a =
          offset_at(c.outer, &MatrixDim::a, outer) + g * p.group_dim.a + m * c.m.a;
      const std::int64_t at_b =
          offset_at(c.outer, &MatrixDim::b, outer) + g * p.group_dim.b + n * c.n.b;
      const std::int64_t at_out = offset_at(c.outer, &MatrixDim::out, outer) + g * p.group_dim.out +
                                  m * c.m.out + n * c.n.out;
      std::byte* slice = scratch + p.packed() + worker * p.slice;
      auto mine = block_mask;
      mine.m.first = m;
      mine.n.first = n;
      for (std::int64_t k = 0; k < p.k_points; ++k) {
        const bool accumulate = contract_.accumulate || k > 0;
        calls_[call_index(worker, edge, accumulate)]->run(
            a + (at_a + offset_at(c.k_outer, &MatrixDim::a, k)) * in_bytes_,
            b + (at_b + offset_at(c.k_outer, &MatrixDim::b, k)) * in_bytes_,
            out + at_out * out_bytes_, slice, {mine, p.taps});
      }
    });
    if (p.choice.pack_out.used) packed(copy_out_, out, result);
  }
  double computed_fraction(const Frame& frame) const override {
    return flags_ ? program::computed_fraction(
                        contract_, reinterpret_cast<const unsigned char*>(flags_->at(frame)))
                  : 1;
  }

 private:
  // Returns the block mask without its flags, if the matrices run along the same dims as the flags.
  // Otherwise returns nullopt: all blocks are computed, which is also correct.
  std::optional<KernelBlockMask> blocks() const {
    auto& s = contract_.block_mask;
    auto& c = plan_->choice;
    if (s.flags.slot < 0 || !plan_->kernel || plan_->kernel->only_small || plan_->group != 1 ||
        plan_->k_points != 1)
      return {};
    KernelBlockMask out;
    out.zero = s.zero;
    auto set_side = [](KernelBlockMask::Side& side,
                       const program::Contract::BlockMask::Flags& flags, const program::Dims& dims,
                       const MatrixDim& d) {
      if (flags.size == 0) return true;
      side = {std::countr_zero(std::uint64_t(flags.size)), flags.stride, 0};
      return std::has_single_bit(std::uint64_t(flags.size)) && program::points(dims) == d.n;
    };
    auto &m = c.swapped ? c.n : c.m, &n = c.swapped ? c.m : c.n;
    auto &of_m = c.swapped ? out.n : out.m, &of_n = c.swapped ? out.m : out.n;
    bool all = set_side(of_m, s.m, contract_.m, m) && set_side(of_n, s.n, contract_.n, n) &&
               set_side(out.k, s.k, contract_.k, c.k);
    return all ? std::optional(out) : std::nullopt;
  }
  static const std::byte* packed(const Copier& copier, const std::byte* from, std::byte* to) {
    parallel_for(copier.blocks(), threads(),
                 [&](std::int64_t block, int) { copier.run(from, to, block); });
    return to;
  }
  static std::size_t call_index(int worker, int edge, bool accumulate) {
    return static_cast<std::size_t>((worker * MatmulPlan::edges + edge) * 2 + accumulate);
  }
  std::unique_ptr<MatmulPlan> plan_;
  const Contract& contract_;
  Place a_, b_, out_;
  KernelBlockMask block_mask_;  // without the flags
  std::optional<Place> flags_;
  Scratch scratch_;
  int in_bytes_, out_bytes_;
  Copier copy_a_, copy_b_, copy_out_;
  std::vector<std::optional<GemmCall>> calls_;  // [worker][edge][accumulate]
};

// All other contractions: small ones, and dtypes that oneDNN does not support. Tiles of both
// operands are widened into registers.
class LoopContractStep final : public CompiledStep {
 public:
  explicit LoopContractStep(const Contract& c)
      : contract_(c), a_(c.a), b_(c.b), out_(c.out), lane_(lane_type_of(c.out.dtype)),
        shape_(program::dims_of(c)) {
    shape_.normalize();
    m_ = points(shape_.m);
    n_ = points(shape_.n);
    k_ = points(shape_.k);
    batch_ = points(shape_.batch);
    // f64 sums cost nothing at this size
    if (c.out.dtype == DType::f32 && batch_ * m_ * n_ * k_ <= tiny) lane_ = LaneType::f64;
    m_blocks_ = (m_ + rows - 1) / rows;
    n_blocks_ = (n_ + cols - 1) / cols;
    workers_ = batch_ * m_ * n_ * k_ < (1 << 18) ? 1 : threads();
  }
  void run(Frame& frame) override {
    const std::byte *a = a_.at(frame), *b = b_.at(frame);
    std::byte* out = out_.at(frame);
    parallel_for(batch_ * n_blocks_ * m_blocks_, workers_, [&](std::int64_t task, int) {
      const std::int64_t m = task % m_blocks_ * rows, n = task / m_blocks_ % n_blocks_ * cols,
                         batch = task / m_blocks_ / n_blocks_;
      tile(a, b, out, batch, m, std::min(rows, m_ - m), n, std::min(cols, n_ - n));
    });
  }

 private:
  static constexpr std::int64_t rows = 32, cols = 64, depth = 256;

  void tile(const std::byte* a, const std::byte* b, std::byte* out, std::int64_t batch,
            std::int64_t m, std::int64_t mm, std::int64_t n, std::int64_t nn) const {
    const std::int64_t width = cpu::bytes_of(lane_), pitch = round_up(nn, 64 / width);
    std::byte* sum = workspace();
    std::byte* left = sum + rows * cols * width;
    std::byte* right = left + rows * depth * width;
    const std::int64_t at_a = offset_at(shape_.batch, &MatrixDim::a, batch),
                       at_b = offset_at(shape_.batch, &MatrixDim::b, batch);
    const std::int64_t at_out = offset_at(shape_.batch, &MatrixDim::out, batch);
    const Part m_part{shape_.m, m, mm}, n_part{shape_.n, n, nn};
    std::memset(sum, 0, static_cast<std::size_t>(mm * pitch * width));
    if (contract_.accumulate)
      each_piece(m_part, n_part, &MatrixDim::out,
                 [&](const Piece& p) { load(sum, pitch, contract_.out.dtype, out, at_out, p); });
    for (std::int64_t k = 0; k < k_; k += depth) {
      const Part k_part{shape_.k, k, std::min(depth, k_ - k)};
      each_piece(m_part, k_part, &MatrixDim::a,
                 [&](const Piece& p) { load(left, k_part.count, contract_.a.dtype, a, at_a, p); });
      if (nn < pitch) std::memset(right, 0, static_cast<std::size_t>(k_part.count * pitch * width));
      each_piece(k_part, n_part, &MatrixDim::b,
                 [&](const Piece& p) { load(right, pitch, contract_.b.dtype, b, at_b, p); });
      kernels().multiply(lane_, sum, left, right, mm, pitch, k_part.count);
    }
    each_piece(m_part, n_part, &MatrixDim::out,
               [&](const Piece& p) { store(out, at_out, p, sum, pitch); });
  }

  // A range of positions over flattened dims, and a part of a tile in which both sides have a
  // constant stride.
  struct Part {
    const MatrixDims& dims;
    std::int64_t first, count;
  };
  struct Piece {
    std::int64_t row, column, rows, columns;         // in the tile
    std::int64_t offset, row_stride, column_stride;  // in memory, in elements
  };
  template <class F>
  static void each_piece(const Part& rows, const Part& columns, MatrixStride stride, const F& f) {
    each_run(rows, stride,
             [&](std::int64_t row, std::int64_t at, std::int64_t row_stride, std::int64_t m) {
               each_run(columns, stride,
                        [&](std::int64_t column, std::int64_t offset, std::int64_t column_stride,
                            std::int64_t n) {
                          f(Piece{row, column, m, n, at + offset, row_stride, column_stride});
                        });
             });
  }
  // Calls f(position in the part, offset, stride, count) for each run of constant stride.
  template <class F> static void each_run(const Part& part, MatrixStride stride, const F& f) {
    if (part.dims.empty()) return f(std::int64_t{0}, std::int64_t{0}, std::int64_t{1}, part.count);
    auto& last = part.dims.back();
    for (std::int64_t done = 0; done < part.count;) {
      const std::int64_t i = part.first + done,
                         count = std::min(part.count - done, last.n - i % last.n);
      f(done, offset_at(part.dims, stride, i), last.*stride, count);
      done += count;
    }
  }
  // Converts values of any dtype into a tile of this step's lane type.
  void load(std::byte* tile, std::int64_t pitch, DType dtype, const std::byte* memory,
            std::int64_t at, const Piece& p) const {
    const std::int64_t width = cpu::bytes_of(lane_), bytes = haliax::bytes_of(dtype);
    std::byte* reg = tile + (p.row * pitch + p.column) * width;
    memory += (at + p.offset) * bytes;
    if (dtype == DType::f32 && lane_ == LaneType::f64)
      return kernels().widen(reinterpret_cast<double*>(reg), pitch,
                             reinterpret_cast<const float*>(memory), p.row_stride, p.column_stride,
                             p.rows, p.columns);
    for (std::int64_t r = 0; r < p.rows;
         ++r, reg += pitch * width, memory += p.row_stride * bytes) {
      if (lane_type_of(dtype) == lane_) {
        kernels().load(dtype)(reg, memory, p.column_stride, p.columns);
        continue;
      }
      std::uint64_t buffer[64];
      for (std::int64_t i = 0; i < p.columns; i += 64) {
        const std::int64_t some = std::min<std::int64_t>(64, p.columns - i);
        kernels().load(dtype)(buffer, memory + i * p.column_stride * bytes, p.column_stride, some);
        const void* in[] = {buffer};
        kernels().cast(lane_type_of(dtype), wide(lane_))(reg + i * width, in, some);
      }
    }
  }
  void store(std::byte* memory, std::int64_t at, const Piece& p, const std::byte* tile,
             std::int64_t pitch) const {
    const DType dtype = contract_.out.dtype;
    const std::int64_t width = cpu::bytes_of(lane_), bytes = haliax::bytes_of(dtype);
    const std::byte* reg = tile + (p.row * pitch + p.column) * width;
    memory += (at + p.offset) * bytes;
    if (dtype == DType::f32 && lane_ == LaneType::f64)
      return kernels().narrow(reinterpret_cast<float*>(memory), p.row_stride, p.column_stride,
                              reinterpret_cast<const double*>(reg), pitch, p.rows, p.columns);
    for (std::int64_t r = 0; r < p.rows; ++r, reg += pitch * width, memory += p.row_stride * bytes)
      kernels().store(dtype)(memory, reg, p.column_stride, p.columns);
  }
  static DType wide(LaneType lane) {
    constexpr DType all[] = {DType::f32, DType::f64, DType::i32,
                             DType::u32, DType::i64, DType::u64};
    return all[static_cast<int>(lane)];
  }

  const Contract& contract_;
  Place a_, b_, out_;
  LaneType lane_;
  ContractDims shape_;
  std::int64_t m_ = 1, n_ = 1, k_ = 1, batch_ = 1, m_blocks_ = 1, n_blocks_ = 1;
  int workers_ = 1;
};

}  // namespace

std::unique_ptr<CompiledStep> make_contract(const program::Step& step, const Context& context) {
  if (auto created = make_correlation(step)) return created;
  if (auto created = make_vector_product(step, context)) return created;
  if (auto plan = plan_matmul(step.contract, context.workers))
    return std::make_unique<MatmulStep>(step, context, std::move(plan));
  return std::make_unique<LoopContractStep>(step.contract);
}
std::int64_t contract_scratch(const program::Step& step, int workers) {
  if (is_correlation(step)) return 0;
  if (auto bytes = vector_product_scratch(step)) return *bytes;
  auto plan = plan_matmul(step.contract, workers);
  return plan ? plan->scratch() : 0;
}

}  // namespace haliax::cpu
