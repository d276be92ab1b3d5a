// Run: a matmul, or a batch of matmuls, on one thread. It runs in oneDNN, or in a kernel of this
// backend where that is faster.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "backends/cpu/kernels.h"

namespace haliax::cpu {

// out[g, m, n] (+)= a[g, m, k] b[g, k, n]. Strides are in elements. A batch stride of 0 uses the
// same matrix for all g.
struct GemmShape {
  std::int64_t g = 1, m = 1, n = 1, k = 1;
  std::int64_t a_stride[3], b_stride[3], out_stride[3];  // (g, m, k), (g, k, n), (g, m, n)
  DType a = DType::f32, b = DType::f32, out = DType::f32;
  bool accumulate = false;
  // A kernel of this backend; null: oneDNN. All blocks of a contraction use the same one, because
  // the bits of a result must not depend on the block size.
  const MatmulKernel* kernel = nullptr;
  std::int64_t all_n = 0;  // for a kernel of this backend: the columns of all blocks together
  auto operator<=>(const GemmShape&) const = default;
};

// elements of a packed bf16 operand: two of them fit into the second-level cache
constexpr std::int64_t most_packed = 1 << 17;

class Gemm;  // a prepared matmul, shared by all steps of the same shape
// Returns true if there is this kernel, and it is the best one for the shape. Its results are
// bitwise independent of how m and n are split into blocks.
bool suits(const MatmulKernel*, const GemmShape&);
// Returns null if there is no fast implementation.
std::shared_ptr<const Gemm> find_gemm(const GemmShape&);
// taps: terms that a kernel of this backend sums (MatmulTap); none for one matmul
using MatmulTaps = std::vector<MatmulTap>;
std::int64_t scratch_bytes(const Gemm&, const MatmulTaps& taps = {});

// The state that one worker needs to run a Gemm: oneDNN objects that hold pointers.
class GemmCall {
 public:
  explicit GemmCall(std::shared_ptr<const Gemm>);
  GemmCall(GemmCall&&) noexcept;
  ~GemmCall();
  // Arguments that only kernels of this backend use.
  struct Options {
    const KernelBlockMask& block_mask;
    const MatmulTaps& taps;
  };
  void run(const void* a, const void* b, void* out, void* scratch, const Options&);

 private:
  struct Handles;
  std::shared_ptr<const Gemm> gemm_;
  std::unique_ptr<Handles> handles_;
};

}  // namespace haliax::cpu
