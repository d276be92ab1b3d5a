// generate: continues a text with a model of a folder of Hugging Face.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "examples/command_line.h"
#include "examples/mesh_option.h"
#include "examples/models/layout.h"
#include "examples/models/pretrained.h"
#include "examples/progress.h"
#include "haliax/tokenizer.h"
#include "sampling.h"

using namespace haliax;

namespace {

struct Options {
  std::string folder, prompt, mesh, dtype = "f32";
  std::int64_t tokens = 64, seed = 0;
  generate::Sampling sampling;
};

// Prints the text of tokens as it becomes complete: a token may end inside of a character.
class TextPrinter {
 public:
  explicit TextPrinter(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  void add(int id) {
    ids_.push_back(id);
    const auto text = tokenizer_.decode(ids_);
    const bool ends_inside = text.ends_with("\xEF\xBF\xBD");  // U+FFFD
    if (ends_inside || text.size() <= printed_) return;
    std::fputs(text.substr(printed_).c_str(), stdout);
    std::fflush(stdout);
    printed_ = text.size();
  }
  // Prints the rest, in which the bytes of a character that is not complete are U+FFFD.
  void finish() {
    std::printf("%s\n", tokenizer_.decode(ids_).substr(printed_).c_str());
    std::fflush(stdout);
  }

 private:
  const Tokenizer& tokenizer_;
  std::vector<int> ids_;
  std::size_t printed_ = 0;
};

// Returns the tokens that end a text, as transformers selects them.
std::vector<int> stops_of(const std::string& folder) {
  auto config = load_config(folder);
  const auto path = folder + "/generation_config.json";
  if (std::ifstream in(path); in)
    config = ModelConfig::parse(std::string(std::istreambuf_iterator<char>(in), {}), path);
  if (!config.has("eos_token_id")) return {};
  if (config.has_list("eos_token_id")) return config.get<std::vector<int>>("eos_token_id");
  return {config.get<int>("eos_token_id")};
}

template <class Model>
void run(const Options& o, const Model& model, const Tokenizer& tokenizer,
         const std::vector<int>& stops, const std::optional<Mesh>& mesh) {
  auto ids = tokenizer.encode(o.prompt);
  if (ids.empty()) throw Error("[generate] the prompt has no tokens; pass text with --prompt");
  models::check_tokens(model, ids);
  // One step: the tokens after the cached ones -> the next token, and the extended cache.
  JitOptions options{.donate = {2}};
  if (mesh) {
    options.mesh = mesh;
    options.axis_resources = models::compute_mapping(*mesh);
  }
  auto step = named_jit(
      [=](const Model& m, const NamedArray& ids, const nn::KVCache& cache, const Key& key) {
        auto count = NamedArray(std::int32_t(ids.axis_size("pos")));
        auto [logits, next] = m(ids, cache, count);
        auto last = index(logits, {{"pos", -1}}).astype(DType::f32);
        return std::pair(generate::sample(last, key, o.sampling), next);
      },
      options);
  auto cache = models::cache_of(model, std::int64_t(ids.size()) + o.tokens, dtype_of(o.dtype));
  auto key = random::key(std::uint64_t(o.seed));
  TextPrinter printer(tokenizer);
  std::int64_t made = 0;
  std::chrono::steady_clock::time_point start;
  for (; made < o.tokens; ++made) {
    auto input = array(std::vector<std::int32_t>(ids.begin(), ids.end()),
                       Axis("pos", std::int64_t(ids.size())));
    NamedArray next;
    std::tie(next, cache) = step(model, input, cache, random::fold_in(key, made));
    const int id = int(next.integers()[0]);
    if (made == 1) start = std::chrono::steady_clock::now();  // both steps are compiled
    if (std::find(stops.begin(), stops.end(), id) != stops.end()) break;
    printer.add(id);
    ids = {id};
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  printer.finish();
  if (made > 2 && this_rank() == 0)
    std::fprintf(stderr, "%lld tokens, %.1f tokens/s\n", static_cast<long long>(made),
                 double(made - 2) / seconds);
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  examples::CommandLine line("Continues a text with a language model of Hugging Face.");
  line.option("folder", o.folder, "folder with config.json, weights and tokenizer.json").required();
  line.option("--prompt", o.prompt, "text to continue").required();
  line.option("--tokens", o.tokens, "new tokens").range(1, 1 << 20);
  line.option("--temperature", o.sampling.temperature,
              "divides the logits; 0: the most likely token")
      .not_negative();
  line.option("--top-k", o.sampling.top_k, "selects among the k most likely tokens; 0: all")
      .range(0, 1 << 20);
  line.option("--top-p", o.sampling.top_p,
              "selects among the most likely tokens with this total probability")
      .range(0, 1);
  line.option("--seed", o.seed, "random seed").range(0, 1 << 30);
  line.option("--dtype", o.dtype, "dtype of weights and cache").one_of({"f32", "bf16", "f16"});
  line.option("--mesh", o.mesh, "mesh, as model=2; axes: data (weights), model, expert");
  if (auto status = line.parse(argc, argv)) return *status;
  try {
    examples::speak_alone();
    std::optional<Mesh> mesh;
    std::optional<use_mesh> devices;
    std::optional<axis_mapping> mapping;
    if (!o.mesh.empty()) {
      mesh = examples::mesh_option(
          "generate", o.mesh,
          {{"data", "weights"}, {"model", "heads, and the MLP"}, {"expert", "experts"}});
      devices.emplace(*mesh);
      mapping.emplace(models::parameter_mapping(*mesh));
    }
    models::config_of(o.folder);
    const auto tokenizer = Tokenizer::load(o.folder);
    const auto stops = stops_of(o.folder);
    models::with_pretrained(o.folder, dtype_of(o.dtype),
                            [&](const auto& model) { run(o, model, tokenizer, stops, mesh); });
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
