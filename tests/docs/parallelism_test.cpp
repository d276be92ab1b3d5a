// The code of docs/how-to/parallelism.md, compiled and run.
#include <doctest/doctest.h>

#include <iomanip>
#include <iostream>
#include <sstream>

#include "haliax/haliax.h"

using namespace haliax;

namespace {

const Axis Vocab("vocab", 64), Embed("embed", 32), Mlp("mlp", 128), Layers("layers", 4);
const Axis Batch("batch", 16), Pos("position", 32);

struct Block {
  nn::RmsNorm norm;
  nn::Linear up, down;

  static Block init(const Key& key) {
    auto [k_up, k_down] = random::split<2>(key);
    return {nn::RmsNorm::init(Embed), nn::Linear::init(Embed, Mlp, k_up),
            nn::Linear::init(Mlp, Embed, k_down)};
  }
  NamedArray operator()(const NamedArray& x) const { return x + down(nn::gelu(up(norm(x)))); }
};

struct Model {
  nn::Embedding tokens;
  nn::Stacked<Block> blocks;
  nn::Linear head;

  static Model init(const Key& key) {
    auto [k_tokens, k_blocks, k_head] = random::split<3>(key);
    return {nn::Embedding::init(Vocab, Embed, k_tokens),
            nn::Stacked<Block>::init(Layers, Block::init, random::split(k_blocks, Layers)),
            nn::Linear::init(Embed, Vocab, k_head)};
  }
  NamedArray operator()(const NamedArray& ids) const { return head(blocks.fold(tokens(ids))); }
};

struct Training {
  Model model;
  optim::State<optim::AdamW, Model> state;

  static Training init(const Key& key) {
    auto model = Model::init(key);
    return {model, optim::adamw().init(model)};
  }
};

NamedArray loss(const Model& model, const NamedArray& ids) {
  return nn::next_token_loss("position", Vocab, model(ids), ids);
}

std::pair<Training, NamedArray> train_step(const Training& t, const NamedArray& ids) {
  auto [l, grads] = value_and_grad(loss)(t.model, ids);
  auto [updates, state] = optim::adamw().update(grads, t.state, t.model);
  return {{optim::apply_updates(t.model, updates), state}, l};
}

struct Layout {
  std::string name;
  Mesh mesh;
  Mapping params, compute;
};

const std::vector<Layout> layouts{
    {"data parallel", Mesh{{{"data", 8}}}, {}, {{"batch", "data"}}},
    {"FSDP", Mesh{{{"data", 8}}}, {{"embed", "data"}}, {{"batch", "data"}}},
    {"tensor", Mesh{{{"model", 8}}}, {{"mlp", "model"}}, {{"mlp", "model"}}},
    {"FSDP x tensor",
     Mesh{{{"data", 4}, {"model", 2}}},
     {{"embed", "data"}, {"mlp", "model"}},
     {{"batch", "data"}, {"mlp", "model"}}}};

// The same block with activations that are sharded along position between the layers.
struct SequenceBlock {
  nn::RmsNorm norm;
  nn::Linear up, down;

  static SequenceBlock init(const Key& key) {
    auto block = Block::init(key);
    return {block.norm, block.up, block.down};
  }
  NamedArray operator()(const NamedArray& x) const {
    auto h = auto_sharded(norm(x));                       // all-gather along position
    auto y = down(nn::gelu(up(h)));                       // partial sums, one per device
    return x + shard(y, Mapping{{"position", "model"}});  // reduce-scatter along position
  }
};

std::string collectives(const JitReport& report) {
  std::ostringstream out;
  for (auto& c : report.collectives)
    out << std::left << std::setw(15) << c.kind << std::setw(3) << c.turns << "x "
        << std::int64_t(c.bytes) << " bytes\n";
  return out.str();
}

}  // namespace

TEST_CASE("parallelism: one training step under four layouts") {
  const auto ids = random::randint(random::key(1), {Batch, Pos}, 0, Vocab.size);
  std::ostringstream out;
  auto shapes = eval_shape([] { return Training::init(random::key(0)); });
  out << "layout         bytes held   bytes sent   calls\n";
  for (auto& layout : layouts) {
    auto step = fsdp(train_step, layout.params, layout.compute, {.mesh = layout.mesh});
    auto report = step.plan(shapes, ids);
    out << std::left << std::setw(15) << layout.name << std::setw(13) << report.argument_bytes
        << std::setw(13) << std::int64_t(report.sent_bytes) << report.calls << "\n";
  }
  CHECK(out.str() ==
        "layout         bytes held   bytes sent   calls\n"
        "data parallel  455940       264775       1\n"
        "FSDP           64836        379911       15\n"
        "tensor         106500       917504       8\n"
        "FSDP x tensor  68484        307718       23\n");

  const auto at_once = [&] {
    auto training = Training::init(random::key(0));
    return std::get<1>(train_step(std::get<0>(train_step(training, ids)), ids)).item();
  }();
  for (auto& layout : layouts) {
    auto& [name, mesh, params, compute] = layout;
    auto init = named_jit(Training::init, {.mesh = mesh, .axis_resources = params});
    auto step = fsdp(train_step, params, compute, {.donate = {0}, .mesh = mesh});
    auto training = init(random::key(0));  // each device initializes its own shards
    NamedArray l;
    for (int k = 0; k < 2; ++k) std::tie(training, l) = step(training, ids);
    CHECK(l.item() == doctest::Approx(at_once).epsilon(1e-5));
    CHECK(init.report().sent_bytes == 0);
  }

  // The formulas of the page.
  double parameters = 0;
  for (auto& a : flatten(Model::init(random::key(0)))) parameters += double(a.nbytes());
  CHECK(264775 == 2 * 7 / 8. * (parameters + 4));
  CHECK(917504 == 4 * 2 * 2 * 7 / 8. * double(Batch.size * Pos.size * Embed.size * 4));
}

TEST_CASE("parallelism: sequence parallelism replaces an all-reduce") {
  const Mesh mesh{{{"model", 8}}};
  const auto x = random::normal(random::key(1), {Batch, Pos, Embed});
  auto train = [&]<class B>(std::type_identity<B>) {
    auto blocks = nn::Stacked<B>::init(Layers, B::init, random::split(random::key(0), Layers));
    auto loss = [](const nn::Stacked<B>& s, const NamedArray& x) {
      return mean(square(s.fold(x)));
    };
    auto f = named_jit(value_and_grad(loss),
                       {.mesh = mesh, .axis_resources = Mapping{{"mlp", "model"}}});
    auto value = f(blocks, x).first.item();
    return std::pair(value, f.report());
  };
  auto [a, tensor] = train(std::type_identity<Block>());
  auto [b, sequence] = train(std::type_identity<SequenceBlock>());
  CHECK(a == doctest::Approx(b).epsilon(1e-5));
  CHECK(collectives(tensor) ==
        "all-reduce     4  x 114688 bytes\n"
        "all-reduce     4  x 114688 bytes\n");
  CHECK(collectives(sequence) ==
        "all-gather     4  x 57344 bytes\n"
        "reduce-scatter 4  x 57344 bytes\n"
        "all-gather     4  x 114688 bytes\n"
        "reduce-scatter 4  x 57344 bytes\n"
        "all-reduce     1  x 2695 bytes\n");
  CHECK(double(sequence.peak_bytes) < 0.65 * double(tensor.peak_bytes));
}

TEST_CASE("parallelism: context parallelism communicates six blocks per other device") {
  const Axis Pos("position", 64), KeyPos = Pos.alias("key_position");
  const Axis Heads("heads", 2), HeadSize("head_size", 16);
  struct Inputs {
    NamedArray q, k, v;  // (heads, position, head_size)
  };
  auto attend = [=](const Inputs& in) {
    return nn::dot_product_attention(KeyPos, HeadSize, in.q, in.k.rename(Pos, KeyPos),
                                     in.v.rename(Pos, KeyPos),
                                     {.mask = nn::causal_mask(Pos, KeyPos)});
  };
  auto loss = [=](const Inputs& in) { return sum(square(attend(in))); };
  const Mesh mesh{{{"context", 4}}};
  const Mapping compute{{"position", "context"}};
  auto in_a_ring = named_jit(
      grad(loss), {.mesh = mesh, .axis_resources = compute, .ring = true, .scores_budget = 0});
  auto keys = random::split<3>(random::key(0));
  const AxisSpec axes{Heads, Pos, HeadSize};
  Inputs in{random::normal(keys[0], axes), random::normal(keys[1], axes),
            random::normal(keys[2], axes)};
  auto ring = in_a_ring.plan(in);
  CHECK(collectives(ring) ==
        "ring           3  x 4096 bytes\n"
        "ring           3  x 4096 bytes\n"
        "reduce-scatter 3  x 4096 bytes\n");
  const std::int64_t block = Heads.size * Pos.size / 4 * HeadSize.size * 4;
  CHECK(ring.sent_bytes == 6 * 3 * block);
  auto gathered = named_jit(grad(loss), {.mesh = mesh, .axis_resources = compute}).plan(in);
  CHECK(gathered.sent_bytes == 4 * 3 * block);

  auto expected = grad(loss)(in), have = in_a_ring(in);
  CHECK(sum(square(have.k - expected.k)).item() < 1e-6 * sum(square(expected.k)).item());
}

TEST_CASE("parallelism: a ring over 8 devices at 32,768 positions, and padding") {
  auto planned = [](std::int64_t positions, bool regather) {
    const Axis Pos("position", positions), KeyPos = Pos.alias("key_position");
    const Axis Heads("heads", 12), HeadSize("head_size", 64);
    struct Inputs {
      NamedArray q, k, v;
    };
    auto loss = [=](const Inputs& in) {
      return sum(square(nn::dot_product_attention(KeyPos, HeadSize, in.q, in.k.rename(Pos, KeyPos),
                                                  in.v.rename(Pos, KeyPos),
                                                  {.mask = nn::causal_mask(Pos, KeyPos)})));
    };
    auto shapes = eval_shape([&] {
      auto x = zeros({Heads, Pos, HeadSize});
      return Inputs{x, x, x};
    });
    return named_jit(grad(loss), {.mesh = Mesh{{{"context", 8}}},
                                  .axis_resources = Mapping{{"position", "context"}},
                                  .regather = regather})
        .plan(shapes);
  };
  // The table of the page, in MiB.
  auto row = [&](std::int64_t positions, bool regather, double sent, double peak) {
    const auto report = planned(positions, regather);
    CHECK(report.sent_bytes / (1 << 20) == doctest::Approx(sent).epsilon(0.01));
    CHECK(double(report.peak_bytes) / (1 << 20) == doctest::Approx(peak).epsilon(0.05));
  };
  row(32768, true, 504, 51);
  row(32769, true, 43393, 162);
  row(32769, false, 441, 528);
}

TEST_CASE("parallelism: strict mode refuses a gather that is not requested") {
  const auto x = random::normal(random::key(0), Axis("n", 24000));
  const JitOptions options{
      .mesh = Mesh{{{"data", 2}}}, .axis_resources = Mapping{{"n", "data"}}, .strict = true};
  auto refused = named_jit([](const NamedArray& x) { return sort(x, "n"); }, options);
  CHECK_THROWS_AS(refused(x), Error);
  auto accepted =
      named_jit([](const NamedArray& x) { return sort(shard(x, Mapping{}), "n"); }, options);
  CHECK(accepted(x).floats() == sort(x, "n").floats());
  CHECK(accepted.report().sent_bytes == 48000);
}
