// The hash that names sources: FNV-1a.
#pragma once
#include <cstdint>
#include <string_view>

namespace haliax::cuda {

inline std::uint64_t hash_of(std::string_view text, std::uint64_t from = 0xcbf29ce484222325) {
  for (unsigned char c : text) from = (from ^ c) * 0x100000001b3;
  return from;
}

}  // namespace haliax::cuda
