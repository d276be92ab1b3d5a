// Losses: cross entropies of logits, and the cross entropy of a linear head without materialized
// logits. See docs/how-to/large-vocabularies.md.
#pragma once
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "haliax/chunked.h"
#include "haliax/ops.h"
#include "haliax/random.h"

namespace [[gnu::visibility("default")]] haliax {
namespace nn {

/// @name Losses of logits
/// @{

/// How a loss is reduced over its axes.
enum class Reduction : std::uint8_t {
  none,  ///< Not reduced: one loss per element.
  sum,   ///< Sum.
  mean,  ///< Mean.
};
/// Options of the losses of logits, and of `reduce_loss`.
struct LossOptions {
  Reduction reduction = Reduction::mean;  ///< Reduction over `reduction_axis`.
  AxisSelection reduction_axis = {};      ///< Reduced axes. Default: all.
  /// Boolean array: the elements that count. Without a reduction, the loss of other elements is 0.
  std::optional<NamedArray> where = {};
  /// Weights of the elements. A mean is `sum(weight * loss) / sum(weight)`.
  std::optional<NamedArray> weight = {};
};
/// Reduces the losses of elements.
///
/// A mean is over the elements that count. It is 0 if no element counts, or if the sum of the
/// weights is 0.
///
/// @param loss     losses
/// @param options  reduction, mask and weights, whose axes are axes of `loss`
/// @return a scalar, or the axes that are not reduced, in the dtype of `loss`
/// @throws haliax::Error if the mask or the weights have an axis that `loss` lacks
NamedArray reduce_loss(Arr loss, LossOptions options = {});
/// Computes `reduce_loss(loss, options)`: the name in Haliax if the reduction may be `none`.
NamedArray maybe_reduce_loss(Arr loss, LossOptions options = {});
/// Computes the cross entropy of logits: `logsumexp(logits, Label) - sum(target * logits, Label)`.
///
/// A target outside of `Label`, such as -100, does not count: its loss is 0, and a mean is over
/// the other targets. `linear_cross_entropy` has the same rule.
///
/// @param logits   `(..., Label)`
/// @param Label    axis of the classes
/// @param targets  integers without `Label`: the class; or floats with `Label`: probabilities
/// @param options  reduction, mask and weights
/// @return a scalar, or the axes that are not reduced, in the dtype of the logits
/// @throws haliax::Error if `targets` are ids with the axis `Label`, or floats without it
NamedArray cross_entropy_loss(Arr logits, const AxisSelector& Label, Arr targets,
                              LossOptions options = {});
/// Computes the cross entropies without a reduction, and `logsumexp(logits, Label)`. The parameters
/// are those of `cross_entropy_loss`.
std::pair<NamedArray, NamedArray> cross_entropy_loss_and_log_normalizers(Arr logits,
                                                                         const AxisSelector& Label,
                                                                         Arr targets);
/// Computes the binary cross entropy of logits: `targets * softplus(-logits) + (1 - targets) *
/// softplus(logits)`.
///
/// @param logits   logits of one class, with any axes
/// @param targets  0, 1 or probabilities; cast to the dtype of the logits
/// @param options  reduction, mask and weights
NamedArray binary_cross_entropy_loss(Arr logits, Arr targets, LossOptions options = {});
/// Computes the mean cross entropy of the next id along `Pos`, over all axes and over all positions
/// except the last one.
///
/// @param Pos     axis of the positions
/// @param Vocab   axis of the vocabulary
/// @param logits  `(..., Pos, Vocab)`
/// @param ids     integers `(..., Pos)`
/// @throws haliax::Error if `Pos` has fewer than two positions
/// @see linear_next_token_loss, which does not materialize the logits
NamedArray next_token_loss(const AxisSelector& Pos, const AxisSelector& Vocab, Arr logits, Arr ids);

/// @}

/// @name Cross entropy of a linear head
/// @{

/// A weighted mean as a sum and a weight. Parts add up over chunks, heads, steps and devices. For
/// example, the perplexity of several batches is `exp` of the mean of their sum.
struct WeightedMean {
  NamedArray sum;     ///< Weighted sum, a scalar.
  NamedArray weight;  ///< Sum of the weights, a scalar.
  /// Returns `sum / weight`, or 0 if the weight is 0.
  NamedArray mean(SourceLocation at = SourceLocation::current()) const;
};
/// Adds sums and weights.
WeightedMean operator+(const WeightedMean& a, const WeightedMean& b);

/// A function from an array to an array: a layer, or a lambda with its captures.
class ArrayFunction {
 public:
  /// Creates an empty function.
  ArrayFunction() = default;
  /// Wraps a layer or a function.
  template <class F>
  requires(!std::is_same_v<F, ArrayFunction>) ArrayFunction(F f)
      : self_(std::make_shared<const F>(std::move(f))),
        call_([](const void* self, const NamedArray& x) -> NamedArray {
          return (*static_cast<const F*>(self))(x);
        }) {}
  /// Returns true if the function is not empty.
  explicit operator bool() const { return call_ != nullptr; }
  /// Calls the function.
  NamedArray operator()(const NamedArray& x) const { return call_(self_.get(), x); }

 private:
  std::shared_ptr<const void> self_;
  NamedArray (*call_)(const void*, const NamedArray&) = nullptr;
};

/// A second head over the same vocabulary, such as the teacher of a distillation.
struct LinearHead {
  NamedArray x;                         ///< `(tokens..., Embed...)`.
  NamedArray weight;                    ///< `(Vocab, Embed...)`, in any order.
  AxisSelection Embed;                  ///< Contracted axes.
  std::optional<NamedArray> bias = {};  ///< `(Vocab)`.
  double soft_cap = 0;                  ///< Cap of the logits; 0: none.
};

/// The results of `linear_cross_entropy` that are returned in addition to the loss.
struct TokenOutputs {
  bool losses = false;     ///< The loss of each token.
  bool logsumexp = false;  ///< The log normalizer of each token.
  bool log_prob = false;   ///< The log-probability of each target.
  bool ids = false;        ///< The most likely id of each token.
  bool entropy = false;    ///< The entropy of the prediction of each token.
  bool nll = false;        ///< The mean negative log-likelihood, for the perplexity.
  bool accuracy = false;   ///< The share of tokens whose most likely id is the target.
  std::int64_t top_k = 0;  ///< Number of most likely ids per token; 0: none.
  Key sample = {};         ///< Key for one random id per token; empty: none.
};

/// Options of `linear_cross_entropy` and `linear_next_token_loss`.
///
/// The loss of a token is
///
///     l     = soft_cap * tanh((dot(norm(x), weight, Embed) + bias) / soft_cap) / temperature
///     log p = l - logsumexp(l)
///     q     = (1 - label_smoothing) * target + label_smoothing / size of Vocab
///     loss  = sum over Vocab of -q * class_weights * log p  +  z_loss * logsumexp(l)^2
struct LinearCrossEntropyOptions {
  /// Chunked axes: axes of the tokens, or `Vocab`. Default: all axes of the tokens.
  AxisSelection walked = {};
  ChunkOptions chunks = {};  ///< Chunk size, or memory budget.
  /// Positions of `Vocab` per tile, inside each chunk of tokens. 0: no tiles.
  std::int64_t vocab_chunk = 0;

  /// Bool, with some or all axes of the tokens: the tokens that count.
  std::optional<NamedArray> mask = {};
  /// Floats, with some or all axes of the tokens: the weights of the tokens.
  std::optional<NamedArray> weights = {};
  /// Target of tokens that do not count. Ids outside of the vocabulary do not count either.
  std::optional<std::int64_t> ignore_index = {};
  /// Rejects ids outside of the vocabulary, except for `ignore_index`: the call raises, or the loss
  /// is NaN if targets have no value yet (inside `jit`).
  bool checked = false;
  /// Reduction over the tokens that count. A mean divides by their weights, class weights included.
  Reduction reduction = Reduction::mean;

  /// A layer or function that is applied to each chunk of `x`, such as a final norm. It is
  /// recomputed in the backward pass.
  ArrayFunction norm = {};
  std::optional<NamedArray> bias = {};  ///< `(Vocab)`.
  double soft_cap = 0;                  ///< Cap of the logits; 0: none.
  double temperature = 1;               ///< Divides the logits.
  /// Dtype that the result of the matmul is cast to, and dtype of the results. Default: at least
  /// `f32`, in which the matmul accumulates.
  std::optional<DType> logit_dtype = {};

  std::optional<NamedArray> class_weights = {};  ///< `(Vocab)`.
  double label_smoothing = 0;                    ///< From 0 to 1.
  double z_loss = 0;                             ///< Factor of the squared log normalizer.
  /// Second head for `LinearCrossEntropy::kl`. Its logits have the same temperature.
  std::optional<LinearHead> teacher = {};

  TokenOutputs outputs = {};  ///< Results in addition to the loss.
};

/// The results of `linear_cross_entropy`. A result that was not requested is empty. All results
/// except for ids are differentiable by `x`, `weight` and the arrays of the options, any number of
/// times.
struct LinearCrossEntropy {
  NamedArray loss;       ///< The reduced loss; `(tokens...)` for `Reduction::none`.
  WeightedMean total;    ///< The loss as sum and weight.
  NamedArray losses;     ///< `(tokens...)`: weighted; 0 for tokens that do not count.
  NamedArray logsumexp;  ///< `(tokens...)`: the log normalizer.
  /// `(tokens...)`: the sum of `target * log p`, or 0 for an id outside of the vocabulary.
  NamedArray log_prob;
  NamedArray entropy;  ///< `(tokens...)`: the entropy of p.
  NamedArray kl;       ///< `(tokens...)`: KL(teacher || p).
  NamedArray ids;      ///< `i32 (tokens...)`: the most likely id.
  /// `i32 (tokens...)`: an id drawn from p, independent of chunks and shards.
  NamedArray sample;
  NamedArray top_logits;  ///< `(tokens..., top)`: the largest logits, descending.
  NamedArray top_ids;     ///< `(tokens..., top)`: their ids.
  WeightedMean nll;       ///< Negative log-likelihood. Its exponential is the perplexity.
  WeightedMean accuracy;  ///< Share of tokens whose most likely id is the target.
};

/// Computes the cross entropy of a linear head in chunks. Neither the forward pass nor the backward
/// pass materializes more than one chunk of logits.
///
/// Calls with the same `x`, `walked` and `chunks` share one loop.
///
///     auto r = nn::linear_cross_entropy(x, head, ids, Embed, Vocab);
///     auto loss = r.loss;
///
/// @param x        `(tokens..., Embed...)`
/// @param weight   `(Vocab, Embed...)`, in any order; the table of an embedding is a tied head
/// @param targets  integers `(tokens...)`: ids; or floats `(tokens..., Vocab)`: probabilities.
///     Missing axes of the tokens are broadcast.
/// @param Embed    contracted axes
/// @param Vocab    axis of the vocabulary
/// @param options  masks, weights, parts of the loss, chunks, outputs
/// @throws haliax::Error if axes, dtypes or options are invalid, for example if `x` has the axis
///     `Vocab`
/// @see chunked_reduce, JitReport::chunked
LinearCrossEntropy linear_cross_entropy(Arr x, Arr weight, Arr targets, const AxisSelection& Embed,
                                        const AxisSelector& Vocab,
                                        const LinearCrossEntropyOptions& options = {});
/// Computes `linear_cross_entropy` for the next id along `Pos`. The last position does not count.
///
/// @param Pos      axis of the positions
/// @param x        `(tokens..., Embed...)`
/// @param weight   `(Vocab, Embed...)`, in any order
/// @param ids      integers `(tokens...)`, with `Pos`
/// @param Embed    contracted axes
/// @param Vocab    axis of the vocabulary
/// @param options  as for `linear_cross_entropy`
/// @throws haliax::Error if `Pos` has fewer than two positions, or `ids` are not integers
LinearCrossEntropy linear_next_token_loss(const AxisSelector& Pos, Arr x, Arr weight, Arr ids,
                                          const AxisSelection& Embed, const AxisSelector& Vocab,
                                          const LinearCrossEntropyOptions& options = {});

/// Options of `chunked_cross_entropy`; see `LinearCrossEntropyOptions`.
struct LinearLossOptions {
  ChunkOptions chunks = {};               ///< Chunk size, or memory budget.
  std::optional<DType> logit_dtype = {};  ///< Dtype of the logits.
  double z_loss = 0;                      ///< Factor of the squared log normalizer.
  double label_smoothing = 0;             ///< From 0 to 1.
  double soft_cap = 0;                    ///< Cap of the logits; 0: none.
};
/// Computes the cross entropy of each token for the logits `dot(x, weight, Embed)`, in chunks of
/// `walked`.
///
/// @param x        `(tokens..., Embed...)`
/// @param weight   `(Vocab, Embed...)`
/// @param targets  integers `(tokens...)`
/// @param Embed    contracted axes
/// @param Vocab    axis of the vocabulary
/// @param walked   chunked axis of `x`
/// @param options  chunks and parts of the loss
/// @return `(tokens...)`
/// @see linear_cross_entropy
NamedArray chunked_cross_entropy(Arr x, Arr weight, Arr targets, const AxisSelection& Embed,
                                 const AxisSelector& Vocab, const AxisSelector& walked,
                                 LinearLossOptions options = {});

/// @}

}  // namespace nn
}  // namespace haliax
