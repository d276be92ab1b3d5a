// Equal kernels in one launch: bitwise identical to separate launches, for any dependencies. Counts
// the remaining launches.
#include <doctest/doctest.h>

#include "backends/cuda/nvidia/nvrtc.h"
#include "backends/cuda/engine/sequence.h"
#include "support/left_out.h"
#include "support/simulated.h"

using namespace haliax;
using namespace haliax::program;
using namespace haliax::testing;

namespace {

struct Counted {
  std::vector<Bytes> results;
  std::int64_t kernels = 0;
};
Counted run(const Case& c, const char* words) {
  const auto before = cuda::simulation_counts().kernels;
  Counted out{c.run(*device_of(cuda::simulated(), words))};
  out.kernels = cuda::simulation_counts().kernels - before;
  return out;
}
// The first n elements of `to` become the first elements of `from` times `by`.
Step scaled(const View& from, const View& to, std::int64_t n, double by) {
  Step s;
  s.op = "scale";
  s.where = "model.cpp:3";
  s.fused.dims = {n};
  s.fused.outer = 1;
  s.fused.code = {load(from), constant(DType::f32, by), op(Code::mul, DType::f32, {0, 1}),
                  store(to, 2)};
  return s;
}
// Steps that are equal up to their size, each with its own operand and result.
Case equal_steps(int count, std::int64_t most) {
  Case c(3);
  for (int k = 0; k < count; ++k) {
    const auto n = 1 + c.random.below(most);
    const auto x = c.view(false, DType::f32, {n}, Case::dense),
               out = c.view(true, DType::f32, {n}, Case::dense);
    c.program.steps.push_back(scaled(x, out, n, 1.5));
  }
  return c;
}

}  // namespace

TEST_CASE(
    "cuda join: equal independent steps are one launch, "
    "up to its space for arguments, and bitwise identical") {
  // 5 of 511 words for each step, minus the shared ones
  for (auto [count, launches] : {std::pair{2, 1}, {5, 1}, {80, 1}, {81, 1}, {103, 2}}) {
    CAPTURE(count);
    const auto c = equal_steps(count, 3000);
    const auto one_by_one = run(c, "sync"), got = run(c, "eager");
    CHECK(one_by_one.kernels == count);
    CHECK(got.kernels == launches);
    CHECK(got.results == one_by_one.results);
    CHECK(run(c, "").results == got.results);
  }
}

TEST_CASE("cuda join: dependent steps stay in order") {
  std::int64_t joined = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    Case c(seed);
    constexpr std::int64_t n = 600;
    std::vector<View> arrays{c.view(false, DType::f32, {n}, Case::dense)};
    for (int k = 0; k < 8; ++k) arrays.push_back(c.view(true, DType::f32, {n}, Case::dense));
    auto any = [&](std::size_t from) {
      return from + std::size_t(c.random.below(std::int64_t(arrays.size() - from)));
    };
    for (std::size_t k = 1; k < arrays.size(); ++k)
      c.program.steps.push_back(scaled(arrays[0], arrays[k], n, double(k)));
    for (int k = 0; k < 24; ++k) {
      auto from = arrays[any(0)], to = arrays[any(1)];
      if (from.slot == to.slot) continue;
      c.program.steps.push_back(scaled(from, to, 1 + c.random.below(n), 1 + c.random.normal()));
      if (k == 11) {  // a loop that reads and writes the same arrays
        Step loop{.kind = Kind::loop, .loop = {.variable = 0, .trips = 3}};
        for (int j = 0; j < 3; ++j)
          loop.body.push_back(scaled(arrays[any(0)], arrays[any(1)], 1 + c.random.below(n), 0.5));
        c.program.steps.push_back(loop);
        c.program.loops = 1;
      }
    }
    const auto one_by_one = run(c, "sync"), got = run(c, "");
    joined += one_by_one.kernels - got.kernels;
    CHECK(got.results == one_by_one.results);
  }
  CHECK(joined > 200);
}

TEST_CASE("cuda join: random steps in duplicate match, with rows of any length, dtype and code") {
  for (unsigned seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    Case c(seed);
    const auto dims = random_dims(c.random, 3, 12);
    const auto outer = int(c.random.below(std::int64_t(dims.size()) + 1));
    const auto dtype = all_dtypes[c.random.below(12)];
    const auto state = c.random;
    random_fused(c, dims, outer, dtype, 6);
    c.random = state;  // the same source code
    random_fused(c, dims, outer, dtype, 6);
    CHECK(run(c, "").results == run(c, "sync").results);
  }
}

TEST_CASE("cuda join: merged kernels compile for GPUs, without spills and without a stack") {
  if (!cuda::has_nvrtc()) {
    left_out("texts of several in one", "not compiled: no NVRTC here");
    return;
  }
  auto c = equal_steps(5, 3000);
  cuda::Sequence s = cuda::sequence_of(c.program, 0);
  cuda::join_equal(s, c.program);
  REQUIRE(s.items.size() == 1);
  for (int sm : {80, 90, 100}) {
    const auto log =
        cuda::compile_for_gpu(
            cuda::prelude(false) + cuda::named(s.items[0].launch.source).source + "}\n", sm)
            .log;
    CAPTURE(log);
    CHECK(log.find(" 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads") != log.npos);
  }
}
