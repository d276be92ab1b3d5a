// The cross entropy of a linear head. All of it is written for whole arrays; chunked_reduce cuts it.
#include <limits>

#include "base/name.h"
#include "graph/node.h"
#include "haliax/losses.h"
#include "haliax/nn.h"
#include "ops/named.h"

namespace haliax::nn {
namespace {

constexpr auto op = "linear_cross_entropy";
using Options = LinearCrossEntropyOptions;
using Result = LinearCrossEntropy;

std::string text(Name n) { return std::string(n.text()); }
std::string text(DType d) { return std::string(name_of(d)); }

// All that may be cut; empty where it is not given.
struct Arrays {
  NamedArray x, weight, targets, labels, bias, mask, weights, class_weights;  // labels (Vocab): 0, 1, 2, ...
  NamedArray teacher_x = {}, teacher_weight = {}, teacher_bias = {};
};
Arrays arrays_of(const Arr& x, const Arr& weight, const Arr& targets, const Axis& Vocab, const Options& o) {
  auto either = [](const std::optional<NamedArray>& a) { return a.value_or(NamedArray()); };
  Arrays a{.x = x,
           .weight = weight,
           .targets = targets,
           .labels = arange(Vocab),
           .bias = either(o.bias),
           .mask = either(o.mask),
           .weights = either(o.weights),
           .class_weights = either(o.class_weights)};
  if (o.teacher) a.teacher_x = o.teacher->x, a.teacher_weight = o.teacher->weight, a.teacher_bias = either(o.teacher->bias);
  return a;
}

// ---- what is asked, by name --------------------------------------------------------------------------------------------------

struct Problem {
  const Options& options;
  Axis Vocab;
  AxisSelection Embed;
  Axes tokens;  // of the logits, but Vocab
  DType dtype;  // of the logits

  // Only axes of the tokens, with their sizes.
  void expect_tokens(const char* what, const Axes& axes, const Axes& allowed) const {
    for (auto& a : axes) {
      auto* found = find_axis(allowed, a.name);
      if (!found)
        fail(op, "axis " + text(a.name) + " of the " + what + " " + to_string(axes) + " is none of " + to_string(allowed) +
                     did_you_mean(a.name, allowed));
      if (found->size != a.size)
        fail(op, "axis " + text(a.name) + " has size " + std::to_string(a.size) + " in the " + what + " " + to_string(axes) +
                     " and " + std::to_string(found->size) + " in the logits " + to_string(allowed));
    }
  }
  // What has only some of the tokens' axes holds for all.
  NamedArray with_all_tokens(const NamedArray& a) const { return a ? broadcast_axis(a, without_axes(tokens, a.axes())) : a; }
  void expect_vocab(const char* what, const NamedArray& a) const {
    if (a.axes() != Axes{Vocab})
      fail(op, std::string(what) + " has the axes " + to_string(a.axes()) + "; it needs " + to_string(Axes{Vocab}));
  }
  void check(const Arrays& a) const {
    auto t = a.targets.dtype();
    auto axes = a.targets.axes(), with_vocab = concat_axes(tokens, {Vocab});
    const bool soft = is_float(t), has_vocab = find_axis(axes, Vocab.name);
    if (!soft && !is_integer(t)) fail(op, "targets are ids or probabilities, but these are " + text(t));
    if (soft && !has_vocab)
      fail(op, "targets of " + text(t) + " are probabilities, but " + to_string(axes) + " has no axis " + text(Vocab.name) +
                   "; ids must be integers");
    if (!soft && has_vocab)
      fail(op, "targets of " + text(t) + " are ids, which have no axis " + text(Vocab.name) + "; probabilities must be floats");
    expect_tokens("targets", axes, soft ? with_vocab : tokens);
    if (a.mask && a.mask.dtype() != DType::boolean)
      fail(op, "the mask is " + text(a.mask.dtype()) + "; it must be bool (floats are `weights`)");
    if (a.weights && !is_float(a.weights.dtype())) fail(op, "weights are floats, but these are " + text(a.weights.dtype()));
    if (a.mask) expect_tokens("mask", a.mask.axes(), tokens);
    if (a.weights) expect_tokens("weights", a.weights.axes(), tokens);
    if (a.bias) expect_vocab("the bias", a.bias);
    if (a.class_weights) expect_vocab("class_weights", a.class_weights);
    if (a.teacher_bias) expect_vocab("the teacher's bias", a.teacher_bias);
    if (a.teacher_x) {
      ops::axis_of(op, ops::node_of(op, a.teacher_weight), Vocab);
      expect_tokens("teacher's x", without_axes(a.teacher_x.axes(), options.teacher->Embed), tokens);
    }
    auto number = [](const char* name, double v, bool good, const char* rule) {
      if (!good) fail(op, std::string(name) + " is " + std::to_string(v) + "; it must be " + rule);
    };
    number("temperature", options.temperature, options.temperature > 0, "greater than 0");
    number("soft_cap", options.soft_cap, options.soft_cap >= 0, "0 (no cap) or greater");
    number("label_smoothing", options.label_smoothing, options.label_smoothing >= 0 && options.label_smoothing <= 1,
           "from 0 to 1");
    if (options.walked.all()) return;
    for (auto& w : options.walked.items()) {
      if (!find_axis(with_vocab, w.name))
        fail(op, "the walked axis " + text(w.name) + " is none of the logits' " + to_string(with_vocab) +
                     did_you_mean(w.name, with_vocab));
      if (w.name == Vocab.name && options.vocab_chunk != 0)
        fail(op, "axis " + text(w.name) + " is walked already; vocab_chunk cuts it inside chunks of tokens");
    }
  }
};

// Is the value there, or to be had by computing? Not inside jit, vmap or scan.
bool is_known(const NamedArray& a) {
  for (auto& n : topological({a.node()}, [](const Node& m) { return m.value != nullptr; })) {
    for (auto& x : n->axes)
      if (x.name.hidden()) return false;
    if (!n->value && (n->op == &prim::kInput || n->op == &prim::kIndex || n->op == &prim::kCarry)) return false;
  }
  return true;
}

// ---- tokens: which count, and how much ---------------------------------------------------------------------------------------
// Made twice, of the targets in a chunk and of all: what a mean is divided by must not come out of the walk, or the gradient
// would have to wait for its end.

struct Tokens {
  NamedArray live, weights, class_weights;  // (tokens...); empty: all, or 1
  NamedArray inside;                        // ids of the vocabulary
  NamedArray wrong;                         // checked: ids that are neither in the vocabulary nor to be ignored

  Tokens(const Problem& p, const Arrays& a) {
    auto& o = p.options;
    live = a.mask;
    if (auto& ids = a.targets; is_integer(ids.dtype())) {
      inside = (ids >= 0) & (ids < p.Vocab.size);
      auto counts = inside;
      if (o.ignore_index) counts = inside & (ids != *o.ignore_index);
      if (o.checked) wrong = o.ignore_index ? ~(inside | (ids == *o.ignore_index)) : ~inside;
      live = live ? live & counts : counts;
      if (a.class_weights)
        class_weights = take(astype(a.class_weights, p.dtype), p.Vocab, clip(ids, Arr(0), Arr(p.Vocab.size - 1)));
    }
    if (a.weights) weights = astype(a.weights, p.dtype);
  }
  void check(const Problem& p) const {
    if (!wrong || !is_known(wrong)) return;
    if (auto n = std::int64_t(haliax::sum(wrong).item()))
      fail(op, std::to_string(n) + " of " + std::to_string(wrong.size()) + " targets are no ids of " + to_string(p.Vocab) +
                   (p.options.ignore_index ? ", nor ignore_index" : "; ignore_index says what does not count"));
  }
  // (tokens...) -> what does not count is exactly 0, the rest weighted.
  NamedArray weighted(NamedArray v) const {
    if (live) v = where(live, v, 0.);
    return weights ? v * weights : v;
  }
  NamedArray total_weight(const Problem& p, bool of_classes) const {
    auto w = weighted(ones(p.tokens, p.dtype));
    return sum(of_classes && class_weights ? w * class_weights : w);
  }
};

// ---- the loss, on whole arrays -----------------------------------------------------------------------------------------------

NamedArray logits_of(const Problem& p, const NamedArray& x, const NamedArray& weight, const AxisSelection& Embed,
                     const NamedArray& bias, double soft_cap) {
  auto l = p.options.logit_dtype ? astype(dot(x, weight, Embed), p.dtype)
                                 : dot(x, weight, Embed, {.preferred_element_type = p.dtype});
  if (bias) l = l + astype(bias, p.dtype);
  if (soft_cap != 0) l = soft_cap * tanh(l / soft_cap);
  return p.options.temperature == 1 ? l : l / p.options.temperature;
}
// The sum over Vocab of p * v, where p = exp(logits - lse). A logit of -inf says "never": its term is 0.
NamedArray expected(const NamedArray& logits, const NamedArray& lse, const NamedArray& v, const Axis& Vocab) {
  return sum(exp(logits - lse) * where(isneginf(logits), 0., v), Vocab);
}

struct Labels {
  NamedArray nll;   // sum of -target * log p; of an id outside the vocabulary anything
  NamedArray loss;  // sum of -q * class_weights * log p
  NamedArray id;    // the target, or the likeliest of a soft one
};
Labels labels_of(const Problem& p, const Tokens& tokens, const NamedArray& logits, const NamedArray& lse, const Arrays& a) {
  auto& Vocab = p.Vocab;
  auto& targets = a.targets;
  const double e = p.options.label_smoothing;
  NamedArray classes;
  if (a.class_weights) classes = astype(a.class_weights, p.dtype);
  Labels l;
  if (is_integer(targets.dtype())) {
    // As a sum over the vocabulary the label's logit fuses with the softmax, forward and backward.
    auto is_label = broadcast_axis(targets, Vocab) == a.labels;
    auto picked = sum(where(is_label, logits, 0.), Vocab);
    l.id = targets;
    l.nll = lse - picked;
    l.loss = classes ? l.nll * tokens.class_weights : l.nll;
  } else {
    auto soft = astype(targets, p.dtype);
    if (p.options.outputs.accuracy) l.id = argmax(targets, Vocab);
    auto of = [&](const NamedArray& q) { return lse * sum(q, Vocab) - sum(q * logits, Vocab); };
    l.nll = of(soft);
    l.loss = classes ? of(soft * classes) : l.nll;
  }
  if (e != 0) {
    auto even = classes ? (lse * sum(classes) - sum(logits * classes, Vocab)) / double(Vocab.size) : lse - mean(logits, Vocab);
    l.loss = (1 - e) * l.loss + e * even;
  }
  return l;
}

Result walk(const Problem& p, const Arrays& a) {
  auto& o = p.options;
  auto& Vocab = p.Vocab;
  const Tokens tokens(p, a);
  auto logits = logits_of(p, o.norm ? o.norm(a.x) : a.x, a.weight, p.Embed, a.bias, o.soft_cap);  // (tokens..., Vocab)
  auto lse = logsumexp(logits, Vocab);
  auto labels = labels_of(p, tokens, logits, lse, a);
  auto loss = o.z_loss != 0 ? labels.loss + o.z_loss * square(lse) : labels.loss;
  auto losses = tokens.weighted(loss);
  if (tokens.wrong) losses = where(tokens.wrong, std::numeric_limits<double>::quiet_NaN(), losses);

  Result r;
  r.total.sum = sum(losses);
  auto& give = o.outputs;
  if (give.losses || o.reduction == Reduction::none) r.losses = losses;
  if (give.logsumexp) r.logsumexp = lse;
  if (give.log_prob) r.log_prob = tokens.inside ? where(tokens.inside, -labels.nll, 0.) : -labels.nll;
  if (give.nll) r.nll.sum = sum(tokens.weighted(labels.nll));
  if (give.entropy) r.entropy = expected(logits, lse, lse - logits, Vocab);
  if (give.ids || give.accuracy) {
    auto best = argmax(logits, Vocab);
    if (give.ids) r.ids = best;
    if (give.accuracy) r.accuracy.sum = sum(tokens.weighted(astype(best == labels.id, p.dtype)));
  }
  if (give.sample) {
    auto axes = p.tokens;
    axes.push_back(Vocab);
    r.sample = argmax(logits + random::gumbel(give.sample, axes, p.dtype), Vocab);
  }
  if (give.top_k > 0) std::tie(r.top_logits, r.top_ids) = top_k(logits, Vocab, give.top_k, "top");
  if (auto& t = o.teacher) {
    auto theirs = logits_of(p, a.teacher_x, a.teacher_weight, t->Embed, a.teacher_bias, t->soft_cap);
    auto their_lse = logsumexp(theirs, Vocab);
    r.kl = expected(theirs, their_lse, (theirs - their_lse) - (logits - lse), Vocab);
  }
  return r;
}

}  // namespace

NamedArray WeightedMean::mean(SourceLocation at) const {
  Here here(at);
  return sum / where(weight == 0., 1., weight);
}
WeightedMean operator+(const WeightedMean& a, const WeightedMean& b) { return {a.sum + b.sum, a.weight + b.weight}; }

LinearCrossEntropy linear_cross_entropy(Arr x, Arr weight, Arr targets, const AxisSelection& Embed, const AxisSelector& vocab,
                                        const LinearCrossEntropyOptions& o) {
  LayerScope scope(x, weight);
  const Axis Vocab = ops::axis_of(op, ops::node_of(op, weight), vocab);
  if (x.has_axis(Vocab.name))
    fail(op, "x " + to_string(x.axes()) + " already has the axis " + text(Vocab.name) + "; rename it first");
  const auto shape = dot(o.norm ? o.norm(x) : x.array(), weight, Embed);
  Problem p{o, Vocab, Embed, without_axes(shape.axes(), Vocab), o.logit_dtype.value_or(ops::wide_of(shape.dtype()))};
  auto arrays = arrays_of(x, weight, targets, Vocab, o);
  p.check(arrays);
  for (auto* a : {&arrays.targets, &arrays.mask, &arrays.weights}) *a = p.with_all_tokens(*a);
  const Tokens tokens(p, arrays);
  tokens.check(p);

  auto loss = [&](const Arrays& a) { return walk(p, a); };
  auto tiled = [&](const Arrays& a) {
    return o.vocab_chunk == 0 ? loss(a) : chunked_reduce(Vocab, {.chunk = o.vocab_chunk, .form = o.chunks.form}, loss)(a);
  };
  const AxisSelection walked = o.walked.all() ? AxisSelection(p.tokens) : o.walked;
  auto r = walked.items().empty() ? tiled(arrays) : chunked_reduce(walked, o.chunks, tiled)(arrays);

  r.total.weight = tokens.total_weight(p, true);
  if (o.outputs.nll) r.nll.weight = tokens.total_weight(p, false);
  if (o.outputs.accuracy) r.accuracy.weight = tokens.total_weight(p, false);
  r.loss = o.reduction == Reduction::none ? r.losses : o.reduction == Reduction::sum ? r.total.sum : r.total.mean();
  if (!o.outputs.losses) r.losses = {};
  return r;
}

LinearCrossEntropy linear_next_token_loss(const AxisSelector& Pos, Arr x, Arr weight, Arr ids, const AxisSelection& Embed,
                                          const AxisSelector& Vocab, const LinearCrossEntropyOptions& options) {
  LayerScope scope(x, weight);
  const auto pos = ops::axis_of("linear_next_token_loss", ops::node_of("linear_next_token_loss", ids), Pos);
  if (!is_integer(ids.dtype())) fail("linear_next_token_loss", "ids are integers, but these are " + text(ids.dtype()));
  if (pos.size < 2) fail("linear_next_token_loss", "axis " + to_string(pos) + " has no next position; two are needed");
  auto o = options;
  o.ignore_index = options.ignore_index.value_or(-1);
  const auto next = where(arange(pos) < pos.size - 1, roll(astype(ids, DType::i32), -1, pos), *o.ignore_index);
  return linear_cross_entropy(x, weight, next, Embed, Vocab, o);
}

}  // namespace haliax::nn
