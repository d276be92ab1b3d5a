// finetune: trains a model of a folder of Hugging Face on text, all parameters or adapters.
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "data.h"
#include "examples/command_line.h"
#include "examples/mesh_option.h"
#include "examples/models/pretrained.h"
#include "examples/progress.h"
#include "haliax/tokenizer.h"
#include "train.h"

using namespace haliax;

namespace {

struct Options {
  std::string folder, data, out, log, svg, mesh, modules;
  double validation = 0.05;
  std::int64_t evaluate = 50, seed = 0;
  finetune::TrainOptions train;
};

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> out;
  for (std::size_t from = 0; from < text.size();) {
    const auto end = std::min(text.find(',', from), text.size());
    out.push_back(text.substr(from, end - from));
    from = end + 1;
  }
  return out;
}
// Returns the names of the layers with an adapter: those of --modules, or the usual ones that the
// model has.
template <class Model>
std::vector<std::string> modules_of(const Model& model, const std::string& requested) {
  if (!requested.empty()) return split_at_commas(requested);
  std::vector<std::string> names{"q_proj", "v_proj", "c_attn"};
  std::erase_if(names, [&](auto& name) {
    bool found = false;
    for_each_module<nn::Linear>(
        model, [&](auto& path, const nn::Linear&) { found |= path.ends_with(name); });
    return !found;
  });
  return names;
}

template <class Model>
finetune::Sequences sequences_of(const Options& o, const Model& model, const Tokenizer& tokenizer) {
  std::vector<std::vector<int>> documents;
  for (auto& text : finetune::documents_of(o.data)) documents.push_back(tokenizer.encode(text));
  for (auto& ids : documents) models::check_tokens(model, ids);
  return {documents, o.train.length, o.validation, o.seed};
}

// One line of JSON per step.
class Log {
 public:
  explicit Log(const std::string& path) {
    if (path.empty() || this_rank() != 0) return;
    out_.open(path);
    if (!out_) throw Error("[finetune] cannot write " + path);
  }
  void add(const nlohmann::json& line) {
    if (out_.is_open()) out_ << line << std::endl;
  }

 private:
  std::ofstream out_;
};

// Raises before the first step if the folder for the model cannot be created.
void create_folder(const std::string& folder) {
  if (folder.empty()) return;
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) throw Error("[finetune] cannot create " + folder + ": " + failed.message());
}

// Returns the names of the layers with an adapter. In PEFT, each layer of a stack has a name of its
// own.
std::vector<std::string> layers_of(const TensorFile& adapter) {
  const std::string before = "base_model.model.", after = ".lora_A.weight";
  std::vector<std::string> names;
  for (auto& t : adapter.tensors)
    if (t.name.starts_with(before) && t.name.ends_with(after))
      names.push_back(t.name.substr(before.size(), t.name.size() - before.size() - after.size()));
  return names;
}

// Writes the adapters as PEFT saves them.
void write_adapter(const Options& o, const TensorFile& adapter, const ModelConfig& config) {
  const auto folder = o.out + "/adapter";
  std::filesystem::create_directories(folder);
  write_safetensors(folder + "/adapter_model.safetensors", adapter);
  std::ofstream(folder + "/adapter_config.json") << nlohmann::json{
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", o.folder},
      {"r", o.train.rank},
      {"lora_alpha", 2 * o.train.rank},
      {"target_modules", layers_of(adapter)},
      {"fan_in_fan_out",
       config.architecture() == "GPT2LMHeadModel"}}.dump(2);
}

template <class Model> void save(const Options& o, const Model& model) {
  if (o.out.empty()) return;
  const auto config = models::config_of(o.folder);
  save_pretrained(o.out, nn::merge_lora(model), config);
  TensorFile adapter;  // all ranks gather it
  if (o.train.rank > 0)
    adapter = to_state_dict(filter(model, "lora"), {}, {.prefix = "base_model.model"});
  if (this_rank() != 0) return;
  for (auto* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                     "chat_template.jinja", "generation_config.json"})
    if (std::filesystem::exists(o.folder + "/" + name))
      std::filesystem::copy_file(o.folder + "/" + name, o.out + "/" + name,
                                 std::filesystem::copy_options::overwrite_existing);
  if (o.train.rank > 0) write_adapter(o, adapter, config);
}

template <class Model> void run(Options o, Model model, const Tokenizer& tokenizer) {
  auto& t = o.train;
  models::check_length(model, t.length);
  const auto data = sequences_of(o, model, tokenizer);
  t.modules = modules_of(model, o.modules);
  if (t.rank > 0)
    model = nn::with_lora(model, t.modules, t.rank, random::key(std::uint64_t(o.seed)),
                          {.alpha = double(2 * t.rank)});
  const auto optimizer = finetune::optimizer_of(t);
  const LeafFilter trained = t.rank > 0 ? LeafFilter("lora") : LeafFilter();
  auto state = optimizer.init(trainable(model, trained));
  auto step = finetune::make_step<Model>(t, optimizer);
  const Axis Accumulate("accumulate", t.accumulate), Batch("batch", t.batch), Pos("pos", t.length);
  auto batch_of = [&](std::int64_t k) {
    const auto part = data.batch(k, t.accumulate * t.batch);
    const Axes axes{Accumulate, Batch, Pos};
    return std::pair(array(part.ids, axes), array(part.segments, axes));
  };
  std::int64_t parameters = 0;
  for (auto& a : flatten(trainable(model, trained))) parameters += a.empty() ? 0 : a.size();
  const auto first = batch_of(0);
  const auto plan = step.plan(model, state, first.first, first.second);
  std::FILE* messages = this_rank() == 0 ? stderr : stdout;
  std::fprintf(messages,
               "%lld sequences of %lld tokens, and %lld for validation; %lld trained parameters; "
               "a step needs %.0f MiB\n",
               static_cast<long long>(data.training()), static_cast<long long>(t.length),
               static_cast<long long>(data.validation()), static_cast<long long>(parameters),
               double(plan.argument_bytes + plan.peak_bytes) / (1 << 20));

  auto evaluate = jit(finetune::batch_loss<Model>({}));
  auto validation_loss = [&] {
    double sum = 0;
    const Axes axes{Batch.resize(1), Pos};
    for (std::int64_t k = 0; k < data.validation(); ++k) {
      const auto part = data.held_out(k);
      sum += evaluate(model, array(part.ids, axes), array(part.segments, axes)).item();
    }
    return sum / double(data.validation());
  };
  create_folder(o.out);
  Log log(o.log);
  examples::Progress progress(t.steps, 0, t.accumulate * t.batch * t.length);
  for (std::int64_t k = 0; k < t.steps; ++k) {
    NamedArray loss, norm;
    const auto [ids, segments] = batch_of(k);
    std::tie(model, state, loss, norm) = step(model, state, ids, segments);
    progress.add(loss.item());
    nlohmann::json line{{"step", k + 1},
                        {"loss", loss.item()},
                        {"gradient_norm", norm.item()},
                        {"seconds", progress.elapsed()}};
    const bool last = k + 1 == t.steps;
    if (data.validation() > 0 && (last || (k + 1) % o.evaluate == 0))
      line["validation_loss"] = validation_loss();
    log.add(line);
    if (last && line.contains("validation_loss"))
      std::fprintf(messages, "validation loss %.4f\n", line["validation_loss"].get<double>());
  }
  progress.finish();
  save(o, model);
  if (!o.svg.empty() && this_rank() == 0) examples::write_loss_curve(o.svg, progress.losses());
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  auto& t = o.train;
  examples::CommandLine line("Fine-tunes a language model of Hugging Face on text.");
  line.option("folder", o.folder, "folder with config.json, weights and tokenizer.json").required();
  line.option("data", o.data, "text file; blank lines separate documents").required();
  line.option("--out", o.out, "folder for the trained model; with --lora, also for the adapters");
  line.option("--steps", t.steps, "training steps").range(1, 1 << 30);
  line.option("--batch", t.batch, "sequences per gradient").range(1, 1 << 20);
  line.option("--length", t.length, "tokens per sequence").range(2, 1 << 20);
  line.option("--accumulate", t.accumulate, "gradients per step").range(1, 1 << 20);
  line.option("--lora", t.rank, "rank of adapters; 0: trains all parameters").range(0, 1 << 16);
  line.option("--modules", o.modules,
              "linear layers with an adapter, by path; default: q_proj, v_proj, c_attn");
  line.option("--lr", t.learning_rate, "largest learning rate; it decays along a cosine")
      .positive();
  line.option("--warmup", t.warmup, "steps until the largest learning rate").range(0, 1 << 30);
  line.option("--weight-decay", t.weight_decay, "weight decay").not_negative();
  line.option("--clip", t.clip, "largest norm of the gradients").positive();
  line.option("--validation", o.validation, "fraction of the sequences for validation")
      .range(0, 0.9);
  line.option("--evaluate", o.evaluate, "steps between two validations").range(1, 1 << 30);
  line.option("--seed", o.seed, "random seed").range(0, 1 << 30);
  line.option("--mesh", o.mesh, "mesh, as data=2,model=2; axes: data, model, expert, context");
  line.option("--log", o.log, "file for one line of JSON per step");
  line.option("--svg", o.svg, "file for a picture of the loss");
  if (auto status = line.parse(argc, argv)) return *status;
  try {
    examples::speak_alone();
    std::optional<use_mesh> mesh;
    std::optional<axis_mapping> mapping;
    if (!o.mesh.empty()) {
      t.mesh = examples::mesh_option("finetune", o.mesh,
                                     {{"data", "sequences, and weights"},
                                      {"model", "heads, and the MLP"},
                                      {"expert", "experts"},
                                      {"context", "tokens of a sequence"}});
      mesh.emplace(*t.mesh);
      mapping.emplace(models::parameter_mapping(*t.mesh));
    }
    models::config_of(o.folder);
    const auto tokenizer = Tokenizer::load(o.folder);
    models::with_pretrained(o.folder, DType::f32,
                            [&](const auto& model) { run(o, model, tokenizer); });
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
