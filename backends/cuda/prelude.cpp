#include <fmt/format.h>

#include "api.h"
#include "hash.h"

namespace haliax::cuda {
namespace {

// The headers as text, each a string of the same name: made by embed.py.
#include "texts.inc"

}  // namespace

std::string prelude(bool host) {
  return (host ? std::string(host_h) : std::string()) + std_h + half_h + arithmetic_h + kernel_h +
         product_h + tile_h + "namespace haliax::kernel {\n";
}
Kernel named(const std::string& source) {
  Kernel k{fmt::format("k{:016x}", hash_of(source)), source};
  for (std::size_t at = 0; (at = k.source.find("NAME", at)) != std::string::npos;
       at += k.name.size())
    k.source.replace(at, 4, k.name);
  return k;
}

}  // namespace haliax::cuda
