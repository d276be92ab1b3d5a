// A small training run whose state has every kind of value that a checkpoint must restore: layers,
// moments, a count, a key that each step replaces.
#pragma once
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "haliax/haliax.h"

namespace haliax::testing {

inline const Axis Batch("batch", 4), Embed("embed", 8), Mlp("mlp", 12), Layers("layers", 3);

struct Block {
  nn::Linear up, down;
  NamedArray operator()(const NamedArray& x) const { return x + down(nn::gelu(up(x))); }
};
struct Net {
  nn::Stacked<Block> blocks;
  nn::LayerNorm norm;
  static Net init(const Key& key) {
    auto block = [](const Key& k) {
      auto [k_up, k_down] = random::split<2>(k);
      return Block{nn::Linear::init(Embed, Mlp, k_up), nn::Linear::init(Mlp, Embed, k_down)};
    };
    return {nn::Stacked<Block>::init(Layers, block, random::split(key, Layers)),
            nn::LayerNorm::init(Embed)};
  }
  NamedArray operator()(const NamedArray& x) const { return norm(blocks.fold(x)); }
};
using NetState = optim::State<optim::AdamW, Net>;
struct Training {
  Net model;
  NetState state;
  Key key;
  static Training init() {
    auto model = Net::init(random::key(0));
    return {model, optim::adamw({.learning_rate = 1e-2}).init(model), random::key(7)};
  }
};

// The mesh and the mapping of the training state; without a mesh, one device.
struct Layout {
  const char* name;
  Mesh mesh = {};
  Mapping params = {};
  bool on_mesh() const { return !mesh.axes().empty(); }
};
inline std::vector<Layout> layouts() {
  return {
      {"one device"},
      {"data=4", Mesh{{{"data", 4}}}, {{"embed", "data"}}},
      {"data=2,model=2", Mesh{{{"data", 2}, {"model", 2}}}, {{"embed", "data"}, {"mlp", "model"}}},
      {"data=3", Mesh{{{"data", 3}}}, {{"embed", "data"}}},  // blocks of 3, 3 and 2
      {"layers", Mesh{{{"stage", 2}, {"model", 2}}}, {{"layers", "stage"}}},
      {"copies", Mesh{{{"data", 2}}}, Mapping{}}};
}

inline Training initialized(const Layout& l) {
  if (!l.on_mesh()) return jit(&Training::init)();
  return named_jit(&Training::init, {.mesh = l.mesh, .axis_resources = l.params})();
}
// Compiles a training step for a layout: training -> (next training, loss).
inline auto step_on(const Layout& l) {
  auto step = [](const Training& t) {
    auto [now, next] = random::split<2>(t.key);
    auto x = random::normal(now, {Batch, Embed});
    auto loss = [&](const Net& m) { return mean(square(m(x) - roll(x, 1, Embed))); };
    auto [l, grads] = value_and_grad(loss)(t.model);
    auto [updates, state] = optim::adamw({.learning_rate = 1e-2}).update(grads, t.state, t.model);
    return std::pair(Training{optim::apply_updates(t.model, updates), state, next}, l);
  };
  using Step = Jitted<std::pair<Training, NamedArray>(const Training&)>;
  return l.on_mesh()
             ? Step(named_jit(step, {.donate = {0}, .mesh = l.mesh, .axis_resources = l.params}))
             : Step(jit(step, {.donate = {0}}));
}
// Runs `steps` steps and returns their losses.
template <class Step> std::vector<double> trained(Training& t, const Step& step, int steps) {
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) {
    auto [next, loss] = step(t);
    t = std::move(next);
    losses.push_back(loss.item());
  }
  return losses;
}
// Returns the bytes of all arrays, in the order of the tree. Gathers sharded arrays.
template <class T> std::vector<std::vector<std::byte>> bytes_of_all(const T& tree) {
  std::vector<std::vector<std::byte>> out;
  for (auto& a : flatten(tree)) out.push_back(a.empty() ? std::vector<std::byte>() : a.bytes());
  return out;
}

}  // namespace haliax::testing
