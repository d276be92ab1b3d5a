// The plugin libhaliax_cuda: the backend `cuda`. Planning works on any machine; a run on a machine
// that cannot run it raises an error with the reason.
#include <cstdlib>

#include "nvidia/gpu_api.h"
#include "engine/engine.h"
#include "program/plugin.h"

namespace haliax::cuda {
namespace {

program::Device* device() {
  static auto* one = [] {
    const auto options = cuda_options(std::getenv("HALIAX_CUDA"));
    return make_device(gpu(options), options, kH100).release();
  }();
  return one;
}

}  // namespace
}  // namespace haliax::cuda

const haliax::program::Plugin* haliax_plugin() {
  using namespace haliax;
  static const program::Plugin mine{program::library_version(), program::abi_hash(), cuda::device};
  return &mine;
}
