// The code of docs/how-to/huggingface.md, compiled and run.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iostream>

#include "haliax/haliax.h"
#include "haliax/huggingface.h"
#include "haliax/tokenizer.h"
#include "printed.h"
#include "tests/support/folder.h"
#include "tests/support/golden_dir.h"

using namespace haliax;

namespace {

struct Block {
  nn::LayerNorm norm;
  nn::Linear up, down;
  static Block init(const Axis& Embed, const Key& key) {
    auto [k_up, k_down] = random::split<2>(key);
    const Axis Mlp("mlp", 4 * Embed.size);
    return {nn::LayerNorm::init(Embed), nn::Linear::init(Embed, Mlp, k_up),
            nn::Linear::init(Mlp, Embed, k_down)};
  }
  static StateNames state_names() {
    return {{"norm", "ln_1"}, {"up", "mlp.c_fc"}, {"down", "mlp.c_proj"}};
  }
};
struct Model {
  nn::Embedding tokens;
  nn::Stacked<Block> blocks;
  static StateNames state_names() { return {{"tokens", "wte"}, {"blocks", "h"}}; }
  static Model init(const ModelConfig& config, const Key& key) {
    const Axis Embed("embed", config.get<int>("n_embd"));
    const Axis Layers("layers", config.get_any<int>({"n_layer", "num_hidden_layers"}));
    const Axis Vocab("vocab", config.get<int>("vocab_size"));
    auto [k_tokens, k_blocks] = random::split<2>(key);
    auto block = [&](const Key& k) { return Block::init(Embed, k); };
    return {nn::Embedding::init(Vocab, Embed, k_tokens),
            nn::Stacked<Block>::init(Layers, block, random::split(k_blocks, Layers))};
  }
};
struct Experts {
  NamedArray up;  // (expert, embed, mlp)
  void state_fields(StateFields& fields) {
    fields.array("experts.{}.w1.weight", up,
                 {.split = {"expert"}, .dims = std::vector<Names>{{"mlp"}, {"embed"}}});
  }
};

}  // namespace

TEST_CASE("docs/how-to/huggingface.md: a model folder") {
  Folder temporary;
  const std::string folder = temporary.path, results = temporary / "results";
  std::ofstream(folder + "/config.json")
      << R"({"architectures": ["GPT2LMHeadModel"], "n_embd": 8, "n_layer": 2, "vocab_size": 50})";
  write_safetensors(folder + "/model.safetensors",
                    to_state_dict(Model::init(load_config(folder), random::key(3))));

  auto config = load_config(folder);
  auto layers = config.get<int>("n_layer");
  auto eps = config.get("layer_norm_epsilon", 1e-5);
  CHECK(layers == 2);
  CHECK(eps == 1e-5);

  const std::vector<std::string> known{"GPT2LMHeadModel", "LlamaForCausalLM"};
  auto architecture = config.architecture(known);
  CHECK(architecture == "GPT2LMHeadModel");

  StateMismatch report;
  auto model = load_pretrained(folder, Model::init(config, random::key(0)),
                               {.mismatch = &report, .base_prefix = "transformer"});
  CHECK(report.empty());
  {
    const Mesh mesh({{"data", 2}});
    use_mesh on(mesh);
    axis_mapping scope({{"embed", "data"}});
    auto sharded = load_pretrained(folder, Model::init(config, random::key(0)));
    CHECK(placement(sharded.tokens.weight) != nullptr);
  }

  model = load_pretrained(folder, model);
  save_pretrained(folder, model, config);

  save_pretrained(results, model, config, {.dtype = DType::bf16});
  CHECK(std::filesystem::exists(results + "/config.json"));

  const Axis Expert("expert", 2), Embed("embed", 3), Mlp("mlp", 4);
  auto experts = to_state_dict(Experts{zeros({Expert, Embed, Mlp})});
  CHECK(experts.at("experts.1.w1.weight").shape == std::vector<std::int64_t>{4, 3});
}

TEST_CASE("docs/how-to/huggingface.md: a tokenizer") {
  const std::string folder = golden_dir() + "/tokenizer/gpt2.json";
  auto tokenizer = Tokenizer::load(folder);
  auto ids = tokenizer.encode("Named axes");
  auto text = tokenizer.decode(ids);
  auto end = tokenizer.id_of("<|endoftext|>");
  CHECK(text == "Named axes");
  CHECK(end.has_value());
}
