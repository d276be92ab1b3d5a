// Loss functions on logits.
#include "graph/fail.h"
#include "haliax/losses.h"
#include "haliax/nn.h"
#include "ops/named.h"

namespace haliax::nn {
namespace {

NamedArray reduced(const NamedArray& loss, const LossOptions& options) {
  auto& axis = options.reduction_axis;
  bool nothing = !axis.all() && axis.items().empty();
  if (options.reduction == Reduction::none || nothing)
    return options.where ? where(*options.where, loss, 0.) : loss;
  return options.reduction == Reduction::sum ? sum(loss, axis, {.where = options.where})
                                             : mean(loss, axis, {.where = options.where});
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
  return reduced(cross_entropy_loss_and_log_normalizers(logits, Label, targets).first, options);
}

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
