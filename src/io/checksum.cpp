// XXH64 for data in one buffer.
#include "io/checksum.h"

#include <bit>
#include <cstring>

namespace haliax {
namespace {

constexpr std::uint64_t kPrimes[] = {0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9,
                                     0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5};

template <class T> std::uint64_t next(const std::byte*& at) {
  T v;
  std::memcpy(&v, at, sizeof v);
  at += sizeof v;
  return v;
}
std::uint64_t mixed(std::uint64_t lane, std::uint64_t input) {
  return std::rotl(lane + input * kPrimes[1], 31) * kPrimes[0];
}

}  // namespace

std::uint64_t xxh64(std::span<const std::byte> data) {
  auto* at = data.data();
  auto left = data.size();
  std::uint64_t h = kPrimes[4];
  if (left >= 32) {
    std::uint64_t a = kPrimes[0] + kPrimes[1], b = kPrimes[1], c = 0, d = 0 - kPrimes[0];
    for (; left >= 32; left -= 32) {
      a = mixed(a, next<std::uint64_t>(at));
      b = mixed(b, next<std::uint64_t>(at));
      c = mixed(c, next<std::uint64_t>(at));
      d = mixed(d, next<std::uint64_t>(at));
    }
    h = std::rotl(a, 1) + std::rotl(b, 7) + std::rotl(c, 12) + std::rotl(d, 18);
    for (auto lane : {a, b, c, d}) h = (h ^ mixed(0, lane)) * kPrimes[0] + kPrimes[3];
  }
  h += data.size();
  for (; left >= 8; left -= 8)
    h = std::rotl(h ^ mixed(0, next<std::uint64_t>(at)), 27) * kPrimes[0] + kPrimes[3];
  if (left >= 4) {
    h = std::rotl(h ^ next<std::uint32_t>(at) * kPrimes[0], 23) * kPrimes[1] + kPrimes[2];
    left -= 4;
  }

  for (; left > 0; --left) h = std::rotl(h ^ next<std::uint8_t>(at) * kPrimes[4], 11) * kPrimes[0];
  h = (h ^ h >> 33) * kPrimes[1];
  h = (h ^ h >> 29) * kPrimes[2];
  return h ^ h >> 32;
}

}  // namespace haliax
