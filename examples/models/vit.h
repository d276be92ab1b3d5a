// Vision transformer: patches of an image as tokens, a class token, learned positions.
//
// Formulas: Dosovitskiy et al. 2021 (arXiv 2010.11929), and the class ViTForImageClassification of
// transformers. `state_names` and `state_fields` list its names of tensors, where the fields have
// others. The model has no batch axis: arrays simply have it.
#pragma once
#include <cmath>

#include "haliax/haliax.h"
#include "haliax/state_dict.h"

namespace models {

using namespace haliax;

// The fields have the names of config.json.
struct ViTConfig {
  static constexpr bool is_static = true;
  std::int64_t hidden_size = 768, num_hidden_layers = 12, num_attention_heads = 12;
  std::int64_t intermediate_size = 3072, image_size = 224, patch_size = 16, num_channels = 3;
  std::int64_t num_labels = 1000;
  nn::Activation hidden_act = nn::gelu_exact;
  double layer_norm_eps = 1e-12;
  double initializer_range = 0.02;  // standard deviation of the initial weights
  bool operator==(const ViTConfig&) const = default;

  Axis Layers() const { return {"layers", num_hidden_layers}; }
  Axis Embed() const { return {"embed", hidden_size}; }
  Axis Mlp() const { return {"mlp", intermediate_size}; }
  Axis Heads() const { return {"heads", num_attention_heads}; }
  Axis HeadSize() const { return {"head_size", hidden_size / num_attention_heads}; }
  Axis Label() const { return {"label", num_labels}; }
  // The class token, and the patches of an image row by row.
  Axis Pos() const {
    auto side = image_size / patch_size;
    return {"pos", side * side + 1};
  }
  // Initializes a projection with a bias.
  nn::Linear linear(const AxisSpec& In, const AxisSpec& Out, const Key& key) const {
    double inputs = 1;
    for (auto& axis : In.axes()) inputs *= double(axis.size);
    return nn::Linear::init(In, Out, key, {.init_scale = initializer_range * std::sqrt(inputs)});
  }
};

// A convolution whose stride is its width: each patch is one contraction.
struct ViTPatchEmbeddings {
  NamedArray weight;  // (embed, channels, patch_height, patch_width)
  NamedArray bias;    // (embed)

  static ViTPatchEmbeddings init(const ViTConfig& c, const Key& key) {
    Axes each{c.Embed(), Axis("channels", c.num_channels), Axis("patch_height", c.patch_size),
              Axis("patch_width", c.patch_size)};
    return {random::truncated_normal(key, each, -2, 2) * c.initializer_range, zeros(c.Embed())};
  }
  // images (..., channels, height, width) -> (..., patches, embed)
  NamedArray operator()(const NamedArray& images) const {
    auto split_axis = [&](const NamedArray& x, const char* axis, const char* count, Axis patch) {
      return unflatten_axis(x, axis, {Axis(count, x.resolve_axis(axis).size / patch.size), patch});
    };
    auto x = split_axis(images, "height", "rows", weight.resolve_axis("patch_height"));
    x = split_axis(x, "width", "columns", weight.resolve_axis("patch_width"));
    x = flatten_axes(x, {"rows", "columns"}, "patches");
    return dot(x, weight, {"channels", "patch_height", "patch_width"}) + bias;
  }
};

struct ViTEmbeddings {
  NamedArray cls_token;            // (embed)
  NamedArray position_embeddings;  // (pos, embed)
  ViTPatchEmbeddings patch_embeddings;

  static ViTEmbeddings init(const ViTConfig& c, const Key& key) {
    auto [k_token, k_positions, k_patches] = random::split<3>(key);
    auto draw = [&](const Key& k, const AxisSpec& axes) {
      return random::truncated_normal(k, axes, -2, 2) * c.initializer_range;
    };
    return {draw(k_token, c.Embed()), draw(k_positions, {c.Pos(), c.Embed()}),
            ViTPatchEmbeddings::init(c, k_patches)};
  }
  // images (..., channels, height, width) -> (..., pos, embed)
  NamedArray operator()(const NamedArray& images) const {
    auto patches = rename(patch_embeddings(images), {{"patches", "pos"}});
    // The class token is at position 0.
    auto token = broadcast_axis(cls_token, Axis("pos", 1));
    auto patch_count = patches.resolve_axis("pos").size;
    return pad(patches, {{"pos", {1, 0}}}) +
           (pad(token, {{"pos", {0, patch_count}}}) + position_embeddings);
  }
  // The file has dimensions of size 1 for the batch, and for the position of the class token.
  void state_fields(StateFields& fields) {
    fields.array("cls_token", cls_token, {.dims = {{{}, {}, {"embed"}}}});
    fields.array("position_embeddings", position_embeddings, {.dims = {{{}, {"pos"}, {"embed"}}}});
    fields.field("patch_embeddings.projection", patch_embeddings);
  }
};

struct ViTLayer {
  nn::LayerNorm layernorm_before;
  nn::Linear query, key, value;  // (embed) -> (heads, head_size)
  nn::Linear attention_output;   // (heads, head_size) -> (embed)
  nn::LayerNorm layernorm_after;
  nn::Linear intermediate, output;  // (embed) -> (mlp) -> (embed)
  nn::Activation act;

  static ViTLayer init(const ViTConfig& c, const Key& random_key) {
    auto [k_query, k_key, k_value, k_out, k_up, k_down] = random::split<6>(random_key);
    nn::NormOptions norm{.eps = c.layer_norm_eps};
    AxisSpec heads{c.Heads(), c.HeadSize()};
    return {.layernorm_before = nn::LayerNorm::init(c.Embed(), norm),
            .query = c.linear(c.Embed(), heads, k_query),
            .key = c.linear(c.Embed(), heads, k_key),
            .value = c.linear(c.Embed(), heads, k_value),
            .attention_output = c.linear(heads, c.Embed(), k_out),
            .layernorm_after = nn::LayerNorm::init(c.Embed(), norm),
            .intermediate = c.linear(c.Embed(), c.Mlp(), k_up),
            .output = c.linear(c.Mlp(), c.Embed(), k_down),
            .act = c.hidden_act};
  }
  // x (..., pos, embed) -> (..., pos, embed)
  NamedArray operator()(const NamedArray& x) const {
    auto Pos = x.resolve_axis("pos"), KeyPos = Pos.alias("key_pos");
    auto y = layernorm_before(x);
    auto k = rename(key(y), Pos, KeyPos), v = rename(value(y), Pos, KeyPos);
    auto h = x + attention_output(nn::dot_product_attention(KeyPos, "head_size", query(y), k, v));
    return h + output(act(intermediate(layernorm_after(h))));
  }
  static StateNames state_names() {
    return {{"query", "attention.attention.query"}, {"key", "attention.attention.key"},
            {"value", "attention.attention.value"}, {"attention_output", "attention.output.dense"},
            {"intermediate", "intermediate.dense"}, {"output", "output.dense"}};
  }
};

struct ViTModel {
  ViTEmbeddings embeddings;
  nn::Stacked<ViTLayer> encoder;
  nn::LayerNorm layernorm;

  static ViTModel init(const ViTConfig& c, const Key& key) {
    auto [k_embeddings, k_layers] = random::split<2>(key);
    auto layer = [c](const Key& k) { return ViTLayer::init(c, k); };
    return {ViTEmbeddings::init(c, k_embeddings),
            nn::Stacked<ViTLayer>::init(c.Layers(), layer, random::split(k_layers, c.Layers())),
            nn::LayerNorm::init(c.Embed(), {.eps = c.layer_norm_eps})};
  }
  // images (..., channels, height, width) -> (..., pos, embed)
  NamedArray operator()(const NamedArray& images) const {
    return layernorm(encoder.fold(embeddings(images)));
  }
  static StateNames state_names() { return {{"encoder", "encoder.layer"}}; }
};

struct ViTForImageClassification {
  ViTModel vit;
  nn::Linear classifier;  // (embed) -> (label)

  static ViTForImageClassification init(const ViTConfig& c, const Key& key) {
    auto [k_model, k_head] = random::split<2>(key);
    return {ViTModel::init(c, k_model), c.linear(c.Embed(), c.Label(), k_head)};
  }
  // images (..., channels, height, width) -> logits (..., label)
  NamedArray operator()(const NamedArray& images) const {
    return classifier(at(vit(images), "pos", 0));
  }
  // Returns the mean loss of the classes: labels (...)
  NamedArray loss(const NamedArray& images, const NamedArray& labels) const {
    return nn::cross_entropy_loss((*this)(images), "label", labels);
  }
};

}  // namespace models
