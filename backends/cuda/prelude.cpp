#include "api.h"

namespace haliax::cuda {
namespace {

// The headers as text, each a string of the same name: made by embed.py.
#include "texts.inc"

}  // namespace

std::string prelude(bool host) {
  return (host ? std::string(host_h) : std::string()) + std_h + half_h + arithmetic_h + kernel_h + "namespace haliax::kernel {\n";
}

}  // namespace haliax::cuda
