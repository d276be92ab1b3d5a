// Losses: cross entropies of logits, and that of a linear head whose logits are never held.
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

enum class Reduction : std::uint8_t { none, sum, mean };
struct LossOptions {
  Reduction reduction = Reduction::mean;
  AxisSelection reduction_axis = {};     // all of them unless given
  std::optional<NamedArray> where = {};  // what counts; unreduced losses are 0 elsewhere
};
// Targets: integers, the positions along Label (outside it: a loss of 0), or floats with the axis
// Label, their probabilities.
NamedArray cross_entropy_loss(Arr logits, const AxisSelector& Label, Arr targets, LossOptions = {});
std::pair<NamedArray, NamedArray> cross_entropy_loss_and_log_normalizers(Arr logits,
                                                                         const AxisSelector& Label,
                                                                         // not reduced
                                                                         Arr targets);
NamedArray binary_cross_entropy_loss(Arr logits, Arr targets, LossOptions = {});
// The mean over the first size - 1 positions (and all other axes) of the cross entropy of the id
// that comes next.
NamedArray next_token_loss(const AxisSelector& Pos, const AxisSelector& Vocab, Arr logits, Arr ids);

// ---- the cross entropy of a linear head ----

// A weighted mean in two parts. Parts add up, over chunks, heads, steps and devices, where means of
// means would not: the perplexity of several batches is exp of the mean of their sum.
struct WeightedMean {
  NamedArray sum, weight;
  NamedArray mean(SourceLocation = SourceLocation::current()) const;  // 0 if nothing weighs
};
WeightedMean operator+(const WeightedMean&, const WeightedMean&);

// A function of one array: a layer or a lambda, kept with what it captured.
class ArrayFunction {
 public:
  ArrayFunction() = default;
  template <class F>
  requires(!std::is_same_v<F, ArrayFunction>) ArrayFunction(F f)
      : self_(std::make_shared<const F>(std::move(f))),
        call_([](const void* self, const NamedArray& x) -> NamedArray {
          return (*static_cast<const F*>(self))(x);
        }) {}
  explicit operator bool() const { return call_ != nullptr; }
  NamedArray operator()(const NamedArray& x) const { return call_(self_.get(), x); }

 private:
  std::shared_ptr<const void> self_;
  NamedArray (*call_)(const void*, const NamedArray&) = nullptr;
};

// Another head over the same vocabulary.
struct LinearHead {
  NamedArray x, weight;  // (tokens..., Embed...), (Vocab, Embed...)
  AxisSelection Embed;
  std::optional<NamedArray> bias = {};  // (Vocab)
  double soft_cap = 0;
};

// What to give beside the loss.
struct TokenOutputs {
  bool losses = false, logsumexp = false, log_prob = false, ids = false, entropy = false,
       nll = false, accuracy = false;
  std::int64_t top_k = 0;  // so many of the likeliest
  Key sample = {};         // an id drawn with this key
};

struct LinearCrossEntropyOptions {
  // What is walked: `chunks.chunk` positions of these axes a turn, or as many as `chunks.memory`
  // holds.
  AxisSelection walked = {};  // all axes of the tokens unless given; may name Vocab
  ChunkOptions chunks = {};
  // positions of Vocab a turn, inside each chunk of tokens: tiles; 0: all of them
  std::int64_t vocab_chunk = 0;

  // Which tokens count, and how much. An id outside the vocabulary does not count.
  std::optional<NamedArray> mask = {};            // bool (tokens...), or some of these axes
  std::optional<NamedArray> weights = {};         // floats, likewise
  std::optional<std::int64_t> ignore_index = {};  // targets that do not count
  // other ids outside the vocabulary raise, or make the loss NaN where targets have no value yet
  bool checked = false;
  // the mean is over the weights of what counts, those of classes included
  Reduction reduction = Reduction::mean;

  // The logits: soft_cap * tanh(l / soft_cap) / temperature, where l = dot(norm(x), weight, Embed)
  // + bias.
  ArrayFunction norm = {};  // x -> x, computed in each chunk again: a final norm, a projection
  std::optional<NamedArray> bias = {};   // (Vocab)
  double soft_cap = 0, temperature = 1;  // 0: no cap
  // What the product is cast to, and the dtype of results; if not given at least f32, summed in it.
  std::optional<DType> logit_dtype = {};

  // The loss of a token: the sum over Vocab of -q * class_weights * log p, and z_loss *
  // logsumexp^2.
  std::optional<NamedArray> class_weights = {};  // (Vocab)
  double label_smoothing = 0;                    // e: q = (1 - e) * target + e / size of Vocab
  double z_loss = 0;
  // asks for `kl`; the teacher's logits have the same temperature
  std::optional<LinearHead> teacher = {};

  TokenOutputs outputs = {};
};

// Empty where it was not asked for. All but ids are differentiable, by x, weight and every array of
// the options, for any cotangents.
struct LinearCrossEntropy {
  NamedArray loss;     // reduced; (tokens...) for Reduction::none
  WeightedMean total;  // loss, in parts
  NamedArray losses;   // (tokens...): weighted, 0 where nothing counts
  // (tokens...): of the logits; of the target, sum of target * log p (0 for an id outside)
  NamedArray logsumexp, log_prob;
  NamedArray entropy, kl;  // (tokens...): of p; KL(teacher || p)
  // (tokens...) i32: the likeliest; one drawn by p, the same for all chunks and shards
  NamedArray ids, sample;
  NamedArray top_logits, top_ids;  // (tokens..., top)
  WeightedMean nll, accuracy;      // of -log_prob, whose exp is the perplexity; of ids == target
};

// The cross entropy of a linear head, by way of chunked_reduce: neither forward nor backward holds
// more logits than one chunk. x (tokens..., Embed...), weight (Vocab, Embed...) in any order: an
// embedding's table is its own head. Targets: ids (tokens...), integers, or probabilities, floats
// (tokens..., Vocab); fewer axes than the tokens have are broadcast. Calls with the same x,
// `walked` and `chunks` share one loop: several heads in one walk.
LinearCrossEntropy linear_cross_entropy(Arr x, Arr weight, Arr targets, const AxisSelection& Embed,
                                        const AxisSelector& Vocab,
                                        const LinearCrossEntropyOptions& = {});
// The same for the id that comes next along Pos; the last position does not count. ids (tokens...)
LinearCrossEntropy linear_next_token_loss(const AxisSelector& Pos, Arr x, Arr weight, Arr ids,
                                          const AxisSelection& Embed, const AxisSelector& Vocab,
                                          const LinearCrossEntropyOptions& = {});

struct LinearLossOptions {
  ChunkOptions chunks = {};
  std::optional<DType> logit_dtype = {};  // to cast the logits to
  // z_loss * logsumexp^2; soft_cap * tanh(logits / soft_cap)
  double z_loss = 0, label_smoothing = 0, soft_cap = 0;
};
// The cross entropy of dot(x, weight, Embed) for each token, without ever holding all logits:
// `walked`, an axis of x, is walked in chunks. x (..., Embed), weight (Vocab, Embed), targets (...)
// integers -> (...).
NamedArray chunked_cross_entropy(Arr x, Arr weight, Arr targets, const AxisSelection& Embed,
                                 const AxisSelector& Vocab, const AxisSelector& walked,
                                 LinearLossOptions = {});

}  // namespace nn
}  // namespace haliax
