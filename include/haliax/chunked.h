// chunked_reduce: a function of a whole axis, computed one chunk at a time, forward and backward.
#pragma once
#include "haliax/transforms.h"

namespace [[gnu::visibility("default")]] haliax {

enum class ChunkForm : std::uint8_t {
  automatic,  // the fastest that fits
  // loss and gradients in one sweep, if no cotangent needs a final result: three contractions with
  // the head
  sweep,
  recompute,  // the chunk is made again in the backward: four
  // the largest value is cut along an axis of its own as well (tokens by vocabulary): four, and the
  // smallest buffer
  tile,
};
// What one sweep leaves to the next.
enum class ChunkKeep : std::uint8_t {
  small,    // what took work and is small beside the largest value, such as a token's logsumexp
  nothing,  // it is made again
};
struct ChunkOptions {
  static constexpr bool is_static = true;
  // Positions a turn, of all walked axes together, the last one first; none: from the memory.
  std::optional<std::int64_t> chunk = {};
  std::vector<std::int64_t> chunks = {};  // or for each walked axis
  // Bytes beside results and gradients; 0: as much as the arrays that f reads, at least 32 MiB.
  std::int64_t memory = 0;
  ChunkForm form = ChunkForm::automatic;
  ChunkKeep keep = ChunkKeep::small;
  bool reverse = false;  // the last chunk first; results stay in their places
  friend bool operator==(const ChunkOptions&, const ChunkOptions&) = default;
};

namespace detail {
Leaves chunked_reduce(const AxisSelection&, const ChunkOptions&, const Leaves& xs, LeafFunction,
                      SourceLocation);
}

// f(xs...) -> tree, computed one chunk of the walked axes at a time, forward and backward. f is
// written for the whole arrays, and the result is that of f on them: means divide by the full size,
// random draws are slices of the full draw, and an Axis that f captured is the whole one. A value
// that keeps a walked axis is made chunk by chunk; one that folds it away (sum, mean, max, min,
// product, dot, logsumexp, argmax, top_k, take) is accumulated; a running total (cumsum; cumprod,
// but not its gradient), and a fold or scan over the axis, which is how f reduces by an init and a
// combine of its own, go on from chunk to chunk. What follows a fold reads its final value, so it
// may be anything; what then needs the axis again, as softmax over it does, is one more sweep. An
// op that needs all of the axis at once (sort, roll) is refused by name. Chunks need not divide the
// axis. Of several axes the first is the outermost. What it costs: one contraction with the head
// for the loss alone; three with gradients in one sweep, if no cotangent needs a final result; else
// four in two sweeps. `chunk` counts positions of all walked axes together.
template <class F>
auto chunked_reduce(const AxisSelection& axes, ChunkOptions options, F f,
                    SourceLocation at = SourceLocation::current()) {
  return detail::transform_of<F>([f, axes, options, at](const auto&... xs) {
    using A = std::tuple<std::decay_t<decltype(xs)>...>;
    using R = detail::CallResult<const F&, std::decay_t<decltype(xs)>...>;
    if constexpr (!std::is_void_v<R>) {
      detail::LeafCall<F, A, R> call{&f, A(xs...)};
      auto out = detail::chunked_reduce(axes, options, flatten(call.like), call.function(), at);
      return unflatten(std::move(*call.out), out);
    }
  });
}

}  // namespace haliax
