// The programs of README.md and docs/get-started/install.md, compiled and run.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "docs/printed.h"

#include <haliax/haliax.h>

#include <iostream>
using namespace haliax;

namespace readme {

const Axis Batch("batch", 64), Embed("embed", 8), Mlp("mlp", 32);

struct FeedForward {  // a module is a plain struct, and its arrays are its parameters
  nn::Linear up, down;

  static FeedForward init(const Key& key) {
    auto [k_up, k_down] = random::split<2>(key);
    return {nn::Linear::init(Embed, Mlp, k_up), nn::Linear::init(Mlp, Embed, k_down)};
  }
  NamedArray operator()(const NamedArray& x) const { return x + down(nn::gelu(up(x))); }
};

NamedArray loss(const FeedForward& model, const NamedArray& x, const NamedArray& y) {
  return mean(square(model(x) - y));
}

int main() {
  auto x = random::normal(random::key(0), {Batch, Embed}), y = roll(x, 1, Embed);
  auto model = FeedForward::init(random::key(1));
  auto optimizer = optim::adamw({.learning_rate = 1e-2});
  auto state = optimizer.init(model);

  auto train_step = [=](const FeedForward& m, const auto& s, const auto& x, const auto& y) {
    auto [l, grads] = value_and_grad(loss)(m, x, y);
    auto [updates, next] = optimizer.update(grads, s, m);
    return std::tuple(optim::apply_updates(m, updates), next, l);
  };
  const Mesh mesh{{{"data", 2}, {"model", 2}}};  // four devices
  const Mapping mapping{{"batch", "data"}, {"mlp", "model"}};
  auto step = named_jit(train_step, {.mesh = mesh, .axis_resources = mapping});

  for (int k = 0; k <= 100; ++k) {
    NamedArray l;
    std::tie(model, state, l) = step(model, state, x, y);
    if (k % 50 == 0) std::cout << "step " << k << ": loss " << l.item() << "\n";
  }
  return 0;
}

}  // namespace readme

namespace installed {

int main() {
  auto x = arange(Axis("n", 3));
  std::cout << x * x << "\n";
  return 0;
}

}  // namespace installed

// The loss of each line `step K: loss L`.
std::vector<double> losses(const std::string& text) {
  std::vector<double> found;
  for (auto at = text.find("loss "); at != text.npos; at = text.find("loss ", at + 1))
    found.push_back(std::stod(text.substr(at + 5)));
  return found;
}

TEST_CASE("README.md: the model on a mesh prints the losses that the page shows") {
  Printed out;
  out.start();
  readme::main();
  const auto printed = losses(out.text());
  const auto shown = losses(
      "step 0: loss 2.09415\n"
      "step 50: loss 0.0331372\n"
      "step 100: loss 0.00885619\n");
  REQUIRE(printed.size() == shown.size());
  for (std::size_t i = 0; i < shown.size(); ++i)
    CHECK(printed[i] == doctest::Approx(shown[i]).epsilon(1e-2));
}

TEST_CASE("README.md: a misspelled axis raises the error that the page shows") {
  auto x = ones({readme::Batch, readme::Embed});
  std::string message;
  try {
    mean(x, "embde");
  } catch (const Error& error) {
    message = error.what();
  }
  CHECK(
      message.starts_with("[mean] axis embde is not in (batch=64, embed=8); did you mean embed?"));
}

TEST_CASE("docs/get-started/install.md: the first program prints squares") {
  Printed out;
  out.start();
  installed::main();
  CHECK(out.text() == "NamedArray(i32, (n=3), [0, 1, 4])");
}
