// Maximal update parametrization: the scales of layers, and their learning rates.
#include "haliax/mup.h"

#include <cmath>

namespace haliax {
namespace nn {

Reparam linear_standard_param(const AxisSpec& In, const AxisSpec&) {
  return {.init_scale = 1 / std::sqrt(double(axis_size(In)))};
}
Reparam input_linear_mup(const AxisSpec&, const AxisSpec&) { return {}; }
Reparam hidden_linear_mup(const AxisSpec& In, const AxisSpec&) {
  const auto size = double(axis_size(In));
  return {.init_scale = 1 / std::sqrt(size), .lr_scale = 1 / size};
}
Reparam output_linear_mup(const AxisSpec& In, const AxisSpec&) {
  return {.active_scale = 1 / double(axis_size(In))};
}
Reparam embedding_standard_param(const AxisSpec&, const AxisSpec& Embed) {
  return {.init_scale = 1 / double(axis_size(Embed))};
}
Reparam embedding_mup(const AxisSpec&, const AxisSpec& Embed) {
  return {.unembed_active_scale = 1 / double(axis_size(Embed))};
}

}  // namespace nn

namespace optim {

ScaleByMupLr scale_by_mup_lr() { return {}; }

namespace detail {
namespace {

void scale(NamedArray& update, double by) {
  if (!update.empty()) update = update * by;
}

}  // namespace

void scale_weights(nn::Linear& updates, const nn::Reparam& reparam) {
  if (reparam.lr_scale == 1) return;
  scale(updates.weight, reparam.lr_scale);
  if (updates.bias) scale(*updates.bias, reparam.lr_scale);
  if (!updates.lora) return;
  scale(updates.lora->A, reparam.lr_scale);
  scale(updates.lora->B, reparam.lr_scale);
}
void scale_weights(nn::Embedding& updates, const nn::Reparam& reparam) {
  if (reparam.lr_scale != 1) scale(updates.weight, reparam.lr_scale);
}

}  // namespace detail
}  // namespace optim
}  // namespace haliax
