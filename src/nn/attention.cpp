// Attention: masks, biases, and dot-product attention.
#include <algorithm>
#include <bit>
#include <cmath>

#include "graph/fail.h"
#include "haliax/nn.h"
#include "ops/named.h"

namespace haliax::nn {
namespace {

// Returns {QPos, the axes of the starts, KPos}: the axes of a mask.
Axes axes_of_mask(const char* op, const Axis& QPos, const Axis& KPos,
                  std::initializer_list<const Arr*> starts) {
  if (QPos.name == KPos.name)
    fail(op, "queries and keys have the same axis {}; rename one", QPos.name);
  Axes axes{QPos};
  for (auto* start : starts)
    for (auto& a : start->axes()) {
      if (a.name == QPos.name || a.name == KPos.name)
        fail(op, "axis {} of a start {} is an axis of positions; rename it", a.name, start->axes());
      if (!has(axes, a.name)) axes.push_back(a);
    }
  axes.push_back(KPos);
  return axes;
}
// Returns positions from the start, in axes that fit into those of a mask.
NamedArray positions_from(const Axis& Pos, const Arr& start) {
  auto first = start.axes();
  return first.empty() ? arange(Pos) + start : broadcast_axis(start, Pos) + arange(Pos);
}
// (QPos, ..., KPos): true where the position of the query is not before the position of the key.
NamedArray not_before(const Axis& QPos, const Axis& KPos, const Arr& q_start, const Arr& k_start,
                      const Axes& axes) {
  auto q = positions_from(QPos, q_start), k = positions_from(KPos, k_start);
  return broadcast_to(q, axes) >= (k.axes().size() > 1 ? broadcast_to(k, axes) : k);
}

// Returns the slopes of ALiBi (Press et al. 2022), one per head. For example, 8 heads with bias_max
// 8 have the slopes 1/2, 1/4, ..., 1/256. 6 heads have the slopes of 4 heads, and then the first
// and the third slope of 8 heads.
std::vector<double> alibi_slopes(std::int64_t heads, double bias_max) {
  auto power_of_two = std::int64_t(std::bit_floor(std::uint64_t(heads)));
  std::vector<double> slopes;
  for (std::int64_t i = 1; i <= power_of_two; ++i)
    slopes.push_back(std::exp2(-bias_max * double(i) / double(power_of_two)));
  // every second slope of the next power of two
  for (std::int64_t i = 1; std::int64_t(slopes.size()) < heads; i += 2)
    slopes.push_back(std::exp2(-bias_max * double(i) / double(2 * power_of_two)));
  return slopes;
}

}  // namespace

NamedArray causal_mask(const Axis& QPos, const Axis& KPos, Arr q_start, Arr k_start) {
  LayerScope scope(q_start);
  return not_before(QPos, KPos, q_start, k_start,
                    axes_of_mask("causal_mask", QPos, KPos, {&q_start, &k_start}));
}
NamedArray prefix_lm_mask(const Axis& QPos, const Axis& KPos, Arr prefix_len, Arr q_start,
                          Arr k_start) {
  LayerScope scope(prefix_len);
  const auto axes = axes_of_mask("prefix_lm_mask", QPos, KPos, {&q_start, &k_start, &prefix_len});
  const auto mask = not_before(QPos, KPos, q_start, k_start, axes);
  if (prefix_len.axes().empty()) return mask | (arange(KPos) < prefix_len);
  return mask | broadcast_to(broadcast_axis(prefix_len, KPos) > arange(KPos), axes);
}
NamedArray forgetful_causal_mask(const Key& key, const Axis& KPos, double mask_prob,
                                 bool sample_prob, SourceLocation at) {
  CallSite here(at, CallSite::layer);
  if (mask_prob == 0) return ones(KPos, DType::boolean);
  auto first = arange(KPos) == 0;
  if (!sample_prob) return random::bernoulli(key, KPos, 1 - mask_prob) | first;
  auto [mask_key, drawn] = random::split<2>(key);
  return random::bernoulli(mask_key, KPos, 1. - random::uniform(drawn, {}, 0., mask_prob)) | first;
}

NamedArray zigzag(const Axis& Pos, int devices, SourceLocation at) {
  CallSite here(at, CallSite::layer);
  if (devices < 1 || Pos.size % (2 * std::int64_t(devices)))
    fail("zigzag", "axis {} does not divide into {} parts, two for each of {} devices", Pos,
         2 * std::int64_t(devices), devices);
  const auto part = Pos.size / (2 * devices);
  auto i = arange(Pos), device = floor_divide(i, 2 * part), within = i % (2 * part);
  return where(within < part, device * part + within, (2 * devices - 2 - device) * part + within);
}

static NamedArray combine(Arr a, Arr b, NamedArray (*by)(Arr, Arr)) {
  LayerScope scope(a);
  if (a.array().empty() || b.array().empty()) return a.array().empty() ? b : a;
  return by(a, broadcast_to(b, a.axes(), true, false));
}
NamedArray combine_masks_and(Arr a, Arr b) { return combine(a, b, logical_and); }
NamedArray combine_masks_or(Arr a, Arr b) { return combine(a, b, logical_or); }

NamedArray mask_to_bias(Arr mask, double value) {
  LayerScope scope(mask);
  return astype(mask, DType::f32) * value;
}

NamedArray alibi_attention_bias(const Axis& Heads, const Axis& KPos, double bias_max, DType dtype,
                                SourceLocation at) {
  CallSite here(at, CallSite::layer);
  if (Heads.size == 0) return zeros({Heads, KPos}, dtype);
  auto slopes = array(std::span<const double>(alibi_slopes(Heads.size, bias_max)), Heads);
  auto bias =
      broadcast_to(astype(slopes, DType::f32), {Heads, KPos}) * astype(arange(KPos), DType::f32);
  return astype(bias, dtype);
}

namespace {

constexpr auto kAttention = "attention";

NamedArray weights_of(const AxisSelection& KPos, const AxisSelector& Key, const Arr& query,
                      const Arr& key, const AttentionOptions& options) {
  constexpr auto op = kAttention;
  auto q_axes = query.axes(), k_axes = key.axes();
  auto need = [&](const char* whose, const Axes& axes, const AxisSelector& a) {
    if (!has(axes, a.name))
      fail(op, "axis {} is not in the {} {}{}", a.name, whose, axes, did_you_mean(a.name, axes));
  };
  if (KPos.all()) fail(op, "KPos must name the axes to attend to");
  for (auto& a : KPos.items()) {
    if (has(q_axes, a.name))
      fail(op,
           "the key position {} is also in the query {}; "
           "attended-to axes must be distinct, so rename one",
           a.name, q_axes);
    need("key", k_axes, a);
  }
  need("query", q_axes, Key);
  need("key", k_axes, Key);

  auto dtype = query.dtype();
  auto q = options.scaling_factor ? query * *options.scaling_factor
                                  : query / std::sqrt(double(query.resolve_axis(Key).size));
  NamedArray k = key;
  if (options.attention_dtype) {
    q = astype(q, *options.attention_dtype);
    k = astype(k, *options.attention_dtype);
  }

  auto scores = dot(q, k, {Key}, {.precision = options.precision});
  if (options.bias) scores = scores + *options.bias;
  if (options.mask) scores = where(*options.mask, scores, -1e9);
  return astype(softmax(scores, KPos), dtype);
}

}  // namespace

NamedArray dot_product_attention_weights(const AxisSelection& KPos, const AxisSelection& Key,
                                         Arr query, Arr key, AttentionOptions options) {
  LayerScope scope(query);
  const auto axes = query.axes();
  auto is_key = [&](const AxisSelection& s) {
    return !s.all() && s.items().size() == 1 && has(axes, s.items()[0].name);
  };
  auto of_query = [&](const AxisSelection& s) {
    return s.all() || std::any_of(s.items().begin(), s.items().end(),
                                  [&](auto& a) { return has(axes, a.name); });
  };
  // The order of Haliax: (Key, KPos).
  if (is_key(KPos) && !of_query(Key)) return weights_of(Key, KPos.items()[0], query, key, options);
  if (Key.all() || Key.items().size() != 1)
    fail(kAttention, "Key is one axis, such as the head size; {} are given",
         Key.all() ? std::string("all") : std::to_string(Key.items().size()));
  return weights_of(KPos, Key.items()[0], query, key, options);
}
NamedArray dot_product_attention(const AxisSelection& KPos, const AxisSelector& Key, Arr query,
                                 Arr key, Arr value, AttentionOptions options) {
  LayerScope scope(query);
  return dot(weights_of(KPos, Key, query, key, options), value, KPos,
             {.precision = options.precision});
}

}  // namespace haliax::nn
