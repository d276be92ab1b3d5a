// The plugin libhaliax_cuda: the backend `cuda`. It plans on any machine; what it cannot run, and why, it says when asked to.
#include <cstdlib>

#include "card_api.h"
#include "engine.h"
#include "program/plugin.h"

namespace haliax::cuda {
namespace {

// Of an H100 (docs/cuda.md): 33 T multiplications a second in f32 and 395 T in bf16, 3 TB/s, 50 MB of cache; 1.5 us a step. Not
// measured by this library.
constexpr program::Machine h100{.multiplications_per_byte = 11, .multiplications_per_far_byte = 6, .cache = 40e6, .near = 1 << 20,
                                .narrow = 33. / 395, .step = 5e7};

program::Device* device() {
  static auto* one = [] {
    const auto words = words_of(std::getenv("HALIAX_CUDA"));
    return make_device(card(words), words, h100).release();
  }();
  return one;
}

}  // namespace
}  // namespace haliax::cuda

const haliax::program::Plugin* haliax_plugin() {
  using namespace haliax;
  static const program::Plugin mine{program::library_version(), program::border_hash(), cuda::device};
  return &mine;
}
