// Stores that bypass the caches; see non_temporal.h.
#include "non_temporal.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#if defined(HALIAX_X86)
#include <immintrin.h>
#endif

#include "fused.h"
#include "kernels.h"

namespace haliax::cpu {

#if defined(HALIAX_X86)
namespace {

constexpr std::int64_t line = 64;

// Copy whole cache lines to an aligned address.
[[gnu::target("avx512f")]] void stream_avx512(std::byte* to, const std::byte* from,
                                              std::int64_t bytes) {
  for (std::int64_t k = 0; k < bytes; k += line)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + k), _mm512_loadu_si512(from + k));
}
[[gnu::target("avx")]] void stream_avx(std::byte* to, const std::byte* from, std::int64_t bytes) {
  for (std::int64_t k = 0; k < bytes; k += 32)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + k),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + k)));
}
// Stores of 16 bytes are slower than memcpy.
void copy_lines(std::byte* to, const std::byte* from, std::int64_t bytes) {
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}
auto stream_of_isa() {
  const std::string_view isa = kernels().name;
  return isa == "avx512" ? stream_avx512 : isa == "avx2" ? stream_avx : copy_lines;
}

}  // namespace

void copy_non_temporal(std::byte* to, const std::byte* from, std::int64_t bytes) {
  static const auto stream = stream_of_isa();
  const auto address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to));
  const std::int64_t first = std::min(bytes, (line - address % line) % line),
                     lines = (bytes - first) / line * line, last = first + lines;
  std::memcpy(to, from, static_cast<std::size_t>(first));
  stream(to + first, from + first, lines);
  std::memcpy(to + last, from + last, static_cast<std::size_t>(bytes - last));
}
#else
void copy_non_temporal(std::byte* to, const std::byte* from, std::int64_t bytes) {
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}
#endif

void mark_non_temporal(FusedPlan& plan, const Context* context) {
  std::int64_t points = 1;
  for (int d = 0; d < plan.dims; ++d) points *= plan.size[d];
  auto each = [&](Op::Kind kind, const auto& f) {
    for (auto* tapes : {&plan.outer, &plan.inner})
      for (Tape& tape : *tapes)
        for (Op& op : tape)
          if (op.kind == kind) f(plan.accesses[std::size_t(op.access)]);
  };
  each(Op::store, [&](Access& to) {
    bool is_loaded = false;
    each(Op::load, [&](const Access& from) {
      is_loaded |= same_memory(context, from.view.slot, to.view.slot);
    });
    to.non_temporal =
        !is_loaded && points * haliax::bytes_of(to.dtype) >= fewest_non_temporal_bytes;
  });
}

}  // namespace haliax::cpu
