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
