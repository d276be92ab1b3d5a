#include <cmath>

#include "graph/node.h"
#include "haliax/nn.h"
#include "ops/named.h"

namespace haliax::nn {
namespace {

std::string text(Name n) { return std::string(n.text()); }

// Every one of the axes is there, with its size.
void expect(const char* op, const Arr& x, const AxisSpec& axes) {
  auto shown = x.axes();
  for (auto& a : axes) {
    auto* found = find_axis(shown, a.name);
    if (!found) fail(op, "axis " + text(a.name) + " is not in the input " + to_string(shown) + did_you_mean(a.name, shown));
    if (found->size != a.size)
      fail(op, "axis " + text(a.name) + " has size " + std::to_string(found->size) + " in the input " + to_string(shown) +
                   ", but the layer wants " + to_string(a));
  }
}

NamedArray with_weight_and_bias(NamedArray x, const std::optional<NamedArray>& weight, const std::optional<NamedArray>& bias) {
  if (weight) x = *weight * x;
  if (bias) x = x + *bias;
  return x;
}
const NamedArray& either(const std::optional<NamedArray>& a, const std::optional<NamedArray>& b) {
  static const NamedArray none;
  return a ? *a : b ? *b : none;
}

}  // namespace

LayerScope::LayerScope(const Arr& input, const NamedArray& weight) : here_(std::make_unique<Here>(input.at(), true, &weight)) {}
LayerScope::~LayerScope() = default;

Linear Linear::init(const AxisSpec& In, const AxisSpec& Out, const Key& key, LinearOptions options, SourceLocation at) {
  Here here(at, true);
  for (auto& a : In)
    if (find_axis(Out, a.name))
      fail("linear",
           "axis " + text(a.name) + " is both in " + to_string(In.axes()) + " and in " + to_string(Out.axes()) + "; alias one");
  auto axes = options.out_first ? concat_axes(Out, In) : concat_axes(In, Out);
  auto scale = options.init_scale / std::sqrt(double(axis_size(In)));
  Linear l{random::truncated_normal(key, axes, -3., 3.) * scale, {}, In, Out};
  if (options.use_bias) l.bias = zeros(Out);
  return l;
}
NamedArray Linear::operator()(Arr x) const {
  LayerScope scope(x, weight);
  expect("linear", x, In);
  auto shown = x.axes();
  for (auto& a : Out)
    if (find_axis(shown, a.name))
      fail("linear", "the input " + to_string(shown) + " already has the output axis " + text(a.name) + "; rename it first");
  auto y = dot(x, weight, In.axes());
  return bias ? y + *bias : y;
}

LayerNorm LayerNorm::init(const AxisSpec& axis, NormOptions options, SourceLocation at) {
  Here here(at, true);
  LayerNorm l{axis, {}, {}, options.eps};
  if (options.use_weight) l.weight = ones(axis);
  if (options.use_bias) l.bias = zeros(axis);
  return l;
}
NamedArray LayerNorm::operator()(Arr x) const {
  LayerScope scope(x, either(weight, bias));
  expect("layer_norm", x, axis);
  auto out = standardize(x, axis.axes(), eps);
  return with_weight_and_bias(out, weight, bias);
}

RmsNorm RmsNorm::init(const AxisSpec& axis, NormOptions options, SourceLocation at) {
  Here here(at, true);
  RmsNorm l{axis, {}, {}, options.eps};
  if (options.use_weight) l.weight = ones(axis);
  if (options.use_bias) l.bias = zeros(axis);
  return l;
}
NamedArray RmsNorm::operator()(Arr x) const {
  LayerScope scope(x, either(weight, bias));
  expect("rms_norm", x, axis);
  auto wide = astype(x, dtype);
  auto out = wide * rsqrt(mean(square(wide), axis.axes()) + eps);
  return with_weight_and_bias(astype(out, x.dtype()), weight, bias);
}

NamedArray Dropout::operator()(Arr x, const Key& key, std::optional<bool> inference_now) const {
  LayerScope scope(x);
  if (!(pdrop >= 0 && pdrop <= 1)) fail("dropout", "pdrop is " + std::to_string(pdrop) + ", but it is a probability");
  auto shown = x.axes();
  for (Name n : broadcast_axes)
    if (!find_axis(shown, n))
      fail("dropout", "the broadcast axis " + text(n) + " is not in " + to_string(shown) + did_you_mean(n, shown));
  if (inference_now.value_or(inference) || pdrop == 0) return x;
  if (pdrop == 1) return zeros_like(x);
  if (!key) fail("dropout", "needs a key when not in inference; pass one, or inference = true");
  auto keep = random::bernoulli(key, without_axes(shown, broadcast_axes), 1 - pdrop);
  return where(keep, x / (1 - pdrop), 0.);
}

Embedding Embedding::init(const Axis& Vocab, const AxisSpec& Embed, const Key& key, EmbeddingOptions options, SourceLocation at) {
  Here here(at, true);
  auto scale = options.init_scale / double(axis_size(Embed));
  return {random::truncated_normal(key, concat_axes({Vocab}, Embed), -3., 3.) * scale, Vocab, Embed};
}
NamedArray Embedding::embed(Arr ids) const {
  LayerScope scope(ids, weight);
  if (!is_integer(ids.dtype())) fail("embedding", "ids are integers, but these are " + std::string(name_of(ids.dtype())));
  return take(weight, Vocab, ids);
}
NamedArray Embedding::unembed(Arr x) const {
  LayerScope scope(x, weight);
  expect("unembed", x, Embed);
  return dot(x, weight, Embed.axes());
}

Mlp Mlp::init(const AxisSpec& In, const AxisSpec& Out, std::int64_t width, int depth, const Key& key, MlpOptions options,
              SourceLocation at) {
  Here here(at, true);
  if (depth < 0) fail("mlp", "depth is " + std::to_string(depth) + "; it must be 0 or more");
  auto keys = random::split(key, depth + 1);
  Mlp m{{}, options.activation};
  AxisSpec from = In;
  for (int i = 0; i < depth; ++i) {
    AxisSpec to = Axis(i % 2 ? "mlp2" : "mlp", width);
    m.layers.push_back(Linear::init(from, to, keys[i], {options.use_bias, options.out_first, options.init_scale}));
    from = to;
  }
  m.layers.push_back(Linear::init(from, Out, keys[depth], {options.use_final_bias, options.out_first, options.init_scale}));
  return m;
}
NamedArray Mlp::operator()(Arr x) const {
  if (layers.empty()) return x;
  LayerScope scope(x);
  NamedArray y = x;
  for (std::size_t i = 0; i + 1 < layers.size(); ++i) y = activation(layers[i](y));
  return layers.back()(y);
}

NamedArray detail::layer_of(const NamedArray& stacked, const Axis& Layers, std::int64_t i, SourceLocation where) {
  Here here(where);
  if (i < 0 || i >= Layers.size) fail("get_layer", "there is no layer " + std::to_string(i) + " in " + to_string(Layers));
  return stacked.empty() ? stacked : haliax::at(stacked, Layers, i);
}

}  // namespace haliax::nn
