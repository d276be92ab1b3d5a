// Estimates the time of steps, in units of one f32 multiplication.
#include "compile/chunk/cost.h"

#include <algorithm>

namespace haliax {
namespace {

using program::Machine;
using program::Step;
using program::View;

// The packing of operands and the update of results cost as much as this many positions of the
// shortest side of a matmul.
constexpr double kPackingPositions = 12;
// multiplications in the time of one instruction of a fused step, per element
constexpr double kInstructionCost = 6, kExpensiveCost = 32;
constexpr double kNotConcurrent = 0.25;  // fraction of memory traffic that delays computation

double element_count(const program::Dims& dims) { return double(program::points(dims)); }
double bytes_viewed(const View& v, const program::Dims& dims) {
  double n = bytes_of(v.dtype);
  for (std::size_t i = 0; i < dims.size(); ++i)
    if (v.strides[i] != 0) n *= double(dims[i]);
  return n;
}
// Returns the cost of moving the elements of a view between memory and a core. Views that depend on
// a loop index, and views larger than the cache, are charged as memory traffic. Other views that
// fit in the caches of the cores cost nothing.
double transfer_cost(const View& v, const program::Dims& dims, const Machine& machine) {
  double n = bytes_viewed(v, dims);
  bool varies = std::any_of(v.terms.begin(), v.terms.end(), [](auto& t) { return t.loop >= 0; });
  bool from_memory = varies || n > machine.cache;
  return n * (from_memory              ? machine.multiplications_per_byte
              : n > machine.core_cache ? machine.multiplications_per_far_byte
                                       : 0);
}
double cost_of_matmul(const program::Contract& c, const Machine& machine) {
  program::Dims dims;
  for (auto* part : {&c.batch, &c.m, &c.n, &c.k})
    dims.insert(dims.end(), part->begin(), part->end());
  double m = element_count(c.m), n = element_count(c.n), k = element_count(c.k);
  double memory = transfer_cost(c.a, dims, machine) + transfer_cost(c.b, dims, machine) +
                  transfer_cost(c.out, dims, machine) * (c.accumulate ? 2 : 1);
  double packing_overhead = 1 + kPackingPositions / std::min({m, n, k});
  double work = element_count(c.batch) * m * n * k * packing_overhead, store_cost = 0;
  if (bytes_of(c.a.dtype) == 2) {  // matmuls are faster than memory stores results
    work *= machine.relative_cost_16bit;
    if (auto out = bytes_viewed(c.out, dims); !c.accumulate && out > machine.core_cache)
      store_cost = machine.multiplications_per_byte * out;
  }
  return std::max(work, memory) + std::min(work, memory) * kNotConcurrent + store_cost;
}
double cost_of_kernel(const program::Fused& f, const Machine& machine) {
  double outer = 1, inner = 1, work = 0;
  for (std::size_t d = 0; d < f.dims.size(); ++d)
    (int(d) < f.outer ? outer : inner) *= double(f.dims[d]);
  for (auto& i : f.code) {
    double each = is_expensive(i.code) ? kExpensiveCost : kInstructionCost;
    work += each * (i.inner ? outer * inner : outer);
    const bool has_view = i.inner && accesses_memory(i.code);
    if (auto n = has_view ? bytes_viewed(i.view, f.dims) : 0; n > machine.core_cache)
      work += machine.multiplications_per_far_byte * n;
  }
  return work;
}
}  // namespace

double cost_of(const std::vector<Step>& steps, const Machine& machine) {
  double sum = 0;
  program::each_step_run(steps, [&](const Step& s, std::int64_t runs) {
    double cost = s.kind != program::Kind::loop ? machine.step_cost : 0;
    if (s.kind == program::Kind::contract)
      cost += cost_of_matmul(s.contract, machine);
    else if (s.kind == program::Kind::fused)
      cost += cost_of_kernel(s.fused, machine);
    sum += double(runs) * cost;
  });
  return sum;
}

}  // namespace haliax
