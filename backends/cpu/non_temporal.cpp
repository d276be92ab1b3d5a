// Stores that bypass the caches; see non_temporal.h.
#include "non_temporal.h"

#include <algorithm>
#include <cstring>
#if defined(HALIAX_X86)
#include <emmintrin.h>
#endif

#include "fused.h"

namespace haliax::cpu {

#if defined(HALIAX_X86)
void copy_non_temporal(std::byte* to, const std::byte* from, std::int64_t bytes) {
  constexpr std::int64_t line = 64, store = 16;
  const auto address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to));
  const std::int64_t first = std::min(bytes, (line - address % line) % line),
                     last = std::max(first, bytes - (address + bytes) % line);
  std::memcpy(to, from, static_cast<std::size_t>(first));
  for (std::int64_t k = first; k < last; k += store)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + k),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + k)));
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
