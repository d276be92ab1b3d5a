// A training step of the example's GPT-2 (forward, backward, AdamW), and the overhead of the
// library.
#include <nlohmann/json.hpp>

#include "bench.h"
#include "examples/gpt2/train.h"
#include "haliax/profile.h"

namespace bench {
namespace {

using namespace haliax;

struct Size {
  const char* name;
  std::int64_t layers, heads, embed, seq, batch, vocab;
};
constexpr Size kChar{"char", 6, 6, 384, 256, 8, 256}, kNano{"nano", 6, 6, 384, 256, 8, 50257};
constexpr Size kSmall{"small", 12, 12, 768, 512, 2, 50257},
    kLong{"long", 12, 12, 768, 4096, 1, 50257};

struct Variant {
  const char* suffix;
  const char* checkpointing;
  bool chunked;
};
constexpr Variant kPlain{"", "none", false},
    kVariants[] = {kPlain, {"_remat", "carries", false}, {"_chunked", "none", true}};

std::string shape_of(const Size& s) {
  auto part = [](const char* letter, std::int64_t n) { return letter + std::to_string(n); };
  return part("L", s.layers) + part(",H", s.heads) + part(",E", s.embed) + part(",T", s.seq) +
         part(",B", s.batch) + part(",V", s.vocab);
}

using Optimizer = optim::AdamW;
using State = gpt2::OptState<Optimizer>;
Optimizer optimizer() { return optim::adamw({.learning_rate = 1e-4}); }

// A model, its optimizer and a batch for training steps.
class Training {
 public:
  Training(const Size& s, DType compute, const Variant& v)
      : batch_("batch", s.batch), loss_{.policy = {}, .full_logits = !v.chunked},
        model_(init(s, v)), state_(optimizer().init(model_)),
        ids_(random::randint(random::key(1), {batch_, {"pos", s.seq}}, 0, s.vocab).eval()),
        keys_(random::split(random::key(2), batch_)) {
    loss_.policy.compute = compute;
    keys_.words.eval();
    compile();
  }
  // Drops the compiled step, so that the next step traces and compiles again.
  void compile() { step_ = jit(gpt2::make_train_step(optimizer(), loss_), {.donate = {0, 1}}); }
  void step() {
    auto after = step_(model_, state_, ids_, keys_);
    model_ = std::move(after.model);
    state_ = std::move(after.opt_state);
    last_loss_ = after.loss.item();
  }
  JitReport report() const { return step_.report(); }
  nlohmann::json facts() const {
    auto r = report();
    return {{"loss", last_loss_},
            {"planned_bytes", r.peak_bytes},
            {"trace_s", r.trace_s},
            {"compile_s", r.compile_s},
            {"contractions", r.contractions},
            {"not_donated", r.not_donated.size()}};
  }
  // Returns the seconds of the contractions of one step.
  double bound() const {
    double seconds = 0;
    for (auto& step : profile(step_, model_, state_, ids_, keys_).steps)
      if (step.kind == "contract") seconds += step.seconds;
    return seconds;
  }

 private:
  static models::GPT2LMHeadModel init(const Size& s, const Variant& v) {
    models::GPT2Config c{.vocab_size = s.vocab,
                         .n_positions = s.seq,
                         .n_embd = s.embed,
                         .n_layer = s.layers,
                         .n_head = s.heads};
    c.embd_pdrop = c.attn_pdrop = c.resid_pdrop = 0;
    c.gradient_checkpointing = v.checkpointing;
    auto make = [c](const Key& k) { return models::GPT2LMHeadModel::init(c, k); };
    return jit(make)(random::key(0));
  }

  Axis batch_;
  gpt2::LossOptions loss_;
  models::GPT2LMHeadModel model_;
  State state_;
  NamedArray ids_;
  Key keys_;
  Jitted<gpt2::Stepped<Optimizer>(const models::GPT2LMHeadModel&, const State&, const NamedArray&,
                                  const Key&)>
      step_;
  double last_loss_ = 0;
};

Case train(const Size& size, DType dtype, const Variant& variant) {
  auto prepare = [=] {
    auto training = std::make_shared<Training>(size, dtype, variant);
    return Prepared{timed([=] { training->step(); }), [=] {
                      auto facts = training->facts();
                      facts["bound_s"] = training->bound();
                      return facts;
                    }};
  };
  auto name = std::string("gpt2_train_") + size.name + variant.suffix;
  return {name, shape_of(size), dtype, double(size.batch * size.seq), "tokens/s", prepare};
}
// Times tracing and compiling the step, without running it.
Case compile(const Size& size, DType dtype) {
  auto prepare = [=] {
    auto training = std::make_shared<Training>(size, dtype, kPlain);
    auto run = [=] {
      training->compile();
      training->step();
      return training->report().trace_s + training->report().compile_s;
    };
    return Prepared{run, [=] { return training->facts(); }};
  };
  return {std::string("gpt2_compile_") + size.name, shape_of(size), dtype, 1, "s", prepare, 3};
}
// Times a call with all the arrays of a model and its optimizer that computes almost nothing.
Case call_with_model() {
  auto prepare = [] {
    auto model = jit([](const Key& k) {
      return models::GPT2LMHeadModel::init(
          {.vocab_size = 16, .n_positions = 4, .n_embd = 8, .n_layer = 2, .n_head = 2}, k);
    })(random::key(0));
    auto state = optimizer().init(model);
    for (auto& a : flatten(state))
      if (!a.empty()) a.eval();
    auto f = jit(
        [](const models::GPT2LMHeadModel&, const State& s) { return std::get<0>(s).count + 1; });
    return Prepared{timed([=] {
      for (int i = 0; i < 1000; ++i) f(model, state);
    })};
  };
  return {"call_model", "1000 calls", DType::f32, 1000, "us/op", prepare};
}

}  // namespace

std::vector<Case> gpt2_cases(DType dtype) {
  std::vector<Case> cases;
  for (auto& size : {kChar, kNano, kSmall})
    for (auto& variant : kVariants) cases.push_back(train(size, dtype, variant));
  cases.push_back(train(kLong, dtype, {"_remat", "carries", true}));
  cases.push_back(compile(kSmall, dtype));
  cases.push_back(call_with_model());
  return cases;
}

}  // namespace bench
