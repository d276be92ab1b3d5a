// The description of a matmul for cuBLASLt. The library is opened at run time; nothing links to it.
// Descriptions can be created and read back on machines without a GPU.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "../kernels/product.h"

namespace haliax::cuda {

bool has_cublas();
// bytes: NVIDIA's recommendation for an H100
inline constexpr std::int64_t kCublasWorkspace = std::int64_t(32) << 20;

// Raises an error if the library is missing or returns an error.
class CublasProduct {
 public:
  explicit CublasProduct(const Product&, bool tf32 = false);
  CublasProduct(CublasProduct&&) noexcept;
  ~CublasProduct();
  Product description() const;  // the description, read back from the library
  // Returns a bit mask of the allowed reductions of partial sums; never in the dtype of the result.
  unsigned reduction_schemes() const;
  bool in_tf32() const;

  // The functions below require a GPU and its context. library: the result of make_cublas.
  using Algorithm = std::array<std::uint64_t, 8>;
  // Returns algorithms, best first by the library's heuristic; never empty.
  std::vector<Algorithm> algorithms(void* library, int most) const;
  void run(void* library, void* stream, const Algorithm&, const void* a, const void* b, void* out,
           void* workspace) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};
void* make_cublas();

}  // namespace haliax::cuda
