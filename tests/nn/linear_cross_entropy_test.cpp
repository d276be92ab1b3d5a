// Compares linear_cross_entropy with a loss on full logits in f64: each option alone and in pairs,
// and each output with its own cotangents, in all kinds of chunks.
#include <doctest/doctest.h>

#include <cmath>

#include "haliax/jit.h"
#include "haliax/losses.h"
#include "haliax/nn.h"

using namespace haliax;

namespace {

using nn::LinearCrossEntropy;

const AxisSelector Pos("position"), Embed("embed"), Vocab("vocab"), Wide("wide");

// All differentiable inputs, whether a case uses them or not.
struct Inputs {
  NamedArray x, weight, bias, weights, class_weights, soft, teacher_x, teacher_weight, gain;
};
Inputs as(DType d, const Inputs& in) {
  return tree_map([&](const NamedArray& a) { return a.astype(d).eval(); }, in);
}
constexpr int ignored = 5;
// Random tokens over a vocabulary. Some ids equal `ignored`.
struct Data {
  AxisSpec tokens;
  Axis vocab;
  Inputs inputs, wide;   // in f32, and the same values in f64
  NamedArray ids, mask;  // (tokens...)
};
Data make_data(const Axis& Batch, const Axis& Positions, const Axis& Hidden, const Axis& Ids,
               const Axis& Theirs) {
  const AxisSpec tokens{Batch, Positions};
  auto normal = [](int seed, const AxisSpec& axes) {
    return random::normal(random::key(seed), axes);
  };
  auto positive = [](int seed, const AxisSpec& axes) {
    return random::uniform(random::key(seed), axes, 0.2, 1.5);
  };
  const Inputs in{.x = normal(1, {Batch, Positions, Hidden}) * 0.5,
                  .weight = normal(2, {Ids, Hidden}),
                  .bias = normal(3, Ids),
                  .weights = positive(4, tokens),
                  .class_weights = positive(5, Ids),
                  .soft = softmax(normal(6, {Batch, Positions, Ids}) * 2., Ids),
                  .teacher_x = normal(7, {Batch, Positions, Theirs}) * 0.5,
                  .teacher_weight = normal(8, {Ids, Theirs}),
                  .gain = positive(9, Hidden)};
  auto share = [&](int seed, double p) { return random::uniform(random::key(seed), tokens) < p; };
  auto ids =
      where(share(12, 0.04), ignored, random::randint(random::key(10), tokens, 0, int(Ids.size)));
  const Inputs narrow = as(DType::f32, in);
  return {tokens, Ids, narrow, as(DType::f64, narrow), ids.eval(), share(11, 0.6).eval()};
}
const Data& few() {
  static const Data d =
      make_data({"batch", 3}, {"position", 11}, {"embed", 8}, {"vocab", 37}, {"wide", 5});
  return d;
}
const Data& many() {
  static const Data d =
      make_data({"batch", 4}, {"position", 77}, {"embed", 24}, {"vocab", 601}, {"wide", 9});
  return d;
}

enum Feature : unsigned {
  bias = 1,
  masked = 2,
  weighted = 4,
  ignoring = 8,
  smoothed = 16,
  z_loss = 32,
  soft_cap = 64,
  temperature = 128,
  class_weighted = 256,
  soft_targets = 512,
  normed = 1024,
  summed = 2048,
  distilled = 4096,
  tied = 8192,
  last_feature = tied
};
using Features = unsigned;

// The hidden states. With tied weights they depend on the rows of the head.
NamedArray hidden(Features f, const Data& d, const Inputs& in) {
  return f & tied ? in.x + 0.5 * take(in.weight, Vocab, d.ids) : in.x;
}
NamedArray objective(Features f, const LinearCrossEntropy& r) {
  return f & distilled ? r.loss + mean(r.kl) : r.loss;
}
NamedArray normalised(const NamedArray& x, const NamedArray& gain) {
  return x * rsqrt(mean(square(x), Embed) + 0.1) * gain;
}

nn::LinearCrossEntropyOptions options_of(Features f, const Data& d, const Inputs& in) {
  nn::LinearCrossEntropyOptions o;
  if (f & bias) o.bias = in.bias;
  if (f & masked) o.mask = d.mask;
  if (f & weighted) o.weights = in.weights;
  if (f & ignoring) o.ignore_index = ignored;
  if (f & smoothed) o.label_smoothing = 0.15;
  if (f & z_loss) o.z_loss = 0.02;
  if (f & soft_cap) o.soft_cap = 3;
  if (f & temperature) o.temperature = 0.7;
  if (f & class_weighted) o.class_weights = in.class_weights;
  if (f & normed) o.norm = [gain = in.gain](const NamedArray& x) { return normalised(x, gain); };
  if (f & summed) o.reduction = nn::Reduction::sum;
  if (f & distilled)
    o.teacher = nn::LinearHead{.x = in.teacher_x, .weight = in.teacher_weight, .Embed = Wide};
  return o;
}
const NamedArray& targets_of(Features f, const Data& d, const Inputs& in) {
  return f & soft_targets ? in.soft : d.ids;
}

// The reference: the same loss on full logits.
LinearCrossEntropy by_the_book(Features f, const Data& data, const Inputs& in) {
  auto d = in.x.dtype();
  auto x = hidden(f, data, in);
  auto l = dot(f & normed ? normalised(x, in.gain) : x, in.weight, Embed);
  if (f & bias) l = l + in.bias;
  if (f & soft_cap) l = 3. * tanh(l / 3.);
  if (f & temperature) l = l / 0.7;
  auto log_p = log_softmax(l, Vocab), lse = logsumexp(l, Vocab);
  auto target = f & soft_targets ? in.soft : one_hot(data.ids, data.vocab, d);
  auto q = f & smoothed ? 0.85 * target + 0.15 / double(data.vocab.size) : target;
  auto classes = f & class_weighted ? in.class_weights : ones(data.vocab, d);
  auto loss = -sum(q * log_p * classes, Vocab);
  if (f & z_loss) loss = loss + 0.02 * square(lse);
  auto w = f & weighted ? in.weights : ones(data.tokens, d);
  if (f & masked) w = w * astype(data.mask, d);
  if ((f & ignoring) && !(f & soft_targets)) w = w * astype(data.ids != ignored, d);

  LinearCrossEntropy r;
  r.losses = w * loss;
  auto divisor = f & class_weighted && !(f & soft_targets)
                     ? w * sum(one_hot(data.ids, data.vocab, d) * classes, Vocab)
                     : w;
  r.total = {sum(r.losses), sum(divisor)};
  r.loss = f & summed ? r.total.sum : r.total.sum / r.total.weight;
  r.logsumexp = lse;
  r.log_prob = sum(target * log_p, Vocab);
  r.entropy = -sum(exp(log_p) * log_p, Vocab);
  auto theirs = dot(in.teacher_x, in.teacher_weight, Wide);
  if (f & temperature) theirs = theirs / 0.7;
  auto log_t = log_softmax(theirs, Vocab);
  r.kl = sum(exp(log_t) * (log_t - log_p), Vocab);
  r.ids = argmax(l, Vocab);
  r.nll = {-sum(w * r.log_prob), sum(w)};
  auto id = f & soft_targets ? argmax(in.soft, Vocab) : data.ids;
  r.accuracy = {sum(w * astype(r.ids == id, d)), sum(w)};
  std::tie(r.top_logits, r.top_ids) = top_k(l, Vocab, 4, "top");
  return r;
}

// How a case splits the work: the chunked axes and the positions per chunk, or bytes per chunk. 0
// means all positions.
struct Split {
  const char* name;
  AxisSelection axes;
  std::int64_t chunk, vocab_chunk;
  ChunkForm form = ChunkForm::automatic;
  std::int64_t memory = 0;
  ChunkOptions chunks() const {
    return {.chunk = chunk ? std::optional(chunk) : std::nullopt, .memory = memory, .form = form};
  }
  bool small() const { return (chunk && chunk < 8) || (vocab_chunk && vocab_chunk < 8); }
};
const std::vector<Split>& splits() {  // for few()
  static const std::vector<Split> all{
      {"1 token", {}, 1, 0},
      {"7 tokens", {}, 7, 0},
      {"N - 1 tokens", {}, 32, 0},
      {"N tokens", {}, 33, 0},
      {"N + 1 tokens", {}, 34, 0},
      {"22 tokens, made again", {}, 22, 0, ChunkForm::recompute},
      {"22 tokens in one sweep", {}, 22, 0, ChunkForm::sweep},
      {"4 positions", Pos, 4, 0},
      {"1 of the vocabulary", Vocab, 1, 0},
      {"7 of the vocabulary", Vocab, 7, 0},
      {"between V/2 and V of the vocabulary", Vocab, 25, 0},
      {"V - 1 of the vocabulary", Vocab, 36, 0},
      {"V of the vocabulary", Vocab, 37, 0},
      {"V + 1 of the vocabulary", Vocab, 38, 0},
      {"tiles of 7 tokens by 10 of the vocabulary", {}, 7, 10},
      {"tiles of 32 tokens by 25 of the vocabulary", {}, 32, 25},
  };
  return all;
}

// For many(): used for pairs of options and for single options.
const std::vector<Split>& splits_of_pairs() {
  static const std::vector<Split> some{
      {"128 tokens", {}, 128, 0},
      {"N - 1 tokens, made again", {}, 307, 0, ChunkForm::recompute},
      {"between V/2 and V of the vocabulary", Vocab, 350, 0},
      {"tiles of 100 tokens by 250 of the vocabulary", {}, 100, 250},
  };
  return some;
}
const std::vector<Split>& splits_of_many() {
  static const std::vector<Split> all = [] {
    std::vector<Split> splits = splits_of_pairs();
    splits.insert(splits.end(), {{"7 tokens", {}, 7, 0},
                                 {"N + 1 tokens", {}, 309, 0},
                                 {"10 positions", Pos, 10, 0},
                                 {"V - 1 of the vocabulary", Vocab, 600, 0},
                                 {"256 KiB", {}, 0, 0, ChunkForm::automatic, 256 << 10}});
    return splits;
  }();
  return all;
}

// Returns the relative error in the L2 norm.
double relative(const NamedArray& got, const NamedArray& expected) {
  if (got.empty() || expected.empty() || got.axes() != expected.axes()) return INFINITY;
  auto a = got.doubles(), b = expected.doubles();
  double off = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    off += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }

  return size > 0 ? std::sqrt(off / size) : off > 0 ? INFINITY : 0;
}

auto loss_and_gradients(Features f, const Data& d, const Split& split) {
  auto run = jit([&](const Inputs& in) {
    return value_and_grad([&](const Inputs& p) {
      auto o = options_of(f, d, p);
      o.walked = split.axes;
      o.chunks = split.chunks();
      o.vocab_chunk = split.vocab_chunk;
      return objective(f, nn::linear_cross_entropy(hidden(f, d, p), p.weight, targets_of(f, d, p),
                                                   Embed, Vocab, o));
    })(in);
  });
  return run(d.inputs);
}
auto loss_and_gradients_by_the_book(Features f, const Data& d) {
  return jit([&](const Inputs& in) {
    return value_and_grad([&](const Inputs& p) { return objective(f, by_the_book(f, d, p)); })(in);
  })(d.wide);
}
std::string shown(Features f) {
  const char* const names[] = {
      "bias",   "mask",     "weights",     "ignore_index",  "label_smoothing",
      "z_loss", "soft_cap", "temperature", "class_weights", "soft targets",
      "norm",   "sum",      "teacher",     "tied"};
  std::string s;
  for (unsigned i = 0; 1u << i <= last_feature; ++i)
    if (f >> i & 1) s += std::string(s.empty() ? "" : ", ") + names[i];
  return s.empty() ? "plain" : s;
}
// Compares all splits with the same reference values.
void agrees(Features f, const Data& d, const std::vector<Split>& splits) {
  CAPTURE(shown(f));
  auto expected = loss_and_gradients_by_the_book(f, d);
  for (auto& split : splits) {
    CAPTURE(std::string(split.name));
    auto [loss, g] = loss_and_gradients(f, d, split);
    const double most = split.small() ? 3e-6 : 1e-6;
    CHECK(relative(loss, expected.first) <= most);
    Walk names = walk_of(g, {.paths = true});
    auto got = flatten(g), wanted = flatten(expected.second);
    for (std::size_t k = 0; k < got.size(); ++k) {
      CAPTURE(names.paths[k]);
      bool main = names.paths[k] == "x" || names.paths[k] == "weight";
      // the other gradients are differences of nearly equal values
      CHECK(relative(got[k], wanted[k]) <= (main ? most : 3e-6));
    }
  }
}

}  // namespace

TEST_CASE("linear cross entropy: every option matches full logits, in every kind of chunk") {
  for (Features f = 0; f <= last_feature; f = f ? f << 1 : 1) agrees(f, few(), splits());
}

TEST_CASE("linear cross entropy: the error with 1024 tokens is at most 1e-6, for any chunk size") {
  const Axis Many{"tokens", 1024}, Large{"vocab", 1500}, Deep{"embed", 48};
  struct Head {
    NamedArray x, weight;
  };
  const Head head{random::normal(random::key(1), {Many, Deep}).eval(),
                  (random::normal(random::key(2), {Large, Deep}) * 0.3).eval()};
  const auto targets = random::randint(random::key(3), Many, 0, int(Large.size)).eval();
  const Head wide{head.x.astype(DType::f64).eval(), head.weight.astype(DType::f64).eval()};
  auto by_the_book = [=](const Head& h) {
    return nn::cross_entropy_loss(dot(h.x, h.weight, Deep), Large, targets);
  };
  auto expected = flatten(jit([=](const Head& h) { return value_and_grad(by_the_book)(h); })(wide));
  const std::pair<Axis, std::vector<std::int64_t>> axes_and_chunks[] = {
      {Many, {1, 7, 300, 600, 1023, 1024, 1025}}, {Large, {7, 400, 1000, 1499, 1500}}};
  for (auto& [axis, chunks] : axes_and_chunks)
    for (auto chunk : chunks) {
      CAPTURE(chunk);
      CAPTURE(std::string(axis.name.text()));
      auto loss = [=, w = axis](const Head& h) {
        return nn::linear_cross_entropy(h.x, h.weight, targets, Deep, Large,
                                        {.walked = w, .chunks = {.chunk = chunk}})
            .loss;
      };
      auto got = flatten(jit([=](const Head& h) { return value_and_grad(loss)(h); })(head));
      for (std::size_t k = 0; k < got.size(); ++k)
        CHECK(relative(got[k], expected[k]) <= (chunk < 8 ? 3e-6 : 1e-6));
    }
}

TEST_CASE("linear cross entropy: every pair of options matches full logits") {
  for (Features a = 1; a <= last_feature; a <<= 1)
    for (Features b = a << 1; b <= last_feature; b <<= 1) agrees(a | b, few(), splits());
}

TEST_CASE(
    "linear cross entropy: every option and pair of options matches full logits with 308 tokens") {
  for (Features a = 1; a <= last_feature; a <<= 1) {
    agrees(a, many(), splits_of_many());
    for (Features b = a << 1; b <= last_feature; b <<= 1) agrees(a | b, many(), splits_of_pairs());
  }
}

namespace {

// The requested outputs, each with its own cotangent: sums of the outputs times noise.
using Outputs = std::vector<NamedArray>;
Outputs differentiable(const LinearCrossEntropy& r) {
  return {r.loss, r.losses,     r.logsumexp, r.log_prob,    r.entropy,
          r.kl,   r.top_logits, r.nll.sum,   r.total.mean()};
}
const char* const output_names[] = {"loss", "losses",     "logsumexp", "log_prob",     "entropy",
                                    "kl",   "top_logits", "nll",       "mean of total"};
NamedArray with_cotangents(const Outputs& outputs, std::size_t only) {
  const NamedArray& o = outputs.at(only);
  return sum(o *
             random::normal(random::key(100 + int(only)), o.axes(), DType::f64).astype(o.dtype()));
}
nn::LinearCrossEntropyOptions asking_for_all(Features f, const Split& split, const Inputs& p,
                                             std::size_t only) {
  auto o = options_of(f, few(), p);
  o.walked = split.axes;
  o.chunks = split.chunks();
  o.vocab_chunk = split.vocab_chunk;
  o.teacher = nn::LinearHead{.x = p.teacher_x, .weight = p.teacher_weight, .Embed = Wide};
  o.outputs = {.losses = true,
               .logsumexp = true,
               .log_prob = true,
               .ids = true,
               .entropy = true,
               .nll = true,
               .accuracy = true};
  if (std::string(output_names[only]) == "top_logits") o.outputs.top_k = 4;
  return o;
}

}  // namespace

TEST_CASE(
    "linear cross entropy: every output has the gradients of full logits, for random cotangents") {
  const Features f = bias | masked | weighted | temperature | z_loss;
  const Inputs& wide = few().wide;
  auto values = jit([=](const Inputs& p) { return by_the_book(f, few(), p); })(wide);
  for (std::size_t k = 0; k < std::size(output_names); ++k) {
    CAPTURE(std::string(output_names[k]));
    auto expected = jit([=](const Inputs& in) {
      return value_and_grad([=](const Inputs& p) {
        return with_cotangents(differentiable(by_the_book(f, few(), p)), k);
      })(in);
    })(wide);
    for (auto& split : splits()) {
      CAPTURE(std::string(split.name));
      auto got = jit([=](const Inputs& in) {
        return value_and_grad([=](const Inputs& p) {
          auto r = nn::linear_cross_entropy(p.x, p.weight, few().ids, Embed, Vocab,
                                            asking_for_all(f, split, p, k));
          return std::pair{with_cotangents(differentiable(r), k), r};
        })(in);
      })(few().inputs);
      const double most = split.small() ? 3e-6 : 1e-6;
      auto& r = got.first.second;
      CHECK(relative(differentiable(r)[k], differentiable(values)[k]) <= most);
      CHECK(r.ids.integers() == values.ids.integers());
      CHECK(relative(r.accuracy.mean(), values.accuracy.mean()) <= most);
      if (!r.top_ids.empty()) CHECK(r.top_ids.integers() == values.top_ids.integers());
      auto g = flatten(got.second), wanted = flatten(expected.second);
      for (std::size_t j = 0; j < g.size(); ++j) CHECK(relative(g[j], wanted[j]) <= most);
    }
  }
}

TEST_CASE("linear cross entropy: gradients of every output match finite differences in f64") {
  const Inputs& at = few().wide;
  const Inputs along = tree_map(
      [seed = 200](const NamedArray& a) mutable {
        return random::normal(random::key(++seed), a.axes(), DType::f64).eval();
      },
      at);
  const double h = 1e-5;
  for (Features f :
       {bias | masked | weighted | ignoring | smoothed | z_loss | class_weighted | normed | tied,
        bias | soft_cap | temperature | soft_targets | class_weighted | smoothed | summed})
    for (auto& split : {splits()[1], splits()[10], splits()[14]})
      for (std::size_t k = 0; k < std::size(output_names); ++k) {
        CAPTURE(shown(f));
        CAPTURE(std::string(split.name));
        CAPTURE(std::string(output_names[k]));
        auto value = [=](const Inputs& p) {
          auto o = asking_for_all(f, split, p, k);
          auto r = nn::linear_cross_entropy(hidden(f, few(), p), p.weight, targets_of(f, few(), p),
                                            Embed, Vocab, o);
          return with_cotangents(differentiable(r), k);
        };
        auto g = flatten(jit(grad(value))(at)), v = flatten(along);
        double slope = 0;
        for (std::size_t j = 0; j < g.size(); ++j) slope += sum(g[j] * v[j]).item();
        auto moved = [&](double by) {
          return tree_map(
              [=](const NamedArray& a, const NamedArray& d) { return (a + by * d).eval(); }, at,
              along);
        };
        auto run = jit(value);
        double difference = (run(moved(h)).item() - run(moved(-h)).item()) / (2 * h);
        CHECK(std::abs(slope - difference) <= 1e-7 * (1 + std::abs(difference)));
      }
}
