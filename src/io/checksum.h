// XXH64, the 64-bit hash of xxHash (seed 0): as fast as memory, and any flipped bit or swapped
// block changes it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace haliax {

std::uint64_t xxh64(std::span<const std::byte>);

}  // namespace haliax
