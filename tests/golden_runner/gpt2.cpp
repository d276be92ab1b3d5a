// Builds the model, the optimizer and the layout of a case and its variant. Compares logits, loss,
// gradients, training and generation with the recorded values, on devices and on ranks.
#include "gpt2.h"

#include <algorithm>
#include <cmath>

#include "examples/models/gpt2.h"
#include "haliax/ranks.h"
#include "haliax/state_dict.h"
#include "devices/ranks.h"

namespace golden {

using namespace haliax;
using Model = models::GPT2LMHeadModel;

namespace {

// ---- the case ----

models::GPT2Config config_of(const Value& args) {
  models::GPT2Config c;
  c.vocab_size = args["vocab"].as_integer();
  c.n_positions = args["seq"].as_integer();
  c.n_embd = args["embed"].as_integer();
  c.n_layer = args["layers"].as_integer();
  c.n_head = args["heads"].as_integer();
  c.n_inner = args["mlp"].as_integer();
  c.embd_pdrop = c.attn_pdrop = c.resid_pdrop = 0;
  c.layer_norm_epsilon = args["layer_norm_epsilon"].as_real();
  c.activation_function = nn::activation(args["activation"].as_text());
  c.tie_word_embeddings = args["tied"].as_flag(true);
  c.scale_attn_by_inverse_layer_idx = args["scale_by_inverse_layer_idx"].as_flag(false);
  c.reorder_and_upcast_attn = args["upcast_attention"].as_flag(false);
  c.gradient_checkpointing = ScanCheckpoint(args["gradient_checkpointing"].as_flag(false));
  return c;
}
Policy policy_of(const Value& args) {
  return Policy("p=f32,c=" + args["compute_dtype"].as_text() + ",o=f32");
}

// Returns Hugging Face's names for the fields. `prefix` precedes each name except lm_head.
StateNames state_names(const Value& args) {
  std::string prefix = args["name_prefix"].as_text();
  if (!prefix.empty() && prefix.back() == '.') prefix.pop_back();
  return {{"transformer", prefix}};
}
Model load(const Group& g, const Value& c, const std::string& which) {
  const Value& args = c["args"];
  const Model like = Model::init(config_of(args), random::key(0));
  return from_state_dict(read_tensors(g.dir + "/" + c["weights"][which].as_text()), like,
                         golden::state_names(args));
}

// ---- the training script of the Levanter introduction ----

struct Script {
  Variant variant;
  Policy policy;

  JitOptions options(const std::string& backend) const {
    JitOptions o;
    o.backend = backend;
    if (const auto& l = variant.layout) {
      o.mesh = l->mesh;
      o.axis_resources = l->parameters;
      o.partition = true;
    }

    o.overlap = variant.overlap;
    return o;
  }

  NamedArray logits(const Model& model, const NamedArray& ids, const Key& key) const {
    return policy.cast_to_output(policy.cast_to_compute(model)(ids, key));
  }
  // ids (pos), or (batch, pos) -> ()
  NamedArray compute_loss(const Model& model, const NamedArray& ids, const Key& key) const {
    std::optional<axis_mapping> scope;
    if (variant.layout) scope.emplace(variant.layout->inside);
    if (!variant.chunked) return nn::next_token_loss("pos", "vocab", logits(model, ids, key), ids);

    const Model mine = policy.cast_to_compute(model);
    const std::int64_t n = ids.axis_size("pos") - 1;
    const NamedArray x = slice(mine.transformer(ids, key), "pos", 0, n),
                     next = slice(ids, "pos", 1, n);
    return mean(nn::chunked_cross_entropy(x, mine.head(), next, "embed", "vocab", "pos",
                                          {.chunks = {.chunk = 5}, .logit_dtype = policy.output}));
  }
  // ids (batch, pos), keys (batch) -> ()
  NamedArray loss(const Model& model, const NamedArray& ids, const Key& keys) const {
    if (!variant.vmap) return compute_loss(model, ids, {});
    auto one = [*this](const Model& m, const NamedArray& i, const Key& k) {
      return compute_loss(m, i, k);
    };
    return mean(vmap(one, "batch")(model, ids, keys), "batch").scalar();
  }
};

auto optimizer_of(const Value& o) {
  return optim::chain(optim::ClipByGlobalNorm{o["clip_by_global_norm"].as_real()},
                      optim::ScaleByAdam{o["b1"].as_real(), o["b2"].as_real(), o["eps"].as_real()},
                      optim::AddDecayedWeights{o["weight_decay"].as_real()},
                      optim::Scale{-o["lr"].as_real()});
}

// ---- comparing ----

bool is_key_bias(const std::string& name, std::size_t i, std::size_t size) {
  return name.ends_with("attn.c_attn.bias") && i >= size / 3 && i < 2 * (size / 3);
}

using TolerancesOf = std::function<Tolerance(bool key_bias, const std::vector<double>& expected)>;

// Compares every tensor of the file with the model's, by name.
void compare_weights(const std::string& part, const Model& got, const Group& g, const Value& c,
                     const char* file, const TolerancesOf& tolerance, Problems& problems) {
  const TensorFile expected = read_tensors(g.dir + "/" + c["weights"][file].as_text());
  const TensorFile have = to_state_dict(got, golden::state_names(c["args"]));
  if (expected.tensors.size() != have.tensors.size())
    problems.push_back(part + ": " + std::to_string(have.tensors.size()) + " tensors, expected " +
                       std::to_string(expected.tensors.size()));
  for (const Tensor& w : expected.tensors) {
    const Tensor* h = have.find(w.name);
    if (!h) {
      problems.push_back(part + ": there is no " + w.name);
      continue;
    }
    if (h->shape != w.shape || h->dtype != w.dtype)
      problems.push_back(part + ": " + w.name + " has another shape or dtype");
    const auto a = decode(h->dtype, h->data), b = decode(w.dtype, w.data);
    std::vector<double> values[2],
        wanted[2];  // [0]: everything except the bias of the keys; [1]: the bias of the keys
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      const bool key = is_key_bias(w.name, i, b.size());
      values[key].push_back(a[i]);
      wanted[key].push_back(b[i]);
    }
    for (bool key : {false, true})
      compare_values(part + " of " + w.name + (key ? " (keys)" : ""), values[key], wanted[key],
                     tolerance(key, b), problems);
  }
}

std::vector<double> reals(const Value& list) {
  std::vector<double> out;
  for (const Value& v : list.items) out.push_back(v.as_real());
  return out;
}

// Generates greedily. The positions after the last token hold zeros; causality hides them.
std::vector<double> greedy(const Model& model, const Value& prompt, std::int64_t count,
                           const std::string& backend) {
  const Axis Pos = model.config.Pos();
  std::vector<std::int32_t> ids(std::size_t(Pos.size));
  std::size_t n = 0;
  for (const Value& t : prompt.items) ids.at(n++) = std::int32_t(t.as_integer());
  JitOptions options;
  options.backend = backend;
  const auto next =
      jit([](const Model& m, const NamedArray& tokens,
             const NamedArray& last) { return argmax(at(m(tokens), "pos", last), "vocab"); },
          options);
  std::vector<double> out;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto token = next(model, array(ids, Pos),
                            array(std::vector<std::int32_t>{std::int32_t(n - 1)}, AxisSpec()))
                           .integers()
                           .at(0);
    out.push_back(double(token));
    if (n < ids.size()) ids[n++] = std::int32_t(token);
  }
  return out;
}

}  // namespace

Gpt2Run run_gpt2(const Group& g, const Value& c, const Variant& variant,
                 const std::string& backend) {
  Gpt2Run result;
  Problems& problems = result.problems;
  const Value &args = c["args"], &expected = c["outputs"], &tol = c["tol"];
  // In the case, `position` is the name of the axis `pos`.
  const NamedArray ids = rename(array_of(g, c["inputs"].at(0)), "position", "pos");
  const Script script{variant, policy_of(args)};
  const JitOptions options = script.options(backend);
  const Key keys = random::split(random::key(1), ids.resolve_axis("batch"));
  Model model = load(g, c, "initial");

  // Logits before training.
  const auto logits =
      jit([script](const Model& m, const NamedArray& i) { return script.logits(m, i, {}); },
          options)(model, ids);
  compare("logits", rename(logits, "pos", "position"), g, expected["logits"],
          Tolerance(tol["logits"]), problems);
  const auto loss_of = [script](const Model& m, const NamedArray& i, const Key& k) {
    return script.loss(m, i, k);
  };
  const auto [loss, gradients] = jit(value_and_grad(loss_of), options)(model, ids, keys);
  compare_values("loss", {loss.item()}, {expected["loss"].as_real()}, Tolerance(tol["loss"]),
                 problems);
  const double share = tol["gradients"]["relative_to_max"].as_real();
  compare_weights(
      "gradient", gradients, g, c, "gradients",
      [&](bool, const std::vector<double>& values) {
        double most = 0;
        for (double x : values) most = std::max(most, std::abs(x));
        return Tolerance(0, share * most);
      },
      problems);

  // Training.
  const auto optimizer = optimizer_of(args["optimizer"]);
  auto state = optimizer.init(model);
  const auto step = jit(
      [loss_of, optimizer](const Model& m, const decltype(state)& s, const NamedArray& i,
                           const Key& k) {
        auto [value, grads] = value_and_grad(loss_of)(m, i, k);
        auto norm = optim::global_norm(grads);
        auto [updates, next] = optimizer.update(grads, s, m);
        return std::tuple(value, norm, optim::apply_updates(m, updates), next);
      },
      options);
  std::vector<double> losses, norms;
  const auto all_steps = args["optimizer"]["steps"].as_integer(),
             steps = std::min(all_steps, variant.most_steps);
  for (std::int64_t i = 0; i < steps; ++i) {
    NamedArray value, norm;
    std::tie(value, norm, model, state) = step(model, state, ids, keys);
    losses.push_back(value.item());
    norms.push_back(norm.item());
  }
  auto first = [&](const Value& list) {
    auto values = reals(list);
    values.resize(std::min(values.size(), std::size_t(steps)));
    return values;
  };
  compare_values("losses", losses, first(expected["losses"]), Tolerance(tol["losses"]), problems);
  compare_values("gradient norms", norms, first(expected["gradient_norms"]),
                 Tolerance(tol["losses"]), problems);
  result.step = step.report();
  result.losses = losses;
  if (steps < all_steps) return result;
  compare_weights(
      "final weights", model, g, c, "final",
      [&](bool key, const std::vector<double>&) {
        return Tolerance(tol[key ? "final_key_bias" : "final_weights"]);
      },
      problems);

  // Generation.
  const Value& text = expected["greedy"];
  if (text["from_initial"]) {
    const std::int64_t count = text["new_tokens"].as_integer();
    const Tolerance exact(0, 0);
    compare_values("greedy tokens of the initial weights",
                   greedy(load(g, c, "initial"), text["prompt"], count, backend),
                   reals(text["from_initial"]), exact, problems);
    compare_values("greedy tokens of the final weights",
                   greedy(model, text["prompt"], count, backend), reals(text["from_final"]), exact,
                   problems);
  }
  return result;
}

Problems run_gpt2_on_ranks(const Group& g, const Value& c, const std::string& backend) {
  const int n = devices(), each = n / rank_count(), model = n % 2 ? 1 : 2;
  const Layout layouts[] = {{Mesh{{{"data", n}}}, {}, {{"batch", "data"}}},
                            {Mesh{{{"data", n}}}, {{"embed", "data"}}, {{"batch", "data"}}},
                            {Mesh{{{"data", n / model}, {"model", model}}},
                             {{"embed", "data"}, {"mlp", "model"}, {"heads", "model"}},
                             {{"batch", "data"}, {"mlp", "model"}, {"heads", "model"}}}};
  Problems all;
  for (const Layout& layout : layouts) {
    Variant v;
    v.layout = layout;
    if (backend == "cuda-sim") v.most_steps = 4;  // every rank runs the simulator
    const auto here = run_gpt2(g, c, v, backend);
    set_devices(n);
    const auto threads = [&] {
      const single_process_scope by_itself;
      return run_gpt2(g, c, v, backend);
    }();
    set_devices(each);
    for (const auto& problem : here.problems)
      all.push_back(to_string(layout.mesh) + ": " + problem);
    v.overlap = true;
    const auto beside = run_gpt2(g, c, v, backend);
    for (const auto& problem : beside.problems)
      all.push_back(to_string(layout.mesh) + ", overlapped: " + problem);
    if (beside.losses != here.losses || beside.step.sent_bytes != here.step.sent_bytes)
      all.push_back(to_string(layout.mesh) +
                    ": calls beside the work change losses or what is sent");
    if (here.losses.size() != threads.losses.size() || here.losses != threads.losses)
      all.push_back(to_string(layout.mesh) +
                    ": losses of ranks and of threads differ in their bits");
    if (here.step.peak_bytes > threads.step.peak_bytes ||
        here.step.sent_bytes != threads.step.sent_bytes)
      all.push_back(to_string(layout.mesh) + ": ranks and threads are planned with other bytes");
  }
  return all;
}

}  // namespace golden
