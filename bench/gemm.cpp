// Contractions of two arrays: matmuls in all storage orders, batched matmuls of attention, and a
// matrix times a vector.
#include "bench.h"

namespace bench {
namespace {

using namespace haliax;

// T: the matrix is stored transposed.
Case gemm(std::string_view layout, std::int64_t batch, std::int64_t m, std::int64_t k,
          std::int64_t n, DType dtype) {
  auto text = [](std::int64_t i) { return std::to_string(i); };
  auto shape = text(batch) + "x[" + text(m) + "," + text(k) + "]x[" + text(k) + "," + text(n) + "]";
  auto prepare = [=] {
    Axis B("batch", batch), M("m", m), K("k", k), N("n", n);
    auto draw = [&](const Axes& axes, int seed) {
      auto x = random::normal(random::key(seed), batch > 1 ? concat_axes({B}, axes) : axes, dtype);
      x.eval();
      return x;
    };
    auto left = draw(layout[0] == 'T' ? Axes{K, M} : Axes{M, K}, 0),
         right = draw(layout[1] == 'T' ? Axes{N, K} : Axes{K, N}, 1);
    return jitted([](const NamedArray& l, const NamedArray& r) { return dot(l, r, "k"); }, left,
                  right);
  };
  return {"gemm_" + std::string(layout),    shape,     dtype,
          2e-9 * double(batch * m * k * n), "GFLOP/s", prepare};
}

}  // namespace

std::vector<Case> gemm_cases(DType dtype) {
  constexpr std::int64_t sizes[][3] = {{1024, 1024, 1024},
                                       {2048, 2048, 2048},
                                       {4096, 768, 3072},
                                       {4096, 3072, 768},
                                       {2048, 768, 50257}};
  std::vector<Case> cases;
  for (auto [m, k, n] : sizes)
    for (auto* layout : {"NN", "NT", "TN", "TT"}) cases.push_back(gemm(layout, 1, m, k, n, dtype));
  cases.push_back(gemm("NT", 96, 512, 64, 512, dtype));  // queries and keys
  cases.push_back(gemm("NN", 96, 512, 512, 64, dtype));  // weights and values
  cases.push_back(gemm("TN", 96, 512, 512, 64, dtype));  // the gradient of keys and values
  for (std::int64_t n : {3072, 50257})
    for (auto* layout : {"NN", "NT"}) cases.push_back(gemm(layout, 1, 1, 768, n, dtype));
  return cases;
}

}  // namespace bench
