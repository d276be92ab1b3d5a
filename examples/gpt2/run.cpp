// Compiles the training, sampling and checkpoint functions of a Run.
#include "run.h"

#include <haliax/checkpoint.h>
#include <haliax/huggingface.h>

#include "layout.h"
#include "train.h"

namespace gpt2 {
namespace {

// The learning rate is an argument of each step, since the length of the run may be limited in
// seconds.
struct RateFromState {
  template <class T> NamedArray init(const T&) const { return zeros({}); }
  template <class T>
  std::pair<T, NamedArray> update(const T& updates, const NamedArray& rate, const T&) const {
    return {tree_map([&](const NamedArray& u) { return u * -rate; }, updates), rate};
  }
};
// Returns true for matrices, false for norms and biases.
bool decays(std::string_view path, const NamedArray&) {
  return path.ends_with("weight") && path.find("ln_") == path.npos;
}
using Optimizer = optim::Chain<optim::ClipByGlobalNorm, optim::ScaleByAdam,
                               optim::AddDecayedWeights, RateFromState>;
Optimizer make_optimizer(const RunOptions& o) {
  return optim::chain(optim::clip_by_global_norm(1), optim::scale_by_adam(0.9, 0.95),
                      optim::add_decayed_weights(o.weight_decay, decays), RateFromState{});
}

models::GPT2Config config_of(const RunOptions& o) {
  models::GPT2Config c{.vocab_size = o.vocab,
                       .n_positions = o.seq_len,
                       .n_embd = o.embed,
                       .n_layer = o.layers,
                       .n_head = o.heads};
  c.embd_pdrop = c.attn_pdrop = c.resid_pdrop = o.dropout;
  c.activation_function = nn::activation(o.activation);
  c.tie_word_embeddings = !o.untied;
  c.gradient_checkpointing = o.checkpointing.c_str();
  return c;
}

std::int64_t number_in(const TensorFile& file, const char* key, std::int64_t otherwise) {
  for (auto& [k, v] : file.metadata)
    if (k == key) {
      if (v.empty() || v.size() > 9 || v.find_first_not_of("0123456789") != v.npos)
        throw Error("[gpt2] the metadata of the file: " + k + " is \"" + v +
                    "\", expected a number");
      return std::stoll(v);
    }
  return otherwise;
}

NamedArray integers(const std::vector<std::int32_t>& values, const AxisSpec& axes) {
  return array(std::span<const std::int32_t>(values), axes);
}

// Shards weights as the layout specifies, as arguments and as results.
JitOptions on(const Layout& layout, JitOptions o) {
  if (layout.mesh.devices() > 1) {
    o.mesh = layout.mesh;
    o.axis_resources = layout.parameters;
    o.partition = true;
  }

  return o;
}

// (model, state, ids (batch, pos), key, steps so far, learning rate) -> model, state, loss
using Step = Jitted<Stepped<Optimizer>(const Model&, const OptState<Optimizer>&, const NamedArray&,
                                       const Key&, const NamedArray&, const NamedArray&)>;
Step jitted_step(const RunOptions& o, const Layout& layout) {
  auto step = make_train_step(make_optimizer(o), {.policy = Policy(o.policy),
                                                  .full_logits = o.full_logits,
                                                  .chunks = {.memory = o.loss_memory}});
  return jit(
      [step, Batch = Axis("batch", o.batch), inside = layout.inside](
          const Model& model, const OptState<Optimizer>& state, const NamedArray& ids,
          const Key& key, const NamedArray& count, const NamedArray& rate) {
        axis_mapping scope(inside);
        auto now = state;
        std::get<NamedArray>(now) = rate;
        return step(model, now, ids, random::split(random::fold_in(key, count), Batch));
      },
      on(layout, {.donate = {0, 1}, .backend = o.backend}));
}
// The parameters of a draw: the key of the sample, the number of drawn tokens, the temperature.
struct Draw {
  Key key;
  NamedArray count, temperature;
};
struct Continued {
  NamedArray id;
  nn::KVCache cache;
};
// Draws the token after the first `count` of ids (pos) and the cached tokens.
Continued next_token(const Model& m, const NamedArray& ids, const NamedArray& count,
                     const nn::KVCache& cache, const Draw& d) {
  auto [hidden, next] = m.transformer(ids, cache, count);
  auto logits = dot(at(hidden, "pos", count - 1), m.head(), "embed").astype(DType::f32);
  auto drawn = random::categorical(random::fold_in(d.key, d.count),
                                   logits / maximum(d.temperature, 1e-6), "vocab");
  return {where(d.temperature > 0., drawn, argmax(logits, "vocab")), next};
}
// (model, ids (pos), count of valid ids, draw): processes a new prompt of any length up to the
// window.
using Prefill = Jitted<Continued(const Model&, const NamedArray&, const NamedArray&, const Draw&)>;
Prefill jitted_prefill(const RunOptions& o, const Layout& layout) {
  return jit(
      [](const Model& model, const NamedArray& ids, const NamedArray& count, const Draw& d) {
        return next_token(model, ids, count, model.cache({}, model.head().dtype()), d);
      },
      on(layout, {.backend = o.backend}));
}
// (model, the last id, cache, draw): generates one more token.
using Decode = Jitted<Continued(const Model&, const NamedArray&, const nn::KVCache&, const Draw&)>;
Decode jitted_decode(const RunOptions& o, const Layout& layout) {
  return jit(
      [](const Model& model, const NamedArray& id, const nn::KVCache& cache, const Draw& d) {
        return next_token(model, broadcast_axis(id, Axis("pos", 1)), ones({}, DType::i32), cache,
                          d);
      },
      on(layout, {.donate = {2}, .backend = o.backend}));
}
// Casts the model to its compute dtype, once per sample and not for each token.
using Cast = Jitted<Model(const Model&)>;
Cast jitted_cast(const RunOptions& o, const Layout& layout) {
  return jit(
      [policy = Policy(o.policy)](const Model& model) { return policy.cast_to_compute(model); },
      on(layout, {.backend = o.backend}));
}
Model new_model(const RunOptions& o, const Layout& layout, const Key& key) {
  return jit([config = config_of(o)](const Key& k) { return Model::init(config, k); },
             on(layout, {.backend = o.backend}))(key);
}
// The contents of a checkpoint. The arrays of the model are named model.h.0.attn.c_attn.weight, ...
struct Trained {
  Model model;
  OptState<Optimizer> opt_state;
  Key key;
};
// The names of files of GPT-2 at Hugging Face, which lack the prefix `transformer`.
const StateNames kNames{{"transformer", ""}};
CheckpointOptions checkpoint_options(int keep) { return {.keep = keep, .names = kNames}; }
const RunOptions& checked(const RunOptions& o) {
  if (o.vocab < 1) throw Error("[gpt2] a vocabulary needs tokens");
  if (o.batch < 1) throw Error("[gpt2] a batch needs examples");
  if (o.threads > 0) set_threads(o.threads);
  set_default_backend(o.backend);
  return o;
}

}  // namespace

struct Run::Impl {
  explicit Impl(const RunOptions& o)
      : options(checked(o)), Batch("batch", o.batch), Pos("pos", o.seq_len),
        keys(random::split<3>(random::key(o.seed))), layout(layout_of(o.mesh)),
        model(new_model(o, layout, keys[0])),
        opt_state(jit([o](const Model& m) { return make_optimizer(o).init(m); },
                      on(layout, {.backend = o.backend}))(model)),
        step(jitted_step(o, layout)), prefill(jitted_prefill(o, layout)),
        decode(jitted_decode(o, layout)), cast(jitted_cast(o, layout)) {}

  RunOptions options;
  Axis Batch, Pos;
  std::array<Key, 3> keys;  // for weights, training and samples
  Layout layout;
  Model model;
  OptState<Optimizer> opt_state;
  Step step;
  Prefill prefill;
  Decode decode;
  Cast cast;
  std::int32_t steps = 0;
  std::optional<Checkpoints> checkpoints;
};

RunOptions sizes_of(const std::string& weights, RunOptions o) {
  auto file = read_safetensors(weights);
  std::string prefix = file.find("transformer.wte.weight") ? "transformer." : "";
  auto matrix = [&](const char* name) -> auto& {
    auto& t = file.at(prefix + name);
    if (t.shape.size() != 2) throw Error("[gpt2] the tensor " + t.name + " is not a matrix");
    return t.shape;
  };
  o.vocab = matrix("wte.weight")[0];
  o.embed = matrix("wte.weight")[1];
  o.seq_len = matrix("wpe.weight")[0];
  for (o.layers = 0; file.find(prefix + "h." + std::to_string(o.layers) + ".ln_1.weight");)
    ++o.layers;
  o.heads = number_in(file, "heads", std::max<std::int64_t>(1, o.embed / 64));
  o.untied = file.find("lm_head.weight") != nullptr;
  for (auto& [k, v] : file.metadata)
    if (k == "activation") o.activation = v;
  return o;
}

Run::Run(const RunOptions& options) : impl_(std::make_unique<Impl>(options)) {}
void Run::load(const std::string& weights) {
  impl_->model = load_pretrained(weights, impl_->model, {.base_prefix = "transformer"});
}
Run::~Run() = default;

std::int64_t Run::parameters() const {
  std::int64_t n = 0;
  for (auto& a : flatten(impl_->model)) n += a.size();
  return n;
}

Planned Run::planned() const {
  auto& r = *impl_;
  auto peak = [&](bool full_logits) {
    auto o = r.options;
    o.full_logits = full_logits;
    auto ids = zeros({r.Batch, r.Pos}, DType::i32).eval();
    auto step = jitted_step(o, r.layout);
    return step.compile(r.model, r.opt_state, ids, r.keys[1], integers({0}, {}), NamedArray(0.))
        .peak_bytes;
  };
  return {peak(false), peak(true)};
}

double Run::step(const std::vector<std::int32_t>& ids, double learning_rate) {
  auto& r = *impl_;
  auto after = r.step(r.model, r.opt_state, integers(ids, {r.Batch, r.Pos}), r.keys[1],
                      integers({r.steps++}, {}), NamedArray(learning_rate));
  r.model = std::move(after.model);
  r.opt_state = std::move(after.opt_state);
  return after.loss.item();
}

std::vector<std::int32_t> Run::sample(std::vector<std::int32_t> prompt, int count,
                                      double temperature, std::int64_t seed) const {
  auto& r = *impl_;
  if (prompt.empty()) prompt.push_back('\n');
  auto window = std::size_t(r.Pos.size);
  auto key = random::fold_in(r.keys[2], seed);
  const NamedArray heat = temperature;
  const bool narrow = Policy(r.options.policy).compute != r.model.head().dtype();
  const auto model = narrow ? r.cast(r.model) : r.model;
  Continued last;
  for (int i = 0; i < count; ++i) {
    const Draw draw{key, integers({i}, {}), heat};
    if (i > 0 && prompt.size() <= window) {
      last = r.decode(model, last.id, last.cache, draw);
    } else {  // beyond the window each position shifts, which invalidates the cache
      auto seen = std::min(window, prompt.size());
      std::vector<std::int32_t> ids(prompt.end() - std::ptrdiff_t(seen), prompt.end());
      ids.resize(window);  // causality masks the positions after the last token
      last = r.prefill(model, integers(ids, r.Pos), integers({std::int32_t(seen)}, {}), draw);
    }
    prompt.push_back(std::int32_t(last.id.item()));
  }
  prompt.erase(prompt.begin(), prompt.end() - count);
  return prompt;
}

void Run::save(const std::string& path) const {
  auto file = to_state_dict(impl_->model, kNames);
  file.metadata.push_back({"heads", std::to_string(impl_->options.heads)});
  file.metadata.push_back({"activation", impl_->options.activation});
  if (this_rank() == 0) write_safetensors(path, file);  // all ranks have gathered the weights
}

std::int64_t Run::open_checkpoints(const std::string& folder, int keep, bool resume,
                                   std::int64_t& position) {
  auto& r = *impl_;
  r.checkpoints.emplace(folder, checkpoint_options(keep), SourceLocation::current());
  if (auto there = checkpoint_steps(folder); !there.empty() && !resume)
    throw Error("[gpt2] " + folder + " has a checkpoint of step " + std::to_string(there.back()) +
                "; continue from it with --resume, or use another folder");
  auto found =
      latest_checkpoint(folder, Trained{r.model, r.opt_state, r.keys[1]}, checkpoint_options(keep));
  if (!found) return 0;
  auto& state = found->state;
  r.model = std::move(state.model);
  r.opt_state = std::move(state.opt_state);
  r.keys[1] = std::move(state.key);
  r.steps = std::int32_t(found->step);
  position = found->number("position");
  return r.steps;
}
void Run::save_checkpoint(std::int64_t position) {
  auto& r = *impl_;
  r.checkpoints->save(r.steps, Trained{r.model, r.opt_state, r.keys[1]}, {{"position", position}});
}
void Run::finish_checkpoints() { impl_->checkpoints->wait(); }

}  // namespace gpt2
