// chunked_reduce: computes a function of a full axis one chunk at a time, forward and backward.
#pragma once
#include "haliax/transforms.h"

namespace [[gnu::visibility("default")]] haliax {

/// How `chunked_reduce` computes values and gradients. The numbers of matmuls are those of a loss
/// over a linear head.
enum class ChunkForm : std::uint8_t {
  automatic,  ///< the fastest form that fits the memory budget
  /// Values and gradients in one pass over the chunks, if no cotangent needs a final result: 3
  /// matmuls.
  sweep,
  recompute,  ///< a second pass recomputes each chunk for the gradients: 4 matmuls
  /// Splits the largest value along an axis of its own as well, for example (tokens, vocab): 4
  /// matmuls, and the smallest buffer.
  tile,
};

/// The values that one pass of `chunked_reduce` saves for the next pass.
enum class ChunkKeep : std::uint8_t {
  small,    ///< values that are expensive and small, such as the logsumexp of each token
  nothing,  ///< none: the next pass recomputes them
};

/// Options of `chunked_reduce`. Set at most one of `chunk`, `chunks` and `memory`.
struct ChunkOptions {
  static constexpr bool is_static = true;  ///< a field of a module is static
  /// The smallest default of `memory`, in bytes.
  static constexpr std::int64_t default_memory = std::int64_t(32) << 20;
  /// Positions per iteration, of all chunked axes together, the last axis first. Default: chosen by
  /// the memory budget.
  std::optional<std::int64_t> chunk = {};
  std::vector<std::int64_t> chunks = {};  ///< positions per iteration, for each chunked axis
  /// Budget in bytes, in addition to results and gradients. 0: the size of the arrays that the
  /// function reads, and at least `default_memory`, 32 MiB.
  std::int64_t memory = 0;
  ChunkForm form = ChunkForm::automatic;  ///< how to compute gradients
  ChunkKeep keep = ChunkKeep::small;      ///< values to save between passes
  bool reverse = false;                   ///< starts at the last chunk; results stay in place
  friend bool operator==(const ChunkOptions&, const ChunkOptions&) = default;
};

namespace detail {
Leaves chunked_reduce(const AxisSelection&, const ChunkOptions&, const Leaves& xs, LeafFunction,
                      SourceLocation);
}

/// Returns a function that computes `f` one chunk of the axes at a time, forward and backward.
///
/// `f` is written for the full arrays, and the results are those of `f`. Means divide by the full
/// size, random draws are slices of the full draw, and a captured `Axis` is the full axis.
///
/// - A value that has a chunked axis is computed chunk by chunk and never materialized.
/// - A reduction of the axis accumulates over the chunks. Reductions are `sum`, `mean`, `max`,
///   `min`, `prod`, `dot`, `logsumexp`, `argmax`, `top_k` and `take`.
/// - `cumsum`, `cumprod` (without gradient), `fold` and `scan` over the axis continue from chunk to
///   chunk. A `fold` is therefore a reduction of your own.
/// - A value that follows a reduction reads its final result. If such a value has the axis again,
///   as in `softmax` over it, one more pass over the data computes it.
/// - An op that needs the full axis at once, such as `sort` and `roll`, raises.
///
/// The sizes of chunks need not divide the axes. The first of several axes is the outermost loop.
/// On a mesh, each device computes chunks of its own shard.
///
/// @param axes     chunked axes, by name; at least one argument has each of them
/// @param options  chunk sizes or memory budget, and form
/// @param f        `f(xs...) -> tree`
/// @param at       the line that error messages name
/// @return a function of `xs...`, with the result of `f`
/// @throws haliax::Error (when called) if no argument has an axis, the options contradict each
/// other, an op needs the full axis, or the smallest chunks exceed the budget
///
///     auto loss = chunked_reduce("tokens", {.chunk = 256}, [](auto& x, auto& head, auto& ids) {
///       auto logits = dot(x, head, "embed");   // (tokens, vocab), one chunk at a time
///       return mean(logsumexp(logits, "vocab") - take(logits, "vocab", ids));
///     })(x, head, ids);
/// @see nn::linear_cross_entropy
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
