// Folders of Hugging Face as models of examples/models, by their config.json.
#include "examples/models/pretrained.h"

#include <fstream>

#include "models/recorded.h"
#include "support/folder.h"

using namespace haliax;
using namespace haliax::testing;

namespace {

// Logits of a folder without and with a cache equal those of transformers for the golden model.
void check_folder(const std::string& folder, const std::string& name) {
  CAPTURE(name);
  const auto cases = read_safetensors(golden_dir() + "/models/" + name + "/cases.safetensors");
  const Axis Batches("batches", 4), Batch("batch", 4), Pos("pos", 16);
  auto ids = from_tensor(cases.at("inputs.input_ids"), {Batches, Batch, Pos});
  auto row = at(at(ids, Batches, 0), Batch, 0).eval();
  const auto expected =
      at(from_tensor(cases.at("logits"), {Batch, Pos, Axis("vocab", 99)}), Batch, 0).doubles();
  models::with_pretrained(folder, DType::f32, [&](const auto& model) {
    auto near = [&](const NamedArray& logits) {
      CHECK(largest_difference(rearrange(logits, {"pos", "vocab"}).doubles(), expected) <=
            1e-5 * largest(expected));
    };
    near(model(row));
    near(model(row, models::cache_of(model, 16, DType::f32), full({}, 16, DType::i32)).first);
  });
}
// Returns the message of the error for a file of transformers with one value changed.
template <class T, class F>
std::string message(const char* name, const char* key, const T& value, F reader) {
  auto config = load_config(golden_dir() + "/models/" + name);
  reader(config);
  try {
    reader(config.set(key, value));
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("pretrained models have the logits of transformers") {
  for (auto* name : {"gpt2", "llama", "llama_tied", "mixtral", "qwen3_moe"})
    check_folder(golden_dir() + "/models/" + name, name);
}
TEST_CASE(
    "folders of models without a head, and without architectures, have the model of their type") {
  for (auto* name : {"gpt2", "llama_tied"}) {
    const std::string golden = golden_dir() + "/models/" + name;
    const std::string base = std::string(name) == "gpt2" ? "transformer." : "model.";
    auto file = read_safetensors(golden + "/model.safetensors");
    for (auto& t : file.tensors)
      if (t.name.starts_with(base)) t.name.erase(0, base.size());
    const auto config = load_config(golden);
    const auto check = [&](ModelConfig changed) {
      Folder folder;
      write_safetensors(folder / "model.safetensors", file);
      std::ofstream(folder / "config.json") << changed.json();
      check_folder(folder.path, name);
      CHECK(models::config_of(folder.path).architecture() == config.architecture());
    };
    const auto type = config.get<std::string>("model_type");
    const std::string without_head = type == "gpt2" ? "GPT2Model" : "LlamaModel";
    check(ModelConfig(config).set("architectures", std::vector<std::string>{without_head}));
    check(ModelConfig(config).erase("architectures"));
  }
}
TEST_CASE("a mixtral without numbers of rotary positions and norms has those of transformers") {
  auto config = load_config(golden_dir() + "/models/mixtral");
  for (auto* key : {"rope_parameters", "rope_theta", "rms_norm_eps"}) config.erase(key);
  CHECK(models::mixtral_config(config).rope_theta == 1e6);
  CHECK(models::mixtral_config(config).rms_norm_eps == 1e-5);
  CHECK(models::llama_config(config).rope_theta == 1e4);
}
TEST_CASE("configurations that a model does not support raise") {
  auto contains = [](const std::string& text, const char* part) {
    CAPTURE(text);
    CHECK(text.find(part) != std::string::npos);
  };
  auto qwen = [](const char* key, const auto& value) {
    return message("qwen3_moe", key, value, models::qwen3_moe_config);
  };
  contains(message("mixtral", "sliding_window", 4096, models::mixtral_config),
           "sliding_window must be null");
  for (auto* key : {"vocab_size", "hidden_size", "num_hidden_layers", "head_dim"})
    for (std::int64_t size : {0, -8})
      contains(message("llama", key, size, models::llama_config), "it must be at least 1");
  for (auto* key : {"n_positions", "n_embd", "n_layer", "n_inner"})
    contains(message("gpt2", key, std::int64_t(-8), models::gpt2_config), "it must be at least 1");
  contains(qwen("decoder_sparse_step", 2), "has layers without experts");
  contains(qwen("mlp_only_layers", std::vector<int>{0}), "has layers without experts");
  contains(qwen("use_sliding_window", true), "[qwen3_moe]");
  contains(qwen("attention_bias", true), "attention_bias must be false");
  auto gpt2 = [](const char* key, const auto& value) {
    return message("gpt2", key, value, models::gpt2_config);
  };
  contains(gpt2("tie_word_embeddings", false), "tie_word_embeddings must be true");
  contains(gpt2("scale_attn_weights", false), "scale_attn_weights must be true");
  contains(gpt2("scale_attn_by_inverse_layer_idx", true),
           "scale_attn_by_inverse_layer_idx must be false");
  contains(gpt2("add_cross_attention", true), "add_cross_attention must be false");
  contains(gpt2("n_head", 0), "0 attention heads");
  contains(gpt2("n_head", 5), "and 5 attention heads; the first number must be a multiple");
  auto llama = [](const char* key, const auto& value) {
    return message("llama", key, value, models::llama_config);
  };
  contains(llama("attention_bias", true), "attention_bias must be false");
  contains(llama("mlp_bias", true), "mlp_bias must be false");
  contains(llama("hidden_act", std::string("gelu")), "the activation gelu");
  contains(llama("num_key_value_heads", 3), "3 heads of keys; the first number must be a positive");
  contains(llama("num_key_value_heads", 0), "0 heads of keys");
  auto rope = [&](const char* json) { return llama("rope_scaling", ModelConfig::parse(json)); };
  contains(rope(R"({"type": "linear", "factor": 2.0})"), "rope_type is linear");
  contains(rope(R"({"rope_type": "default", "partial_rotary_factor": 0.5})"),
           "partial_rotary_factor must be 1");
}
