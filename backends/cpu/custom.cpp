// Run: functions of the user, split into blocks of elements for the workers. Functions of the
// library may call the matmul kernel of this backend (program/host_matmul.h).
#include <algorithm>
#include <memory>
#include <new>

#include "backends/cpu/matmul/flush_subnormals.h"
#include "base/thread_pool.h"
#include "kernels.h"
#include "program/custom.h"
#include "program/host_matmul.h"
#include "step.h"

namespace haliax::cpu {
namespace {

// Memory of one thread for packed operands. It grows to the largest matmul of the thread.
void* packing_memory(std::int64_t bytes) {
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t(64)); }
  };
  static thread_local std::unique_ptr<std::byte, Free> memory;
  static thread_local std::int64_t size = 0;
  if (bytes > size) {
    memory.reset(static_cast<std::byte*>(::operator new(std::size_t(bytes), std::align_val_t(64))));
    size = bytes;
  }
  return memory.get();
}
bool has_unit_strides(const Matmul& p) {
  return (p.a_m == 1 || p.a_k == 1) && (p.b_k == 1 || p.b_n == 1);
}
// Returns out^T = b^T a^T.
program::HostMatmul transposed(const program::HostMatmul& p) {
  return {.m = p.n,
          .n = p.m,
          .k = p.k,
          .dtype = p.dtype,
          .a = p.b,
          .a_m = p.b_n,
          .a_k = p.b_k,
          .b = p.a,
          .b_k = p.a_k,
          .b_n = p.a_m,
          .out = p.out,
          .out_m = p.out_n,
          .out_n = p.out_m};
}
// Requires out_n = 1.
Matmul matmul_of(const program::HostMatmul& p) {
  return {.m = p.m,
          .n = p.n,
          .k = p.k,
          .type = p.dtype,
          .a = p.a,
          .a_m = p.a_m,
          .a_k = p.a_k,
          .b = p.b,
          .b_k = p.b_k,
          .b_n = p.b_n,
          .c = p.out,
          .c_m = p.out_m,
          .out = p.dtype,
          .accumulate = false};
}
bool multiply(const program::HostMatmul& p) {
  if (p.dtype != DType::f32 && p.dtype != DType::bf16) return false;
  if (p.m == 0 || p.n == 0 || p.k == 0) return false;
  if (p.out_n != 1 && p.out_m != 1) return false;
  const Matmul matmul = p.out_n == 1 ? matmul_of(p) : matmul_of(transposed(p));
  const auto* kernel = matmul_kernel(p.dtype);
  if (kernel && kernel->only_small && !has_unit_strides(matmul)) kernel = vector_kernel(p.dtype);
  if (!kernel) return false;
  const FlushSubnormals flush;
  kernel->run(matmul, packing_memory(kernel->scratch_bytes(matmul)));
  return true;
}

// elements of the calls that a worker runs at a time
constexpr std::int64_t elements_of_block = 4096;

class CustomStep final : public CompiledStep {
 public:
  explicit CustomStep(const program::Step& step)
      : workers_(threads()), uses_threads_(step.custom.uses_threads), calls_(step, workers_),
        first_(step.custom.arrays.size()) {
    const auto& what = step.custom;
    for (auto& view : what.arrays) places_.emplace_back(view);
    const std::int64_t each =
        program::points(Dims(what.dims.begin() + what.outer, what.dims.end()));
    per_block_ = std::max<std::int64_t>(1, elements_of_block / std::max<std::int64_t>(1, each));
  }
  void run(Frame& frame) override {
    for (std::size_t k = 0; k < places_.size(); ++k) first_[k] = places_[k].at(frame);
    const std::int64_t points = calls_.points();
    if (uses_threads_ && points < workers_) {  // each call uses all threads
      program::HostMatmulScope scope(multiply);
      calls_.run(first_.data(), 0, points);
      return calls_.rethrow();
    }
    parallel_for((points + per_block_ - 1) / per_block_, workers_,
                 [&](std::int64_t block, int worker) {
                   program::HostMatmulScope scope(multiply);
                   calls_.run(first_.data(), block * per_block_,
                              std::min(points, (block + 1) * per_block_), worker);
                 });
    calls_.rethrow();
  }

 private:
  int workers_;
  bool uses_threads_;
  program::CustomCalls calls_;
  std::vector<Place> places_;  // by array
  std::vector<void*> first_;   // first element of each array, in this run
  std::int64_t per_block_ = 1;
};

}  // namespace

std::unique_ptr<CompiledStep> make_custom(const program::Step& step) {
  return std::make_unique<CustomStep>(step);
}

}  // namespace haliax::cpu
