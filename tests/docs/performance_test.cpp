// The code of docs/how-to/performance.md that is not in tests/runtime/profile_test.cpp, compiled
// and run.
#include <doctest/doctest.h>

#include "haliax/haliax.h"
#include "haliax/profile.h"

using namespace haliax;

TEST_CASE("performance: results are bitwise identical for any number of threads") {
  const Axis Batch("batch", 300), Embed("embed", 70), Mlp("mlp", 90);
  auto weight = random::normal(random::key(0), {Embed, Mlp}).eval();
  auto x = random::normal(random::key(1), {Batch, Embed}).eval();
  auto step = jit([=](const NamedArray& x) { return sum(tanh(dot(x, weight, Embed)), Batch); });

  set_threads(2);
  auto two = step(x).floats();
  set_threads(1);
  auto one = step(x).floats();
  bool identical = one == two;  // true: bitwise identical

  CHECK(identical);
  set_threads(0);
}

TEST_CASE("performance: a profile names lines and modules") {
  struct Model {
    nn::Linear up;
  };
  const Axis Batch("batch", 32), Embed("embed", 16), Mlp("mlp", 64);
  const Model model{nn::Linear::init(Embed, Mlp, random::key(0))};
  auto x = random::normal(random::key(1), {Batch, Embed}).eval();
  auto step = jit([](const Model& model, const NamedArray& x) { return sum(exp(model.up(x))); });

  auto p = profile(step, model, x);

  CHECK(to_string(p).find("performance_test.cpp") != std::string::npos);
  CHECK(to_string(p).find("in up") != std::string::npos);
}
