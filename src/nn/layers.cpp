// Layers: Linear, LayerNorm, RmsNorm, Dropout, Embedding, Mlp.
#include <cmath>

#include "base/dtype_hint.h"
#include "graph/fail.h"
#include "haliax/mup.h"
#include "ops/named.h"

namespace haliax::nn {
namespace {

// Raises unless x has all axes, in these sizes.
void expect(const char* op, const Arr& x, const AxisSpec& axes) {
  auto shown = x.axes();
  for (auto& a : axes) {
    auto* found = find_axis(shown, a.name);
    if (!found)
      fail(op, "axis {} is not in the input {}{}", a.name, shown, did_you_mean(a.name, shown));
    if (found->size != a.size)
      fail(op, "axis {} has size {} in the input {}, but the layer expects {}", a.name, found->size,
           shown, a);
  }
}

NamedArray with_weight_and_bias(NamedArray x, const std::optional<NamedArray>& weight,
                                const std::optional<NamedArray>& bias) {
  if (weight) x = *weight * x;
  if (bias) x = x + *bias;
  return x;
}
NamedArray scaled_weight(const NamedArray& weight, double scale) {
  return scale == 1 ? weight : weight * scale;
}
const NamedArray& either(const std::optional<NamedArray>& a, const std::optional<NamedArray>& b) {
  static const NamedArray none;
  return a ? *a : b ? *b : none;
}

}  // namespace

LayerScope::LayerScope(const Arr& input, const NamedArray& weight)
    : here_(std::make_shared<CallSite>(input.at(), CallSite::layer, &weight)) {}
LayerScope::~LayerScope() = default;

NameScope::NameScope(std::string_view name, SourceLocation at) : outer_(context().origin.scope) {
  if (name.empty()) {
    CallSite here(at);
    fail("name_scope", "the name is empty");
  }
  context().origin.scope =
      outer_ ? Name(std::string(outer_.text()) + "." + std::string(name)) : Name(name);
}
NameScope::~NameScope() { context().origin.scope = outer_; }

Linear Linear::init(const AxisSpec& In, const AxisSpec& Out, const Key& key, LinearOptions options,
                    SourceLocation at) {
  CallSite here(at, CallSite::layer);
  for (auto& a : In)
    if (has(Out, a.name))
      fail("linear", "axis {} is both in {} and in {}; rename one", a.name, In.axes(), Out.axes());
  auto axes = options.out_first ? concat_axes(Out, In) : concat_axes(In, Out);
  const auto reparam = (options.reparam_cls ? options.reparam_cls : linear_standard_param)(In, Out);
  const auto scale = options.init_scale * reparam.init_scale;
  Linear l{random::truncated_normal(key, axes, -3., 3.) * scale, {}, In, Out};
  l.reparam = reparam;
  l.dot_general = options.dot_general;
  if (options.use_bias) l.bias = zeros(Out);
  return l;
}
NamedArray Linear::operator()(Arr x) const {
  LayerScope scope(x, weight);
  expect("linear", x, In);
  auto shown = x.axes();
  for (auto& a : Out)
    if (has(shown, a.name))
      fail("linear", "the input {} already has the output axis {}; rename it first", shown, a.name);
  const auto w = scaled_weight(weight, reparam.active_scale);
  auto y = dot_general ? dot_general(x, w, In.axes()) : dot(x, w, In.axes());
  if (bias) y = y + *bias;
  if (!lora) return y;
  auto low = dot(x, lora->A, In.axes());
  return y + astype(dot(low, lora->B, "lora_rank") * lora->scale, y.dtype());
}

// Returns a norm with a weight of ones and a bias of zeros, as the options request.
template <class Norm> static Norm norm_of(const AxisSpec& axis, const NormOptions& options) {
  Norm l{axis, {}, {}, options.eps};
  if (options.use_weight) l.weight = ones(axis);
  if (options.use_bias) l.bias = zeros(axis);
  return l;
}
LayerNorm LayerNorm::init(const AxisSpec& axis, NormOptions options, SourceLocation at) {
  CallSite here(at, CallSite::layer);
  return norm_of<LayerNorm>(axis, options);
}
NamedArray LayerNorm::operator()(Arr x) const {
  LayerScope scope(x, either(weight, bias));
  expect("layer_norm", x, axis);
  auto out = standardize(x, axis.axes(), eps);
  return with_weight_and_bias(out, weight, bias);
}

RmsNorm RmsNorm::init(const AxisSpec& axis, NormOptions options, SourceLocation at) {
  CallSite here(at, CallSite::layer);
  if (!is_float(options.dtype))
    fail("rms_norm", "dtype is {}; it must be a dtype of floats", options.dtype);
  auto l = norm_of<RmsNorm>(axis, options);
  l.dtype = options.dtype;
  return l;
}
NamedArray RmsNorm::operator()(Arr x) const {
  LayerScope scope(x, either(weight, bias));
  expect("rms_norm", x, axis);
  auto wide = astype(x, dtype);
  auto out = wide * rsqrt(mean(square(wide), axis.axes()) + eps);
  return with_weight_and_bias(astype(out, x.dtype()), weight, bias);
}

static void check_probability(const char* name, double p) {
  if (!(p >= 0 && p <= 1)) fail("dropout", "{} is {}; it must be from 0 to 1", name, p);
}
NamedArray dropout(Arr x, double pdrop, const Key& key, DropoutOptions options) {
  LayerScope scope(x);
  check_probability("pdrop", pdrop);
  auto shown = x.axes();
  for (Name n : options.broadcast_axes)
    if (!has(shown, n))
      fail("dropout", "the broadcast axis {} is not in {}{}", n, shown, did_you_mean(n, shown));
  if (options.inference || pdrop == 0) return x;
  if (pdrop == 1) return zeros_like(x);
  if (!key)
    fail("dropout", "a key is required outside of inference; pass a key, or inference = true");
  auto keep = random::bernoulli(key, without_axes(shown, options.broadcast_axes), 1 - pdrop);
  return where(keep, x / (1 - pdrop), 0.);
}
NamedArray Dropout::operator()(Arr x, const Key& key) const {
  return (*this)(std::move(x), key, std::nullopt);
}
NamedArray Dropout::operator()(Arr x, const Key& key, std::optional<bool> inference_now) const {
  return dropout(x, pdrop, key, {broadcast_axes, inference_now.value_or(inference)});
}
NamedArray dropout_mask(const AxisSpec& axes, double rate, const Key& key, SourceLocation at) {
  CallSite here(at, CallSite::layer);
  check_probability("rate", rate);
  return random::bernoulli(key, axes, 1 - rate);
}

NamedArray standardize(Arr x, const AxisSelection& axis, StandardizeOptions o) {
  LayerScope scope(x);
  if (!o.mean && !o.variance && !o.where) return haliax::standardize(x, axis, o.epsilon);
  const auto shown = x.axes();
  for (auto& [name, given] : {std::pair{"mean", &o.mean}, {"variance", &o.variance}})
    if (*given)
      for (auto& a : (*given)->axes())
        if (!has(shown, a.name))
          fail("standardize", "axis {} of the {} is not in {}{}", a.name, name, shown,
               did_you_mean(a.name, shown));
  const auto d = ops::float_of(x.dtype()), wide = ops::wide_of(d);
  const auto y = astype(x, wide);
  const auto center = o.mean ? astype(*o.mean, wide) : mean(y, axis, {.where = o.where});
  const auto spread = o.variance ? astype(*o.variance, wide) : var(y, axis, {.where = o.where});
  return astype((y - center) * rsqrt(spread + o.epsilon), d);
}

Embedding Embedding::init(const Axis& Vocab, const AxisSpec& Embed, const Key& key,
                          EmbeddingOptions options, SourceLocation at) {
  CallSite here(at, CallSite::layer);
  if (has(Embed, Vocab.name))
    fail("embedding", "axis {} is both in {} and in {}; rename one", Vocab.name, Axes{Vocab},
         Embed.axes());
  const auto reparam =
      (options.reparam_cls ? options.reparam_cls : embedding_standard_param)(Vocab, Embed);
  const auto scale = options.init_scale * reparam.init_scale;
  return {random::truncated_normal(key, concat_axes({Vocab}, Embed), -3., 3.) * scale, Vocab, Embed,
          reparam};
}
NamedArray Embedding::embed(Arr ids) const {
  LayerScope scope(ids, weight);
  if (!is_integer(ids.dtype()))
    fail("embedding", "ids: expected integers, got {}{}", ids.dtype(), integer_hint(ids.dtype()));
  return take(weight, Vocab, ids);
}
NamedArray Embedding::unembed(Arr x) const {
  LayerScope scope(x, weight);
  expect("unembed", x, Embed);
  return dot(x, scaled_weight(weight, reparam.unembed_active_scale), Embed.axes());
}

Embedding Embedding::resize_embeddings(std::int64_t new_size, const Key& key,
                                       SourceLocation at) const {
  auto e = *this;
  e.weight = resize_axis(weight, Vocab, new_size, key, at);
  e.Vocab = Vocab.resize(new_size);
  return e;
}

Mlp Mlp::init(const AxisSpec& In, const AxisSpec& Out, std::int64_t width, int depth,
              const Key& key, MlpOptions options, SourceLocation at) {
  CallSite here(at, CallSite::layer);
  return init(In, Out, Axis("mlp", width), depth, key, options, at);
}
Mlp Mlp::init(const AxisSpec& In, const AxisSpec& Out, const Axis& width, int depth, const Key& key,
              MlpOptions options, SourceLocation at) {
  CallSite here(at, CallSite::layer);
  const auto other = width.alias(std::string(width.name.text()) + "2");
  if (depth < 0) fail("mlp", "depth is {}; it must be 0 or more", depth);
  auto keys = random::split(key, depth + 1);
  Mlp m{{}, options.activation};
  AxisSpec from = In;
  for (int i = 0; i < depth; ++i) {
    AxisSpec to = i % 2 ? other : width;
    m.layers.push_back(
        Linear::init(from, to, keys[i], {options.use_bias, options.out_first, options.init_scale}));
    from = to;
  }
  m.layers.push_back(Linear::init(from, Out, keys[depth],
                                  {options.use_final_bias, options.out_first, options.init_scale}));
  return m;
}
NamedArray Mlp::operator()(Arr x) const {
  if (layers.empty()) return x;
  LayerScope scope(x);
  NamedArray y = x;
  for (std::size_t i = 0; i + 1 < layers.size(); ++i) y = activation(layers[i](y));
  return layers.back()(y);
}

AxisSpec Mlp::In() const {
  if (layers.empty()) fail("mlp", "it has no layers, and no input axes");
  return layers.front().In;
}
AxisSpec Mlp::Out() const {
  if (layers.empty()) fail("mlp", "it has no layers, and no output axes");
  return layers.back().Out;
}

}  // namespace haliax::nn
