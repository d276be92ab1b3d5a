// XXH64, the 64-bit hash of xxHash (seed 0). It runs at memory speed and detects flipped bits and
// swapped blocks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace haliax {

std::uint64_t xxh64(std::span<const std::byte>);

}  // namespace haliax
