// A keyed permutation of 0 ... n - 1 by a formula: no table, and any place at once.
#pragma once
#include <cstdint>

namespace haliax {

// Where i goes, with i < n. A Feistel network over the next power of 4; what falls beyond n goes on
// through it until it does not, fewer than 4 times on average.
std::int64_t permuted(std::int64_t i, std::int64_t n, std::uint64_t key);
// Another key for each number.
std::uint64_t key_of(std::uint64_t key, std::uint64_t number);

}  // namespace haliax
