// Programs in the style of README.md, compiled and run on one device and on a mesh.
#include <doctest/doctest.h>

#include <haliax/haliax.h>
using namespace haliax;

namespace {

struct FeedForward {
  nn::LayerNorm norm;
  nn::Linear up, down;

  static FeedForward init(const Axis& Embed, const Axis& Mlp, const Key& key) {
    auto [k_up, k_down] = random::split<2>(key);
    return {.norm = nn::LayerNorm::init(Embed),
            .up = nn::Linear::init(Embed, Mlp, k_up),
            .down = nn::Linear::init(Mlp, Embed, k_down)};
  }
  // x (..., embed) -> (..., embed)
  NamedArray operator()(const NamedArray& x) const { return x + down(nn::gelu(up(norm(x)))); }
};

auto loss(const FeedForward& model, const NamedArray& x, const NamedArray& y) {
  return mean(square(model(x) - y));
}

auto make_step(JitOptions options = {}) {
  auto optimizer = optim::adamw({.learning_rate = 1e-2});
  auto step = [=](const FeedForward& model, const auto& state, const NamedArray& x,
                  const NamedArray& y) {
    auto [l, grads] = value_and_grad(loss)(model, x, y);
    auto [updates, next] = optimizer.update(grads, state, model);
    return std::tuple(optim::apply_updates(model, updates), next, l);
  };
  return std::pair(optimizer, named_jit(step, options));  // traced once, compiled once
}

TEST_CASE("readme: the model learns, on one device and on a mesh") {
  const Axis Batch("batch", 16), Embed("embed", 8), Mlp("mlp", 32);
  auto key = random::key(0);
  auto x = random::normal(key, {Batch, Embed}), y = roll(x, 1, Embed);

  // The batch is sharded along one mesh axis and the hidden units along the other one; the model
  // and the step are the same.
  Mesh mesh{{{"data", 2}, {"model", 2}}};
  Mapping mapping{{"batch", "data"}, {"mlp", "model"}};
  std::vector<double> finals;
  for (auto& options : {JitOptions{}, JitOptions{.mesh = mesh, .axis_resources = mapping}}) {
    auto [optimizer, step] = make_step(options);
    auto model = FeedForward::init(Embed, Mlp, key);
    auto state = optimizer.init(model);
    double first = 0, last = 0;
    for (int i = 0; i < 60; ++i) {
      NamedArray l;
      std::tie(model, state, l) = step(model, state, x, y);
      last = l.item();
      if (i == 0) first = last;
    }
    CHECK(first > 1);
    CHECK(last < 0.1 * first);
    CHECK(step.report().traces == 1);
    finals.push_back(last);
  }
  CHECK(finals[0] == doctest::Approx(finals[1]).epsilon(1e-3));
}

TEST_CASE("readme: vmap, scan, chunked_reduce and an error message work as documented") {
  const Axis Batch("batch", 2), Pos("position", 4), Embed("embed", 3);
  auto w = random::normal(random::key(1), Embed);
  // x (position, embed) -> ()
  auto example = [&](const NamedArray& x) { return sum(x * w); };
  auto x = ones({Batch, Pos, Embed});
  CHECK(vmap(example, Batch)(x).axes() == Axes{Batch});

  auto running = scan(
      [](const NamedArray& total, const NamedArray& row) {
        return std::pair{total + row, total};
      },
      Pos);
  auto [total, before] = running(zeros({Batch, Embed}), x);
  CHECK(total.floats() == std::vector<float>(6, 4));
  CHECK(to_string(before.axes()) == "(position=4, batch=2, embed=3)");

  auto chunked =
      chunked_reduce(Pos, {.chunk = 3}, [](const NamedArray& part) { return mean(part); })(x);
  CHECK(chunked.item() == 1);

  try {
    (void)dot(x, w, "embd");
    FAIL("no error");
  } catch (const Error& e) {
    CHECK(std::string(e.what()).find("; did you mean embed?; ") != std::string::npos);
  }
}

}  // namespace
