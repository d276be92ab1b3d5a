// Tests assembled elementwise ops of the CPU backend: arrays that they read and write in memory.
#include <doctest/doctest.h>

#include "backends/cpu/assemble/assemble.h"
#include "support/programs.h"

namespace {

using namespace haliax;
using namespace haliax::program;
using namespace haliax::testing;

// out = (a or x < y) ? x : y, not a, and whether x is finite and below y. In memory, any byte of
// `a` but 0 is true. `stride` is the distance of elements of a.
void check_bools(std::int64_t n, std::int64_t stride) {
  Case c(1);
  View a = c.view(false, DType::boolean, {n * stride}, Case::dense);
  const View x = c.view(false, DType::f32, {n}, Case::dense),
             y = c.view(false, DType::f32, {n}, Case::dense),
             out = c.view(true, DType::f32, {n}, Case::dense),
             inverse = c.view(true, DType::boolean, {n}, Case::dense),
             below = c.view(true, DType::boolean, {n}, Case::dense);
  for (std::size_t k = 0; k < c.arguments[0].size(); ++k)
    c.arguments[0][k] = std::byte(k % 3 == 0 ? 0 : k);
  a.strides = {stride};
  auto& f = c.add(Kind::fused).fused;
  f.dims = {n};
  f.outer = 1;
  f.code = {load(a),
            load(x),
            load(y),
            op(Code::less, DType::boolean, {1, 2}),
            op(Code::bit_or, DType::boolean, {0, 3}),
            op(Code::select, DType::f32, {4, 1, 2}),
            op(Code::logical_not, DType::boolean, {0}),
            op(Code::is_finite, DType::boolean, {1}),
            op(Code::bit_and, DType::boolean, {7, 3}),
            store(out, 5),
            store(inverse, 6),
            store(below, 8)};
  const auto got = c.run(*cpu::make_cpu_device()),
             expected = c.run(*reference::make_reference_device());
  CHECK(difference(DType::f32, got[0], expected[0], 0) == "");
  CHECK(difference(DType::boolean, got[1], expected[1], 0) == "");
  CHECK(difference(DType::boolean, got[2], expected[2], 0) == "");
}

}  // namespace

TEST_CASE("cpu: assembled ops read and write bools in memory") {
  for (std::int64_t n : {1, 15, 16, 37, 5000})
    for (std::int64_t stride : {1, 2}) {
      INFO(n, " elements with stride ", stride);
      check_bools(n, stride);
    }
}

TEST_CASE("cpu: a comparison alone is assembled, and stores bools in memory") {
  if (!cpu::can_assemble_as_stored()) return;
  Case c(1);
  const View x = c.view(false, DType::f32, {100}, Case::dense),
             out = c.view(true, DType::boolean, {100}, Case::dense);
  auto& f = c.add(Kind::fused).fused;
  f.dims = {100};
  f.outer = 1;
  f.code = {load(x), op(Code::is_nan, DType::boolean, {0}), store(out, 1)};
  const cpu::Context context{c.program, static_cast<int>(c.program.slots.size()), 1};
  const auto plan = cpu::plan_fused(f, &context);
  REQUIRE(plan.assembled.size() == 1);
  CHECK(plan.assembled.at(0).out.at(0).stored == cpu::Stored::boolean);
}

// Reductions over two elements are computed as x0 op x1.
TEST_CASE("cpu: reductions over two elements match the reference") {
  for (Code code : {Code::reduce_sum, Code::reduce_prod, Code::reduce_max, Code::reduce_min})
    for (DType dtype : {DType::f32, DType::bf16, DType::i8, DType::i32}) {
      Case c(1);
      const std::int64_t rows = 7, columns = 50;
      View x = c.view(false, dtype, {rows, 2, columns}, Case::dense),
           y = c.view(false, dtype, {rows}, Case::dense);
      const View out = c.view(true, dtype, {rows, columns}, Case::dense);
      x.strides = {2 * columns, 1, columns};
      y.strides = {1, 0, 0};
      auto& f = c.add(Kind::fused).fused;
      f.dims = {rows, columns, 2};
      f.outer = 2;
      auto sum = op(code, dtype, {2});
      f.code = {load(x),      load(y), op(Code::mul, dtype, {0, 1}), sum, op(Code::neg, dtype, {3}),
                store(out, 4)};
      for (int k : {0, 2}) f.code[std::size_t(k)].inner = true;
      INFO(std::string(name_of(dtype)), " ", int(code));
      CHECK(difference(dtype, c.run(*cpu::make_cpu_device())[0],
                       c.run(*reference::make_reference_device())[0],
                       dtype == DType::bf16 ? 8e-3 : 1e-6) == "");
    }
}
