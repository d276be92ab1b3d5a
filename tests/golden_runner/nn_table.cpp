// Activations, layers, attention, losses and initializers.
#include "haliax/conv.h"
#include "haliax/losses.h"
#include "haliax/nn.h"

#include "table.h"

namespace golden {

using namespace haliax;

namespace {

bool flag(const Value& args, const char* name) { return args[name].as_flag(false); }

// Returns the axes with these names, with the size in the last input that has them: weights follow
// their inputs.
Axes sized(const Value& names, const Arrays& in) {
  Axes axes;
  for (Name n : names_of(names)) {
    Axis found(n, 1);
    for (const NamedArray& a : in)
      if (const auto all = a.axes(); const Axis* x = find_axis(all, n)) found = *x;
    axes.push_back(found);
  }
  return axes;
}
Axis one_sized(const Value& name, const Arrays& in) { return sized(name, in).at(0); }
// Reads [name, size], or a list of such pairs.
Axes one_or_more(const Value& v) {
  if (!v.items.empty() && v.items[0].is(Value::Kind::text)) return {axis_of(v)};
  return axes_of(v);
}
Arrays weights_of(const nn::Linear& l) {
  Arrays out{l.weight};
  if (l.bias) out.push_back(*l.bias);
  return out;
}
std::optional<NamedArray> next_if(bool wanted, const Arrays& in, std::size_t& next) {
  if (!wanted) return {};
  return input(in, next++);
}
Arr start_of(const Value& args, const char* name) {
  const Value* v = args.find(name);
  return v ? number_of(*v) : Arr(0);
}

template <class Norm> NamedArray normed(const Arrays& in, const Value& args) {
  std::size_t next = 1;
  Norm norm;
  norm.axis = sized(args["axis"], in);
  norm.weight = next_if(flag(args, "weight"), in, next);
  norm.bias = next_if(flag(args, "bias"), in, next);
  if (const Value* eps = args.find("eps")) norm.eps = eps->as_real();
  return norm(input(in, 0));
}
nn::Embedding embedding_of(const Arrays& in, const Value& args) {
  const Arrays weight{input(in, 0)};
  return {weight[0], one_sized(args["Vocab"], weight), sized(args["Embed"], weight)};
}

nn::AttentionOptions attention_options(const Arrays& in, const Value& args, std::size_t next) {
  nn::AttentionOptions o{.mask = next_if(flag(args, "mask"), in, next),
                         .bias = next_if(flag(args, "bias"), in, next),
                         .attention_dtype = golden::dtype_of(args["attention_dtype"])};
  if (flag(args, "causal")) {
    const NamedArray causal =
        nn::causal_mask(one_sized(args["QPos"], {in[0]}), one_sized(args["KPos"], {in[1]}));
    o.mask = o.mask ? nn::combine_masks_and(*o.mask, causal) : causal;
  }
  if (const Value* heads = args.find("alibi"); heads && *heads)
    o.bias = nn::alibi_attention_bias(one_sized(*heads, {in[0]}), one_sized(args["KPos"], {in[1]}));
  return o;
}

nn::LossOptions loss_options(const Arrays& in, const Value& args) {
  nn::LossOptions o;
  if (const Value* r = args.find("reduction")) {
    const std::string name = *r ? r->as_text() : "none";
    o.reduction = name == "none"  ? nn::Reduction::none
                  : name == "sum" ? nn::Reduction::sum
                                  : nn::Reduction::mean;
  }
  o.reduction_axis = selection_of(args["reduction_axis"]);
  if (flag(args, "where")) o.where = input(in, 2);
  return o;
}

void add_activations(Table& t) {
  const std::pair<const char*, nn::Activation> all[] = {{"relu", nn::relu},
                                                        {"relu6", nn::relu6},
                                                        {"relu_squared", nn::relu_squared},
                                                        {"leaky_relu", nn::leaky_relu},
                                                        {"elu", nn::elu},
                                                        {"celu", nn::celu},
                                                        {"selu", nn::selu},
                                                        {"quick_gelu", nn::quick_gelu},
                                                        {"sigmoid", nn::sigmoid},
                                                        {"log_sigmoid", nn::log_sigmoid},
                                                        {"silu", nn::silu},
                                                        {"softplus", nn::softplus},
                                                        {"soft_sign", nn::soft_sign},
                                                        {"hard_sigmoid", nn::hard_sigmoid},
                                                        {"hard_silu", nn::hard_silu},
                                                        {"hard_tanh", nn::hard_tanh}};
  for (auto [name, f] : all)
    t[std::string("nn.") + name] = [f = f](const Arrays& in, const Value&) {
      return Arrays{f(input(in, 0))};
    };
  t["nn.swish"] = [](const Arrays& in, const Value&) { return Arrays{nn::swish(input(in, 0))}; };
  t["nn.hard_swish"] = [](const Arrays& in, const Value&) {  // only found by name
    return Arrays{nn::activation("hard_swish")(input(in, 0))};
  };
  t["nn.gelu"] = [](const Arrays& in, const Value& args) {
    return Arrays{nn::gelu(input(in, 0), args["approximate"].as_flag(true))};
  };
  t["nn.glu"] = [](const Arrays& in, const Value& args) {
    return Arrays{nn::glu(input(in, 0), selector_of(args["axis"]))};
  };
}

void add_layers(Table& t) {
  t["nn.linear"] = [](const Arrays& in, const Value& args) {
    std::size_t next = 2;
    const Arrays weight{input(in, 1)};
    const nn::Linear layer{weight[0], next_if(flag(args, "bias"), in, next),
                           sized(args["In"], weight), sized(args["Out"], weight)};
    return Arrays{layer(input(in, 0))};
  };
  t["nn.layer_norm"] = [](const Arrays& in, const Value& args) {
    return Arrays{normed<nn::LayerNorm>(in, args)};
  };
  t["nn.rms_norm"] = [](const Arrays& in, const Value& args) {
    return Arrays{normed<nn::RmsNorm>(in, args)};
  };
  t["nn.embed"] = [](const Arrays& in, const Value& args) {
    return Arrays{embedding_of(in, args).embed(input(in, 1))};
  };
  t["nn.unembed"] = [](const Arrays& in, const Value& args) {
    return Arrays{embedding_of(in, args).unembed(input(in, 1))};
  };
  t["nn.dropout"] = [](const Arrays& in, const Value& args) {
    nn::DropoutOptions o{.broadcast_axes = {}, .inference = flag(args, "inference")};
    if (const Value* axes = args.find("broadcast_axes"); axes && *axes)
      o.broadcast_axes = names_of(*axes);
    const Value& seed = args["seed"];
    return Arrays{nn::dropout(input(in, 0), args["pdrop"].as_real(),
                              seed ? random::key(seed.as_integer()) : Key{}, o)};
  };
  t["nn.mlp"] = [](const Arrays& in, const Value& args) {
    const std::string& name = args["activation"].as_text();
    nn::Mlp mlp{.layers = {},
                // Haliax's gelu is the tanh approximation.
                .activation = name == "gelu" ? nn::Activation(nn::gelu) : nn::activation(name)};
    std::size_t next = 1;
    for (const Value& l : args["layers"].items) {
      const Arrays weight{input(in, next++)};
      mlp.layers.push_back({weight[0], next_if(l.at(2).as_flag(false), in, next),
                            sized(l.at(0), weight), sized(l.at(1), weight)});
    }
    return Arrays{mlp(input(in, 0))};
  };
}

// Reads an integer, or a list of integers.
nn::PerAxis per_axis(const Value& v, std::int64_t otherwise) {
  if (!v) return otherwise;
  if (v.items.empty()) return v.as_integer();
  std::vector<std::int64_t> each;
  for (const Value& n : v.items) each.push_back(n.as_integer());
  return each;
}
// Reads a name, an integer, or a list of integers or pairs.
nn::Padding padding_of(const Value* v) {
  if (!v || !*v) return "VALID";
  if (v->is(Value::Kind::text)) return std::string_view(v->as_text());
  if (v->items.empty()) return v->as_integer();
  if (v->items[0].items.empty()) return per_axis(*v, 0);
  std::vector<nn::Padding::Pair> pairs;
  for (const Value& p : v->items) pairs.push_back({p.at(0).as_integer(), p.at(1).as_integer()});
  return pairs;
}
std::int64_t groups_of(const Value& args) {
  const Value* groups = args.find("groups");
  return groups ? groups->as_integer() : 1;
}
template <class Layer> Layer conv_layer(const Arrays& in, const Value& args) {
  std::size_t next = 2;
  Layer layer;
  layer.weight = input(in, 1);
  layer.bias = next_if(flag(args, "bias"), in, next);
  layer.Spatial = names_of(args["Spatial"]);
  layer.In = one_sized(args["In"], {input(in, 0)});
  layer.Out = one_sized(args["Out"], {layer.weight});
  layer.kernel_size = per_axis(args["kernel_size"], 1);
  layer.stride = per_axis(args["stride"], 1);
  layer.padding = padding_of(args.find("padding"));
  layer.dilation = per_axis(args["dilation"], 1);
  layer.groups = groups_of(args);
  return layer;
}
using Pool = NamedArray (*)(Arr, const AxisSpec&, nn::PoolOptions);

void add_convolutions(Table& t) {
  t["nn.conv"] = [](const Arrays& in, const Value& args) {
    return Arrays{conv_layer<nn::Conv>(in, args)(input(in, 0))};
  };
  t["nn.conv_transpose"] = [](const Arrays& in, const Value& args) {
    auto layer = conv_layer<nn::ConvTranspose>(in, args);
    layer.output_padding = per_axis(args["output_padding"], 0);
    return Arrays{layer(input(in, 0))};
  };
  t["nn.conv_init"] = [](const Arrays&, const Value& args) {
    const auto layer =
        nn::Conv::init(names_of(args["Spatial"]), axis_of(args["In"]), axis_of(args["Out"]),
                       per_axis(args["kernel_size"], 1), random::key(args["seed"].as_integer()),
                       {.stride = per_axis(args["stride"], 1),
                        .padding = padding_of(args.find("padding")),
                        .dilation = per_axis(args["dilation"], 1),
                        .groups = groups_of(args),
                        .use_bias = args["use_bias"].as_flag(true)});
    Arrays out{layer.weight};
    if (layer.bias) out.push_back(*layer.bias);
    return out;
  };
  for (auto [name, pool] : {std::pair<const char*, Pool>{"nn.max_pool", nn::max_pool},
                            {"nn.min_pool", nn::min_pool},
                            {"nn.mean_pool", nn::mean_pool}})
    t[name] = [pool = pool](const Arrays& in, const Value& args) {
      return Arrays{pool(input(in, 0), one_or_more(args["Window"]),
                         {.stride = per_axis(args["stride"], 1),
                          .padding = padding_of(args.find("padding")),
                          .use_ceil = args["use_ceil"].as_flag(false),
                          .count_include_pad = args["count_include_pad"].as_flag(false)})};
    };
}

void add_attention(Table& t) {
  t["nn.attention"] = [](const Arrays& in, const Value& args) {
    return Arrays{nn::dot_product_attention(selection_of(args["KPos"]), selector_of(args["Key"]),
                                            input(in, 0), input(in, 1), input(in, 2),
                                            attention_options(in, args, 3))};
  };
  t["nn.attention_weights"] = [](const Arrays& in, const Value& args) {
    return Arrays{nn::dot_product_attention_weights(selection_of(args["KPos"]),
                                                    selector_of(args["Key"]), input(in, 0),
                                                    input(in, 1), attention_options(in, args, 2))};
  };
  // Keys and values have positions with another name than the queries.
  t["nn.self_attention"] = [](const Arrays& in, const Value& args) {
    const Arrays q{input(in, 0)};
    const Axis Pos = one_sized(args["Pos"], q),
               KPos = Pos.alias("key_" + std::string(Pos.name.text()));
    nn::AttentionOptions o;
    if (flag(args, "is_causal")) o.mask = nn::causal_mask(Pos, KPos);
    return Arrays{nn::dot_product_attention(KPos, selector_of(args["Key"]), q[0],
                                            rename(input(in, 1), Pos, KPos),
                                            rename(input(in, 2), Pos, KPos), o)};
  };
  t["nn.causal_mask"] = [](const Arrays&, const Value& args) {
    return Arrays{nn::causal_mask(axis_of(args["QPos"]), axis_of(args["KPos"]),
                                  start_of(args, "q_start"), start_of(args, "k_start"))};
  };
  t["nn.prefix_lm_mask"] = [](const Arrays&, const Value& args) {
    return Arrays{nn::prefix_lm_mask(axis_of(args["QPos"]), axis_of(args["KPos"]),
                                     number_of(args["prefix_len"]), start_of(args, "q_start"),
                                     start_of(args, "k_start"))};
  };
  t["nn.alibi_attention_bias"] = [](const Arrays&, const Value& args) {
    const Value* most = args.find("bias_max");
    return Arrays{nn::alibi_attention_bias(axis_of(args["Heads"]), axis_of(args["KPos"]),
                                           most ? most->as_real() : 8,
                                           dtype_or(args["dtype"], DType::f32))};
  };
  t["nn.mask_to_bias"] = [](const Arrays& in, const Value&) {
    return Arrays{nn::mask_to_bias(input(in, 0))};
  };
  t["nn.combine_masks_and"] = [](const Arrays& in, const Value&) {
    return Arrays{nn::combine_masks_and(input(in, 0), input(in, 1))};
  };
  t["nn.combine_masks_or"] = [](const Arrays& in, const Value&) {
    return Arrays{nn::combine_masks_or(input(in, 0), input(in, 1))};
  };
  t["nn.forgetful_causal_mask"] = [](const Arrays&, const Value& args) {
    return Arrays{nn::forgetful_causal_mask(random::key(args["seed"].as_integer()),
                                            axis_of(args["KPos"]), args["mask_prob"].as_real(),
                                            args["sample_prob"].as_flag(true))};
  };
}

void add_losses(Table& t) {
  t["nn.cross_entropy_loss"] = [](const Arrays& in, const Value& args) {
    return Arrays{nn::cross_entropy_loss(input(in, 0), selector_of(args["Label"]), input(in, 1),
                                         loss_options(in, args))};
  };
  t["nn.cross_entropy_loss_and_log_normalizers"] = [](const Arrays& in, const Value& args) {
    auto [loss, normalizers] = nn::cross_entropy_loss_and_log_normalizers(
        input(in, 0), selector_of(args["Label"]), input(in, 1));
    return Arrays{loss, normalizers};
  };
  t["nn.binary_cross_entropy_loss"] = [](const Arrays& in, const Value& args) {
    return Arrays{
        nn::binary_cross_entropy_loss(input(in, 0), input(in, 1), loss_options(in, args))};
  };
}

void add_initialisers(Table& t) {
  t["nn.linear_init"] = [](const Arrays&, const Value& args) {
    return weights_of(nn::Linear::init(one_or_more(args["In"]), one_or_more(args["Out"]),
                                       random::key(args["seed"].as_integer()),
                                       {.use_bias = args["use_bias"].as_flag(true),
                                        .out_first = args["out_first"].as_flag(true)}));
  };
  t["nn.embedding_init"] = [](const Arrays&, const Value& args) {
    const Value* scale = args.find("init_scale");
    return Arrays{nn::Embedding::init(axis_of(args["Vocab"]), one_or_more(args["Embed"]),
                                      random::key(args["seed"].as_integer()),
                                      {.init_scale = scale ? scale->as_real() : 1})
                      .weight};
  };
  t["nn.mlp_init"] = [](const Arrays&, const Value& args) {
    Arrays out;
    const auto mlp = nn::Mlp::init(one_or_more(args["Input"]), one_or_more(args["Output"]),
                                   args["width"].as_integer(), int(args["depth"].as_integer()),
                                   random::key(args["seed"].as_integer()),
                                   {.use_bias = args["use_bias"].as_flag(true),
                                    .use_final_bias = args["use_final_bias"].as_flag(true)});
    for (const nn::Linear& l : mlp.layers)
      for (const NamedArray& a : weights_of(l)) out.push_back(a);
    return out;
  };
  t["nn.stacked_linear_init"] = [](const Arrays&, const Value& args) {
    const Axis Block = axis_of(args["Block"]);
    const AxisSpec In = one_or_more(args["In"]), Out = one_or_more(args["Out"]);
    auto make = [&](const Key& key) { return nn::Linear::init(In, Out, key); };
    return weights_of(nn::Stacked<nn::Linear>::init(
                          Block, make, random::split(random::key(args["seed"].as_integer()), Block))
                          .stacked);
  };
}

}  // namespace

void add_nn_ops(Table& t) {
  add_activations(t);
  add_layers(t);
  add_convolutions(t);
  add_attention(t);
  add_losses(t);
  add_initialisers(t);
}

}  // namespace golden
