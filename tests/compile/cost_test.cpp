// The cost of steps follows from the machine.
#include <doctest/doctest.h>

#include "compile/chunk/cost.h"

using namespace haliax;
using namespace haliax::program;

namespace {

// A matmul whose operands are far in memory, twice, and a kernel on few elements.
std::vector<Step> steps(DType dtype) {
  const std::int64_t n = 4096;
  Step product, kernel, loop;
  product.kind = Kind::contract;
  product.contract.m = {1};
  product.contract.n = {n};
  product.contract.k = {n};
  product.contract.a = {0, dtype, 0, {0, 0, 1}, {}};
  product.contract.b = {1, dtype, 0, {0, 1, n}, {}};
  product.contract.out = {2, DType::f32, 0, {0, 1, 0}, {}};
  kernel.fused.dims = {10};
  loop.kind = Kind::loop;
  loop.loop.trips = 2;
  loop.body = {product};
  return {loop, kernel};
}

}  // namespace

TEST_CASE("cost: bytes, 16-bit floats and steps cost as the machine specifies") {
  const Machine usual;
  const double cost = cost_of(steps(DType::f32), usual);
  CHECK(cost > 0);
  Machine m = usual;
  m.multiplications_per_byte *= 4;
  CHECK(cost_of(steps(DType::f32), m) > 2 * cost);
  m = usual;
  m.cache = 1 << 30;  // then far memory alone costs
  CHECK(cost_of(steps(DType::f32), m) < cost);
  m.core_cache = 1 << 30;
  CHECK(cost_of(steps(DType::f32), m) < cost_of(steps(DType::f32), {.cache = 1 << 30}));
  m = usual;
  m.relative_cost_16bit *= 8;
  CHECK(cost_of(steps(DType::f32), m) == cost);
  CHECK(cost_of(steps(DType::bf16), m) > cost_of(steps(DType::bf16), usual));
  m = usual;
  m.step_cost = 100;  // three steps run; the loop is none
  CHECK(cost_of(steps(DType::f32), m) == cost + 300);
}
