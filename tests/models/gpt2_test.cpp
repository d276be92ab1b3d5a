// GPT-2 of examples/models against transformers.
#include "examples/models/gpt2.h"

#include "models/recorded.h"

using namespace haliax;
using namespace haliax::testing;
using Model = models::GPT2LMHeadModel;

namespace {

RecordedModel<Model> recorded() {
  models::GPT2Config c{
      .vocab_size = 99, .n_positions = 32, .n_embd = 32, .n_layer = 2, .n_head = 4};
  return recorded_decoder("gpt2", Model::init(c, random::key(0)), c.Vocab());
}

}  // namespace

TEST_CASE("gpt2 reads and writes the names of transformers") { check_names(recorded()); }
TEST_CASE("gpt2 reads a file whose names lack a prefix, and ignores buffers") {
  auto r = recorded();
  auto file = read_safetensors(r.path("model.safetensors"));
  const std::string prefix = "transformer.";
  for (auto& t : file.tensors) t.name.erase(0, prefix.size());
  for (auto name : {"h.0.attn.bias", "h.1.attn.masked_bias"})
    file.tensors.push_back(to_tensor(ones({}), name));
  StateMismatch mismatch;
  auto model =
      from_state_dict(file, r.like, StateNames{{"transformer", ""}}, {.mismatch = &mismatch});
  CHECK(mismatch.unused == std::vector<std::string>{"h.0.attn.bias", "h.1.attn.masked_bias"});
  auto a = flatten(model), b = flatten(r.load());
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(a[i].doubles() == b[i].doubles());
}
TEST_CASE("gpt2 has the logits, the loss and the gradients of transformers") {
  check_values(recorded());
}
TEST_CASE("gpt2 trains as transformers does") { check_training(recorded()); }
TEST_CASE("gpt2 has the same values on meshes") {
  check_layouts(recorded(), model_layouts({"heads", "mlp", "vocab"}, "pos"));
}
TEST_CASE("gpt2 has the same logits with a cache") {
  check_decoder_cache(recorded(),
                      [](const Model& m, const Axis& Batch) { return m.cache({Batch}); });
}
TEST_CASE("gpt2 applies dropout with a key only, and with probabilities of its configuration") {
  const auto ids = random::randint(random::key(1), Axis("pos", 8), 0, 99);
  auto with_key = [&](models::GPT2Config c) {
    c.vocab_size = 99;
    c.n_positions = 32;
    c.n_embd = 32;
    c.n_layer = 2;
    c.n_head = 4;
    const auto m = Model::init(c, random::key(0));
    return max(abs(m(ids) - m(ids, random::key(2)))).item();
  };
  CHECK(with_key({.embd_pdrop = 0, .attn_pdrop = 0, .resid_pdrop = 0}) == 0);
  CHECK(with_key({.embd_pdrop = 0.1, .attn_pdrop = 0, .resid_pdrop = 0}) > 0);
  CHECK(with_key({.embd_pdrop = 0, .attn_pdrop = 0.1, .resid_pdrop = 0}) > 0);
  CHECK(with_key({.embd_pdrop = 0, .attn_pdrop = 0, .resid_pdrop = 0.1}) > 0);
}
TEST_CASE("gpt2 draws projections into the residual stream smaller for more layers") {
  const models::GPT2Config c{.vocab_size = 99, .n_positions = 8, .n_embd = 96, .n_layer = 8};
  const auto m = Model::init(c, random::key(0));
  auto check = [](const NamedArray& x, double expected) {
    CHECK(x.std_dev().item() / expected == doctest::Approx(1).epsilon(0.02));
  };
  const auto& block = m.transformer.h.stacked;
  for (auto& x : {m.head(), block.attn.c_attn.weight, block.mlp.c_fc.weight}) check(x, 0.02);
  for (auto& x : {block.attn.c_proj.weight, block.mlp.c_proj.weight}) check(x, 0.005);
}
TEST_CASE("gpt2 has a head of its own if the table is not tied") {
  const models::GPT2Config c{
      .vocab_size = 99, .n_positions = 8, .n_embd = 12, .n_layer = 1, .tie_word_embeddings = false};
  const auto m = Model::init(c, random::key(0));
  CHECK(to_state_dict(m).find("lm_head.weight") != nullptr);
  const auto ids = arange(c.Pos());
  const auto expected = dot(m.transformer(ids), m.lm_head->weight, "embed");
  CHECK(max(abs(m(ids) - expected)).item() == 0);
}
TEST_CASE("gpt2 raises if the number of heads does not divide the width") {
  const models::GPT2Config c{.n_embd = 128, .n_head = 3};
  CHECK_THROWS_WITH(Model::init(c, random::key(0)),
                    doctest::Contains("[gpt2] n_embd=128 is not divisible by n_head=3"));
}
