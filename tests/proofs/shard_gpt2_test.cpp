// Trains the GPT-2 of examples/gpt2 under each common mapping; only the mapping differs. Runs it
// plain, and with rematerialized layers, a chunked loss and microbatches at once.
#include <doctest/doctest.h>

#include "examples/models/gpt2.h"
#include "haliax/jit.h"
#include "haliax/optim.h"

using namespace haliax;
using Model = models::GPT2LMHeadModel;

namespace {

const Axis Batch{"batch", 8};
constexpr int kSteps = 20;

struct Way {
  const char* name;
  Mesh mesh;
  Mapping parameters, inside;
  std::optional<Mapping> state =
      {};  // mapping of the optimizer state, if it differs from `parameters`
  bool regather = true;
};
const std::vector<Way>& ways() {
  const Mesh data{{{"data", 8}}}, model{{{"model", 8}}}, both{{{"data", 2}, {"model", 4}}},
      tall{{{"data", 4}, {"model", 2}}};
  const std::vector<std::string> tuple{"data", "model"};
  static const std::vector<Way> all{
      {"data parallel", data, {}, {{"batch", "data"}}},
      {"ZeRO-1", data, {}, {{"batch", "data"}}, Mapping{{"embed", "data"}}},
      {"FSDP", data, {{"embed", "data"}}, {{"batch", "data"}}},
      {"FSDP, gathered once", data, {{"embed", "data"}}, {{"batch", "data"}}, {}, false},
      {"tensor parallel, vocabulary too",
       model,
       {{"mlp", "model"}, {"heads", "model"}, {"vocab", "model"}},
       {{"mlp", "model"}, {"heads", "model"}, {"vocab", "model"}}},
      {"tensor parallel",
       model,
       {{"mlp", "model"}, {"heads", "model"}},
       {{"mlp", "model"}, {"heads", "model"}}},
      {"sequence parallel", model, {{"embed", "model"}}, {{"pos", "model"}}},
      {"FSDP over both", tall, {{"embed", tuple}}, {{"batch", tuple}}},
      {"FSDP and tensor parallel",
       both,
       {{"embed", "data"}, {"mlp", "model"}, {"heads", "model"}},
       {{"batch", "data"}, {"mlp", "model"}, {"heads", "model"}}},
  };
  return all;
}

struct Extras {
  bool checkpoint = false, chunked = false;
  int microbatches = 1;
};

NamedArray loss_of(const Model& m, const NamedArray& ids, const Key& key, const Mapping* inside,
                   bool chunked) {
  std::optional<axis_mapping> scope;
  if (inside) scope.emplace(*inside);
  if (!chunked) return nn::next_token_loss("pos", "vocab", m(ids, key), ids);
  return nn::linear_next_token_loss("pos", m.transformer(ids, key), m.head(), ids, "embed", "vocab",
                                    {.walked = "pos", .chunks = {.chunk = 3}})
      .loss;
}

std::vector<double> losses(const Way* way, const Extras& extras) {
  const models::GPT2Config config{.vocab_size = 24,
                                  .n_positions = 8,
                                  .n_embd = 16,
                                  .n_layer = 2,
                                  .n_head = 8,
                                  .n_inner = 32,
                                  .gradient_checkpointing = ScanCheckpoint(extras.checkpoint)};
  Model model = Model::init(config, random::key(0));
  const auto ids =
      random::randint(random::key(1), {Batch, config.Pos()}, 0, int(config.vocab_size));
  const auto optimizer =
      optim::chain(optim::ClipByGlobalNorm{1.}, optim::ScaleByAdam{}, optim::Scale{-1e-2});
  auto state = optimizer.init(model);
  const Axis Micro("micro", extras.microbatches);

  auto step = [&](const Model& m, const decltype(state)& s, const NamedArray& ids, const Key& key) {
    auto loss = [&](const Model& m, const NamedArray& ids) {
      return loss_of(m, ids, key, way ? &way->inside : nullptr, extras.chunked);
    };
    auto [l, grads] = value_and_grad(loss)(m, ids);
    if (Micro.size > 1) {
      using Sums = std::pair<NamedArray, Model>;
      auto body = [&](const Sums& sums, const NamedArray& ids) {
        auto all = flatten(sums);
        auto more = flatten(Sums(value_and_grad(loss)(m, ids)));
        for (std::size_t k = 0; k < all.size(); ++k) all[k] = all[k] + more[k] / double(Micro.size);
        return unflatten(sums, all);
      };
      auto none = Sums(zeros({}), tree_map([](const NamedArray& x) { return zeros_like(x); }, m));
      std::tie(l, grads) = fold(body, Micro)(
          none, unflatten_axis(ids, Batch, {Batch.resize(Batch.size / Micro.size), Micro}));
    }
    auto [updates, next] = optimizer.update(grads, s, m);
    return std::tuple(l, optim::apply_updates(m, updates), next);
  };
  std::vector<double> out;
  auto train = [&](const auto& f) {
    for (int k = 0; k < kSteps; ++k) {
      NamedArray l;
      std::tie(l, model, state) = f(model, state, ids, random::fold_in(random::key(2), k));
      out.push_back(l.item());
    }
  };
  if (!way) {
    train(jit(step));
    return out;
  }
  auto at = way->state.value_or(way->parameters);
  JitOptions options{
      .mesh = way->mesh, .axis_resources = way->parameters, .regather = way->regather};
  options.in = Mappings::of_each({way->parameters, at, way->inside, Mapping{}});
  options.out = Mappings::of_each({std::nullopt, way->parameters, at});
  auto f = named_jit(step, options);
  train(f);
  CHECK(f.report().traces == 1);
  CHECK(f.report().sent_bytes > 0);
  return out;
}

void agree(const Extras& extras, std::size_t every = 1) {
  // Dropout masks are drawn for each microbatch.
  const auto expected = losses(nullptr, {.microbatches = extras.microbatches});
  for (std::size_t n = 0; n < ways().size(); n += every) {
    auto& way = ways()[n];
    CAPTURE(std::string(way.name));
    const auto got = losses(&way, extras);
    for (std::size_t k = 0; k < expected.size(); ++k) {
      CAPTURE(k);
      CHECK(std::abs(got[k] - expected[k]) <= 1e-5 * std::abs(expected[k]));
    }
  }
}

}  // namespace

TEST_CASE("proof: 20 losses of gpt2 are the unsharded ones under every mapping") { agree({}); }
TEST_CASE(
    "proof: 20 losses of gpt2 are the unsharded ones with checkpoints, "
    "the chunked loss and microbatches") {
  agree({.checkpoint = true, .chunked = true, .microbatches = 2}, 2);
}
