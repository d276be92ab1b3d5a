// Model folders: the configuration, weights in one or several files, and errors.
#include "haliax/huggingface.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "haliax/haliax.h"
#include "tests/io/checks.h"
#include "tests/support/folder.h"
#include "tests/support/memory.h"

using namespace haliax;

namespace {

const Axis Embed("embed", 6), Mlp("mlp", 10), Vocab("vocab", 12), Layers("layers", 3);

struct Block {
  nn::Linear up, down;
  static Block init(const Key& key) {
    auto [a, b] = random::split<2>(key);
    return {nn::Linear::init(Embed, Mlp, a), nn::Linear::init(Mlp, Embed, b)};
  }
  static StateNames state_names() { return {{"up", "c_fc"}}; }
};
struct Body {
  nn::Embedding tokens;
  nn::Stacked<Block> blocks;
  static StateNames state_names() { return {{"tokens", "wte"}, {"blocks", "h"}}; }
};
struct Model {
  Body body;
  nn::Linear head;
  static StateNames state_names() { return {{"body", "transformer"}, {"head", "lm_head"}}; }
  static Model init(int seed) {
    auto [a, b, c] = random::split<3>(random::key(seed));
    return {{nn::Embedding::init(Vocab, Embed, a),
             nn::Stacked<Block>::init(Layers, Block::init, random::split(b, Layers))},
            nn::Linear::init(Embed, Vocab, c, {.use_bias = false})};
  }
};
std::string text_of(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}
ModelConfig config() {
  return ModelConfig::parse(R"({"architectures": ["TestForCausalLM"], "n_layer": 3, "eps": 1e-05,
      "tied": false, "name": "x", "sizes": [1, 2], "rope": {"factor": 8}, "absent": null})");
}

}  // namespace

TEST_CASE("config: values have types, and errors name the key and the file") {
  const auto c = config();
  CHECK(c.get<int>("n_layer") == 3);
  CHECK(c.get<std::int64_t>("n_layer") == 3);
  CHECK(c.get<double>("n_layer") == 3);
  CHECK(c.get<double>("eps") == 1e-5);
  CHECK(c.get<bool>("tied") == false);
  CHECK(c.get<std::string>("name") == "x");
  CHECK(c.get<std::vector<int>>("sizes") == std::vector<int>{1, 2});
  CHECK(c.get<ModelConfig>("rope").get<double>("factor") == 8);
  CHECK(c.get("absent", 7) == 7);
  CHECK(c.get("n_layer", 7) == 3);
  CHECK(c.get_any<int>({"num_layers", "n_layer"}) == 3);
  CHECK(!c.has("absent"));
  CHECK(has(message([&] { c.get<int>("n_layers"); }),
            "[load_config] the configuration has no key n_layers; did you mean n_layer?"));
  CHECK(has(message([&] { c.get<int>("eps"); }), "eps is 1e-05; expected a 32-bit integer"));
  CHECK(has(message([&] { c.get<ModelConfig>("rope").get<int>("type"); }),
            "rope in the configuration has no key type"));
  CHECK(c.architecture() == "TestForCausalLM");
  CHECK(has(message([&] {
              c.architecture({"GPT2LMHeadModel", "LlamaForCausalLM"});
            }),
            "architecture TestForCausalLM is not supported; the supported ones are "
            "GPT2LMHeadModel, LlamaForCausalLM"));
  auto changed = c;
  changed.set("n_layer", 4).set("name", "y").erase("tied");
  CHECK(c.get<int>("n_layer") == 3);
  CHECK(ModelConfig::parse(changed.json()).get<int>("n_layer") == 4);
  CHECK(!ModelConfig::parse(changed.json()).has("tied"));
  CHECK(has(message([] { ModelConfig::parse("[1]"); }), "is not a JSON object"));
}

TEST_CASE("config: a folder without one raises") {
  Folder folder;
  CHECK(has(message([&] { load_config(folder / "nothing"); }), "nothing is not a folder"));
  CHECK(has(message([&] { load_config(folder.path); }), "has no config.json"));
  std::ofstream(folder / "config.json") << "{";
  CHECK(has(message([&] { load_config(folder.path); }), "config.json is not a JSON object"));
}

TEST_CASE("pretrained: one file, several files with an index, and replacing them") {
  Folder folder;
  const auto model = Model::init(0);
  save_pretrained(folder.path, model, config());
  CHECK(folder.files() == 2);
  CHECK(same_trees(load_pretrained(folder.path, Model::init(1)), model));
  CHECK(same_trees(load_pretrained(folder / "model.safetensors", Model::init(1)), model));
  CHECK(load_config(folder.path).get<std::string>("torch_dtype") == "float32");
  CHECK(load_config(folder.path).get<int>("n_layer") == 3);

  save_pretrained(folder.path, model, config(), {.max_shard_bytes = 600});
  const auto files = folder.files();
  CHECK(files > 4);
  CHECK(!std::filesystem::exists(folder / "model.safetensors"));
  CHECK(has(text_of(folder / "model.safetensors.index.json"), "\"transformer.h.0.c_fc.weight\""));
  CHECK(same_trees(load_pretrained(folder.path, Model::init(1)), model));
  auto tensors = list_pretrained(folder.path);
  CHECK(tensors.size() == 2 + 3 * 4);
  CHECK(tensors[0].name == "lm_head.weight");
  CHECK(tensors[0].shape == std::vector<std::int64_t>{12, 6});

  std::ofstream(folder / "tokenizer.json") << "{}";
  save_pretrained(folder.path, model, config(), {.dtype = DType::bf16});
  CHECK(folder.files() == 3);
  CHECK(load_config(folder.path).get<std::string>("torch_dtype") == "bfloat16");
  auto rounded =
      tree_map([](const NamedArray& a) { return a.astype(DType::bf16).astype(DType::f32); }, model);
  CHECK(same_trees(load_pretrained(folder.path, Model::init(1)), rounded));
}

TEST_CASE("pretrained: a prefix that only some files have, buffers, and tied heads") {
  Folder folder;
  const auto model = Model::init(0);
  auto file = to_state_dict(model.body);  // without "transformer."
  file.tensors.push_back({"h.0.attn.bias", DType::boolean, {2}, {std::byte{1}, std::byte{0}}});
  write_safetensors(folder / "model.safetensors", file);
  StateMismatch found;
  auto loaded =
      load_pretrained(folder.path, Model::init(1),
                      {.allow_missing = true, .mismatch = &found, .base_prefix = "transformer"});
  CHECK(same_trees(loaded.body, model.body));
  CHECK(found.unused == std::vector<std::string>{"h.0.attn.bias"});
  CHECK(found.missing == std::vector<std::string>{"lm_head.weight"});
  CHECK(has(message([&] { load_pretrained(folder.path, model.body, {.allow_unused = false}); }),
            "[load_pretrained] h.0.attn.bias is unexpected; {.allow_unused"));
}

TEST_CASE("pretrained: arrays are loaded in shards, on any mesh") {
  Folder folder;
  const auto model = Model::init(0);
  save_pretrained(folder.path, model, config(), {.max_shard_bytes = 600, .dtype = DType::f16});
  const auto wanted = load_pretrained(folder.path, Model::init(1));
  const Mesh mesh({{"data", 2}, {"model", 2}});
  use_mesh on(mesh);
  axis_mapping scope({{"embed", "data"}, {"mlp", "model"}, {"vocab", "model"}});
  const auto loaded = load_pretrained(folder.path, Model::init(1));
  CHECK(placement(loaded.head.weight) != nullptr);
  CHECK(same_trees(loaded, wanted));
  Folder copy;
  save_pretrained(copy.path, loaded, config());
  CHECK(same_trees(load_pretrained(copy.path, Model::init(1)), wanted));
}

TEST_CASE("pretrained: missing, truncated and exchanged files raise, and nothing is loaded") {
  Folder folder;
  const auto model = Model::init(0);
  const auto like = Model::init(1);
  auto error = [&] { return message([&] { load_pretrained(folder.path, like); }); };
  CHECK(has(error(), "has no weights: neither model.safetensors nor model.safetensors.index.json"));
  std::ofstream(folder / "pytorch_model.bin") << "x";
  CHECK(has(error(), "has pytorch_model.bin, which is not read"));
  CHECK(has(message([&] { load_pretrained(folder / "no", like); }),
            "no is neither a folder nor a file"));
  save_pretrained(folder.path, model, config(), {.max_shard_bytes = 600});
  std::vector<std::string> files;
  for (auto& f : std::filesystem::directory_iterator(folder.path))
    if (f.path().extension() == ".safetensors") files.push_back(f.path());
  std::sort(files.begin(), files.end());
  const auto moved = files[1] + ".moved";

  std::filesystem::rename(files[1], moved);
  CHECK(has(error(), files[1] + " is missing; model.safetensors.index.json lists it"));
  CHECK(!has(error(), "after the call at"));  // the location is that of load_pretrained
  std::filesystem::copy_file(moved, files[1]);
  std::filesystem::resize_file(files[1], std::filesystem::file_size(moved) - 4);
  CHECK(has(error(), "the file is truncated"));
  CHECK(has(error(), files[1]));
  std::filesystem::remove(files[1]);
  std::filesystem::copy_file(files[0], files[1]);
  CHECK(has(error(), files[1] + " lacks the tensor"));
  auto other = read_safetensors(moved);
  other.tensors.push_back({"adapter.weight", DType::boolean, {1}, {std::byte{1}}});
  write_safetensors(files[1], other);
  CHECK(has(error(), files[1] + " has the tensor adapter.weight, which "
                                "model.safetensors.index.json does not list"));
  std::filesystem::remove(files[1]);
  std::filesystem::rename(moved, files[1]);
  CHECK(has(error(), "no error"));

  struct Wide {
    nn::Linear lm_head;
  };
  const Wide wide{nn::Linear::init(Mlp, Vocab, random::key(0), {.use_bias = false})};
  CHECK(has(message([&] { load_pretrained(folder.path, wide); }),
            "lm_head.weight has shape (12, 6), but the model expects (12, 10)"));

  std::ofstream(folder / "model.safetensors.index.json") << R"({"weight_map": {"a": "../b"}})";
  CHECK(has(error(), "is corrupt: a file of its weight_map is not in the folder"));
  std::ofstream(folder / "model.safetensors.index.json") << R"({"weights": 1})";
  CHECK(has(error(), "is corrupt: it has no weight_map"));
}

TEST_CASE("pretrained: a number of layers far from that of the file raises at once") {
  Folder folder;
  save_pretrained(folder.path, Model::init(0), config());
  const Axis Many("layers", std::int64_t(1) << 40);
  const auto like =
      nn::Stacked<Block>::init(Many, Block::init, random::split(random::key(0), Many));
  CHECK(has(message([&] { load_pretrained(folder.path, like, {.prefix = "transformer.h"}); }),
            "is 1099511627776 tensors, but the file has 14 in total"));
}

TEST_CASE("pretrained: a folder that cannot be written raises, and stays unchanged") {
  Folder folder;
  const auto model = Model::init(0);
  std::ofstream(folder / "file") << "x";
  CHECK(has(message([&] { save_pretrained((folder / "file") + "/deep", model, config()); }),
            "[save_pretrained]"));
  CHECK(has(message([&] {
              save_pretrained(folder.path, std::pair(model.head, model.head), config(),
                              {.names = {{"first", ""}, {"second", ""}, {"0", ""}, {"1", ""}}});
            }),
            "two arrays have the name weight"));
  CHECK(folder.files() == 1);
}

TEST_CASE("pretrained: loading needs the memory of the model and a few MiB") {
  struct Large {
    nn::Stacked<nn::Linear> layers;
    static Large init(int seed) {
      const Axis Rows("rows", 1 << 10), Columns("columns", 1 << 11);
      const Axis Depth("depth", 16);
      auto one = [&](const Key& k) {
        return nn::Linear::init(Columns, Rows, k, {.use_bias = false});
      };
      return {nn::Stacked<nn::Linear>::init(Depth, one, random::split(random::key(seed), Depth))};
    }
  };
  Folder folder(memory_folder());
  const std::int64_t bytes = std::int64_t(16) << (10 + 11 + 2);  // 128 MiB
  {
    auto large = Large::init(0);
    save_pretrained(folder.path, large, config(), {.max_shard_bytes = 40 << 20});
  }
  Large loaded;
  const auto grown = peak_growth_of([&] { loaded = load_pretrained(folder.path, Large::init(1)); });
  CHECK(grown < (bytes + (24 << 20)) * resident_per_byte);
  CHECK(grown > bytes / 2);
}
