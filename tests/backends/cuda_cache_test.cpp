// Caches of kernels: cubins by source code, options and architecture, and the fastest algorithms.
#include <doctest/doctest.h>

#include <fstream>
#include <iterator>

#include "backends/cuda/api.h"
#include "backends/cuda/nvidia/cublas.h"
#include "backends/cuda/nvidia/nvrtc.h"
#include "backends/cuda/nvidia/tuned.h"
#include "support/cache.h"
#include "support/left_out.h"
#include "support/raises.h"

using namespace haliax;
using namespace haliax::testing;

namespace {

std::string text_of(const char* body) {
  return cuda::prelude(false) + "extern \"C\" __global__ void f(float* x) { " + body + " }\n}\n";
}
std::string read(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE(
    "cuda: a cubin is cached by source code, "
    "options and architecture, and compiled again if damaged") {
  if (!cuda::has_nvrtc()) {
    left_out("a cubin is kept", "not compiled: no NVRTC here");
    return;
  }
  Cache cache;
  const auto text = text_of("x[0] = x[1] * x[2] + x[3];");
  const auto from = cuda::compiled_cubins();
  auto made = [&] { return cuda::compiled_cubins() - from; };
  const auto cubin = cuda::cached_cubin(text, 90, false);
  CHECK(cubin.substr(1, 3) == "ELF");
  CHECK(cuda::cached_cubin(text, 90, false) == cubin);
  CHECK(made() == 1);
  CHECK(cache.folder.files() == 1);  // no partial file
  const auto file = std::filesystem::directory_iterator(cache.folder.path)->path();
  const auto complete = read(file);
  for (auto damaged :
       {std::string(), complete.substr(0, 20), complete.substr(0, complete.size() - 1),
        complete + "x",
        complete.substr(0, complete.size() / 2) + "?" + complete.substr(complete.size() / 2 + 1)}) {
    std::ofstream(file, std::ios::binary) << damaged;
    const auto so_far = made();
    CHECK(cuda::cached_cubin(text, 90, false) == cubin);
    CHECK(made() == so_far + 1);
    CHECK(read(file) == complete);
  }
  CHECK(cuda::cached_cubin(text, 90, true) != cubin);  // no contracted multiply-add
  CHECK(cuda::cached_cubin(text, 80, false) != cubin);
  cuda::cached_cubin(text_of("x[0] = 1;"), 90, false);
  CHECK(cache.folder.files() == 4);
}

TEST_CASE("cuda: without a compiler, a folder of cubins names the compiler that filled it") {
  Cache cache;
  CHECK(cuda::compiler_of(cache.folder.path, 13000) == "13000");
  CHECK(cuda::compiler_of(cache.folder.path, 0) == "");
  std::ofstream(cache.folder / "nvrtc") << "12080\n";
  CHECK(cuda::compiler_of(cache.folder.path, 0) == "12080");
  CHECK(cuda::compiler_of(cache.folder.path, 13000) == "13000");
}

TEST_CASE("cuda: the fastest algorithm of a matmul is stored, and read again") {
  Cache cache;
  CHECK_FALSE(cuda::tuned("sm_90 this"));
  cuda::keep_tuned("sm_90 this", {1, 2, 3, 4, 5, 6, 7, ~std::uint64_t(0)});
  cuda::keep_tuned("sm_90 that", {8});
  CHECK(cuda::tuned("sm_90 this") ==
        cuda::CublasProduct::Algorithm{1, 2, 3, 4, 5, 6, 7, ~std::uint64_t(0)});
  CHECK(cuda::tuned("sm_90 that") == cuda::CublasProduct::Algorithm{8});
  CHECK(cache.folder.files() == 1);
  std::ofstream(cache.folder / "tuned", std::ios::app) << "sm_90 other: 12 34\nnothing\n";
  CHECK_FALSE(cuda::tuned("sm_90 other"));
  CHECK(cuda::tuned("sm_90 that"));
}

// tests/gpu_test.py runs this test without the cache of the loader, so the toolkit's libraries are
// not found.
TEST_CASE("cuda: a library of the toolkit that is missing is named") {
  if (cuda::has_nvrtc() || cuda::has_cublas()) {
    left_out("a missing library", "the toolkit is here");
    return;
  }
  auto message = error_of([] { cuda::compile_for_gpu("", 90); });
  CHECK(
      has(message, "[cuda] libnvrtc.so.13 (or .12) is not found: it is part of the CUDA toolkit"));
  message = error_of([] { cuda::CublasProduct(cuda::Product{}); });
  CHECK(has(message,
            "[cuda] libcublasLt.so.13 (or .12) is not found: it is part of the CUDA toolkit"));
}
