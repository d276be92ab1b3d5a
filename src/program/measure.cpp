// Sizes, strides and work of steps.
#include <functional>
#include <numeric>

#include "program/program.h"

namespace haliax::program {

std::int64_t points(const Dims& dims) {
  return std::accumulate(dims.begin(), dims.end(), std::int64_t(1), std::multiplies<>());
}
std::int64_t Contract::BlockMask::Flags::blocks(const Dims& side) const {
  return size == 0 ? 1 : (points(side) + size - 1) / size;
}

Dims row_major(const Dims& dims) {
  Dims strides(dims.size());
  std::int64_t n = 1;
  for (std::size_t d = dims.size(); d-- > 0; n *= dims[d]) strides[d] = n;
  return strides;
}

Dims dims_of(const Step& s) {
  switch (s.kind) {
    case Kind::fused:
      return s.fused.dims;
    case Kind::gather:
      return s.gather.dims;
    case Kind::scatter:
      return s.scatter.dims;
    case Kind::sort:
      return s.sort.dims;
    case Kind::cumulative:
      return s.cumulative.dims;
    case Kind::copy:
      return s.copy.dims;
    case Kind::custom:
      return s.custom.dims;
    case Kind::contract: {
      Dims all = s.contract.batch;
      for (auto* part : {&s.contract.m, &s.contract.n, &s.contract.k})
        all.insert(all.end(), part->begin(), part->end());
      return all;
    }
    case Kind::loop:  // their views have dims of their own, or none
    case Kind::collective:
    case Kind::finish:
    case Kind::conditional:
    case Kind::host:
      break;
  }
  return {};
}

std::int64_t body_runs(const Step& s) {
  if (s.kind == Kind::loop) return s.loop.continues_previous ? 0 : s.loop.trips;
  return s.kind == Kind::conditional ? 1 : 0;
}
std::vector<const Step*> parallel_nest(const Step& outermost) {
  std::vector<const Step*> out{&outermost};
  for (auto* s = &outermost;
       s->body.size() == 1 && s->body[0].kind == Kind::loop && s->body[0].loop.parallel_slots > 0;)
    out.push_back(s = &s->body[0]);
  return out;
}
double multiplications(const std::vector<Step>& steps) {
  double sum = 0;
  each_step_run(steps, [&](const Step& s, std::int64_t runs) {
    if (s.kind == Kind::contract) sum += double(runs) * double(points(dims_of(s)));
  });
  return sum;
}
int count_contractions(const std::vector<Step>& steps) {
  int n = 0;
  for (auto& s : steps) n += s.kind == Kind::contract ? 1 : count_contractions(s.body);
  return n;
}

}  // namespace haliax::program
