// The code of docs/get-started/from-jax-and-pytorch.md, compiled and run.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "docs/printed.h"
#include "haliax/checkpoint.h"
#include "haliax/dlpack.h"
#include "haliax/haliax.h"
#include "haliax/state_dict.h"

using namespace haliax;

namespace {

const Axis Batch("batch", 4), Pos("pos", 6), Embed("embed", 8), Mlp("mlp", 16), Vocab("vocab", 10);
const Axis Heads("heads", 2), HeadSize("head_size", 4), Layers("layers", 3);

bool near(const NamedArray& a, const NamedArray& b) { return max(abs(a - b)).item() < 1e-5; }
Axes axes_of(const NamedArray& a) { return a.axes(); }

struct Block {
  nn::LayerNorm norm;
  nn::Linear up, down;

  static Block init(const Key& key) {
    auto [k_up, k_down] = random::split<2>(key);
    return {nn::LayerNorm::init(Embed), nn::Linear::init(Embed, Mlp, k_up),
            nn::Linear::init(Mlp, Embed, k_down)};
  }
  NamedArray operator()(const NamedArray& x) const { return x + down(nn::gelu(up(norm(x)))); }
};

struct Model {
  nn::Stacked<Block> blocks;
  nn::Linear head;

  static Model init(const Key& key) {
    auto [k_blocks, k_head] = random::split<2>(key);
    return {nn::Stacked<Block>::init(Layers, Block::init, random::split(k_blocks, Layers)),
            nn::Linear::init(Embed, Vocab, k_head)};
  }
  NamedArray operator()(const NamedArray& x) const { return head(blocks.fold(x)); }
};

NamedArray loss(const Model& model, const NamedArray& x, const NamedArray& ids) {
  return nn::cross_entropy_loss(model(x), Vocab, ids);
}

}  // namespace

TEST_CASE("coming from JAX and PyTorch: axes replace positions") {
  Printed out;
  out.start();
  const Axis Batch("batch", 2), Embed("embed", 3), Out("out", 2);
  auto x = arange({Batch, Embed});    // (batch, embed)
  auto scale = array({1, 2}, Batch);  // (batch)
  auto w = ones({Out, Embed});        // (out, embed)

  std::cout << x * scale << "\n";         // matched by name: no scale[:, None]
  std::cout << dot(x, w, Embed) << "\n";  // contracts embed: no w.T
  CHECK(out.text() ==
        "NamedArray(f32, (batch=2, embed=3), [[0, 1, 2], [6, 8, 10]])\n"
        "NamedArray(f32, (batch=2, out=2), [[3, 3], [12, 12]])");
}

TEST_CASE("coming from JAX and PyTorch: arrays") {
  const std::vector<float> values(std::size_t(Batch.size * Embed.size), 0.5f);
  CHECK(axes_of(zeros({Batch, Embed})) == Axes{Batch, Embed});
  CHECK(near(array(values, {Batch, Embed}), full({Batch, Embed}, 0.5)));
  const auto x = random::normal(random::key(0), {Batch, Embed}).eval(), y = tanh(x);
  CHECK(x.axes() == Axes{Batch, Embed});
  CHECK(x.axis_size("batch") == 4);
  CHECK(x.astype(DType::bf16).dtype() == DType::bf16);
  CHECK(floor_divide(array({7}, Axis("n", 1)), 2).item() == 3);
  CHECK((array({-7}, Axis("n", 1)) % 2).item() == 1);
  CHECK(near(where(x > 0., x, 0.), nn::relu(x)));
  CHECK(x.floats().size() == 32);
  CHECK(sum(x).item() == doctest::Approx(x.sum().item()));
  {
    auto x = random::normal(random::key(1), Batch), y = random::normal(random::key(2), Embed);
    CHECK(axes_of(broadcast_axis(x, Embed) * y) == Axes{Embed, Batch});
  }
  CHECK(axes_of(rearrange(x, {"embed", "batch"})) == Axes{Embed, Batch});
  CHECK(axes_of(rearrange(x, {"embed", ellipsis})) == Axes{Embed, Batch});
  auto parts = unflatten_axis(x, Embed, {Heads, HeadSize});
  CHECK(axes_of(parts) == Axes{Batch, Heads, HeadSize});
  {
    auto x = parts;
    CHECK(axes_of(flatten_axes(x, {Heads, HeadSize}, Embed)) == Axes{Batch, Embed});
  }
  CHECK(concatenate("batch", {x, y}).axis_size("batch") == 8);
  CHECK(axes_of(stack("pair", {x, y})) == Axes{{"pair", 2}, Batch, Embed});
}

TEST_CASE("coming from JAX and PyTorch: reductions, contractions and indexing") {
  const auto x = random::normal(random::key(0), {Batch, Pos, Embed}).eval();
  CHECK(axes_of(sum(x, "embed")) == Axes{Batch, Pos});
  CHECK(axes_of(mean(x, {"batch", "pos"})) == Axes{Embed});
  const auto w = random::normal(random::key(1), {Mlp, Embed}).eval();
  CHECK(axes_of(dot(x, w, "embed")) == Axes{Batch, Pos, Mlp});
  {
    auto q = rename(x, "pos", "q"), k = rename(x, "pos", "k");
    CHECK(near(einsum("batch q embed, batch k embed -> batch q k", {q, k}), dot(q, k, "embed")));
  }
  CHECK(near(softmax(x, "embed"), exp(log_softmax(x, "embed"))));
  CHECK(axes_of(argmax(x, "embed")) == Axes{Batch, Pos});
  auto [values, ids] = top_k(x, "embed", 2);
  CHECK(ids.axis_size("embed") == 2);
  CHECK(axes_of(x[{"pos", 3}]) == Axes{Batch, Embed});
  CHECK(x[{"pos", Slice{1, 4}}].axis_size("pos") == 3);
  const auto start = NamedArray(1).astype(DType::i32);
  CHECK(near(slice(x, "pos", start, 4), x[{"pos", Slice{1, 5}}]));
  auto y = x.at({"pos", 3}).set(1.);
  CHECK(near(y[{"pos", 3}], 1.));
  {
    auto table = random::normal(random::key(2), {Vocab, Embed});
    auto ids = random::randint(random::key(3), {Batch, Pos}, 0, 10);
    CHECK(axes_of(take(table, "vocab", ids)) == Axes{Batch, Pos, Embed});
    auto logits = random::normal(random::key(4), {Batch, Pos, Vocab});
    CHECK(axes_of(take(logits, "vocab", ids)) == Axes{Batch, Pos});
  }
}

TEST_CASE("coming from JAX and PyTorch: transformations") {
  auto f = [](const NamedArray& x) { return sum(square(x)); };
  const auto x = random::normal(random::key(0), {Batch, Embed}).eval(), t = ones_like(x);
  CHECK(near(vmap(f, "batch")(x), sum(square(x), "embed")));
  CHECK(near(jit(f)(x), f(x)));
  CHECK(near(jit(f, {.donate = {0}})((x + 0.).eval()), f(x)));
  CHECK(near(grad(f)(x), 2. * x));
  auto [l, g] = value_and_grad(f)(x);
  CHECK(near(g, 2. * x));
  {
    auto [y, pullback] = vjp(f, x);
    CHECK(near(pullback(ones({})), 2. * x));
    auto [z, tangent] = jvp(f, x, t);
    CHECK(near(tangent, 2. * sum(x)));
  }
  CHECK(near(grad([](const NamedArray& x) { return sum(x * stop_gradient(x)); })(x), x));
  CHECK(near(grad(checkpoint(f))(x), 2. * x));
  CHECK(eval_shape(f, x).axes().empty());
  {
    auto forward = [](const NamedArray& x) { return exp(x); };
    auto backward = [](const std::tuple<NamedArray>&, const NamedArray& y, const NamedArray& dy) {
      return std::tuple(dy * y);
    };
    auto f = custom_vjp(forward, backward);
    CHECK(near(grad([=](const NamedArray& x) { return sum(f(x)); })(x), exp(x)));
  }
  {
    auto init = zeros(Embed), xs = x;
    auto f = [](const NamedArray& total, const NamedArray& x) {
      return std::pair{total + x, total};
    };
    auto [last, ys] = scan(f, "batch")(init, xs);
    CHECK(near(last, sum(x, "batch")));
    CHECK(axes_of(ys) == Axes{Batch, Embed});
  }
  {
    auto init = zeros(Embed), xs = x;
    auto f = [](const NamedArray& total, const NamedArray& x) { return total + x; };
    CHECK(near(fold(f, "batch")(init, xs), sum(x, "batch")));
    CHECK(near(associative_scan(f, "batch", xs), cumsum(x, "batch")));
  }
  {
    auto f = [](const NamedArray& x) { return x * 2.; };
    auto g = [](const NamedArray& x) { return -x; };
    auto flag = sum(x) > 1e9;
    auto i = NamedArray(1).astype(DType::i32);
    CHECK(near(cond(flag, f, g)(x), -x));
    CHECK(near(switch_(i, f, g)(x), -x));
    auto small = [](const NamedArray& x) { return max(abs(x)) < 100.; };
    auto last = while_loop(small, f, Axis("iteration", 100))(x);
    CHECK(max(abs(last)).item() >= 100);
  }
}

TEST_CASE("coming from JAX and PyTorch: modules") {
  const auto key = random::key(0);
  struct Mlp {
    nn::Linear up, down;
  };
  const Axis Hidden("hidden", 4);
  CHECK(tree_paths(Mlp{nn::Linear::init(Embed, Hidden, key), nn::Linear::init(Hidden, Embed, key)})
            .size() == 4);
  CHECK(axes_of(nn::Linear::init(Embed, Vocab, key).weight) == Axes{Vocab, Embed});
  CHECK(axes_of(nn::Embedding::init(Vocab, Embed, key).weight) == Axes{Vocab, Embed});
  const auto x = random::normal(key, {Batch, Embed}).eval();
  CHECK(near(nn::LayerNorm::init(Embed)(x), standardize(x, Embed)));
  CHECK(axes_of(nn::RmsNorm::init(Embed)(x)) == x.axes());
  auto dropout = nn::Dropout{.pdrop = 0.1};
  CHECK(near(dropout(x, {}, true), x));
  CHECK(axes_of(dropout(x, key)) == x.axes());
  auto model = Model::init(key);
  auto blocks = model.blocks;
  CHECK(axes_of(blocks.fold(x)) == x.axes());
  CHECK(summary(model).find("parameters") != std::string::npos);
  CHECK(flatten(tree_map([](const NamedArray& p) { return p * 2.; }, model)).size() ==
        flatten(model).size());
  const auto ids = random::randint(key, Batch, 0, 10);
  auto logits = model(x);
  CHECK(nn::cross_entropy_loss(logits, "vocab", ids).item() > 0);
  CHECK(value_and_grad(loss, "head")(model, x, ids).second.blocks.stacked.up.weight.empty());
  {
    auto x = random::normal(key, {Batch, Pos, Heads, HeadSize});
    auto KeyPos = Pos.alias("key_pos");
    auto q = x, k = rename(x, Pos, KeyPos), v = k;
    auto mask = nn::causal_mask(Pos, KeyPos);
    auto y = nn::dot_product_attention(KeyPos, HeadSize, q, k, v, {.mask = mask});
    CHECK(y.axes().size() == 4);
  }
}

TEST_CASE("coming from JAX and PyTorch: a training loop") {
  const auto x = random::normal(random::key(1), {Batch, Embed}).eval();
  const auto ids = random::randint(random::key(2), Batch, 0, 10);
  const double first = loss(Model::init(random::key(0)), x, ids).item();
  double last = 0;
  {
    auto model = Model::init(random::key(0));
    auto optimizer = optim::adamw({.learning_rate = 1e-3});
    auto state = optimizer.init(model);

    auto step = jit([=](const Model& m, const auto& s, const NamedArray& x, const NamedArray& ids) {
      auto [l, grads] = value_and_grad(loss)(m, x, ids);
      auto [updates, next] = optimizer.update(grads, s, m);
      return std::tuple(optim::apply_updates(m, updates), next, l);
    });
    for (int k = 0; k < 20; ++k) {
      NamedArray l;
      std::tie(model, state, l) = step(model, state, x, ids);
    }

    last = loss(model, x, ids).item();
  }
  CHECK(last < first);
  auto model = Model::init(random::key(0));
  auto grads = grad(loss)(model, x, ids);
  auto updated = [&](const auto& optimizer) {
    auto state = optimizer.init(model);
    auto [updates, next] = optimizer.update(grads, state, model);
    model = optim::apply_updates(model, updates);
    return updates;
  };
  updated(optim::sgd({.learning_rate = 0.1, .momentum = 0.9}));
  updated(optim::chain(optim::clip_by_global_norm(1), optim::adamw()));
  auto none =
      updated(optim::adamw(optim::WarmupCosine{.peak = 1e-3, .warmup = 10, .total = 100}, {}));
  CHECK(optim::global_norm(none).item() == 0);  // the warmup starts from 0
  auto low_rate = optim::adamw({.learning_rate = 1e-5}), high_rate = optim::adamw();
  updated(optim::groups(optim::group("norm", low_rate), optim::group("blocks", high_rate)));
  CHECK(Policy("p=f32,c=bf16").cast_to_compute(model).head.weight.dtype() == DType::bf16);
}

TEST_CASE("coming from JAX and PyTorch: files") {
  const auto folder =
      std::filesystem::temp_directory_path() / ("haliax_from_jax_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const auto path = (folder / "model.safetensors").string(), runs = (folder / "runs").string();
  auto model = Model::init(random::key(0));
  const auto weight = model.head.weight;
  auto file = to_state_dict(model);
  write_safetensors(path, to_state_dict(model));
  file = read_safetensors(path);
  model = from_state_dict(file, Model::init(random::key(1)));
  CHECK(near(model.head.weight, weight));
  CHECK(near(from_state_dict(file, model).head.weight, weight));
  model = from_state_dict(file, model, {.allow_missing = true});
  model = from_state_dict(to_state_dict(model, StateNames{{"blocks", "h"}}), model,
                          StateNames{{"blocks", "h"}});
  {
    Checkpoints checkpoints(runs);
    checkpoints.save(100, model);
    checkpoints.wait();
  }
  auto restored = latest_checkpoint(runs, model);
  REQUIRE(restored);
  CHECK(near(restored->state.head.weight, weight));
  {
    auto x = arange({Batch, Embed}).eval();
    auto tensor = to_dlpack(x);
    CHECK(near(from_dlpack(tensor, {Batch, Embed}), x));
    const auto file = (folder / "x.npy").string();
    write_npy(file, to_tensor(x));
    CHECK(near(from_tensor(read_npy(file), {Batch, Embed}), x));
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("coming from JAX and PyTorch: meshes") {
  const Mesh mesh = Mesh{{{"data", 2}, {"model", 2}}};
  const Mapping params{{"embed", "data"}}, compute{{"batch", "data"}, {"mlp", "model"}};
  const auto x = random::normal(random::key(0), {Batch, Embed}).eval();
  auto f = [](const NamedArray& x) { return tanh(x); };
  CHECK(near(named_jit(f, {.mesh = mesh, .axis_resources = compute})(x), tanh(x)));
  CHECK(near(fsdp(f, params, compute, {.mesh = mesh})(x), tanh(x)));
  {
    use_mesh scope(mesh);
    auto placed = shard(x, Mapping{{"batch", "data"}});
    REQUIRE(placement(placed));
    CHECK(placement(placed)->mesh == mesh);
    CHECK(shard(Model::init(random::key(0)), params).head.weight.axes() == Axes{Vocab, Embed});
  }
  {
    auto f = [](const NamedArray& x) {
      auto total = psum(sum(x, "batch"), "data");
      return all_gather(psum_scatter(total, "embed", "data"), "embed", "data") / 4.;
    };
    auto mean_of = shard_map(f, {.mesh = mesh, .in = Mapping{{"batch", "data"}}, .out = Mapping{}});
    CHECK(near(mean_of(x), mean(x, "batch") * 2.));
  }
  CHECK(devices() >= 4);
}
