// Matmuls of a softmax and of its gradients read the numerators exp(x - max x), which are written
// once, while their rows are summed.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "haliax/chunked.h"
#include "haliax/jit.h"
#include "haliax/nn.h"
#include "ops/prim.h"
#include "program/views.h"
#include "support/head_model.h"
#include "support/near.h"
#include "compile/pipeline.h"

using namespace haliax;
using program::Code;
using program::Step;

namespace {

const Axis Batch{"batch", 3}, Pos{"position", 8}, Embed{"embed", 8}, Vocab{"vocab", 1024};
using Parameters = test::HeadParameters;
Parameters parameters(DType d = DType::f32) {
  return {test::normal(1, {Batch, Pos, Embed}, d), test::normal(2, {Vocab, Embed}, d)};
}
NamedArray ids(DType d = DType::i32) {
  return random::randint(random::key(3), {Batch, Pos}, 0, int(Vocab.size)).astype(d).eval();
}

using Loss = std::function<NamedArray(const Parameters&)>;
Parameters gradients(const Loss& loss, const Parameters& p, const char* backend) {
  return jit([=](const Parameters& q) { return grad(loss)(q); }, {.backend = backend})(p);
}
struct Steps {
  int scatters = 0, products = 0, exps = 0;  // exps: steps that store an exp for each element
  std::int64_t arena = 0;
  void count(const std::vector<Step>& steps) {
    each_step(steps, [&](auto& s) {
      scatters += s.kind == program::Kind::scatter;
      products += s.kind == program::Kind::contract;
      if (s.kind != program::Kind::fused) return;
      for (auto& i : s.fused.code)
        exps += i.code == Code::store && i.inner &&
                s.fused.code[std::size_t(i.args[0])].code == Code::exp;
    });
  }
};
Steps steps_of(const std::vector<NamedArray>& results) {
  Nodes roots;
  for (auto& r : results) roots.push_back(r.node());
  Compilation c{roots, {}};
  run(c);
  auto p = c.program;
  Steps s;
  s.count(p->steps);
  s.arena = p->arena_bytes;
  return s;
}
Steps steps_of(const Loss& loss, const Parameters& p) {
  auto g = grad(loss)(p);
  return steps_of({g.x, g.w});
}
bool is_taken(const Steps& s) { return s.scatters > 0 && s.products == 3 && s.exps == 1; }

}  // namespace

TEST_CASE(
    "softmax matmuls: cross entropy gradients are matmuls "
    "of exp(x - max x), for all weights of its tokens") {
  const auto p = parameters();
  const auto mask = less(ids(), 512);
  const auto weights = test::normal(4, {Batch, Pos}, DType::f32),
             half = test::normal(5, {Pos}, DType::f32);
  auto head = [=](nn::LinearCrossEntropyOptions o, DType d = DType::i32) -> Loss {
    return [=](const Parameters& q) {
      return nn::linear_cross_entropy(q.x, q.w, ids(d), Embed, Vocab, o).loss;
    };
  };
  // too large, and below 0
  auto outside = where(less(ids(), 512), ids(), Vocab.size + 7) - where(less(ids(), 100), 500, 0);
  const std::pair<std::string, Loss> all[] = {
      {"whole", head({})},
      {"mask", head({.mask = mask})},
      {"weights", head({.weights = weights})},
      {"weights of some axes", head({.weights = half, .temperature = 0.7})},
      {"i64", head({}, DType::i64)},
      {"none there", [=](const Parameters& q) {
         auto z = dot(q.x, q.w, Embed);
         return sum(
             weights *
             (logsumexp(z, Vocab) -
              sum(where(equal(broadcast_axis(outside, Vocab), arange(Vocab)), z, 0.), Vocab)));
       }}};
  for (auto& [name, loss] : all) {
    CAPTURE(name);
    CHECK(is_taken(steps_of(loss, p)));
    auto got = gradients(loss, p, "cpu"), expected = gradients(loss, p, "reference");
    CHECK(difference(got.x, expected.x, 2e-6) == "");
    CHECK(difference(got.w, expected.w, 2e-6) == "");
    auto exact = parameters(DType::f64);
    auto fine = gradients(loss, exact, "cpu"), oracle = gradients(loss, exact, "reference");
    CHECK(difference(fine.x, oracle.x, 1e-13) == "");
    CHECK(difference(fine.w, oracle.w, 1e-13) == "");
  }
}

TEST_CASE("softmax matmuls: an iteration of a loop holds its chunk of exps and one of x") {
  const auto p = parameters();
  Loss loss = [](const Parameters& q) {
    return nn::linear_cross_entropy(q.x, q.w, ids(), Embed, Vocab,
                                    {.walked = Pos, .chunks = {.chunk = 4}})
        .loss;
  };
  auto s = steps_of(loss, p);
  CHECK(is_taken(s));
  const std::int64_t tokens = Batch.size * 4;
  // and the scalars of each token
  CHECK(s.arena == tokens * Vocab.size * 4 + tokens * Embed.size * 4 + 2 * 64);
  auto got = gradients(loss, p, "cpu"), expected = gradients(loss, p, "reference");
  CHECK(difference(got.x, expected.x, 2e-6) == "");
  CHECK(difference(got.w, expected.w, 2e-6) == "");
}

TEST_CASE(
    "softmax matmuls: a token with a certain label has no gradient, not even a rounding error") {
  // logits: 100 at the label, 0 elsewhere, so that its probability is 1
  const auto same = zeros({Batch, Pos}, DType::i32);
  const Parameters sure{full({Batch, Pos, Embed}, 1.f) * arange(Pos).astype(DType::f32),
                        where(equal(arange(Vocab), 0), 100.f, zeros({Vocab, Embed}))};
  Loss loss = [=](const Parameters& q) {
    return nn::linear_cross_entropy(q.x, q.w, same, Embed, Vocab,
                                    {.mask = greater(broadcast_axis(arange(Pos), Batch), 0)})
        .loss;
  };
  CHECK(is_taken(steps_of(loss, sure)));
  auto g = gradients(loss, sure, "cpu");
  for (double v : g.x.doubles()) CHECK(std::abs(v) < 1e-30);
  for (double v : g.w.doubles()) CHECK(std::abs(v) < 1e-30);
}

TEST_CASE("softmax matmuls: attention to many keys divides its results, not its weights") {
  const Axis Query{"query", 4}, Key{"key", 512}, Head{"head", 16};
  auto q = test::normal(1, {Batch, Query, Head}, DType::f32),
       k = test::normal(2, {Batch, Key, Head}, DType::f32),
       v = test::normal(3, {Batch, Key, Head}, DType::f32);
  auto attend = [=](const NamedArray& keys) {
    return dot(softmax(where(less(arange(Key), 300), dot(q, keys, Head), -INFINITY), Key), v, Key);
  };
  auto s = steps_of({attend(k)});
  CHECK(s.products == 2);
  CHECK(s.exps == 1);
  auto alone = [=](const char* name) { return jit(attend, {.backend = name})(k); };
  CHECK(difference(alone("cpu"), alone("reference"), 2e-6) == "");
}

TEST_CASE(
    "softmax matmuls: values with other readers are computed in full, "
    "and values that may overflow stay unchanged") {
  const auto p = parameters();
  const auto bias = test::normal(6, Vocab, DType::f32);
  struct WithBias {
    Parameters p;
    NamedArray bias;
  };
  auto loss = [=](const WithBias& q) {
    return nn::linear_cross_entropy(q.p.x, q.p.w, ids(), Embed, Vocab, {.bias = q.bias}).loss;
  };
  auto g = grad(loss)(WithBias{p, bias});
  // the gradient of the bias is the sum of the logits' gradients
  CHECK(steps_of({g.p.x, g.p.w, g.bias}).exps == 0);

  Loss z = [](const Parameters& q) {
    return nn::linear_cross_entropy(q.x, q.w, ids(), Embed, Vocab, {.z_loss = 0.1}).loss;
  };
  CHECK(
      !is_taken(steps_of(z, p)));  // the weights of the sums differ from the weights of the labels
  auto by_z = gradients(z, p, "cpu"), by_the_book = gradients(z, p, "reference");
  CHECK(difference(by_z.w, by_the_book.w, 2e-6) == "");

  const Axis Row{"row", 64};
  auto x = full({Row, Vocab}, 90.f), w = test::normal(7, {Vocab, Embed}, DType::f32);
  // exp(90) exceeds the range of f32
  auto large = [=](const NamedArray& y) { return dot(exp(y) * full(Row, 1e-38f), w, Vocab); };
  auto safe = dot(exp(minimum(x, 80.f)) * full(Row, 1e-30f), w * 1e8f, Vocab);
  CHECK(steps_of({large(x)}).exps == 0);
  for (double y : safe.doubles()) CHECK(std::isfinite(y));

  const auto inf = std::numeric_limits<float>::infinity();
  // rows without a finite element
  auto rows = where(less(arange(Row), 3), -inf, test::normal(8, {Row, Vocab}, DType::f32));
  auto weighed = [=](const NamedArray& y) { return dot(softmax(y, Vocab), w, Vocab); };
  CHECK(difference(jit(weighed, {.backend = "cpu"})(rows),
                   jit(weighed, {.backend = "reference"})(rows), 2e-6) == "");

  const Axis Choice{"choice", 3};  // several ids for each row, summed too
  auto picks = random::randint(random::key(9), {Row, Choice}, 0, int(Vocab.size));
  auto other = test::normal(10, {Row, Vocab}, DType::f64), fine = w.astype(DType::f64);
  auto chosen = [=](const NamedArray& y) {
    auto points = where(equal(broadcast_axis(picks, Vocab), arange(Vocab)), 1.,
                        zeros(Row).astype(DType::f64));
    return dot(exp(y - max(y, Vocab)) * 0.5 + points, broadcast_axis(fine, Choice),
               {Vocab, Choice});
  };
  CHECK(difference(jit(chosen, {.backend = "cpu"})(other),
                   jit(chosen, {.backend = "reference"})(other), 1e-12) == "");
}
