// Convolutions and mixtures of experts, forward alone and forward with all gradients.
#include <utility>

#include "bench.h"
#include "haliax/conv.h"
#include "haliax/moe.h"

namespace bench {
namespace {

using namespace haliax;

// Returns two cases of a layer: NAME, and NAME_grad with the gradients of the layer and of its
// input. `multiplications` counts one forward pass.
template <class Layer>
std::vector<Case> layer_cases(const std::string& name, const std::string& shape, DType dtype,
                              double multiplications, Axes input, std::function<Layer()> init) {
  auto cast = [=](const Layer& layer) {
    return tree_map([=](const NamedArray& a) { return a.astype(dtype).eval(); }, layer);
  };
  auto x = [=] { return random::normal(random::key(1), input, dtype).eval(); };
  auto forward = [=] {
    return jitted([](const Layer& layer, const NamedArray& in) { return layer(in); }, cast(init()),
                  x());
  };
  auto gradient = [=] {
    auto f = [](const std::pair<Layer, NamedArray>& in, const NamedArray& cotangent) {
      auto apply = [](const std::pair<Layer, NamedArray>& t) { return t.first(t.second); };
      return vjp(apply, in).second(cotangent);
    };
    auto in = std::pair(cast(init()), x());
    auto y = in.first(in.second);
    return jitted(f, in, random::normal(random::key(2), y.axes(), dtype).eval());
  };
  auto gflop = 2e-9 * multiplications;
  return {{name, shape, dtype, gflop, "GFLOP/s", forward},
          {name + "_grad", shape, dtype, 3 * gflop, "GFLOP/s", gradient}};
}

// A gated MLP with as many active parameters as the experts of a token.
struct GatedMlp {
  nn::Linear gate, up, down;
  NamedArray operator()(const NamedArray& x) const { return down(nn::silu(gate(x)) * up(x)); }
};

}  // namespace

std::vector<Case> layer_cases(DType dtype) {
  const Axis Batch("batch", 8), Channel("channel", 96), Out("out", 96), Row("row", 56),
      Col("col", 56), Token("token", 2048), Embed("embed", 512), Mlp("mlp", 1024),
      Wide("wide", 2048), Experts("expert", 8);
  auto key = random::key(0);
  std::vector<Case> out;
  auto add = [&](std::vector<Case> more) {
    for (auto& c : more) out.push_back(std::move(c));
  };
  double image = 8. * 96 * 56 * 56;
  add(layer_cases<nn::Conv>(
      "conv", "[8, 96, 56, 56] 3x3", dtype, image * 96 * 9, {Batch, Channel, Row, Col}, [=] {
        return nn::Conv::init({"row", "col"}, Channel, Out, 3, key, {.padding = 1});
      }));
  add(layer_cases<nn::Conv>(
      "conv_depthwise", "[8, 96, 56, 56] 7x7", dtype, image * 49, {Batch, Channel, Row, Col}, [=] {
        return nn::Conv::init({"row", "col"}, Channel, Out, 7, key, {.padding = 3, .groups = 96});
      }));
  add(layer_cases<nn::ConvTranspose>("conv_transpose", "[8, 96, 56, 56] 4x4, stride 2", dtype,
                                     image * 96 * 16, {Batch, Channel, Row, Col}, [=] {
                                       return nn::ConvTranspose::init({"row", "col"}, Channel, Out,
                                                                      4, key,
                                                                      {.stride = 2, .padding = 1});
                                     }));
  double tokens = 2048. * 512 * 2048 * 3;
  add(layer_cases<nn::MoE>(
      "moe", "[2048, 512] 2 of 8 experts of 1024", dtype, tokens, {Token, Embed},
      [=] { return nn::MoE::init(Experts, Embed, Mlp, key, {.experts_per_token = 2}); }));
  add(layer_cases<GatedMlp>("dense", "[2048, 512] 2048", dtype, tokens, {Token, Embed}, [=] {
    nn::LinearOptions plain{.use_bias = false};
    return GatedMlp{nn::Linear::init(Embed, Wide, random::key(0), plain),
                    nn::Linear::init(Embed, Wide, random::key(1), plain),
                    nn::Linear::init(Wide, Embed, random::key(2), plain)};
  }));
  return out;
}

}  // namespace bench
