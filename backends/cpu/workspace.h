// Run: a workspace per thread for the registers of the running step. It is allocated once per
// thread, so running a program allocates no memory.
#pragma once
#include <cstddef>
#include <cstdint>

namespace haliax::cpu {

constexpr std::int64_t workspace_bytes = 512 * 1024;
std::byte* workspace();  // aligned to a page

}  // namespace haliax::cpu
