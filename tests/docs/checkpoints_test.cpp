// The code of docs/how-to/checkpoints.md about names of tensors, compiled and run.
#include <doctest/doctest.h>

#include <iostream>
#include <sstream>

#include "haliax/haliax.h"
#include "haliax/state_dict.h"

using namespace haliax;

namespace {

const Axis Embed("embed", 4), Mlp("mlp", 8), Vocab("vocab", 16), Layers("layers", 2);

struct Block {
  nn::LayerNorm norm;
  nn::Linear up, down;

  static Block init(const Key& key) {
    auto [k_up, k_down] = random::split<2>(key);
    return {nn::LayerNorm::init(Embed), nn::Linear::init(Embed, Mlp, k_up),
            nn::Linear::init(Mlp, Embed, k_down)};
  }
};
struct Body {
  nn::Embedding tokens;
  nn::Stacked<Block> blocks;
};
struct Model {
  Body body;

  static Model init(const Key& key) {
    auto [k_tokens, k_blocks] = random::split<2>(key);
    return {{nn::Embedding::init(Vocab, Embed, k_tokens),
             nn::Stacked<Block>::init(Layers, Block::init, random::split(k_blocks, Layers))}};
  }
};

const char* const kOwnNames =
    "body.blocks.0.down.bias (4)\n"
    "body.blocks.0.down.weight (4, 8)\n"
    "body.blocks.0.norm.bias (4)\n"
    "body.blocks.0.norm.weight (4)\n"
    "body.blocks.0.up.bias (8)\n"
    "body.blocks.0.up.weight (8, 4)\n";

}  // namespace

TEST_CASE("checkpoints: a state dict has the names of fields, and one tensor for each layer") {
  const auto model = Model::init(random::key(0));
  auto print = [](const TensorFile& file, std::size_t count) {
    std::ostringstream out;
    for (auto& tensor : file.tensors) {
      if (count-- == 0) break;
      out << tensor.name << " (";
      for (std::size_t k = 0; k < tensor.shape.size(); ++k)
        out << (k ? ", " : "") << tensor.shape[k];
      out << ")\n";
    }
    return out.str();
  };

  auto file = to_state_dict(model);
  std::ostringstream out;
  for (auto& tensor : file.tensors) out << tensor.name << "\n";
  CHECK(out.str().starts_with("body.blocks.0.down.bias\nbody.blocks.0.down.weight\n"));
  CHECK(file.tensors.size() == 13);
  CHECK(print(file, 6) == kOwnNames);

  const StateNames names{
      {"body", "transformer"}, {"blocks", "h"}, {"tokens", "wte"}, {"up", "c_fc"}};
  auto renamed = to_state_dict(model, names);
  CHECK(renamed.find("transformer.h.1.c_fc.weight") != nullptr);
  CHECK(renamed.find("transformer.wte.weight") != nullptr);

  const StateNames without_body{{"body", ""}};
  CHECK(to_state_dict(model, without_body).find("tokens.weight") != nullptr);

  auto loaded = from_state_dict(renamed, Model::init(random::key(1)), names);
  CHECK(loaded.body.tokens.weight.floats() == model.body.tokens.weight.floats());

  CHECK_THROWS_AS(from_state_dict(renamed, model), Error);
  StateMismatch mismatch;
  auto partial = from_state_dict(renamed, model, {.allow_missing = true, .mismatch = &mismatch});
  CHECK(mismatch.missing.size() == 13);
  CHECK(mismatch.unused.size() == 13);
}
