// Tests of stacks of blocks: Stacked and BlockSeq agree, and checkpoint policies save the values
// that they list.
#include <doctest/doctest.h>

#include "graph/loop.h"
#include "haliax/haliax.h"
#include "haliax/state_dict.h"
#include "support/near.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis Batch("batch", 2), Embed("embed", 4), Hidden("hidden", 6), Layers("layers", 4);

struct ResidualBlock {
  nn::Linear up, down;
  NamedArray scale;

  static ResidualBlock init(const Key& key) {
    auto [k_up, k_down, k_scale] = random::split<3>(key);
    return {nn::Linear::init(Embed, Hidden, k_up), nn::Linear::init(Hidden, Embed, k_down),
            random::uniform(k_scale, {})};
  }
  NamedArray operator()(const NamedArray& x) const {
    auto h = tree_checkpoint_name(tanh(up(x)), "hidden");
    return x + scale * down(sin(h));
  }
  NamedArray operator()(const NamedArray& x, const NamedArray& shift) const {
    return (*this)(x) + shift;
  }
  std::pair<NamedArray, NamedArray> with_mean(const NamedArray& x) const {
    return {(*this)(x), mean(x, Embed)};
  }
};
bool near(const NamedArray& got, const NamedArray& expected, double tolerance = 1e-5) {
  const auto text = difference(got, expected, tolerance);
  CHECK(text == "");
  return text.empty();
}
const auto keys = [] { return random::split(random::key(0), Layers); };

}  // namespace

TEST_CASE("block_seq: folds, scans and vmaps as a Stacked, with the same names in a state dict") {
  auto stacked = nn::Stacked<ResidualBlock>::init(Layers, ResidualBlock::init, keys());
  auto seq = nn::BlockSeq<ResidualBlock>::init(Layers, ResidualBlock::init, keys());
  CHECK(seq.blocks.size() == 4);
  auto x = random::normal(random::key(1), {Batch, Embed});
  auto shifts = random::normal(random::key(2), Layers);
  CHECK(near(seq.fold(x), stacked.fold(x)));
  CHECK(near(seq.fold(x, shifts), stacked.fold(x, shifts)));  // one shift per layer
  auto twice = [](const ResidualBlock& b, const NamedArray& c, const NamedArray& s) {
    return b(b(c), s);
  };
  CHECK(near(seq.fold_via(twice)(x, shifts), stacked.fold_via(twice)(x, shifts)));
  auto emit = [](const ResidualBlock& b, const NamedArray& c) { return b.with_mean(c); };
  auto [y1, m1] = seq.scan_via(emit)(x);
  auto [y2, m2] = stacked.scan_via(emit)(x);
  CHECK(m1.axes() == make_axes(Layers, Batch));
  CHECK(near(y1, y2));
  CHECK(near(m1, m2));
  CHECK(stacked.vmap(x).axes() == make_axes(Layers, Batch, Embed));
  CHECK(near(seq.vmap(x), stacked.vmap(x)));
  CHECK(near(seq.vmap_via(twice)(x, shifts), stacked.vmap_via(twice)(x, shifts)));
  CHECK(near(at(stacked.vmap(x), Layers, 2), stacked.get_layer(2)(x)));
  CHECK(near(seq.get_layer(3)(x), seq.unstacked()[3](x)));

  // A tree as the carry.
  using Two = std::pair<NamedArray, NamedArray>;
  auto swap = [](const ResidualBlock& b, const Two& c) { return Two{b(c.second), c.first}; };
  auto a = seq.fold_via(swap)(Two{x, x * 2.}), b = stacked.fold_via(swap)(Two{x, x * 2.});
  CHECK(near(a.first, b.first));

  CHECK(tree_paths(seq)[0] == "0.up.weight");
  struct Model {
    nn::BlockSeq<ResidualBlock> h;
  };
  struct Model2 {
    nn::Stacked<ResidualBlock> h;
  };
  const Model model{seq};
  CHECK(tree_paths(model)[0] == "h.0.up.weight");
  auto names = [](const TensorFile& file) {
    std::vector<std::string> out;
    for (auto& t : file.tensors) out.push_back(t.name);
    return out;
  };
  auto file = to_state_dict(model);
  CHECK(names(file) == names(to_state_dict(Model2{stacked})));
  auto loaded = from_state_dict(
      file, Model{nn::BlockSeq<ResidualBlock>::init(Layers, ResidualBlock::init,
                                                    random::split(random::key(9), Layers))});
  CHECK(near(loaded.h.fold(x), seq.fold(x)));

  auto wrong = seq;
  wrong.blocks.pop_back();
  raises([&] { wrong.fold(x); }, {"[block_seq] there are 3 blocks", "layers=4"});
  raises([&] { seq.get_layer(4); }, {"there is no layer 4"});
}

TEST_CASE("block_seq: blocks may differ in their static fields") {
  struct Layer {
    nn::Linear f;
    nn::Activation activation;
    NamedArray operator()(const NamedArray& x) const {
      return activation(f(x).rename("hidden", "embed"));
    }
  };
  auto make = [](const Key& key) {
    return Layer{nn::Linear::init(Embed, Embed.alias("hidden"), key), nn::relu};
  };
  auto seq = nn::BlockSeq<Layer>::init(Layers, make, keys());
  seq.blocks[1].activation = nn::silu;
  auto x = ones(Embed);
  auto y = x;
  for (auto& b : seq.blocks) y = b(y);
  CHECK(near(seq.fold(x), y));
  CHECK(near(
      jit([](const nn::BlockSeq<Layer>& s, const NamedArray& x) { return s.fold(x); })(seq, x), y));
}

TEST_CASE("stacked: options of init set the policy, and unroll changes no value") {
  auto x = random::normal(random::key(1), {Batch, Embed});
  auto plain = nn::Stacked<ResidualBlock>::init(Layers, ResidualBlock::init, keys());
  auto s = nn::Stacked<ResidualBlock>::init(
      Layers, {.gradient_checkpointing = "nested", .unroll = 2}, ResidualBlock::init, keys());
  CHECK(s.gradient_checkpointing == ScanCheckpoint("nested"));
  CHECK(s.unroll == 2);
  CHECK(near(s.fold(x), plain.fold(x)));
}

TEST_CASE("checkpoint policies: gradients are equal, whatever is saved") {
  auto x = random::normal(random::key(1), {Batch, Embed});
  auto plain = nn::Stacked<ResidualBlock>::init(Layers, ResidualBlock::init, keys());
  auto seq = nn::BlockSeq<ResidualBlock>::init(Layers, ResidualBlock::init, keys());
  auto loss = [&](const auto& m) { return sum(square(m.fold(x))); };
  const auto expected = flatten(grad(loss)(plain));
  const auto second = [&](const auto& m) {
    Leaves g = flatten(grad(loss)(m));
    NamedArray total = 0.;
    for (auto& a : g) total = total + sum(square(a));
    return total;
  };
  const auto expected_second = flatten(grad(second)(plain));
  const ScanCheckpoint policies[] = {
      "none",
      "carries",
      "nested",
      "offload",
      ScanCheckpointPolicy{},
      ScanCheckpointPolicy{.save_block_internals = {"hidden"}},
      ScanCheckpointPolicy{.save_block_internals = true},
      ScanCheckpointPolicy{
          .save_carries = false, .save_inputs = true, .offload_block_internals = {"hidden"}},
      ScanCheckpointPolicy{.save_block_internals = {"hidden", "absent"}, .nested = true},
      ScanCheckpointPolicy{.nested = 2},
      ScanCheckpointPolicy{.nested = 4},
      ScanCheckpointPolicy{.disable = true}};
  for (auto& policy : policies) {
    CAPTURE(int(policy.policy));
    CAPTURE(policy.blocks);
    CAPTURE(policy.saved.size());
    plain.gradient_checkpointing = policy;
    seq.gradient_checkpointing = policy;
    auto g = flatten(grad(loss)(plain)), d = flatten(jit(grad(second))(plain));
    auto of_seq = grad(loss)(seq);
    for (std::size_t k = 0; k < expected.size(); ++k) {
      CHECK(near(g[k], expected[k]));
      CHECK(near(d[k], expected_second[k], 1e-4));
      CHECK(near(flatten(of_seq.blocks[1])[k], at(expected[k], Layers, 1)));
    }
  }
}

TEST_CASE("checkpoint policies: a value with a saved name is not recomputed") {
  auto x = random::normal(random::key(1), {Batch, Embed});
  auto blocks = nn::Stacked<ResidualBlock>::init(Layers, ResidualBlock::init, keys());
  auto loss = [&](const nn::Stacked<ResidualBlock>& m) { return sum(square(m.fold(x))); };
  // The number of tanh in the graph: one in the forward loop, and one where it is recomputed.
  auto tanhs = [&](const ScanCheckpoint& policy) {
    auto m = blocks;
    m.gradient_checkpointing = policy;
    Nodes roots;
    for (auto& a : flatten(grad(loss)(m))) roots.push_back(a.node());
    const std::string text = to_string(roots);
    std::size_t count = 0;
    for (auto at = text.find("tanh"); at != text.npos; at = text.find("tanh", at + 1)) ++count;
    return count;
  };
  const auto recomputed = tanhs(true);
  CHECK(tanhs(ScanCheckpointPolicy{.save_block_internals = {"hidden"}}) < recomputed);
  CHECK(tanhs(ScanCheckpointPolicy{.save_block_internals = {"other"}}) == recomputed);
}

TEST_CASE("checkpoint: the backward pass of a function reads intermediates with a saved name") {
  auto x = random::normal(random::key(1), {Batch, Embed});
  auto f = [](const NamedArray& x) {
    auto h = tree_checkpoint_name(exp(x), "h");
    return sum(sin(h) * h);
  };
  auto plain = grad(f)(x);
  CHECK(near(grad(checkpoint(f))(x), plain));
  CHECK(near(grad(checkpoint(f, {"h"}))(x), plain));
  CHECK(near(grad(checkpoint(f, {"other"}))(x), plain));
  auto twice = [&](auto g) {
    return grad([&](const NamedArray& x) { return sum(square(grad(g)(x))); });
  };
  CHECK(near(twice(checkpoint(f, {"h"}))(x), twice(f)(x), 1e-4));
  raises([&] { tree_checkpoint_name(x, ""); }, {"[tree_checkpoint_name] the name is empty"});
}

TEST_CASE("checkpoint policies: invalid ones raise") {
  raises([] { ScanCheckpoint("offlod"); },
         {"[checkpoint] there is no policy offlod", "did you mean offload?"});
  raises(
      [] {
        ScanCheckpoint(
            ScanCheckpointPolicy{.save_block_internals = true, .offload_block_internals = {"a"}});
      },
      {"[checkpoint] all intermediates are saved", "list the names"});
  raises([] { ScanCheckpoint(ScanCheckpointPolicy{.nested = -1}); }, {"nested is -1"});
  auto blocks = nn::Stacked<ResidualBlock>::init(
      Layers, {.gradient_checkpointing = ScanCheckpointPolicy{.nested = 3}}, ResidualBlock::init,
      keys());
  raises([&] { blocks.fold(ones(Embed)); },
         {"[checkpoint] axis layers=4 is not divisible into 3 nested blocks"});
}
