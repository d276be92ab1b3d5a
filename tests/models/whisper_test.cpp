// Whisper of examples/models against transformers.
#include "examples/models/whisper.h"

#include "models/recorded.h"

using namespace haliax;
using namespace haliax::testing;
using Model = models::WhisperForConditionalGeneration;

namespace {

const Axis Batch("batch", 4), Pos("pos", 10);

// Some labels are -100, which do not count.
RecordedModel<Model> recorded() {
  models::WhisperConfig c{.vocab_size = 99,
                          .num_mel_bins = 8,
                          .d_model = 32,
                          .encoder_layers = 2,
                          .encoder_attention_heads = 4,
                          .encoder_ffn_dim = 64,
                          .decoder_layers = 2,
                          .decoder_attention_heads = 4,
                          .decoder_ffn_dim = 64,
                          .max_source_positions = 12,
                          .max_target_positions = 16};
  return {.name = "whisper",
          .like = Model::init(c, random::key(0)),
          .inputs = {{"input_features", {Batch, c.Mel(), Axis("frames", 24)}},
                     {"decoder_input_ids", {Batch, Pos}},
                     {"labels", {Batch, Pos}}},
          .logits = {Batch, Pos, c.Vocab()},
          .call = [](const Model& m, const Leaves& batch) { return m(batch[0], batch[1]); },
          .loss = [](const Model& m,
                     const Leaves& batch) { return m.loss(batch[0], batch[1], batch[2]); }};
}

}  // namespace

TEST_CASE("whisper reads and writes the names of transformers") { check_names(recorded()); }
TEST_CASE("whisper has the logits, the loss and the gradients of transformers") {
  check_values(recorded());
}
TEST_CASE("whisper trains as transformers does") { check_training(recorded()); }
TEST_CASE("whisper has the same values on meshes") {
  auto layouts = model_layouts({"heads", "mlp", "vocab"}, "frames");
  auto text = layouts.back();
  text.name = "context=2, positions of the tokens";
  text.inside = {{"pos", "context"}};
  layouts.push_back(text);
  check_layouts(recorded(), layouts);
}
TEST_CASE("whisper initializes the positions of the encoder as transformers does") {
  auto r = recorded();
  auto mine = r.like.model.encoder.embed_positions->weight.doubles();
  CHECK(largest_difference(mine, r.load().model.encoder.embed_positions->weight.doubles()) <= 1e-6);
}
TEST_CASE("whisper has the same logits with a cache") {
  auto r = recorded();
  auto model = r.load();
  auto batch = nth_batch(r.batches(r.cases(), 4), 0);
  check_cache(model, batch[1], model(batch[0], batch[1]), model.cache(batch[0], {Batch}),
              [](const Model& m, const NamedArray& ids, const models::WhisperCache& cache,
                 const NamedArray& count) { return m(ids, cache, count); });
}
