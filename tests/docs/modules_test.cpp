// The code of docs/concepts/modules.md, compiled and run.
#include <doctest/doctest.h>

#include <iostream>
#include <map>

#include "docs/printed.h"
#include "haliax/haliax.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis Batch("batch", 8), Embed("embed", 4), Hidden("hidden", 16), Layers("layers", 3);

struct Block {
  nn::LayerNorm norm;
  nn::Linear up, down;

  static Block init(const Key& key) {
    auto [k_up, k_down] = random::split<2>(key);
    return {nn::LayerNorm::init(Embed), nn::Linear::init(Embed, Hidden, k_up),
            nn::Linear::init(Hidden, Embed, k_down)};
  }
  NamedArray operator()(const NamedArray& x) const { return x + down(nn::gelu(up(norm(x)))); }
};

struct Net {
  nn::Stacked<Block> blocks;  // three blocks, as one set of arrays with the axis layers
  NamedArray scale;           // a parameter
  Frozen<NamedArray> mask;    // saved and sharded, but not trained
  double rate = 0.5;          // static

  static Net init(const Key& key) {
    return {nn::Stacked<Block>::init(Layers, Block::init, random::split(key, Layers)),
            ones({}),
            {ones(Embed, DType::boolean)}};
  }
  NamedArray operator()(const NamedArray& x) const {
    return blocks.fold(x) * scale * where(*mask, rate, 0.);
  }
};

// A layer of your own that reports errors as the layers of haliax::nn do.
struct Scale {
  NamedArray weight;
  NamedArray operator()(Arr x) const {
    nn::LayerScope scope(x, weight);
    return x * weight;
  }
};

class Counter {  // private fields, a constructor
 public:
  explicit Counter(const NamedArray& start) : count_(start) {}
  NamedArray value() const { return count_; }

 private:
  NamedArray count_;
  HALIAX_FIELDS(count_)
};

class Trainer {
 public:
  using Optimizer = optim::AdamW;
  using State = optim::State<Optimizer, Net>;
  using Step =
      Jitted<std::tuple<Net, State, NamedArray>(const Net&, const State&, const NamedArray&)>;

  explicit Trainer(const Key& key)
      : net(Net::init(key)), state(optimizer.init(net)),
        step(jit(
            [o = optimizer](const Net& net, const State& state, const NamedArray& x) {
              auto loss = [](const Net& net, const NamedArray& x) { return mean(square(net(x))); };
              auto [value, grads] = value_and_grad(loss)(net, x);
              auto [updates, next] = o.update(grads, state, net);
              return std::tuple(optim::apply_updates(net, updates), next, value);
            },
            {.donate = {0, 1}})) {}

  Optimizer optimizer = optim::adamw({.learning_rate = 1e-2});
  Net net;
  State state;
  Step step;
};

}  // namespace

TEST_CASE("modules: a model is a struct, and printing lists its arrays") {
  Printed out;
  auto net = Net::init(random::key(0));
  auto y = net(random::normal(random::key(1), {Batch, Embed}));
  CHECK(y.axes() == Axes{Batch, Embed});
  out.start();
  std::cout << net << "\n";
  CHECK(out.text() ==
        "blocks.stacked.norm.weight  f32 (layers=3, embed=4)             12            48 B\n"
        "blocks.stacked.norm.bias    f32 (layers=3, embed=4)             12            48 B\n"
        "blocks.stacked.up.weight    f32 (layers=3, hidden=16, embed=4)  192           768 B\n"
        "blocks.stacked.up.bias      f32 (layers=3, hidden=16)           48            192 B\n"
        "blocks.stacked.down.weight  f32 (layers=3, embed=4, hidden=16)  192           768 B\n"
        "blocks.stacked.down.bias    f32 (layers=3, embed=4)             12            48 B\n"
        "scale                       f32 ()                              1             4 B\n"
        "mask                        bool (embed=4)                      4             4 B      "
        "frozen\n"
        "8 arrays                                                        473 elements  1.8 KiB");
  out.start();
  std::cout << summary(net, 1) << "\n";
  CHECK(out.text() ==
        "module    arrays  parameters  bytes    frozen\n"
        "(all)     8       473         1.8 KiB  4\n"
        "  blocks  6       468         1.8 KiB");
  CHECK(tree_paths(net).size() == 8);
}

TEST_CASE("modules: trees are flattened, mapped and rebuilt") {
  auto net = Net::init(random::key(0));
  auto halved =
      tree_map([](const NamedArray& a) { return is_float(a.dtype()) ? a * 0.5 : a; }, net);
  auto leaves = flatten(net);           // the arrays, in the order of the fields
  auto again = unflatten(net, leaves);  // the structure of net with these arrays
  for_each_leaf(net, [](const std::string& path, const NamedArray& a, bool frozen) {
    CHECK_FALSE(path.empty());
    CHECK(frozen == (path == "mask"));
    CHECK_FALSE(a.empty());
  });
  CHECK(halved.scale.item() == 0.5);
  CHECK(again.scale.item() == 1);
}

TEST_CASE("modules: stacked layers run as one loop") {
  auto net = Net::init(random::key(0));
  auto x = random::normal(random::key(1), {Batch, Embed});
  auto first = net.blocks.get_layer(0);  // one Block
  auto all = net.blocks.unstacked();     // std::vector<Block>
  auto y = x;
  for (auto& block : all) y = block(y);  // the same values as net.blocks.fold(x)
  CHECK(first.up.weight.axes() == Axes{Hidden, Embed});
  CHECK(max(abs(y - net.blocks.fold(x))).item() < 1e-5);
  CHECK(net.blocks.stacked.up.weight.axes()[0] == Layers);
}

TEST_CASE("modules: errors name the line of the call and the path of the weight") {
  struct Wrap {
    Scale scale;
  };
  Wrap w{{ones(Embed)}};
  auto f = jit([](const Wrap& w, const NamedArray& x) { return w.scale(x); });
  auto message = message_of([&] { f(w, ones(Hidden)); });
  CHECK(has(message, "modules_test.cpp"));
  CHECK(has(message, "in scale"));
}

TEST_CASE("modules: HALIAX_FIELDS lists the fields of a class") {
  Counter counter(zeros({}));
  CHECK(tree_paths(counter) == std::vector<std::string>{"count"});
  CHECK(flatten(counter).size() == 1);
}

TEST_CASE("modules: a trainer with declared types") {
  Trainer t(random::key(0));
  auto x = random::normal(random::key(1), {Batch, Embed});
  double first = 0, last = 0;
  for (int i = 0; i < 5; ++i) {
    NamedArray loss;
    std::tie(t.net, t.state, loss) = t.step(t.net, t.state, x);
    last = loss.item();
    if (i == 0) first = last;
  }
  CHECK(last < first);
}
