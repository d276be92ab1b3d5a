// What cuBLASLt is told of a product. Its library is found when the program runs; nothing is linked to it, and it says what it was
// told on machines without a card too.
#pragma once
#include <memory>

#include "product.h"

namespace haliax::cuda {

bool has_cublas();

// Raises if the library is not there, or refuses.
class CublasProduct {
 public:
  explicit CublasProduct(const Product&);
  ~CublasProduct();
  Product told() const;                          // read back
  unsigned reduction_schemes() const;            // how partial sums may be put together: never in the dtype of the result

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace haliax::cuda
