// The cross entropy of a linear head. The loss is written for full arrays; chunked_reduce tiles it.
#include <cmath>
#include <limits>

#include "base/name.h"
#include "graph/fail.h"
#include "haliax/losses.h"
#include "haliax/nn.h"
#include "nn/known.h"
#include "nn/live_tokens_first.h"
#include "ops/named.h"

namespace haliax::nn {
namespace {

constexpr auto op = "linear_cross_entropy";
using Options = LinearCrossEntropyOptions;
using Result = LinearCrossEntropy;
using Arrays = LossArrays;

Arrays arrays_of(const Arr& x, const Arr& weight, const Arr& targets, const Axis& Vocab,
                 const Options& o) {
  const NamedArray none;
  const auto t = targets.dtype();
  const bool wide = is_integer(t) && (bytes_of(t) == 8 || t == DType::u32);
  const auto labels = wide ? NamedArray(prim::iota(Vocab, t)) : arange(Vocab);
  Arrays a{x,
           weight,
           targets,
           labels,
           o.bias.value_or(none),
           o.mask.value_or(none),
           o.weights.value_or(none),
           o.class_weights.value_or(none)};
  if (auto& head = o.teacher) {
    a.teacher_x = head->x;
    a.teacher_weight = head->weight;
    a.teacher_bias = head->bias.value_or(none);
  }

  return a;
}
// ---- arguments and their checks ----

struct Problem : LossProblem {
  // Raises unless each of these axes is allowed, with the same size. `what` names the argument in
  // the message.
  void expect_tokens(const char* what, const Axes& axes, const Axes& allowed) const {
    for (auto& a : axes) {
      auto* found = find_axis(allowed, a.name);
      if (!found)
        fail(op, "axis {} of the {} {} is not in {}{}", a.name, what, axes, allowed,
             did_you_mean(a.name, allowed));
      if (found->size != a.size)
        fail(op, "axis {} has size {} in the {} {} and {} in the logits {}", a.name, a.size, what,
             axes, found->size, allowed);
    }
  }
  // Broadcasts an array that has only some of the token axes.
  NamedArray with_all_tokens(const NamedArray& a) const {
    return a.empty() ? a : broadcast_axis(a, without_axes(tokens, a.axes()));
  }
  void expect_vocab(const char* what, const NamedArray& a) const {
    if (!a.empty() && a.axes() != Axes{Vocab})
      fail(op, "{} has the axes {}; it needs {}", what, a.axes(), Axes{Vocab});
  }
  void check(const Arrays& a) const {
    auto t = a.targets.dtype();
    auto axes = a.targets.axes(), with_vocab = concat_axes(tokens, {Vocab});
    const bool soft = is_float(t), has_vocab = find_axis(axes, Vocab.name);
    if (!soft && !is_integer(t))
      fail(op, "targets: expected integer ids or float probabilities, got {}", t);
    if (soft && !has_vocab)
      fail(op, "targets of {} are probabilities, but {} has no axis {}; ids must be integers", t,
           axes, Vocab.name);
    if (!soft && has_vocab)
      fail(op, "targets of {} are ids, which have no axis {}; probabilities must be floats", t,
           Vocab.name);
    expect_tokens("targets", axes, soft ? with_vocab : tokens);
    if (!a.mask.empty() && a.mask.dtype() != DType::boolean)
      fail(op, "mask: expected bool, got {}; use `weights` for floats", a.mask.dtype());
    if (!a.weights.empty() && !is_float(a.weights.dtype()))
      fail(op, "weights: expected floats, got {}", a.weights.dtype());
    if (!a.mask.empty()) expect_tokens("mask", a.mask.axes(), tokens);
    if (!a.weights.empty()) expect_tokens("weights", a.weights.axes(), tokens);
    expect_vocab("the bias", a.bias);
    expect_vocab("class_weights", a.class_weights);
    expect_vocab("the teacher's bias", a.teacher_bias);
    if (!a.teacher_x.empty()) {
      ops::axis_of(op, ops::node_of(op, a.teacher_weight), Vocab);
      expect_tokens("teacher's x", without_axes(a.teacher_x.axes(), options.teacher->Embed),
                    tokens);
    }
    if (!soft && options.ignore_index) {
      // bits of the index that the dtype of the targets lacks
      const auto above = *options.ignore_index >> std::min(63, 8 * bytes_of(t) - is_signed(t));
      if (above != 0 && !(is_signed(t) && above == -1))
        fail(op,
             "ignore_index is {}, which {} cannot represent; "
             "cast targets to i32 before ids to be ignored are set, or use a mask",
             *options.ignore_index, t);
    }
    auto number = [](const char* name, double v, bool good, const char* rule) {
      if (!good) fail(op, "{} is {}; it must be {}", name, v, rule);
    };
    number("temperature", options.temperature, options.temperature > 0, "greater than 0");
    number("soft_cap", options.soft_cap, options.soft_cap >= 0, "0 (no cap) or greater");
    number("label_smoothing", options.label_smoothing,
           options.label_smoothing >= 0 && options.label_smoothing <= 1, "from 0 to 1");
    number("z_loss", options.z_loss, std::isfinite(options.z_loss), "a finite number");
    auto k = options.outputs.top_k;
    if (k < 0 || k > Vocab.size)
      fail(op, "top_k is {}; it must be from 0 (none) to the size of {}", k, Vocab);
    const bool tiles_vocab = is_named(options.walked, Vocab.name);
    if (k == Vocab.size && (tiles_vocab || options.vocab_chunk != 0))
      fail(op,
           "top_k is the size of {}, which is not supported if this axis is tiled; use fewer, or "
           "tile only the tokens",
           Vocab);
    for (auto& w : options.walked.items())
      if (!has(with_vocab, w.name))
        fail(op, "the tiled axis {} is not in the logits {}{}", w.name, with_vocab,
             did_you_mean(w.name, with_vocab));
    if (tiles_vocab && options.vocab_chunk != 0)
      fail(op, "axis {} is already in `walked`; vocab_chunk tiles it inside chunks of tokens",
           Vocab.name);
  }
};

// ---- tokens: which tokens count, and their weights ----
// Computed twice, for the targets in a chunk and for all targets. The divisor of a mean must not be
// a result of the chunked pass, since the gradient would have to wait for the end of the pass.

struct CountedTokens {
  NamedArray live, weights, class_weights;  // (tokens...); empty: all tokens, or weight 1
  NamedArray inside;                        // true for ids of the vocabulary
  NamedArray wrong;  // with `checked`: ids that are neither in the vocabulary nor ignored

  CountedTokens(const Problem& p, const Arrays& a) {
    auto& o = p.options;
    live = a.mask;
    if (auto& ids = a.targets; is_integer(ids.dtype())) {
      inside = (ids >= 0) & (ids < p.Vocab.size);
      auto counts = inside;
      if (o.ignore_index) counts = inside & (ids != *o.ignore_index);
      if (o.checked) wrong = o.ignore_index ? ~(inside | (ids == *o.ignore_index)) : ~inside;
      live = !live.empty() ? live & counts : counts;
      if (!a.class_weights.empty())
        class_weights = take(astype(a.class_weights, p.dtype), p.Vocab,
                             clip(ids, Arr(0), Arr(p.Vocab.size - 1)));
    }
    if (!a.weights.empty()) weights = astype(a.weights, p.dtype);
  }
  void check(const Problem& p) const {
    if (wrong.empty() || !is_known(wrong)) return;
    if (auto n = std::int64_t(haliax::sum(wrong).item()))
      fail(op, "{} of {} targets are not ids of {}{}", n, wrong.size(), p.Vocab,
           p.options.ignore_index ? " or ignore_index" : "; set ignore_index to skip targets");
  }
  // Weights a value per token. Tokens that do not count are exactly 0.
  NamedArray weighted(NamedArray v) const {
    if (!live.empty()) v = where(live, v, 0.);
    return weights.empty() ? v : v * weights;
  }
  NamedArray total_weight(const Problem& p, bool of_classes) const {
    auto w = weighted(ones(p.tokens, p.dtype));
    return sum(of_classes && !class_weights.empty() ? w * class_weights : w);
  }
};

// ---- the loss, on full arrays ----

NamedArray logits_of(const Problem& p, const NamedArray& x, const NamedArray& weight,
                     const AxisSelection& Embed, const NamedArray& bias, double soft_cap) {
  auto l = p.options.logit_dtype ? astype(dot(x, weight, Embed), p.dtype)
                                 : dot(x, weight, Embed, {.preferred_element_type = p.dtype});
  if (!bias.empty()) l = l + astype(bias, p.dtype);
  if (soft_cap != 0) l = soft_cap * tanh(l / soft_cap);
  return p.options.temperature == 1 ? l : l / p.options.temperature;
}
// Returns the sum over Vocab of p * v, where p = exp(logits - lse). A logit of -inf has probability
// 0, so its term is 0.
NamedArray expected(const NamedArray& logits, const NamedArray& lse, const NamedArray& v,
                    const Axis& Vocab) {
  return sum(exp(logits - lse) * where(isneginf(logits), 0., v), Vocab);
}

struct Labels {
  NamedArray nll;   // sum of -target * log p; arbitrary for an id out of range
  NamedArray loss;  // sum of -q * class_weights * log p
  NamedArray id;    // the target, or the likeliest class of soft targets
};
Labels labels_of(const Problem& p, const CountedTokens& tokens, const NamedArray& logits,
                 const NamedArray& lse, const Arrays& a) {
  auto& Vocab = p.Vocab;
  auto& targets = a.targets;
  const double e = p.options.label_smoothing;
  NamedArray classes;
  if (!a.class_weights.empty()) classes = astype(a.class_weights, p.dtype);
  Labels l;
  if (is_integer(targets.dtype())) {
    // The logit of the label is computed as a sum over the vocabulary, which fuses with the
    // softmax, forward and backward.
    auto is_label = broadcast_axis(targets, Vocab) == a.labels;
    auto picked = sum(where(is_label, logits, 0.), Vocab);
    l.id = targets;
    l.nll = lse - picked;
    l.loss = !classes.empty() ? l.nll * tokens.class_weights : l.nll;
  } else {
    auto soft = astype(targets, p.dtype);
    if (p.options.outputs.accuracy) l.id = argmax(targets, Vocab);
    auto of = [&](const NamedArray& q) { return lse * sum(q, Vocab) - sum(q * logits, Vocab); };
    l.nll = of(soft);
    l.loss = !classes.empty() ? of(soft * classes) : l.nll;
  }
  if (e != 0) {
    auto even = classes.empty()
                    ? lse - mean(logits, Vocab)
                    : (lse * sum(classes) - sum(logits * classes, Vocab)) / double(Vocab.size);
    l.loss = (1 - e) * l.loss + e * even;
  }
  return l;
}

Result chunk_loss(const Problem& p, const Arrays& a) {
  auto& o = p.options;
  auto& Vocab = p.Vocab;
  const CountedTokens tokens(p, a);
  // (tokens..., Vocab)
  auto logits = logits_of(p, o.norm ? o.norm(a.x) : a.x, a.weight, p.Embed, a.bias, o.soft_cap);
  auto lse = logsumexp(logits, Vocab);
  auto labels = labels_of(p, tokens, logits, lse, a);
  auto loss = o.z_loss != 0 ? labels.loss + o.z_loss * square(lse) : labels.loss;
  auto losses = tokens.weighted(loss);
  if (!tokens.wrong.empty())
    losses = where(tokens.wrong, std::numeric_limits<double>::quiet_NaN(), losses);

  Result r;
  r.total.sum = sum(losses);
  auto& give = o.outputs;
  if (give.losses || o.reduction == Reduction::none) r.losses = losses;
  if (give.logsumexp) r.logsumexp = lse;
  if (give.log_prob)
    r.log_prob = !tokens.inside.empty() ? where(tokens.inside, -labels.nll, 0.) : -labels.nll;
  if (give.nll) r.nll.sum = sum(tokens.weighted(labels.nll));
  if (give.entropy) r.entropy = expected(logits, lse, lse - logits, Vocab);
  if (give.ids || give.accuracy) {
    auto best = argmax(logits, Vocab);
    if (give.ids) r.ids = best;
    if (give.accuracy) r.accuracy.sum = sum(tokens.weighted(astype(best == labels.id, p.dtype)));
  }
  if (give.sample) {
    auto noise = random::gumbel(give.sample, concat_axes(p.tokens, {Vocab}), p.dtype);
    r.sample = argmax(logits + noise, Vocab);
  }
  if (give.top_k > 0) std::tie(r.top_logits, r.top_ids) = top_k(logits, Vocab, give.top_k, "top");
  if (auto& t = o.teacher) {
    auto theirs =
        logits_of(p, a.teacher_x, a.teacher_weight, t->Embed, a.teacher_bias, t->soft_cap);
    auto their_lse = logsumexp(theirs, Vocab);
    r.kl = expected(theirs, their_lse, (theirs - their_lse) - (logits - lse), Vocab);
  }
  return r;
}

// Adds the results of two passes, each over some of the tokens, that are sums over tokens.
Result operator+(Result a, const Result& b) {
  for (auto part : {&Result::total, &Result::nll, &Result::accuracy})
    if (!(a.*part).sum.empty()) (a.*part).sum = (a.*part).sum + (b.*part).sum;
  if (!a.losses.empty()) a.losses = a.losses + b.losses;
  return a;
}

}  // namespace

NamedArray WeightedMean::mean(SourceLocation at) const {
  CallSite here(at);
  return sum / where(weight == 0., 1., weight);
}
WeightedMean operator+(const WeightedMean& a, const WeightedMean& b) {
  return {a.sum + b.sum, a.weight + b.weight};
}

LinearCrossEntropy linear_cross_entropy(Arr x, Arr weight, Arr targets, const AxisSelection& Embed,
                                        const AxisSelector& vocab,
                                        const LinearCrossEntropyOptions& o) {
  LayerScope scope(x, weight);
  const Axis Vocab = ops::axis_of(op, ops::node_of(op, weight), vocab);
  if (x.has_axis(Vocab.name))
    fail(op, "x {} already has the axis {}; rename it first", x.axes(), Vocab.name);
  const auto shape = dot(o.norm ? o.norm(x) : x.array(), weight, Embed);
  Problem p{{o, Vocab, Embed, without_axes(shape.axes(), Vocab),
             o.logit_dtype.value_or(ops::wide_of(shape.dtype()))}};
  auto arrays = arrays_of(x, weight, targets, Vocab, o);
  p.check(arrays);
  for (auto* a : {&arrays.targets, &arrays.mask, &arrays.weights}) *a = p.with_all_tokens(*a);
  if (auto& ids = arrays.targets; is_integer(ids.dtype()) && bytes_of(ids.dtype()) < 4)
    ids = astype(ids, DType::i32);  // to represent ids up to the size of Vocab
  const CountedTokens tokens(p, arrays);
  tokens.check(p);

  const LiveTokensFirst live_first(p, arrays);
  auto q = p;
  q.tokens = live_first.in_order(p.tokens);
  auto loss = [&](const Arrays& a) { return chunk_loss(q, live_first.taken(a)); };
  auto tiled = [&](const Arrays& a) {
    return o.vocab_chunk == 0
               ? loss(a)
               : chunked_reduce(Vocab, {.chunk = o.vocab_chunk, .form = o.chunks.form}, loss)(a);
  };
  auto [chunked_axes, chunks] = live_first.chunks_of(o, p.tokens);
  auto inputs = live_first.ordered(arrays, tokens.live);
  Result r;
  if (auto chunk = live_first.large_chunk(p, arrays)) {
    chunks.chunk = chunk;
    inputs.here = live_first.filling(chunk, tokens.live);
    r = chunked_reduce(chunked_axes, chunks, tiled)(inputs);
    chunks.chunk = live_first.small_chunk;
    inputs.here = ~inputs.here;
    r = r + chunked_reduce(chunked_axes, chunks, tiled)(inputs);
  } else {
    r = chunked_axes.items().empty() ? tiled(inputs)
                                     : chunked_reduce(chunked_axes, chunks, tiled)(inputs);
  }
  if (!r.losses.empty()) r.losses = live_first.put_back(r.losses, inputs.order);

  r.total.weight = tokens.total_weight(p, true);
  if (o.outputs.nll) r.nll.weight = tokens.total_weight(p, false);
  if (o.outputs.accuracy) r.accuracy.weight = tokens.total_weight(p, false);
  r.loss = o.reduction == Reduction::none  ? r.losses
           : o.reduction == Reduction::sum ? r.total.sum
                                           : r.total.mean();
  if (!o.outputs.losses) r.losses = {};
  return r;
}

LinearCrossEntropy linear_next_token_loss(const AxisSelector& Pos, Arr x, Arr weight, Arr ids,
                                          const AxisSelection& Embed, const AxisSelector& Vocab,
                                          const LinearCrossEntropyOptions& options) {
  LayerScope scope(x, weight);
  constexpr auto op = "linear_next_token_loss";
  const auto pos = ops::axis_of(op, ops::node_of(op, ids), Pos);
  if (!is_integer(ids.dtype())) fail(op, "ids: expected integers, got {}", ids.dtype());
  if (pos.size < 2) fail(op, "axis {} has no next position; its size must be at least 2", pos);
  auto o = options;
  if (o.checked && !o.ignore_index) o.ignore_index = -1;
  const auto next = where(arange(pos) < pos.size - 1, roll(astype(ids, DType::i32), -1, pos),
                          o.ignore_index.value_or(-1));
  return linear_cross_entropy(x, weight, next, Embed, Vocab, o);
}

}  // namespace haliax::nn
