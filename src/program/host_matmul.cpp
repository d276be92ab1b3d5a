// Matmuls of functions that run on the host.
#include "program/host_matmul.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/scalar.h"
#include "base/thread_pool.h"
#include "program/matmul_blocks.h"

namespace haliax::program {

static thread_local HostMatmulKernel kernel_in_scope = nullptr;

HostMatmulScope::HostMatmulScope(HostMatmulKernel kernel) : before_(kernel_in_scope) {
  kernel_in_scope = kernel;
}
HostMatmulScope::~HostMatmulScope() { kernel_in_scope = before_; }

// Sets the result to 0.
static void fill_with_zeros(const HostMatmul& p) {
  const auto bytes = scalar::bytes_per(p.dtype);
  const bool by_rows = p.out_n == 1;
  const auto runs = by_rows ? p.m : p.n, count = by_rows ? p.n : p.m,
             distance = by_rows ? p.out_m : p.out_n, step = by_rows ? p.out_n : p.out_m;
  for (std::int64_t r = 0; r < runs; ++r) {
    std::byte* run = static_cast<std::byte*>(p.out) + r * distance * bytes;
    if (step == 1)
      std::memset(run, 0, std::size_t(count * bytes));
    else
      for (std::int64_t i = 0; i < count; ++i)
        std::memset(run + i * step * bytes, 0, std::size_t(bytes));
  }
}
void multiply(const HostMatmul& p) {
  if (p.k == 0) return fill_with_zeros(p);
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

namespace {

constexpr double least_parallel = 1 << 20;  // multiplications
// A result costs at least as much as this many multiplications.
constexpr std::int64_t least_per_result = 8;
double multiplications(const HostMatmul& p) {
  return double(p.m) * double(p.n) * double(std::max(p.k, least_per_result));
}
std::vector<HostMatmul>& empty_tasks() {
  static thread_local std::vector<HostMatmul> tasks;
  tasks.clear();
  return tasks;
}

}  // namespace

HostMatmuls::HostMatmuls() : tasks_(empty_tasks()) {}

void HostMatmuls::run() {
  auto* kernel = kernel_in_scope;
  double all = 0;
  for (auto& p : tasks_) all += multiplications(p);
  if (!kernel || threads() == 1 || all < least_parallel) {
    for (auto& p : tasks_) multiply(p);
    return;
  }
  split(all / (2 * threads()));
  parallel_for(std::int64_t(tasks_.size()), threads(), [&](std::int64_t task, int) {
    HostMatmulScope scope(kernel);
    multiply(tasks_[std::size_t(task)]);
  });
}
// Splits the columns of matmuls that have more multiplications than `most`. A part has full panels,
// and enough columns to pay for its copies. The results are bitwise independent of the split, so it
// may depend on the number of threads.
void HostMatmuls::split(double most) {
  const auto count = tasks_.size();
  for (std::size_t i = 0; i < count; ++i) {
    const auto p = tasks_[i];
    const auto parts = std::clamp<std::int64_t>(std::int64_t(multiplications(p) / most + 0.5), 1,
                                                std::max<std::int64_t>(1, p.n / kMinPartColumns));
    const auto columns =
        ((p.n + parts - 1) / parts + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
    const auto bytes = scalar::bytes_per(p.dtype);
    for (std::int64_t first = 0; parts > 1 && first < p.n; first += columns) {
      auto part = p;
      part.n = std::min(columns, p.n - first);
      part.b = static_cast<const std::byte*>(p.b) + first * p.b_n * bytes;
      part.out = static_cast<std::byte*>(p.out) + first * p.out_n * bytes;
      if (first == 0)
        tasks_[i] = part;
      else
        tasks_.push_back(part);
    }
  }
}

}  // namespace haliax::program
