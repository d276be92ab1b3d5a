// The C++ column of the tables on modules and optimizers in docs/get-started/from-haliax.md,
// compiled and run. tests/docs_test.py checks that this file contains the code of the page.
#include <doctest/doctest.h>

#include <haliax/haliax.h>

#include "haliax/mup.h"
#include "haliax/optimizers.h"
#include "support/near.h"

using namespace haliax;

namespace {

const Axis Batch("batch", 4), Embed("embed", 6), Vocab("vocab", 5), Layers("layers", 4);

struct Block {
  nn::Linear up;
  nn::Dropout drop;
  static Block init(const Key& k) {
    return {nn::Linear::init(Embed, Embed.alias("out"), k), {.pdrop = 0.1}};
  }
  NamedArray operator()(const NamedArray& x) const {
    return drop(tree_checkpoint_name(tanh(up(x)), "attn_out").rename("out", "embed"), {}, true);
  }
};
struct Model {
  nn::Embedding tokens;
  nn::Stacked<Block> blocks;
  nn::Linear head;
};
bool same(const NamedArray& a, const NamedArray& b) { return difference(a, b, 1e-5) == ""; }

}  // namespace

TEST_CASE("names of Haliax: modules, losses and trees") {
  auto key = random::key(0), k = key;
  auto keys = random::split(key, Layers);
  auto x = random::normal(key, {Batch, Embed});
  auto blocks = nn::Stacked<Block>::init(Layers, Block::init, keys);
  Model model{nn::Embedding::init(Vocab, Embed, key), blocks, nn::Linear::init(Embed, Vocab, key)};
  {
    CHECK(same(nn::Dropout{0.1}(x, k), nn::dropout(x, 0.1, k)));
    CHECK(inference_mode(model).blocks.stacked.drop.inference);
    CHECK(same(nn::swish(x), nn::silu(x)));
    CHECK(same(nn::hard_swish(x), nn::hard_silu(x)));
    CHECK(same(nn::standardize(x, Embed), standardize(x, Embed)));
    auto m = mean(x, Embed), v = var(x, Embed);
    CHECK(same(nn::standardize(x, Embed, {.mean = m, .variance = v}), standardize(x, Embed)));
  }
  {
    auto logits = model.head(x);
    auto ids = arange(Batch), mask = ids > 0, w = astype(ids, DType::f32);
    auto loss = nn::cross_entropy_loss(logits, Vocab, ids, {.where = mask, .weight = w});
    auto each = nn::cross_entropy_loss(logits, Vocab, ids, {.reduction = nn::Reduction::none});
    CHECK(same(nn::reduce_loss(each, {.where = mask, .weight = w}), loss));
  }
  {
    auto set =
        nn::Stacked<Block>::init(Layers, {.gradient_checkpointing = true}, Block::init, keys);
    CHECK(set.gradient_checkpointing == ScanCheckpoint(true));
    auto seq = nn::BlockSeq<Block>::init(Layers, Block::init, keys);
    CHECK(same(seq.fold(x), blocks.fold(x)));
    auto f = [](const Block& block, const NamedArray& x) { return block(x) * 2.; };
    CHECK(same(blocks.fold_via(f)(x), seq.fold_via(f)(x)));
    CHECK(same(blocks.vmap_via(f)(x), blocks.vmap(x) * 2.));
    auto g = [](const Block& block, const NamedArray& x) { return std::pair(block(x), sum(x)); };
    CHECK(same(blocks.scan_via(g)(x).first, blocks.fold(x)));
    blocks.unroll = 2;
    CHECK(same(blocks.fold(x), seq.fold(x)));
    auto y = tree_checkpoint_name(x, "attn_out");
    blocks.gradient_checkpointing = ScanCheckpoint("nested");
    CHECK(same(blocks.fold(x), seq.fold(x)));
    blocks.gradient_checkpointing = ScanCheckpointPolicy{.save_block_internals = {"attn_out"}};
    CHECK(same(grad([&](const NamedArray& x) { return sum(blocks.fold(x)); })(y),
               grad([&](const NamedArray& x) { return sum(seq.fold(x)); })(x)));
  }
  {
    auto n = 8;
    CHECK(model.tokens.resize_embeddings(n, key).Vocab.size == n);
    CHECK(resize_axis(model, Vocab, n, key).tokens.weight.axes()[0].size == n);
    CHECK(nn::resize_vocab(model, Vocab, n, key).head.Out == AxisSpec(Axis("vocab", n)));
    {
      auto [leaves, structure] = tree_flatten(model);
      CHECK(leaves.size() == tree_leaves(model).size());
      CHECK(same(tree_unflatten(structure, leaves).head.weight, model.head.weight));
    }
    auto f = [](const nn::Linear& l) { return l; };
    CHECK(same(tree_map(f, model, is_leaf<nn::Linear>).head.weight, model.head.weight));
    auto unit = [](const NamedArray& w) { return w / sqrt(sum(w * w)); };
    CHECK(scan_aware_tree_map(unit, model).head.weight.axes() == model.head.weight.axes());
  }
}

TEST_CASE("names of Haliax: functions, control flow and parts of trees") {
  auto key = random::key(0);
  const Axis Pos("pos", 3);
  {
    auto x = random::normal(key, {Pos, Vocab}), y = exp(x);
    CHECK(same(floor_divide(x, y), floor(x / y)));
    CHECK(same(log(power(y, x)), x * x));
    CHECK(same(mod(x, y), x - y * floor_divide(x, y)));
    CHECK(same(log(softmax(x, Vocab)), log_softmax(x, Vocab)));
    CHECK(same(x - logsumexp(x, Vocab), log_softmax(x, Vocab)));
    CHECK(same(max(x, Vocab), at(top_k(x, Vocab, 3, "top").first, "top", 0)));
    auto f = [](const NamedArray& a, const NamedArray& b) { return a + b; };
    CHECK(same(associative_scan(f, Pos, x), cumsum(x, Pos)));
    auto jitted = named_jit([](const NamedArray& x) { return tanh(x); });
    jitted.compile(x);
    CHECK(jitted.plan(x).peak_bytes > 0);
  }
  {
    auto p = NamedArray(1.) > 0., x = NamedArray(2.);
    auto f = [](const NamedArray& v) { return v * 2.; };
    auto g = [](const NamedArray& v) { return v * 3.; };
    CHECK(cond(p, f, g)(x).item() == 4);
    auto shown = [](const NamedArray& x) {
      debug::print("x {}", x);
      return x;
    };
    CHECK(eval_shape(shown, x).axes().empty());
  }
  {
    struct Pair {
      nn::Linear body, head;
    };
    auto head = nn::Linear::init(Embed, Vocab, key);
    Pair model{nn::Linear::init(Embed, Embed.alias("out"), key), {}};
    model.head = head;
    auto [a, b] = partition(model, "weight");
    CHECK(same(combine(a, b).head.weight, head.weight));
    auto leaves = flatten(model);
    CHECK(same(unflatten(model, leaves).head.weight, head.weight));
  }
}

TEST_CASE("names of Haliax: parametrizations and matmuls of layers") {
  auto k = random::key(0);
  const AxisSpec In = Embed, Out = Vocab;
  auto layer = nn::Linear::init(In, Out, k, {.reparam_cls = nn::hidden_linear_mup});
  CHECK(layer.reparam.lr_scale == 1 / 6.);
  for (auto reparam : {nn::input_linear_mup, nn::output_linear_mup, nn::linear_standard_param})
    CHECK(nn::Linear::init(In, Out, k, {.reparam_cls = reparam}).reparam == reparam(In, Out));
  auto table = nn::Embedding::init(Vocab, Embed, k, {.reparam_cls = nn::embedding_mup});
  CHECK(table.reparam.unembed_active_scale == 1 / 6.);
  auto op = [](Arr x, Arr weight, const AxisSelection& In) { return dot(x, weight, In) * 2.; };
  auto doubled = nn::Linear::init(In, Out, k, {.dot_general = op});
  auto x = random::normal(k, {Batch, Embed});
  CHECK(same(doubled(x), layer(x) * 2.));
  auto scaled = optim::scale_by_mup_lr().update(layer, {}, layer).first;
  CHECK(same(scaled.weight, layer.weight / 6.));
}

TEST_CASE("names of Optax: optimizers, schedules and hyperparameters") {
  auto key = random::key(0);
  Model model{nn::Embedding::init(Vocab, Embed, key),
              nn::Stacked<Block>::init(Layers, Block::init, random::split(key, Layers)),
              nn::Linear::init(Embed, Vocab, key)};
  auto step = [&](const auto& optimizer) {
    auto [updates, state] = optimizer.update(model, optimizer.init(model), model);
    return optim::apply_updates(model, updates);
  };
  step(optim::lion({.learning_rate = 1e-4}));
  step(optim::rmsprop({.learning_rate = 1e-3}));
  step(optim::adafactor({.learning_rate = 1e-2}));
  step(optim::muon({.learning_rate = 0.02, .which = !LeafFilter("tokens")}));
  auto make = [](const optim::Hyperparams& h) {
    return optim::adamw({.learning_rate = h["learning_rate"]});
  };
  auto optimizer = optim::inject_hyperparams(make, {{"learning_rate", 3e-4}});
  auto state = optimizer.init(model);
  state.hyperparams["learning_rate"] = 1e-4;
  CHECK(state.hyperparams["learning_rate"].item() == 1e-4f);
  auto label = [](const std::string& path, const NamedArray&) {
    return std::string(path.find("tokens") == path.npos ? "lion" : "sgd");
  };
  auto tx1 = optim::lion();
  auto tx2 = optim::sgd();
  step(optim::multi_transform(label, optim::labeled("lion", tx1), optim::labeled("sgd", tx2)));
  step(optim::masked(tx1, "weight"));
  const auto count = NamedArray(5.);
  CHECK(optim::linear_schedule(0, 1, 10)(count).item() == doctest::Approx(0.5));
  auto a = optim::linear_schedule(0, 1, 10), b = optim::cosine_decay_schedule(1, 90);
  CHECK(optim::join_schedules({a, b}, {10})(count).item() == doctest::Approx(0.5));
}
