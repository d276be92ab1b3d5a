// Matmuls of functions that run on the host.
#include "program/host_product.h"

#include <cstddef>

#include "base/scalar.h"

namespace haliax::program {

static thread_local HostProductKernel kernel_in_scope = nullptr;

HostProductScope::HostProductScope(HostProductKernel kernel) : before_(kernel_in_scope) {
  kernel_in_scope = kernel;
}
HostProductScope::~HostProductScope() { kernel_in_scope = before_; }

void multiply(const HostProduct& p) {
  if (kernel_in_scope && kernel_in_scope(p)) return;
  const auto bytes = scalar::bytes_per(p.dtype);
  auto at = [&](const void* from, std::int64_t element) {
    return static_cast<const std::byte*>(from) + element * bytes;
  };
  for (std::int64_t i = 0; i < p.m; ++i)
    for (std::int64_t j = 0; j < p.n; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < p.k; ++k)
        sum += scalar::load(p.dtype, at(p.a, i * p.a_m + k * p.a_k)).real *
               scalar::load(p.dtype, at(p.b, k * p.b_k + j * p.b_n)).real;
      scalar::store(p.dtype, static_cast<std::byte*>(p.out) + (i * p.out_m + j * p.out_n) * bytes,
                    {sum, 0});
    }
}

}  // namespace haliax::program
