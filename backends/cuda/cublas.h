// What cuBLASLt is told of a product. Its library is found when the program runs; nothing is linked
// to it, and it says what it was told on machines without a card too.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "product.h"

namespace haliax::cuda {

bool has_cublas();
// bytes: NVIDIA's advice for an H100
inline constexpr std::int64_t kCublasWorkspace = std::int64_t(32) << 20;

// Raises if the library is not there, or refuses.
class CublasProduct {
 public:
  explicit CublasProduct(const Product&, bool tf32 = false);
  CublasProduct(CublasProduct&&) noexcept;
  ~CublasProduct();
  Product told() const;  // read back
  // how partial sums may be put together: never in the dtype of the result
  unsigned reduction_schemes() const;
  bool in_tf32() const;

  // With a card, in its context. library: of make_cublas.
  using Algorithm = std::array<std::uint64_t, 8>;
  // the best first, as the library guesses; not empty
  std::vector<Algorithm> algorithms(void* library, int most) const;
  void run(void* library, void* stream, const Algorithm&, const void* a, const void* b, void* out,
           void* workspace) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};
void* make_cublas();

}  // namespace haliax::cuda
