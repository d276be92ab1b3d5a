// A project that uses the installed library: it includes every header, instantiates most kinds of
// templates, and catches an error of the library.
#include <haliax/dlpack.h>
#include <haliax/eigen.h>
#include <haliax/fmt.h>
#include <haliax/haliax.h>
#include <haliax/huggingface.h>
#include <haliax/state_dict.h>
#include <haliax/tokenizer.h>
#include <haliax/view.h>

#include <cstdio>
#include <string>

using namespace haliax;

struct FeedForward {
  nn::LayerNorm norm;
  nn::Linear up, down;
  static FeedForward init(const Axis& Embed, const Axis& Mlp, const Key& key) {
    auto [k_up, k_down] = random::split<2>(key);
    return {nn::LayerNorm::init(Embed), nn::Linear::init(Embed, Mlp, k_up),
            nn::Linear::init(Mlp, Embed, k_down)};
  }
  NamedArray operator()(const NamedArray& x) const { return x + down(nn::gelu(up(norm(x)))); }
};

double trained(const Axis& Batch, const Axis& Embed) {
  auto loss = [](const FeedForward& model, const NamedArray& x) {
    return mean(square(model(x) - 1.));
  };
  auto optimizer = optim::adamw({.learning_rate = 1e-2});
  auto step = named_jit([=](const FeedForward& model, const auto& state, const NamedArray& x) {
    auto [value, grads] = value_and_grad(loss)(model, x);
    auto [updates, next] = optimizer.update(grads, state, model);
    return std::tuple(optim::apply_updates(model, updates), next, value);
  });
  auto model = FeedForward::init(Embed, {"mlp", 8}, random::key(0));
  auto state = optimizer.init(model);
  double last = 0;
  for (int k = 0; k < 20; ++k) {
    auto [next, next_state, value] = step(model, state, ones({Batch, Embed}));
    model = next;
    state = next_state;
    last = value.item();
  }
  return last;
}

// Runs a pattern, which needs PCRE2.
bool splits_words() {
  const auto tokenizer = Tokenizer::parse(
      R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
          "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\p{L}+"},
                            "behavior": "Isolated", "invert": false}})");
  return tokenizer.encode("ab ba") == std::vector<int>{2, 1, 0};
}

int main() {
  const Axis Batch{"batch", 2}, Embed{"embed", 3};
  const auto x = arange({Batch, Embed}) * 1.5;
  const auto sums = vmap([](const NamedArray& row) { return sum(row); }, Batch)(x);
  const auto [total, each] =
      scan([](const NamedArray& c, const NamedArray& row) { return std::pair(c + sum(row), row); },
           Batch)(NamedArray(0.), x);
  const auto chosen = cond(
      any(x > 7.), [](const NamedArray& a) { return a * 2.; },
      [](const NamedArray& a) { return -a; })(x);
  debug::check(chosen >= 0., "the wrong side");
  const auto lent = from_dlpack(to_dlpack(chosen), {Batch, Embed});
  const auto matrix = as_matrix<float>(x, Batch, Embed);
  const bool right = sums.floats() == std::vector<float>{4.5f, 18.f} && total.item() == 22.5 &&
                     matrix(1, 2) == 7.5f && as_span<float>(lent)[5] == 15.f &&
                     fmt::format("{}", Embed) == "embed=3" && trained(Batch, Embed) < .5 &&
                     ModelConfig::parse("{\"n_layer\": 2}").get<int>("n_layer") == 2 &&
                     splits_words();
  std::string message;
  const int line = __LINE__ + 2;
  try {
    sum(x, "embd");
  } catch (const Error& e) {
    message = e.what();
  }
  const bool reported =
      message.find("did you mean embed?; main.cpp:" + std::to_string(line)) != message.npos;
  std::puts(right && reported ? "right" : message.c_str());
  return right && reported ? 0 : 1;
}
