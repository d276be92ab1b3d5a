// A chunked language-model loss on meshes: the loss and the gradients of the embedding and the head
// equal the results with full logits on one device, with tied and untied heads.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "haliax/jit.h"
#include "haliax/losses.h"
#include "haliax/nn.h"

using namespace haliax;

namespace {

const Axis Batch{"batch", 8}, Pos{"position", 12}, Embed{"embed", 16}, Mlp{"mlp", 24},
    Vocab{"vocab", 40}, Odd{"vocab", 37};

struct Parameters {
  NamedArray embedding, up, down;
  std::optional<NamedArray> head;  // none: tied
};
Parameters drawn(const Axis& Vocab, bool tied) {
  auto draw = [](int seed, const AxisSpec& axes) {
    return random::normal(random::key(seed), axes);
  };
  Parameters p{
      draw(1, {Vocab, Embed}) * 0.5, draw(2, {Embed, Mlp}) * 0.25, draw(3, {Mlp, Embed}) * 0.2, {}};
  if (!tied) p.head = draw(4, {Vocab, Embed}) * 0.3;
  return p;
}
NamedArray hidden(const Parameters& p, const NamedArray& ids) {
  auto x = take(p.embedding, "vocab", ids);
  return standardize(x + dot(nn::gelu(dot(x, p.up, Embed)), p.down, Mlp), Embed);
}
NamedArray unchunked_loss(const Parameters& p, const NamedArray& ids, const NamedArray& targets) {
  auto& head = p.head ? *p.head : p.embedding;
  return nn::cross_entropy_loss(dot(hidden(p, ids), head, Embed), "vocab", targets);
}

struct Way {
  const char* name;
  Mesh mesh;
  Mapping parameters, inside;
};
const Mesh data{{{"data", 4}}}, model{{{"model", 4}}}, both{{{"data", 2}, {"model", 2}}};
const std::vector<Way> ways{
    {"data parallel", data, {}, {{"batch", "data"}}},
    {"FSDP", data, {{"embed", "data"}}, {{"batch", "data"}}},
    {"FSDP by the vocabulary", data, {{"vocab", "data"}, {"mlp", "data"}}, {{"batch", "data"}}},
    {"tensor parallel",
     model,
     {{"mlp", "model"}, {"vocab", "model"}},
     {{"mlp", "model"}, {"vocab", "model"}}},
    {"tensor parallel by the features", model, {{"embed", "model"}}, {{"embed", "model"}}},
    {"sequence parallel", model, {}, {{"position", "model"}}},
    {"sequence parallel, parameters cut", model, {{"embed", "model"}}, {{"position", "model"}}},
    {"FSDP and tensor parallel",
     both,
     {{"embed", "data"}, {"mlp", "model"}, {"vocab", "model"}},
     {{"batch", "data"}, {"mlp", "model"}, {"vocab", "model"}}},
    {"FSDP and sequence parallel",
     both,
     {{"embed", "data"}},
     {{"batch", "data"}, {"position", "model"}}},
};

void close(const NamedArray& got, const NamedArray& expected) {
  REQUIRE(got.axes() == expected.axes());
  auto a = got.doubles(), b = expected.doubles();
  double most = 0;
  for (double x : b) most = std::max(most, std::abs(x));
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  CHECK(worst <= 1e-5 * most);
}

}  // namespace

TEST_CASE(
    "proof: the chunked loss on a mesh has the loss "
    "and gradients of full logits, tied and untied") {
  struct Split {
    AxisSelection axes;
    std::int64_t chunk, vocab_chunk;
  };
  for (auto& vocab : {Vocab, Odd})
    for (bool tied : {true, false}) {
      const auto p = drawn(vocab, tied);
      const auto ids = random::randint(random::key(5), {Batch, Pos}, 0, int(vocab.size)),
                 next = roll(ids, -1, Pos);
      const auto expected = flatten(jit(value_and_grad(unchunked_loss))(p, ids, next));
      int count = 0;
      for (auto& way : ways) {
        const Split splits[] = {
            {"position", 5, 0}, {{"batch", "position"}, 16, 0}, {"position", 3, 16}};
        const auto& split = splits[std::size_t(count++ % 3)];
        CAPTURE(std::string(way.name));
        CAPTURE(tied);
        CAPTURE(vocab.size);
        CAPTURE(split.chunk);
        auto loss = [&](const Parameters& p, const NamedArray& ids, const NamedArray& targets) {
          axis_mapping scope(way.inside);
          return nn::linear_cross_entropy(hidden(p, ids), p.head ? *p.head : p.embedding, targets,
                                          Embed, "vocab",
                                          {.walked = split.axes,
                                           .chunks = {.chunk = split.chunk},
                                           .vocab_chunk = split.vocab_chunk})
              .loss;
        };
        JitOptions options{.mesh = way.mesh, .axis_resources = way.parameters};
        options.in = Mappings::of_each({way.parameters, way.inside, way.inside});
        auto f = named_jit(value_and_grad(loss), options);
        const auto got = flatten(f(p, ids, next));
        CHECK(f.report().loops > 0);
        REQUIRE(got.size() == expected.size());
        for (std::size_t k = 0; k < got.size(); ++k) close(got[k], expected[k]);
      }
    }
}

TEST_CASE(
    "proof: chunks are parts of each device's shard, "
    "so no token is communicated for any chunked axis") {
  const auto p = drawn(Vocab, true);
  const auto ids = random::randint(random::key(5), {Batch, Pos}, 0, int(Vocab.size)),
             next = roll(ids, -1, Pos);
  for (auto& inside : {Mapping{{"batch", "data"}}, Mapping{{"position", "data"}}}) {
    auto sent = [&](const AxisSelection& axes, std::int64_t chunk) {
      auto loss = [&](const Parameters& p, const NamedArray& ids, const NamedArray& targets) {
        axis_mapping scope(inside);
        return nn::linear_cross_entropy(hidden(p, ids), p.embedding, targets, Embed, "vocab",
                                        {.walked = axes, .chunks = {.chunk = chunk}})
            .loss;
      };
      JitOptions options{.mesh = data, .axis_resources = Mapping{}};
      options.in = Mappings::of_each({Mapping{}, inside, inside});
      auto f = named_jit(value_and_grad(loss), options);
      f(p, ids, next);
      CHECK(f.report().loops > 0);
      return f.report().sent_bytes;
    };
    const auto alone = sent(inside.find("batch") ? "position" : "batch", 4);
    for (std::int64_t chunk : {1, 3, 5}) {
      CHECK(sent("batch", chunk) == alone);
      CHECK(sent("position", chunk) == alone);
      CHECK(sent({"batch", "position"}, chunk) == alone);
    }
  }
}

TEST_CASE("proof: a mask adds no communication") {
  const auto p = drawn(Vocab, true);
  const auto ids = random::randint(random::key(5), {Batch, Pos}, 0, int(Vocab.size)),
             next = roll(ids, -1, Pos);
  const auto mask = (random::uniform(random::key(6), {Batch, Pos}) < 0.4).eval();
  const auto expected = flatten(
      jit(value_and_grad([=](const Parameters& q, const NamedArray& i, const NamedArray& targets) {
        auto logits = dot(hidden(q, i), q.embedding, Embed);
        return nn::cross_entropy_loss(logits, "vocab", targets, {.where = mask});
      }))(p, ids, next));
  for (auto& way : ways)
    for (AxisSelection axes : {AxisSelection("position"), AxisSelection({"batch", "position"})}) {
      CAPTURE(std::string(way.name));
      auto sent = [&](bool masked) {
        auto loss = [&](const Parameters& q, const NamedArray& i, const NamedArray& targets) {
          axis_mapping scope(way.inside);
          nn::LinearCrossEntropyOptions o{.walked = axes, .chunks = {.chunk = 5}};
          if (masked) o.mask = mask;
          return nn::linear_cross_entropy(hidden(q, i), q.embedding, targets, Embed, "vocab", o)
              .loss;
        };
        JitOptions options{.mesh = way.mesh, .axis_resources = way.parameters};
        options.in = Mappings::of_each({way.parameters, way.inside, way.inside});
        auto f = named_jit(value_and_grad(loss), options);
        const auto got = flatten(f(p, ids, next));
        for (std::size_t k = 0; masked && k < got.size(); ++k) close(got[k], expected[k]);
        return f.report().sent_bytes;
      };
      CHECK(sent(true) == sent(false));
    }
}

TEST_CASE(
    "proof: a vocabulary that is sharded over devices is not chunked further if its shard fits") {
  auto shape = [](const AxisSpec& axes, DType d = DType::f32) {
    return eval_shape([&] { return zeros(axes, d); });
  };
  const Axis Many("vocab", 65536), Tokens("tokens", 256), Wide("embed", 256);
  for (bool shared : {false, true}) {
    const Mapping inside = shared ? Mapping{{"vocab", "model"}} : Mapping{};
    auto loss = [&](const NamedArray& head, const NamedArray& x, const NamedArray& ids) {
      axis_mapping scope(inside);
      return nn::linear_cross_entropy(x, head, ids, Wide, Many,
                                      {.walked = Tokens, .chunks = {.memory = 4 << 20}})
          .loss;
    };
    auto f = named_jit(value_and_grad(loss), {.mesh = model, .axis_resources = inside});
    const auto r = f.plan(shape({Many, Wide}), shape({Tokens, Wide}), shape(Tokens, DType::i32));
    bool tiled =
        std::any_of(r.chunked.begin(), r.chunked.end(), [](auto& c) { return c.axis == "vocab"; });
    CHECK(r.loops > 0);
    CHECK(tiled == !shared);
  }
}

TEST_CASE("proof: targets that are replicated add no more memory than one shard of the logits") {
  const Axis batch{"batch", 64}, vocab{"vocab", 4096};
  const double logits = 64. * 12 * 4096 * 4 / 8;  // bytes, on one device
  auto picked = [&](const NamedArray& logits, const NamedArray& ids) {
    return mean(logsumexp(logits, vocab) - take(logits, vocab, ids)).scalar();
  };
  auto hot = [&](const NamedArray& logits, const NamedArray& ids) {
    return nn::cross_entropy_loss(logits, vocab, one_hot(ids, vocab)).scalar();
  };
  const auto ids = eval_shape([&] { return zeros({batch, Pos}, DType::i32); });
  const auto x = eval_shape([&] { return zeros({batch, Pos, Embed}); });
  const auto w = eval_shape([&] { return zeros({vocab, Embed}); });
  auto peak = [&](auto loss, const Mapping& mapping) {
    auto step = [=](const NamedArray& w, const NamedArray& x, const NamedArray& ids) {
      return value_and_grad(
          [&](const NamedArray& w) { return loss(dot(auto_sharded(x), w, Embed), ids); })(w);
    };
    const auto in = Mappings::of_each({mapping, Mapping{}, Mapping{}});
    return double(named_jit(step, {.mesh = Mesh{{{"all", 8}}}, .axis_resources = mapping, .in = in})
                      .plan(w, x, ids)
                      .peak_bytes);
  };
  CHECK(peak(hot, {{"batch", "all"}}) < 1.4 * logits);
  CHECK(peak(picked, {{"batch", "all"}}) < 2.4 * logits);  // the one-hot targets are an array
  for (auto& loss : {peak(hot, {{"vocab", "all"}}), peak(picked, {{"vocab", "all"}})})
    CHECK(loss < 2.4 * logits);
}
