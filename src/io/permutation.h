// A keyed permutation of 0 ... n - 1, computed per element and without a table.
#pragma once
#include <cstdint>

namespace haliax {

// Returns the image of i, with i < n. A Feistel network permutes the range up to the next power of
// 4. A result of n or more is fed through the network again, less than 4 times on average.
std::int64_t permuted(std::int64_t i, std::int64_t n, std::uint64_t key);
// Returns a different key for each `number`.
std::uint64_t key_of(std::uint64_t key, std::uint64_t number);

}  // namespace haliax
