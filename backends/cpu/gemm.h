// One matrix product (or a batch of them) on one thread: by oneDNN, or by our own kernel where that
// is faster.
#pragma once
#include <cstdint>
#include <memory>

#include "kernels.h"

namespace haliax::cpu {

// out[g, m, n] (+)= a[g, m, k] b[g, k, n]; strides in elements. A batch stride of 0 means the same
// matrix for all g.
struct GemmShape {
  std::int64_t g = 1, m = 1, n = 1, k = 1;
  std::int64_t a_stride[3], b_stride[3], out_stride[3];  // (g, m, k), (g, k, n), (g, m, n)
  DType a = DType::f32, b = DType::f32, out = DType::f32;
  bool accumulate = false;
  // by our own kernel: all blocks of a product or none, since a block's bits must not depend on its
  // size
  bool own_kernel = false;
  auto operator<=>(const GemmShape&) const = default;
};

// elements of a packed operand of bf16: both stay in the second cache
constexpr std::int64_t most_packed = 1 << 17;

class Gemm;  // a primitive; shared by all steps of the same shape
// Is it for our own kernel? Its bits do not depend on how m and n are cut.
bool uses_own_kernel(const GemmShape&);
// Null where there is no fast way.
std::shared_ptr<const Gemm> find_gemm(const GemmShape&);
std::int64_t scratch_bytes(const Gemm&);

// What one worker needs to run a Gemm: objects that hold pointers.
class GemmCall {
 public:
  explicit GemmCall(std::shared_ptr<const Gemm>);
  GemmCall(GemmCall&&) noexcept;
  ~GemmCall();
  void run(const void* a, const void* b, void* out, void* scratch,
           const KernelBlockMask& block_mask = {});

 private:
  struct Handles;
  std::shared_ptr<const Gemm> gemm_;
  std::unique_ptr<Handles> handles_;
};

}  // namespace haliax::cpu
