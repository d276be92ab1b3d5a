// Memory of each thread for the registers of the step that it runs. In thread storage: nothing is
// allocated while programs run.
#pragma once
#include <cstddef>
#include <cstdint>

namespace haliax::cpu {

constexpr std::int64_t workspace_bytes = 512 * 1024;
std::byte* workspace();  // aligned to a page

}  // namespace haliax::cpu
