// Errors of the backend `cuda` on machines where it cannot run. The test produces the conditions
// that a machine without GPUs can have, and simulates the others.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>

#include "backends/cuda/gpu.h"
#include "haliax/haliax.h"
#include "runtime/run.h"
#include "support/raises.h"

using namespace haliax;
using cuda::Gpus;

namespace {

std::string error_for(const Gpus& c) {
  return error_of([&] {
    cuda::require_gpus(c);
    return 0;
  });
}
bool is_built() {
  auto at = std::filesystem::canonical("/proc/self/exe").parent_path().parent_path();
  return std::filesystem::exists(at / "libhaliax_cuda.so");
}

}  // namespace

TEST_CASE("cuda: each missing requirement of a machine is reported") {
  Gpus c{13000, 13000, "", {{"NVIDIA H100", 90}}};
  CHECK(error_for(c) == "");
  c.gpus.push_back({"Tesla T4", 75});
  CHECK(has(error_for(c), "[cuda] GPU 1 (Tesla T4) is of sm_75, but sm_80 or newer is required"));
  c.gpus.clear();
  CHECK(has(error_for(c), "[cuda] no GPU is visible; CUDA_VISIBLE_DEVICES"));
  c.error = "out of order";
  CHECK(has(error_for(c), "[cuda] the GPUs cannot be queried: out of order"));
  c.driver = 12020;
  CHECK(has(error_for(c),
            "[cuda] the driver is too old: it is for CUDA 12.2, but CUDA 13.0 is required"));
  c.driver = 0;
  CHECK(has(error_for(c), "[cuda] there is no NVIDIA driver (libcuda.so.1) on this machine"));
  CHECK(error_for({13020, 13000, "", {{"NVIDIA A100", 80}}}) == "");
}

TEST_CASE("cuda: the options of HALIAX_CUDA are parsed") {
  CHECK_FALSE(cuda::cuda_options(nullptr).sync);
  CHECK_FALSE(cuda::cuda_options("").sync);
  auto w = cuda::cuda_options("sync, tf32,keep");
  CHECK((w.sync && w.tf32 && w.keep));
  CHECK_FALSE((w.eager || w.exact || w.tune));
  auto more = cuda::cuda_options("eager exact tune");
  CHECK((more.eager && more.exact && more.tune && !more.sync));
  CHECK(error_of([] {
          cuda::cuda_options("sync,fast");
          return 0;
        }) ==
        "[cuda] HALIAX_CUDA has the word fast; expected sync, eager, keep, exact, tf32, tune");
}

TEST_CASE("cuda: the plugin plans without a GPU, and reports why it cannot run" *
          doctest::skip(!is_built())) {
  ::setenv("HALIAX_CUDA", "fast", 1);
  CHECK(has(error_of([] { return backend("cuda").name(); }), "HALIAX_CUDA has the word fast"));
  ::unsetenv("HALIAX_CUDA");
  auto f = jit([](const NamedArray& x) { return sum(exp(x) * 2.); }, {.backend = "cuda"});
  auto x = arange(Axis("n", 1000), {.dtype = DType::f32});
  f.plan(x);
  CHECK(f.report().peak_bytes > 0);
  auto message = error_of([&] { return f(x); });
  CHECK(message.starts_with("[cuda] "));
}
