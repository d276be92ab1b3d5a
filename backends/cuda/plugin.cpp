// The plugin libhaliax_cuda: the backend `cuda`. It plans on any machine; what it cannot run, and why, it says when it is asked to.
#include <cuda_runtime_api.h>

#include <cstdlib>

#include "card.h"
#include "haliax/error.h"
#include "program/plugin.h"
#include "program/program.h"

namespace haliax::cuda {
namespace {

Cards cards_here() {
  Cards c;
  cudaDriverGetVersion(&c.driver);
  cudaRuntimeGetVersion(&c.needed);
  int count = 0;
  const auto status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice) return c;
  if (status != cudaSuccess) {
    c.says = cudaGetErrorString(status);
    return c;
  }
  for (int k = 0; k < count; ++k) {
    cudaDeviceProp p{};
    if (cudaGetDeviceProperties(&p, k) == cudaSuccess) c.cards.push_back({p.name, 10 * p.major + p.minor});
  }
  return c;
}

class CardDevice final : public program::Device {
 public:
  explicit CardDevice(Words words) : words_(words) {}
  const char* name() const override { return "cuda"; }
  bool is_host() const override { return false; }
  int devices() const override {
    auto all = cards_here();
    require_cards(all);
    return int(all.cards.size());
  }
  // Of an H100 (docs/cuda.md): 33 T multiplications a second in f32 and 395 T in bf16, 3 TB/s, 50 MB of cache; 1.5 us a step. Not
  // measured by this library.
  program::Machine machine() const override {
    return {.multiplications_per_byte = 11, .multiplications_per_far_byte = 6, .cache = 40e6, .near = 1 << 20,
            .narrow = 33. / 395, .step = 5e7};
  }
  std::unique_ptr<program::Executable> compile(std::shared_ptr<const program::Program>) override {
    require_cards(cards_here());
    throw Error("[cuda] programs are planned for cards, and do not run on them yet; backend cuda-sim runs the same kernels on the "
                "host");
  }

 private:
  [[maybe_unused]] Words words_;
};

program::Device* device() {
  static auto* one = new CardDevice(words_of(std::getenv("HALIAX_CUDA")));
  return one;
}

}  // namespace
}  // namespace haliax::cuda

const haliax::program::Plugin* haliax_plugin() {
  using namespace haliax;
  static const program::Plugin mine{program::library_version(), program::border_hash(), cuda::device};
  return &mine;
}
