// FSDP on two devices: parameters are sharded along embed, and the batch along batch. Bytes
// communicated are asserted exactly.
#include <doctest/doctest.h>

#include <functional>

#include "support/gpt2.h"
#include "support/near.h"

using namespace haliax;

namespace {

const testing::Gpt2 gpt(
    {.n_positions = 16, .n_embd = 32, .n_layer = 4, .n_head = 4, .tie_word_embeddings = false}, 96,
    // Enough tokens that communicating weights is cheaper than communicating activations.
    16);

// Inside the loss the batch is sharded and the weights are replicated.
auto gradients(const testing::Model& m, const NamedArray& ids) {
  return value_and_grad(testing::under(Mapping{{"batch", "data"}}, testing::next_token_loss))(m,
                                                                                              ids);
}
JitOptions on_two() {
  return {.mesh = Mesh{{{"data", 2}}}, .axis_resources = Mapping{{"embed", "data"}}};
}

}  // namespace

TEST_CASE("proof: fsdp communicates each weight twice, each gradient once, and nothing else") {
  const auto model = gpt.init();
  const auto ids = gpt.ids();
  const auto step = named_jit(gradients, on_two());
  step(model, ids);

  // On a ring of two, an all-gather or a reduce-scatter of n bytes sends n / 2 bytes, and an
  // all-reduce sends n bytes.
  double forward = 0, backward = 0, scattered = 0, reduced = 4, layer = 0;  // 4: the loss
  Walk w = walk_of(model, {.paths = true});
  for (std::size_t k = 0; k < w.arrays.size(); ++k) {
    const auto& a = *w.arrays[k];
    const auto& path = w.paths[k];
    const double bytes = double(a.nbytes());
    if (!a.has_axis("embed")) {  // replicated: its gradient is all-reduced
      reduced += bytes;
      continue;
    }
    // In layers, weights are gathered again for the gradient. The bias of the attention output is
    // too, since the residual is recomputed from it.
    const bool in_layer = a.has_axis("layers"),
               regathered = path.ends_with("weight") || path.ends_with("attn.c_proj.bias");
    forward += bytes / 2;
    scattered += bytes / 2;
    if (in_layer && regathered) backward += bytes / 2;
    if (in_layer) layer += bytes / double(gpt.config.n_layer);
  }
  CHECK(step.report().sent_bytes == forward + backward + scattered + reduced);

  double gathered = 0;
  for (auto& s : step.report().collectives) {
    CAPTURE(s.axes);
    if (s.kind == "all-gather") {
      gathered += s.bytes * s.turns;
      // Small arrays are gathered together: the weights of one layer or a table, but never the
      // model.
      CHECK(s.bytes <= layer / 2);
      CHECK(s.axes.find("layers") == std::string::npos);
      CHECK(s.axes.find("batch") ==
            std::string::npos);  // weights are communicated, activations are not
    }
    CHECK(s.kind != "all-to-all");
  }
  CHECK(gathered == forward + backward);
}

TEST_CASE("proof: fsdp uses less memory per device than one device, with the same gradients") {
  const auto model = gpt.init();
  const auto ids = gpt.ids();
  const auto two = named_jit(gradients, on_two());
  const auto one = jit(gradients);
  const auto got = flatten(two(model, ids)), expected = flatten(one(model, ids));
  REQUIRE(got.size() == expected.size());
  for (std::size_t k = 0; k < got.size(); ++k) {
    const auto a = got[k].doubles(), b = expected[k].doubles();
    for (std::size_t i = 0; i < a.size(); ++i)
      REQUIRE(std::abs(a[i] - b[i]) <= 1e-6 * std::max(1., std::abs(b[i])));
  }
  CHECK(two.report().peak_bytes < one.report().peak_bytes);
}

// Layers that are written out: without a loop, nothing limits the unsharded weights to one layer.
namespace {

struct Blocks {
  std::vector<NamedArray> up, down;
};
const Axis Wide{"embed", 512}, Hidden{"hidden", 2048}, Rows{"batch", 1024};
const double kWeight = 512 * 2048 * 4;  // bytes; eight weights fill 32 MiB

Blocks blocks(int n) {
  Blocks b;
  for (int k = 0; k < n; ++k) {
    b.up.push_back(random::normal(random::key(2 * k), {Wide, Hidden}) * 0.02);
    b.down.push_back(random::normal(random::key(2 * k + 1), {Hidden, Wide}) * 0.02);
  }
  return b;
}
NamedArray block(const NamedArray& h, const NamedArray& up, const NamedArray& down) {
  return h + dot(tanh(dot(h, up, "embed")), down, "hidden");
}
Blocks each_of(const Blocks& a, const Blocks& b,
               const std::function<NamedArray(const NamedArray&, const NamedArray&)>& f) {
  Blocks out;
  for (std::size_t k = 0; k < a.up.size(); ++k) {
    out.up.push_back(f(a.up[k], b.up[k]));
    out.down.push_back(f(a.down[k], b.down[k]));
  }

  return out;
}
auto loss_of(const Blocks& m, const NamedArray& x, bool remade = false) {
  auto h = x;
  for (std::size_t k = 0; k < m.up.size(); ++k)
    h = remade ? checkpoint(block)(h, m.up[k], m.down[k]) : block(h, m.up[k], m.down[k]);
  return mean(square(h)).scalar();
}
Blocks gradient(const Blocks& b, const NamedArray& x, bool remade) {
  return grad([&](const Blocks& m) { return loss_of(m, x, remade); })(b);
}
auto descent(bool remade, int microbatches = 1) {
  return [=](const Blocks& b, const NamedArray& x) {
    auto body = [&](const Blocks& so_far, const NamedArray& part) {
      return each_of(so_far, gradient(b, part, remade), [](auto& a, auto& g) { return a + g; });
    };
    const Axis micro{"micro", microbatches}, rows = x.resolve_axis("batch");
    auto g = microbatches == 1
                 ? gradient(b, x, remade)
                 : fold(body, micro)(
                       each_of(b, b, [](auto& w, auto&) { return zeros_like(w); }),
                       unflatten_axis(x, "batch", {rows.resize(rows.size / microbatches), micro}));
    return each_of(b, g, [](auto& w, auto& g) { return w - 0.1 * g; });
  };
}
JitOptions by_two(bool regather = true) {
  const Mapping parameters{{"embed", "data"}}, inside{{"batch", "data"}};
  return {.donate = {0},
          .mesh = Mesh{{{"data", 2}}},
          .axis_resources = inside,
          .in = Mappings::of_each({parameters, inside}),
          .out = Mappings{parameters},
          .regather = regather};
}

}  // namespace

TEST_CASE(
    "proof: fsdp of layers written out holds a few unsharded weights and gradients at a time") {
  const auto x = eval_shape([] { return zeros({Rows, Wide}); });
  for (int n : {6, 12}) {
    CAPTURE(n);
    const auto b = eval_shape([&] { return blocks(n); });
    // Bytes of gathering or scattering one weight; all weights are large.
    const double each = kWeight / 2;
    // Bytes saved for each block, on one device.
    const double model = 2 * n * each, stream = 512. * 512 * 4, hidden = 512. * 2048 * 4;
    auto report = [&](bool remade, bool regather) {
      return named_jit(descent(remade), by_two(regather)).plan(b, x);
    };

    // The backward pass gathers all weights except the first one again. Up to 32 MiB of weights
    // stay resident until the backward pass instead.
    auto r = report(false, true);
    CHECK(r.sent_bytes == model + std::max(0, 2 * n - 1 - 8) * each + model);
    CHECK(r.peak_bytes < n * (stream + hidden) + (8 + 3) * kWeight);
    auto once = report(false, false);
    CHECK(once.sent_bytes == model + model);
    CHECK(once.peak_bytes > 2 * n * kWeight);

    // With rematerialized blocks, each weight is gathered twice, and gradients are scattered in
    // groups of 32 MiB.
    auto remade = report(true, true);
    CHECK(remade.sent_bytes == model + model + model);
    CHECK(remade.peak_bytes < n * stream + (8 + 4) * kWeight);
  }
}

TEST_CASE("proof: fsdp of a gradient written by hand gathers as often as one computed by grad") {
  const int n = 12;
  auto by_hand = [](const Blocks& b, const NamedArray& x) {
    std::vector<NamedArray> h{x}, y;
    for (int k = 0; k < n; ++k) {
      y.push_back(tanh(dot(h.back(), b.up[k], "embed")));
      h.push_back(h.back() + dot(y.back(), b.down[k], "hidden"));
    }
    auto next = b;
    auto g = h.back() * (2. / double(h.back().size()));
    for (int k = n; k-- > 0;) {
      const auto z = dot(g, b.down[k], "embed") * (1. - square(y[k]));
      next.down[k] = b.down[k] - 0.1 * dot(y[k], g, "batch");
      next.up[k] = b.up[k] - 0.1 * dot(h[k], z, "batch");
      g = g + dot(z, b.up[k], "hidden");
    }
    return next;
  };
  const auto b = eval_shape([] { return blocks(n); });
  const auto x = eval_shape([] { return zeros({Rows, Wide}); });
  auto gathered = [&](const auto& f) {
    double bytes = 0;
    for (auto& c : named_jit(f, by_two()).plan(b, x).collectives)
      bytes += c.kind == "all-gather" ? c.bytes * c.turns : 0;
    return bytes;
  };
  CHECK(gathered(by_hand) == (2 * n + 2 * n - 1 - 8) * kWeight / 2);
  CHECK(gathered(by_hand) == gathered(descent(false)));
}

TEST_CASE(
    "proof: fsdp with weights gathered again "
    "for the backward pass updates them as one device does") {
  const auto b = blocks(6);
  const auto x = random::normal(random::key(99), {Rows, Wide}).eval();
  const auto expected = jit(descent(false))(b, x);
  for (bool remade : {false, true}) {
    auto options = by_two();
    options.donate.clear();
    const auto got = named_jit(descent(remade), options)(b, x);
    for (std::size_t k = 0; k < b.up.size(); ++k) {
      CHECK(difference(got.up[k], expected.up[k], 1e-6) == "");
      CHECK(difference(got.down[k], expected.down[k], 1e-6) == "");
    }
  }
}

TEST_CASE(
    "proof: fsdp of layers written out, in microbatches, stays within the same memory bound") {
  const auto x = eval_shape([] { return zeros({Rows.resize(4096), Wide}); });
  const double each = kWeight / 2, iterations = 4;
  for (bool remade : {false, true}) {
    CAPTURE(remade);
    const int n = 12;
    const auto b = eval_shape([&] { return blocks(n); });
    const auto r = named_jit(descent(remade, 4), by_two()).plan(b, x);
    // Eight weights stay unsharded; the others are gathered twice per iteration. Each gradient is
    // scattered once per iteration.
    CHECK(r.sent_bytes ==
          8 * each + (2 * n - 8) * 2 * iterations * each + 2 * n * iterations * each);
    // The sums of gradients add to the memory.
    const double stream = 512. * 512 * 4, hidden = 512. * 2048 * 4, parts = 2 * 2 * n * each;
    CHECK(r.peak_bytes < parts + n * (stream + (remade ? 0 : hidden)) + (8 + 8 + 3) * kWeight);
  }
  // A loss outside of the loop reads the weights from gathers of its own.
  const auto b = eval_shape([] { return blocks(12); });
  auto options = by_two();
  options.out = Mappings::of_each({Mapping{{"embed", "data"}}, Mapping{}});
  auto with_loss = [](const Blocks& b, const NamedArray& x) {
    return std::pair{descent(false, 4)(b, x), loss_of(b, x)};
  };
  const auto r = named_jit(with_loss, options).plan(b, x);
  CHECK(r.sent_bytes == 8 * each + 16 * (2 * iterations + 1) * each + 24 * iterations * each + 4);
  CHECK(r.peak_bytes < named_jit(descent(false, 4), by_two()).plan(b, x).peak_bytes + 5 * kWeight);
  const auto few = eval_shape([] { return blocks(4); });  // 32 MiB
  CHECK(named_jit(descent(false, 4), by_two()).plan(few, x).sent_bytes ==
        8 * each + 8 * iterations * each);
}

TEST_CASE("proof: fsdp of layers written out, in microbatches, has the results of one device") {
  const auto b = blocks(6);
  const auto x = random::normal(random::key(99), {Rows, Wide}).eval();
  const auto expected = jit(descent(false, 4))(b, x);
  for (bool remade : {false, true}) {
    auto options = by_two();
    options.donate.clear();
    const auto got = named_jit(descent(remade, 4), options)(b, x);
    for (std::size_t k = 0; k < b.up.size(); ++k) {
      CHECK(difference(got.up[k], expected.up[k], 1e-6) == "");
      CHECK(difference(got.down[k], expected.down[k], 1e-6) == "");
    }
  }
}

TEST_CASE(
    "proof: a weight that each iteration of a loop "
    "over positions or chunks reads is gathered once") {
  const Axis position{"position", 32}, state{"embed", 2048}, same{"state", 2048},
      vocab{"vocab", 8192}, rows{"batch", 256};
  const auto x = eval_shape([&] { return zeros({rows, position, state}); });
  const Mapping parameters{{"embed", "data"}}, inside{{"batch", "data"}};
  const JitOptions options{.mesh = Mesh{{{"data", 2}}},
                           .axis_resources = inside,
                           .in = Mappings::of_each({parameters, inside}),
                           .out = parameters};
  SUBCASE("recurrent") {
    struct Cell {
      NamedArray in, recurrent, out;
    };
    const auto w = eval_shape([&] {
      return Cell{zeros({state, same}), zeros({state, same}), zeros({state, same})};
    });
    auto step = [&](const Cell& c, const NamedArray& x) {
      auto loss = [&](const Cell& c) {
        auto body = [&](const NamedArray& h, const NamedArray& x) {
          auto s = tanh(dot(x, c.in, "embed") +
                        dot(rename(h, {{"state", "embed"}}), c.recurrent, "embed"));
          return tanh(dot(rename(s, {{"state", "embed"}}), c.out, "embed"));
        };
        return mean(square(fold(body, position, {.checkpoint = ScanCheckpoint(true)})(
                        zeros({rows, same}), x)))
            .scalar();
      };
      return grad(loss)(c);
    };
    for (auto& c : named_jit(step, options).plan(w, x).collectives)
      if (c.kind == "all-gather") CHECK(c.turns == 1);
  }
  SUBCASE("two heads in chunks") {
    struct Heads {
      NamedArray scale, a, b;
    };
    const auto w = eval_shape([&] {
      return Heads{ones({state}), zeros({state, vocab}), zeros({state, vocab})};
    });
    auto step = [&](const Heads& w, const NamedArray& x) {
      auto loss = [&](const Heads& w) {
        auto of = [&](const NamedArray& x) {
          return sum(logsumexp(dot(x, w.a, "embed"), "vocab") +
                     logsumexp(dot(x, w.b, "embed"), "vocab"));
        };
        return chunked_reduce("position", {.chunk = 4}, of)(x * w.scale).scalar();
      };
      return grad(loss)(w);
    };
    for (auto& c : named_jit(step, options).plan(w, x).collectives)
      if (c.kind == "all-gather") CHECK(c.turns == 1);
  }
}

TEST_CASE(
    "proof: in a loop over layers each pass gathers a weight once, however large the weight is") {
  const Axis layers{"layers", 4}, wide{"embed", 2048}, hidden{"hidden", 8192}, rows{"batch", 65536};
  const auto x = eval_shape([&] { return zeros({rows, wide}); });
  const auto b = eval_shape([&] {
    return Blocks{{zeros({layers, wide, hidden})}, {zeros({layers, hidden, wide})}};
  });
  auto step = [&](const Blocks& b, const NamedArray& x) {
    auto loss = [&](const Blocks& m) {
      return mean(square(fold(block, layers, {.checkpoint = ScanCheckpoint(true)})(x, m.up[0],
                                                                                   m.down[0])))
          .scalar();
    };
    return grad(loss)(b);
  };
  CHECK(named_jit(step, by_two()).plan(b, x).sent_bytes == 4 * 6 * 2048. * 8192 * 4 / 2);
}
