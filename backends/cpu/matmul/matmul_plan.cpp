// Plan: chooses the matrices of a contraction, the blocks that run in parallel, and their kernel.
#include "matmul_plan.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "backends/cpu/kernels.h"
#include "program/matmul_blocks.h"

namespace haliax::cpu {
namespace {

using program::Contract;
using program::kMinPartColumns;
using program::kPanelColumns;
using program::MatrixDim;
using program::offset_at;
using program::points;

// ---- blocks of a kernel of this backend ----
// Costs of the parts of a block, in multiplications per element.
constexpr std::int64_t packing = 24, reading = 4;
constexpr std::int64_t fewest_macs_of_part = 1 << 22;  // fewer are not worth a thread
constexpr std::int64_t most_summed = 528;   // columns of a block whose matmuls are summed
constexpr std::int64_t most_columns = 800;  // that the cache of a core holds

// Returns the number of blocks.
std::int64_t blocks_of(std::int64_t n, std::int64_t block) { return (n + block - 1) / block; }
// Returns the size of a block if n is split into `parts`, in multiples of `unit`.
std::int64_t block_of(std::int64_t n, std::int64_t parts, std::int64_t unit) {
  return parts == 1 ? n : round_up(blocks_of(n, parts), unit);
}

// Splits the matrix into blocks of the kernel's unit, about one per thread. Results do not depend
// on the blocks, so the split with the shortest estimated time is used. A block packs its part of
// b. It also reads its rows of a, or packs them if they are stored by columns.
void split_by_time(MatmulPlan& p, std::int64_t macs, std::int64_t matrices) {
  const auto& c = p.choice;
  const std::int64_t parts = std::clamp<std::int64_t>(blocks_of(p.threads, matrices), 1,
                                                      blocks_of(macs, fewest_macs_of_part));
  const std::int64_t row = c.m.a == 1 && c.k.a > 1 ? packing : reading;
  std::int64_t shortest = -1;
  for (std::int64_t n_parts = 1; n_parts <= parts; ++n_parts) {
    const std::int64_t n = block_of(c.n.n, n_parts, 16),
                       m = block_of(c.m.n, blocks_of(parts, blocks_of(c.n.n, n)), 8);
    const std::int64_t blocks = blocks_of(c.m.n, m) * blocks_of(c.n.n, n);
    // per position of k
    const std::int64_t time =
        blocks_of(blocks * matrices, p.threads) * (m * n + packing * n + row * m);
    if (shortest >= 0 && time >= shortest) continue;
    shortest = time;
    p.m_block = m;
    p.n_block = n;
  }
}
void choose_own_blocks(MatmulPlan& p, std::int64_t macs, std::int64_t matrices) {
  const auto& c = p.choice;
  split_by_time(p, macs, matrices);
  if (p.kernel->only_small && p.m_block * c.k.n > most_packed)
    p.m_block = block_of(c.m.n, blocks_of(c.m.n, most_packed / c.k.n / 32 * 32), 32);
  // Sums over k_outer pass over their block again and again, so it should stay in the cache.
  if (p.k_points > 1 && p.n_block > most_summed)
    p.n_block = block_of(c.n.n, blocks_of(c.n.n, most_summed), kPanelColumns);
  // two blocks per thread, as threads differ in speed
  const std::int64_t n_blocks = blocks_of(c.n.n, p.n_block);
  if (n_blocks > 1 && p.n_block >= most_columns)
    p.n_block = block_of(c.n.n, 2 * n_blocks, kPanelColumns);
  p.m_blocks = blocks_of(c.m.n, p.m_block);
  p.n_blocks = blocks_of(c.n.n, p.n_block);
}

// ---- blocks of oneDNN ----
// A matmul of fewer multiplications shares a call with others.
constexpr std::int64_t small_matmul = 1 << 19;
constexpr std::int64_t macs_of_call = 1 << 20;  // multiplications of small matmuls in a call
constexpr std::int64_t most_parts = 16, macs_of_part = 1 << 21;
// oneDNN is fastest with tall parts: of at least kMinPartColumns columns and this many rows.
constexpr std::int64_t fewest_part_rows = 512;

// Chooses the blocks of the matmuls. For oneDNN they depend on the sizes only. Columns are split
// first, so that each block of columns reads its part of b once.
void choose_blocks(MatmulPlan& p) {
  auto& c = p.choice;
  const std::int64_t terms = std::max<std::int64_t>(1, std::int64_t(p.taps.size()));
  const std::int64_t macs = c.m.n * c.n.n * c.k.n * terms;
  if (macs < small_matmul && !c.outer.empty()) {
    auto widest = std::max_element(c.outer.begin(), c.outer.end(),
                                   [](auto& x, auto& y) { return x.n < y.n; });
    if (widest->out != 0) {
      p.group_dim = *widest;
      c.outer.erase(widest);
      p.group = std::min(p.group_dim.n, std::max<std::int64_t>(1, macs_of_call / macs));
      p.groups = blocks_of(p.group_dim.n, p.group);
    }
  }
  p.outer_points = points(c.outer);
  p.k_points = points(c.k_outer);
  const std::int64_t matrices = p.outer_points * p.groups;
  if (p.kernel && p.group == 1) return choose_own_blocks(p, macs * p.k_points, matrices);
  const std::int64_t total = macs * p.k_points * p.outer_points * (p.groups * p.group);
  std::int64_t parts = 1;
  while (parts < most_parts && parts * 2 * macs_of_part <= total) parts *= 2;
  parts = p.group > 1 ? 1 : std::max<std::int64_t>(1, parts / std::max<std::int64_t>(1, matrices));
  const std::int64_t n_parts = std::clamp<std::int64_t>(c.n.n / kMinPartColumns, 1, parts);
  const std::int64_t m_parts = std::clamp<std::int64_t>(c.m.n / fewest_part_rows, 1,
                                                        std::max<std::int64_t>(1, parts / n_parts));
  p.n_block = std::min(c.n.n, round_up(blocks_of(c.n.n, n_parts), n_parts > 1 ? 64 : 1));
  p.m_block = std::min(c.m.n, round_up(blocks_of(c.m.n, m_parts), m_parts > 1 ? 32 : 1));
  p.n_blocks = blocks_of(c.n.n, p.n_block);
  p.m_blocks = blocks_of(c.m.n, p.m_block);
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
  s.kernel = p.kernel;
  s.all_n = s.kernel ? x.n.n : 0;
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
constexpr double most_of_short_run = 10;                // in runs that are copied by offsets
constexpr std::int64_t short_run = 32;                  // elements
constexpr std::int64_t most_cached = 1 << 18;           // elements of a copy
constexpr double transposed_element = 20;               // in runs of one element, for AMX
constexpr double tile_speedup = 8;                      // multiplications by AMX

program::MatrixOptions matrix_options(const Contract& c) {
  // partial sums over k_outer must not be rounded
  return {.unsplit_k = c.out.dtype != DType::f32, .may_pack_out = true};
}

// Returns the number of elements that are contiguous in both arrays.
std::int64_t run_of(const program::Packing& p) {
  std::int64_t run = 1;
  for (std::size_t d = p.dims.size(); d-- > 0 && p.from[d] == run && p.to[d] == run;)
    run *= p.dims[d];
  return run;
}
double time_of(const program::Packing& p) {
  if (!p.used) return 0;
  const std::int64_t run = run_of(p);
  const double element = p.elements > most_cached ? large_copied_element : copied_element;
  if (run == 1) return double(p.elements) * moved_element;
  const double of_run = copied_run / double(run);
  return double(p.elements) *
         (element + (run < short_run ? std::min(of_run, most_of_short_run) : of_run));
}
// Returns the columns of b that all taps read, if they share a block. Otherwise returns the sum of
// the columns of each tap.
std::int64_t columns_of_taps(const program::MatrixProducts& p) {
  const std::int64_t taps = points(p.k_outer);
  std::int64_t reach = 0;
  for (auto& d : p.k_outer) reach += (d.n - 1) * std::abs(d.b);
  const bool share = p.n.b == 1 && taps_share_block(taps, p.n.n, reach);
  return share ? p.n.n + reach : taps * p.n.n;
}
double time_of(const program::MatrixProducts& p) {
  const auto &m = p.m, &n = p.n, &k = p.k;
  auto panel = [](std::int64_t inner, std::int64_t outer) {
    return inner == 1 || outer == 1 ? packed_element : gathered_element;
  };
  const double left = k.a == 1 ? row_element : panel(m.a, k.a), right = panel(n.b, k.b);
  const double sums = double(round_up(m.n, 8) * round_up(n.n, 16));
  const double taps = double(points(p.k_outer));
  const double matmul =
      double(k.n) * (taps * (sums + left * double(m.n)) + right * double(columns_of_taps(p))) +
      result_element * double(m.n * n.n) + one_matmul;
  return time_of(p.pack_a) + time_of(p.pack_b) + time_of(p.pack_out) +
         double(points(p.outer)) * matmul;
}

// Returns the time of matmuls by AMX, which requires copies of operands that are not matrices.
double time_of_tiles(const program::MatrixProducts& p) {
  double time = double(points(p.outer) * points(p.k_outer) * p.m.n * p.n.n * p.k.n) / tile_speedup;
  for (auto* copy : {&p.pack_a, &p.pack_b, &p.pack_out}) {
    const std::int64_t run = run_of(*copy);
    const double element =
        run == 1 ? transposed_element : copied_element + copied_run / double(run);
    if (copy->used) time += double(copy->elements) * element;
  }
  return time;
}

// Returns the matrices of a contraction of windows, whose copy would be larger than the array, if
// the vector kernel is the best one for them. It reads the windows in place, or from a copy if that
// is faster.
std::optional<program::MatrixProducts> window_matrices(const Contract& c, MatmulPlan& p) {
  const auto* kernel = vector_kernel(c.a.dtype);
  if (!kernel || !program::reads_windows(c)) return {};
  std::optional<program::MatrixProducts> best;
  double shortest = 0;
  for (auto& choice : program::window_products(c)) {
    p.choice = choice;
    const double time = time_of(choice);
    if (best && time >= shortest) continue;
    if (!suits(kernel, gemm_shape(p, c, 1, choice.m.n, choice.n.n, c.accumulate))) continue;
    best = choice;
    shortest = time;
  }
  if (!best || kernel == matmul_kernel(c.a.dtype)) return best;
  const auto copied = program::matrix_products(c, matrix_options(c));
  return copied && time_of_tiles(*copied) < shortest ? std::nullopt : best;
}

// Replaces the matmuls of k_outer by one matmul, which sums their terms before it rounds.
void sum_in_kernel(MatmulPlan& p) {
  auto& outer = p.choice.k_outer;
  const auto count = points(outer);
  for (std::int64_t k = 0; count > 1 && k < count; ++k)
    p.taps.push_back({offset_at(outer, &MatrixDim::a, k), offset_at(outer, &MatrixDim::b, k)});
  outer = {};
}

// Sets the matmuls of full and of smaller blocks. Returns false if one of them has no fast
// implementation.
bool find_gemms(MatmulPlan& p, const Contract& c) {
  const std::int64_t last_m = p.choice.m.n - (p.m_blocks - 1) * p.m_block,
                     last_n = p.choice.n.n - (p.n_blocks - 1) * p.n_block,
                     last_group = p.group_dim.n - (p.groups - 1) * p.group;
  for (int edge = 0; edge < MatmulPlan::edges; ++edge)
    for (int accumulate = 0; accumulate < 2; ++accumulate) {
      // only the first position of k_outer does not accumulate
      if (accumulate == 0 ? c.accumulate : !c.accumulate && p.k_points == 1) continue;
      const bool is_last_m = edge & 1, is_last_n = edge & 2;  // edge_of
      auto& gemm = p.gemms[edge][accumulate];
      gemm = find_gemm(gemm_shape(p, c, is_last_m && p.group > 1 ? last_group : p.group,
                                  is_last_m ? last_m : p.m_block, is_last_n ? last_n : p.n_block,
                                  accumulate));
      if (!gemm) return false;
      p.slice = std::max(p.slice, round_up(scratch_bytes(*gemm, p.taps), 64));
    }
  return true;
}
std::int64_t packed_bytes(const program::Packing& packing, DType dtype) {
  return packing.used ? round_up(packing.elements * haliax::bytes_of(dtype), 64) : 0;
}

}  // namespace

std::unique_ptr<MatmulPlan> plan_matmul(const Contract& c, int threads) {
  const bool dtypes =
      c.a.dtype == c.b.dtype && (c.a.dtype == DType::f32 || c.a.dtype == DType::bf16);
  const auto dims = program::dims_of(c);
  const std::int64_t macs = points(dims.batch) * points(dims.m) * points(dims.n) * points(dims.k);
  if (!dtypes || macs <= fewest_macs) return nullptr;
  auto p = std::make_unique<MatmulPlan>();
  p->threads = threads;
  const auto* kernel = vector_kernel(c.a.dtype);
  auto choice = window_matrices(c, *p);
  if (!choice) {
    kernel = matmul_kernel(c.a.dtype);
    choice = program::matrix_products(c, matrix_options(c));
  }
  if (!choice) return nullptr;
  p->choice = *choice;
  if (suits(kernel, gemm_shape(*p, c, 1, choice->m.n, choice->n.n, c.accumulate)))
    p->kernel = kernel;
  if (p->kernel && !p->kernel->only_small) sum_in_kernel(*p);
  choose_blocks(*p);
  if (!find_gemms(*p, c)) return nullptr;
  p->packed_a_bytes = packed_bytes(p->choice.pack_a, c.a.dtype);
  p->packed_b_bytes = packed_bytes(p->choice.pack_b, c.a.dtype);
  p->packed_out_bytes = packed_bytes(p->choice.pack_out, c.out.dtype);
  p->workers = static_cast<int>(std::clamp<std::int64_t>(p->tasks(), 1, p->threads));
  return p;
}

}  // namespace haliax::cpu
