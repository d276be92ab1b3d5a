// chunked_reduce: a function of a whole axis, computed one chunk at a time, forward and backward.
#pragma once
#include "haliax/transforms.h"

namespace haliax {

enum class ChunkForm : std::uint8_t {
  automatic,   // the cheaper one
  sweep,       // loss and gradients in one sweep: three contractions with the head
  recompute,   // the chunk is made again in the backward: four, and a smaller buffer
};
struct ChunkOptions {
  static constexpr bool is_static = true;
  std::int64_t chunk = 0;                        // positions a turn; 0: from the budget
  std::int64_t memory = 0;                       // bytes for what one turn holds; 0: 32 MiB
  ChunkForm form = ChunkForm::automatic;
  friend bool operator==(const ChunkOptions&, const ChunkOptions&) = default;
};

namespace detail {
Leaves chunked_reduce(const AxisSelector&, const ChunkOptions&, const Leaves& xs, LeafFunction, SourceLocation);
}

// f(chunks of xs...) -> tree. Arrays of xs that have the axis are seen one chunk at a time (the last one may be smaller); others, and what f
// captures, are whole. A result that still has the axis is put back together; one that lost it must be a sum (or a max, min) over it:
// anything else would depend on the chunk and raises. `mean` over the axis inside f means the full size.
template <class F> auto chunked_reduce(const AxisSelector& axis, ChunkOptions options, F f, SourceLocation at = SourceLocation::current()) {
  return [f, axis, options, at](const auto&... xs) {
    using A = std::tuple<std::decay_t<decltype(xs)>...>;
    using R = std::decay_t<decltype(f(xs...))>;
    struct Call { const F* f; A like; std::optional<R> out; } call{&f, A(xs...), {}};
    auto out = detail::chunked_reduce(axis, options, flatten(call.like), {&call, [](void* self, const Leaves& in) {
      auto& c = *static_cast<Call*>(self);
      c.out = std::apply(*c.f, unflatten(c.like, in));
      return flatten(*c.out);
    }}, at);
    return unflatten(std::move(*call.out), out);
  };
}

}  // namespace haliax
