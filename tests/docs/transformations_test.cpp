// The code of docs/concepts/transformations.md, compiled and run.
#include <doctest/doctest.h>

#include <cmath>
#include <iostream>

#include "docs/printed.h"
#include "haliax/haliax.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis Batch("batch", 8), Embed("embed", 4), Hidden("hidden", 6), Time("time", 5);
const Axis Layers("layers", 3), Vocab("vocab", 50), Tokens("tokens", 16);

struct Model {
  NamedArray weight, bias;
  Frozen<NamedArray> shift;
  NamedArray operator()(const NamedArray& x) const {
    return dot(x, weight, "embed") + bias + *shift;
  }
};
Model init() { return {ones(Embed), NamedArray(0.), {NamedArray(0.)}}; }

struct Block {
  nn::Linear up, down;
  static Block init(const Key& key) {
    auto [k_up, k_down] = random::split<2>(key);
    return {nn::Linear::init(Embed, Hidden, k_up), nn::Linear::init(Hidden, Embed, k_down)};
  }
  NamedArray operator()(const NamedArray& x) const { return x + down(nn::gelu(up(x))); }
};

}  // namespace

TEST_CASE("transformations: grad, value_and_grad and auxiliary results") {
  Printed out;
  auto f = [](const NamedArray& x) { return sum(x * x * x); };
  auto x = array({1, 2, 3}, Axis("n", 3));
  out.start();
  std::cout << grad(f)(x) << "\n";
  std::cout << grad([&](const NamedArray& x) { return sum(grad(f)(x)); })(x) << "\n";
  CHECK(out.text() ==
        "NamedArray(f32, (n=3), [3, 12, 27])\n"
        "NamedArray(f32, (n=3), [6, 12, 18])");

  auto model = init();
  auto inputs = random::normal(random::key(0), {Batch, Embed}), targets = zeros(Batch);
  auto loss = [](const Model& model, const NamedArray& x, const NamedArray& y) {
    return mean(square(model(x) - y));
  };
  auto [value, grads] = value_and_grad(loss)(model, inputs, targets);  // grads is a Model
  CHECK(grads.weight.axes() == Axes{Embed});
  CHECK(grads.shift.value.empty());
  CHECK(value.item() == doctest::Approx(loss(model, inputs, targets).item()));

  auto with_outputs = [](const Model& model, const NamedArray& x, const NamedArray& y) {
    auto outputs = model(x);
    return std::pair(mean(square(outputs - y)), outputs);
  };
  auto [result, grads2] = value_and_grad(with_outputs)(model, inputs, targets);
  auto [loss_value, outputs] = result;
  CHECK(outputs.axes() == Axes{Batch});
  CHECK(loss_value.item() == doctest::Approx(value.item()));

  auto bias_only = grad(loss, "bias")(model, inputs, targets);
  CHECK(bias_only.weight.empty());
  CHECK_FALSE(bias_only.bias.empty());
}

TEST_CASE("transformations: vjp, jvp and stop_gradient") {
  auto f = [](const NamedArray& x) { return x * x; };
  auto x = array({1, 2, 3}, Axis("n", 3));
  auto [y, pullback] = vjp(f, x);  // pullback: cotangent of y -> cotangent of x
  auto [z, tangent] = jvp(f, x, ones(x.axes()));
  CHECK(pullback(ones(x.axes())).floats() == std::vector<float>{2, 4, 6});
  CHECK(tangent.floats() == std::vector<float>{2, 4, 6});
  auto g = grad([](const NamedArray& x) { return sum(x * stop_gradient(x)); })(x);
  CHECK(g.floats() == std::vector<float>{1, 2, 3});
}

TEST_CASE("transformations: vmap hides an axis") {
  Printed out;
  auto distance = [](const NamedArray& a, const NamedArray& b) {  // (embed), (embed) -> ()
    return sqrt(sum(square(a - b), "embed"));
  };
  auto points = random::normal(random::key(0), {Batch, Embed}), origin = zeros(Embed);
  auto distances = vmap(distance, "batch")(points, origin);  // origin has no batch: shared
  out.start();
  std::cout << distances.axes() << "\n";
  CHECK(out.text() == "(batch=8)");

  auto model = init();
  auto loss = [](const Model& model, const NamedArray& x) { return square(model(x)); };
  auto per_example = vmap(grad(loss), "batch")(model, points);  // one gradient for each example
  CHECK(per_example.weight.axes() == Axes{Batch, Embed});
}

TEST_CASE("transformations: scan, fold and map") {
  Printed out;
  auto step = [](const NamedArray& state, const NamedArray& x) {
    auto next = state * 0.5 + x;
    return std::pair(next, next * 2.);  // the next carry, and a value to stack
  };
  auto xs = ones({Time, Embed});
  auto [last, ys] = scan(step, "time")(zeros(Embed), xs);
  out.start();
  std::cout << last.axes() << " " << ys.axes() << "\n";
  CHECK(out.text() == "(embed=4) (time=5, embed=4)");

  auto total = fold([](const NamedArray& sum, const NamedArray& x) { return sum + x; }, "time")(
      zeros(Embed), xs);
  auto squares = map([](const NamedArray& x) { return x * x; }, "time")(xs);
  CHECK(total.floats()[0] == 5);
  CHECK(squares.axes() == Axes{Time, Embed});

  auto running =
      associative_scan([](const NamedArray& a, const NamedArray& b) { return a + b; }, "time", xs);
  CHECK(running.axes() == Axes{Time, Embed});
  CHECK(running.floats().back() == 5);

  auto reversed = scan(step, "time", {.reverse = true})(zeros(Embed), xs).second;
  CHECK(reversed.axes() == ys.axes());
  auto unrolled = scan(step, "time", {.unroll = 5})(zeros(Embed), xs).second;
  CHECK(unrolled.floats() == ys.floats());
}

TEST_CASE("transformations: activation checkpointing trades memory for computation") {
  const Axis Deep("layers", 16), Long("position", 512);
  auto blocks = nn::Stacked<Block>::init(Deep, Block::init, random::split(random::key(0), Deep));
  auto x = random::normal(random::key(1), {Long, Embed}).eval();
  auto loss = [](const nn::Stacked<Block>& blocks, const NamedArray& x) {
    return mean(square(blocks.fold(x)));
  };
  auto expected = grad(loss)(blocks, x).stacked.up.weight;
  auto peak_of = [&](const char* policy) {
    blocks.gradient_checkpointing = policy;
    return jit(grad(loss)).compile(blocks, x).peak_bytes;
  };
  auto none = peak_of("none"), carries = peak_of("carries"), nested = peak_of("nested");
  CHECK(double(none) == doctest::Approx(543 << 10).epsilon(0.2));
  CHECK(double(carries) == doctest::Approx(163 << 10).epsilon(0.2));
  CHECK(double(nested) == doctest::Approx(107 << 10).epsilon(0.2));

  blocks.gradient_checkpointing = true;  // "carries"
  CHECK(sum(abs(grad(loss)(blocks, x).stacked.up.weight - expected)).item() < 1e-4);

  auto f = [](const Block& block, const NamedArray& x) { return block(x); };
  auto recomputed = checkpoint(f);  // the same values and gradients
  auto block = blocks.get_layer(0);
  CHECK(recomputed(block, x).floats() == f(block, x).floats());
}

TEST_CASE("transformations: cond, switch_ and while_loop") {
  auto x = array({1, 4, 9}, Axis("n", 3));
  auto flag = sum(x) > 10.;
  auto y = cond(
      flag, [](const NamedArray& x) { return sqrt(x); },
      [](const NamedArray& x) { return x * 2.; })(x);
  CHECK(y.floats() == std::vector<float>{1, 2, 3});

  auto which = array(std::vector<std::int32_t>{1}, {});
  auto z = switch_(
      which, [](const NamedArray& x) { return x; }, [](const NamedArray& x) { return -x; })(x);
  CHECK(z.floats()[0] == -1);

  auto root = while_loop([](const NamedArray& r) { return abs(r * r - 2.) > 1e-6; },
                         [](const NamedArray& r) { return (r + 2. / r) * 0.5; },
                         Axis("iteration", 20))(NamedArray(1.));
  CHECK(root.item() == doctest::Approx(std::sqrt(2.)));
  raises(
      [&] {
        return cond(
            x > 2., [](const NamedArray& v) { return v; },
            [](const NamedArray& v) { return v; })(x);
      },
      {"[cond]"});
}

TEST_CASE("transformations: a gradient by hand") {
  auto clip_gradient =
      custom_vjp([](const NamedArray& x) { return x * 1.; },  // forward
                 [](const std::tuple<NamedArray>&, const NamedArray&, const NamedArray& cotangent) {
                   return std::tuple(clip(cotangent, -1., 1.));
                 });
  auto g = grad([&](const NamedArray& x) { return sum(clip_gradient(x) * 5.); })(ones(Embed));
  CHECK(g.floats()[0] == 1);

  auto log1pexp =
      custom_jvp([](const NamedArray& x) { return log1p(exp(x)); },
                 [](const std::tuple<NamedArray>& in, const std::tuple<NamedArray>& tangents) {
                   auto& [x] = in;
                   return std::pair(log1p(exp(x)), std::get<0>(tangents) * nn::sigmoid(x));
                 });
  CHECK(grad(log1pexp)(NamedArray(100.)).item() == 1);  // the derived gradient is NaN
}

TEST_CASE("transformations: chunked_reduce computes a loss without materializing the logits") {
  auto x = random::normal(random::key(0), {Tokens, Embed});
  auto head = random::normal(random::key(1), {Vocab, Embed});
  auto labels = random::randint(random::key(2), Tokens, 0, Vocab.size);
  auto loss = [](const NamedArray& x, const NamedArray& head, const NamedArray& labels) {
    auto logits = dot(x, head, "embed");  // (tokens, vocab): one chunk of tokens at a time
    return mean(logsumexp(logits, "vocab") - take(logits, "vocab", labels));
  };
  auto chunked = chunked_reduce("tokens", {.chunk = 4}, loss);
  CHECK(chunked(x, head, labels).item() == doctest::Approx(loss(x, head, labels).item()));
  CHECK(sum(abs(grad(chunked)(x, head, labels) - grad(loss)(x, head, labels))).item() < 1e-4);
}

TEST_CASE("transformations: eval_shape computes axes and dtypes without values") {
  auto shapes = eval_shape(Block::init, random::key(0));
  CHECK(shapes.up.weight.axes() == Axes{Hidden, Embed});
  raises([&] { return shapes.up.weight.floats(); }, {"["});
}

TEST_CASE("transformations: gradient accumulation is a fold over microbatches") {
  auto model = init();
  const Axis Micro("microbatch", 4);
  auto x = random::normal(random::key(0), {Micro, Batch, Embed});

  auto loss = [](const Model& model, const NamedArray& x) { return mean(square(model(x))); };
  auto zero = tree_map([](const NamedArray& a) { return zeros_like(a); }, trainable(model));
  auto sums = fold(
      [&](const Model& sums, const NamedArray& micro, const Model& model) {
        return tree_map([](const NamedArray& a, const NamedArray& b) { return a + b; }, sums,
                        grad(loss)(model, micro));
      },
      "microbatch")(zero, x, model);
  auto grads = tree_map([](const NamedArray& a) { return a / 4.; }, sums);
  auto full = grad(loss)(model, flatten_axes(x, {"microbatch", "batch"}, "batch"));
  CHECK(max(abs(grads.weight - full.weight)).item() < 1e-5);
}
