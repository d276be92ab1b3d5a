// The vision transformer of examples/models against transformers.
#include "examples/models/vit.h"

#include "models/recorded.h"

using namespace haliax;
using namespace haliax::testing;
using Model = models::ViTForImageClassification;

namespace {

const Axis Batch("batch", 4);

RecordedModel<Model> recorded() {
  models::ViTConfig c{.hidden_size = 32,
                      .num_hidden_layers = 2,
                      .num_attention_heads = 4,
                      .intermediate_size = 64,
                      .image_size = 16,
                      .patch_size = 4,
                      .num_labels = 10};
  const Axis Channels("channels", 3), Height("height", 16), Width("width", 16);
  return {.name = "vit",
          .like = Model::init(c, random::key(0)),
          .inputs = {{"pixel_values", {Batch, Channels, Height, Width}}, {"labels", {Batch}}},
          .logits = {Batch, c.Label()},
          .call = [](const Model& m, const Leaves& batch) { return m(batch[0]); },
          .loss = [](const Model& m, const Leaves& batch) { return m.loss(batch[0], batch[1]); },
          // A bias of the keys adds the same number to all scores of a query.
          .no_gradient = "attention.key.bias"};
}

}  // namespace

TEST_CASE("vit reads and writes the names of transformers") { check_names(recorded()); }
TEST_CASE("vit has the logits, the loss and the gradients of transformers") {
  check_values(recorded());
}
TEST_CASE("vit trains as transformers does") { check_training(recorded()); }
TEST_CASE("vit has the same values on meshes") {
  check_layouts(recorded(), model_layouts({"heads", "mlp"}, "pos"));
}
