// Plan: a contraction as matmuls: their matrices, blocks and kernels.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "gemm.h"
#include "program/matrices.h"

namespace haliax::cpu {

// Contractions of fewer multiplications do not run as matmuls.
constexpr std::int64_t fewest_macs = 32 * 1024;

constexpr std::int64_t round_up(std::int64_t x, std::int64_t unit) {
  return (x + unit - 1) / unit * unit;
}

struct MatmulPlan {
  const MatmulKernel* kernel = nullptr;  // kernel of this backend; null: oneDNN
  program::MatrixProducts choice;
  std::int64_t group = 1, outer_points = 1, k_points = 1;
  std::int64_t m_block = 1, n_block = 1, m_blocks = 1, n_blocks = 1, groups = 1;
  program::MatrixDim group_dim;  // the batch dim within a primitive (stride 0 if group == 1)
  std::vector<MatmulTap> taps;   // the positions of k_outer, if one matmul of the kernel sums them
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

// Returns null if the contraction must run in LoopContractStep.
std::unique_ptr<MatmulPlan> plan_matmul(const program::Contract&, int threads);

}  // namespace haliax::cpu
