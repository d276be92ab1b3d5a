// Computes contractions in f64. The build optimizes this file as it does the library; tests are not
// optimized.
#include "support/product.h"

#include <cstddef>

#include "base/scalar.h"

namespace haliax::testing {
namespace {

// Returns the offsets of all elements of dims, the last dim fastest. The strides of dims in the
// view start at index `first`.
std::vector<std::ptrdiff_t> places(const program::Dims& dims, const program::View& v,
                                   std::size_t first) {
  std::vector<std::ptrdiff_t> out{0};
  for (std::size_t d = 0; d < dims.size(); ++d) {
    std::vector<std::ptrdiff_t> finer;
    for (auto p : out)
      for (std::int64_t i = 0; i < dims[d]; ++i) finer.push_back(p + i * v.strides[first + d]);
    out = std::move(finer);
  }
  return out;
}
std::vector<double> doubles(const Bytes& bytes, DType dtype) {
  std::vector<double> out;
  for (std::size_t i = 0; i < bytes.size(); i += std::size_t(bytes_of(dtype)))
    out.push_back(scalar::load(dtype, &bytes[i]).real);
  return out;
}
}  // namespace

Bytes product(const program::Contract& c, const Bytes& a_bytes, const Bytes& b_bytes, Bytes out) {
  const auto m_at = c.batch.size(), n_at = m_at + c.m.size(), k_at = n_at + c.n.size();
  const auto a = doubles(a_bytes, c.a.dtype), b = doubles(b_bytes, c.b.dtype),
             start = doubles(out, c.out.dtype);
  const auto a_batch = places(c.batch, c.a, 0), b_batch = places(c.batch, c.b, 0),
             out_batch = places(c.batch, c.out, 0);
  const auto a_m = places(c.m, c.a, m_at), out_m = places(c.m, c.out, m_at);
  const auto b_n = places(c.n, c.b, n_at), out_n = places(c.n, c.out, n_at);
  const auto a_k = places(c.k, c.a, k_at), b_k = places(c.k, c.b, k_at);
  for (std::size_t x = 0; x < a_batch.size(); ++x)
    for (std::size_t i = 0; i < a_m.size(); ++i)
      for (std::size_t j = 0; j < b_n.size(); ++j) {
        const double *row = &a[std::size_t(c.a.offset)] + a_batch[x] + a_m[i],
                     *column = &b[std::size_t(c.b.offset)] + b_batch[x] + b_n[j];
        const auto at = std::size_t(c.out.offset + out_batch[x] + out_m[i] + out_n[j]);
        double sum = c.accumulate ? start[at] : 0;
        for (std::size_t k = 0; k < a_k.size(); ++k) sum += row[a_k[k]] * column[b_k[k]];
        scalar::store(c.out.dtype, &out[at * std::size_t(bytes_of(c.out.dtype))],
                      scalar::rounded(c.out.dtype, {sum, 0}));
      }
  return out;
}

}  // namespace haliax::testing
