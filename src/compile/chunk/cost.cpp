#include "compile/chunk/cost.h"

#include <algorithm>

namespace haliax {
namespace {

using program::Step;
using program::View;

constexpr double kMultiplicationsPerByte = 8;    // of traffic with memory, on the machines at hand
constexpr double kCache = 8 << 20;               // bytes: what is used turn after turn and fits stays
constexpr double kNear = 2 << 20;  // bytes: what a step leaves in the caches of the cores, where the next one finds it
constexpr double kMultiplicationsPerFarByte = 4; // of what is used again soon, but lies further away than that
constexpr double kNarrow = 1. / 3;               // of a multiplication in bf16 or f16

double product(const program::Dims& dims) {
  double n = 1;
  for (auto d : dims) n *= double(d);
  return n;
}
double bytes_seen(const View& v, const program::Dims& dims) {
  double n = bytes_of(v.dtype);
  for (std::size_t i = 0; i < dims.size(); ++i) if (v.strides[i] != 0) n *= double(dims[i]);
  return n;
}
// What it costs to bring them, in multiplications.
double bringing(const View& v, const program::Dims& dims) {
  double n = bytes_seen(v, dims);
  bool walks = std::any_of(v.terms.begin(), v.terms.end(), [](auto& t) { return t.loop >= 0; });
  return n * (walks || n > kCache ? kMultiplicationsPerByte : n > kNear ? kMultiplicationsPerFarByte : 0);
}
double cost_of_product(const program::Contract& c) {
  program::Dims dims;
  for (auto* part : {&c.batch, &c.m, &c.n, &c.k}) dims.insert(dims.end(), part->begin(), part->end());
  double m = product(c.m), n = product(c.n), k = product(c.k);
  double memory = bringing(c.a, dims) + bringing(c.b, dims) + bringing(c.out, dims) * (c.accumulate ? 2 : 1);
  double narrow = 1 + 12 / std::min({m, n, k});  // what is copied into panels, or added to, for each multiplication
  double work = product(c.batch) * m * n * k * narrow, waits = 0;
  if (bytes_of(c.a.dtype) == 2) {                               // too fast for what it writes
    work *= kNarrow;
    if (auto out = bytes_seen(c.out, dims); !c.accumulate && out > kNear) waits = kMultiplicationsPerByte * out;
  }
  return std::max(work, memory) + std::min(work, memory) / 4 + waits;   // memory is read ahead, mostly
}
double cost_of_kernel(const program::Fused& f) {
  double outer = 1, inner = 1, points = 0;
  for (std::size_t d = 0; d < f.dims.size(); ++d) (int(d) < f.outer ? outer : inner) *= double(f.dims[d]);
  for (auto& i : f.code) {
    double each = i.code == program::Code::exp || i.code == program::Code::log || i.code == program::Code::tanh ? 32 : 6;
    points += each * (i.inner ? outer * inner : outer);
    bool touches = i.inner && (i.code == program::Code::load || i.code >= program::Code::store);
    if (auto n = touches ? bytes_seen(i.view, f.dims) : 0; n > kNear) points += kMultiplicationsPerFarByte * n;
  }
  return points;
}
}  // namespace

double cost_of(const std::vector<Step>& steps) {
  double sum = 0;
  for (auto& s : steps) {
    if (s.kind == program::Kind::loop) sum += double(s.loop.trips) * cost_of(s.loop.body);
    else if (s.kind == program::Kind::contract) sum += cost_of_product(s.contract);
    else if (s.kind == program::Kind::fused) sum += cost_of_kernel(s.fused);
  }
  return sum;
}

}  // namespace haliax
