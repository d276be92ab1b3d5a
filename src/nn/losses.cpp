// Loss functions on logits.
#include "graph/fail.h"
#include "haliax/losses.h"
#include "haliax/nn.h"
#include "ops/named.h"

namespace haliax::nn {
namespace {

void check_axes(const char* what, const std::optional<NamedArray>& given, const Axes& of_loss) {
  if (!given) return;
  for (auto& a : given->axes())
    if (!has(of_loss, a.name))
      fail("reduce_loss", "axis {} of the {} {} is not in the losses {}{}", a.name, what,
           given->axes(), of_loss, did_you_mean(a.name, of_loss));
}
// Reduces losses. `inside`: the elements that count in addition to `where`; their losses are 0
// already. The mean over no element is 0.
NamedArray reduced(const NamedArray& loss, const LossOptions& options,
                   const std::optional<NamedArray>& inside = {}) {
  auto& axis = options.reduction_axis;
  const auto axes = loss.axes();
  check_axes("mask", options.where, axes);
  check_axes("weight", options.weight, axes);
  const bool nothing = !axis.all() && axis.items().empty();
  const bool none = options.reduction == Reduction::none || nothing;
  const auto d = loss.dtype(), wide = ops::wide_of(d);
  if (none) {
    auto y = options.weight ? loss * astype(*options.weight, d) : loss;
    return options.where ? where(*options.where, y, 0.) : y;
  }
  if (options.reduction == Reduction::mean && !options.where && !options.weight && !inside)
    return mean(loss, axis);
  // A weight is 0 where an element does not count, so that NaN there is harmless.
  auto y = options.weight ? astype(loss, wide) * astype(*options.weight, wide) : loss;
  if (options.reduction == Reduction::sum) return astype(sum(y, axis, {.where = options.where}), d);
  auto counts = inside;
  if (options.where) counts = counts ? *options.where & *counts : *options.where;
  auto weight = options.weight ? astype(*options.weight, wide) : ones({}, wide);
  if (counts) weight = where(*counts, weight, 0.);
  const auto total = sum(astype(y, wide), axis, {.where = options.where}),
             count = sum(broadcast_to(weight, axes), axis);
  return astype(total / where(count == 0., 1., count), d);
}

// Returns the logit at each id, or 0 for an id out of range. Computed as a sum over the labels,
// which fuses with the softmax, forward and backward.
NamedArray picked(const NamedArray& logits, const Axis& Label, const NamedArray& ids) {
  return sum(where(one_hot(ids, Label, DType::boolean), logits, 0.), Label);
}
NamedArray inside(const NamedArray& ids, const Axis& Label) {
  return (ids >= 0) & (ids < Label.size);
}

}  // namespace

std::pair<NamedArray, NamedArray> cross_entropy_loss_and_log_normalizers(Arr logits,
                                                                         const AxisSelector& label,
                                                                         Arr targets) {
  LayerScope scope(logits);
  constexpr auto op = "cross_entropy_loss";
  auto Label = ops::axis_of(op, ops::node_of(op, logits), label);
  auto normalizers = logsumexp(logits, Label);
  auto t = targets.dtype();
  bool has_label = find_axis(targets.axes(), Label.name);
  if (is_integer(t) && has_label)
    fail(op, "targets of {} are ids, which have no axis {}; probabilities must be floats", t,
         Label.name);
  if (is_integer(t)) {
    // To represent ids up to the size of Label.
    auto ids = bytes_of(t) < 4 ? astype(targets, DType::i32) : NamedArray(targets);
    return {where(inside(ids, Label), normalizers - picked(logits, Label, ids), 0.), normalizers};
  }
  if (!has_label)
    fail(op, "targets of {} are probabilities, but {} has no axis {}; ids must be integers", t,
         targets.axes(), Label.name);
  auto soft = is_float(t) ? NamedArray(targets) : astype(targets, logits.dtype());
  return {sum(soft * (normalizers - logits), Label), normalizers};
}
NamedArray cross_entropy_loss(Arr logits, const AxisSelector& Label, Arr targets,
                              LossOptions options) {
  LayerScope scope(logits);
  const auto loss = cross_entropy_loss_and_log_normalizers(logits, Label, targets).first;
  if (!is_integer(targets.dtype())) return reduced(loss, options);
  const auto ids = bytes_of(targets.dtype()) < 4 ? astype(targets, DType::i32) : targets.array();
  return reduced(loss, options, inside(ids, logits.resolve_axis(Label)));
}

NamedArray reduce_loss(Arr loss, LossOptions options) {
  LayerScope scope(loss);
  return reduced(loss, options);
}
NamedArray maybe_reduce_loss(Arr loss, LossOptions options) { return reduce_loss(loss, options); }

NamedArray binary_cross_entropy_loss(Arr logits, Arr targets, LossOptions options) {
  LayerScope scope(logits);
  auto t = astype(targets, logits.dtype());
  return reduced(t * softplus(-logits) + (1. - t) * softplus(logits), options);
}

NamedArray next_token_loss(const AxisSelector& Pos, const AxisSelector& Vocab, Arr logits,
                           Arr ids) {
  LayerScope scope(logits);
  auto pos = ops::axis_of("next_token_loss", ops::node_of("next_token_loss", ids), Pos);
  if (pos.size < 2)
    fail("next_token_loss", "axis {} has no next position; its size must be at least 2", pos);
  return cross_entropy_loss(logits, Vocab, roll(ids, -1, pos),
                            {.where = arange(pos) < pos.size - 1});
}

NamedArray chunked_cross_entropy(Arr x, Arr weight, Arr targets, const AxisSelection& Embed,
                                 const AxisSelector& Vocab, const AxisSelector& walked,
                                 LinearLossOptions options) {
  LayerScope scope(x, weight);
  return linear_cross_entropy(x, weight, targets, Embed, Vocab,
                              {.walked = walked,
                               .chunks = options.chunks,
                               .reduction = Reduction::none,
                               .soft_cap = options.soft_cap,
                               .logit_dtype = options.logit_dtype,
                               .label_smoothing = options.label_smoothing,
                               .z_loss = options.z_loss})
      .loss;
}

}  // namespace haliax::nn
