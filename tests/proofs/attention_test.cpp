// Random attention programs: tiled or head by head, with masked blocks skipped, the values and
// gradients equal the untiled ones.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <random>

#include "haliax/haliax.h"

using namespace haliax;

namespace {

struct Parts {
  NamedArray query, key, value, bias;
  HALIAX_FIELDS(query, key, value, bias)
};

// A random program for a seed. `text` is its human-readable description.
class Drawn {
 public:
  explicit Drawn(unsigned seed) : random_(seed), text("seed " + std::to_string(seed)) {
    // Long sequences have blocks that a mask hides completely.
    const bool is_long = chance(3);
    Q = Axis("q", is_long ? 193 + below(140) : 2 + below(60));
    K = Axis("k", chance(3) ? 1 + Q.size + below(40) : Q.size);
    D = Axis("d", 1 + below(7));
    if (chance(2)) own.push_back(Axis("b", 1 + below(3)));
    if (chance(2)) own.push_back(Axis("heads", 1 + below(3)));
    if (chance(3)) groups.push_back(Axis("group", 2));
    text += "; q " + std::to_string(Q.size) + ", k " + std::to_string(K.size) + ", " +
            to_string(own) + " " + to_string(groups);
    choose(mask, 8, "mask");
    choose(fill, 4, "fill");
    choose(change, 6, "change");
    choose(around, 6, "around");
    choose(mesh, 6, "mesh");
    choose(heads, 6, "heads");
    choose(beside, 12, "beside");
    choose(put, 8, "put");
    choose(by_sigmoid, 8, "by sigmoid");
  }
  Parts parts() {
    auto all = joined({own, groups, {Q, D}}), of_keys = joined({own, {K, D}});
    auto values = of_keys;
    return {draw(shuffled(all)), draw(shuffled(of_keys)), draw(shuffled(values)),
            draw(shuffled({Q, K}))};
  }
  NamedArray attend(const Parts& p) const {
    auto key = p.key, value = p.value;
    if (rotates_keys()) {
      key = shard(key, Mapping{{"k", "data"}});
      value = shard(value, Mapping{{"k", "data"}});
    }

    auto s = dot(p.query, key, D) / std::sqrt(float(D.size));
    auto other = dot(sin(p.query), key, D) / 2.f;
    const auto distance = abs(broadcast_axis(arange(Q), K) - arange(K));
    if (beside == 1)
      s = s +
          take(rename(mean(p.bias, Q), {{"k", "offset"}}), "offset", minimum(distance, K.size - 1));
    if (beside == 2) s = s - 0.1f * mean(p.bias) * distance;
    if (beside == 3) s = s + other;
    if (beside == 4) s = mixed(s, p);
    if (change == 1) s = s + p.bias;
    if (change == 2) s = tanh(s / 2.f) * 2.f;
    if (change == 3) s = s - 0.1f * distance;
    const float low = fill == 0   ? -1e9f
                      : fill == 1 ? -1e30f
                      : fill == 2 ? -2.f
                                  : -std::numeric_limits<float>::infinity();
    if (mask > 0) s = masked(s, low);
    NamedArray weights;
    if (change == 4) {  // an attention sink: one more term in the denominator
      auto top = stop_gradient(maximum(max(s, K), 0.f));
      auto e = exp(s - top);
      weights = e / (sum(e, K) + exp(-top));
    } else {
      weights = by_sigmoid == 1 ? nn::sigmoid(s - std::log(float(K.size))) : softmax(s, K);
    }
    // Rows without visible keys are NaN without this.
    if (mask > 0 && fill == 3) weights = where(seen(), weights, 0.f);
    if (beside == 5) weights = weights - 0.3f * softmax(other, K);
    if (beside == 6) weights = weights - exp(other - logsumexp(other, K)) * mean(p.bias);
    if (beside == 7) weights = mixed(weights, p);
    if (change == 5)
      weights = where(random::bernoulli(random::key(3), {Q, K}, 0.8), weights, 0.f) / 0.8f;
    const bool summed = !own.empty() && around != 2;  // vmap hides the axis
    if (summed && heads == 1) return dot(weights, value, {K, own.back()});
    if (summed && heads == 2) weights = weights * (0.5f + sum(weights, own.back()));
    if (!groups.empty() && around < 4 && heads == 3) weights = sum(weights, groups[0]) / 2.f;
    return dot(weights, value, K);
  }
  bool rotates_keys() const {
    return mesh > 3;
  }  // blocks of keys rotate around the ring while queries stay sharded
  // Applies attention inside the transform that `around` selects.
  NamedArray transformed(const Parts& p) const {
    if (around == 1) return checkpoint([this](const Parts& p) { return attend(p); })(p);
    if (around == 2 && !own.empty())
      return vmap(
          [this](const Parts& p) {
            return attend({p.query, p.key, p.value, p.bias});
          },
          own[0], {})(p);
    if (around == 3) {
      const Axis layers("layers", 3);
      auto layer = [this, &p](const NamedArray& x, const NamedArray& w) {
        return broadcast_to(attend({x * w, p.key, p.value, p.bias}), x.axes());
      };
      return fold(layer, layers, {.checkpoint = chance_})(
          p.query, arange(layers, {.start = 1, .dtype = DType::f32}) / 3.f);
    }
    if (around == 4) {
      auto once = attend(p);
      return attend({sin(once), p.key, p.value, p.bias}) + once;
    }
    if (around == 5) {  // two checkpointed calls in sequence
      auto layer = checkpoint([this](const Parts& p) { return attend(p); });
      auto once = layer(p);
      return layer(Parts{sin(once), p.key, p.value, p.bias}) + once;
    }
    return attend(p);
  }

  Axis Q{"q", 1}, K{"k", 1}, D{"d", 1};
  Axes own, groups;
  // heads: whether weights are summed over heads or groups
  int mask = 0, fill = 0, change = 0, around = 0, mesh = 0, heads = 0;
  int beside = 0;  // variants that add other scores or weights
  int put = 0;     // the form in which the mask is applied
  int by_sigmoid = 0;

 private:
  // Mixes scores, or weights, over the heads with a contraction.
  NamedArray mixed(const NamedArray& s, const Parts& p) const {
    if (own.empty() || around == 2) return s;
    auto& to = own.back();
    auto from = to.alias("from");
    auto how = cos(broadcast_axis(arange(to), from) + 2 * arange(from)) * (1.f + mean(p.bias));
    return dot(rename(s, to, from), how, from);
  }
  // Sets scores to `low` where the mask is false, or adds `low` to these scores.
  NamedArray masked(const NamedArray& s, float low) const {
    auto m = seen();
    auto numbers = m.astype(DType::f32);
    // Otherwise the gradients of queries without visible keys are NaN.
    if (mask == 5 && (put == 2 || put == 5)) low = std::max(low, -1e30f);
    switch (put) {
      case 1:
        return where(!m, low, s);
      case 2:
        return s + where(m, 0.f, low);
      case 3:
        return std::isfinite(low) ? s + low * (1.f - numbers) : where(numbers == 0.f, low, s);
      case 4:
        return where(0.5f < numbers, s, low);
      case 5:
        return where(m, 0.f, low) - (-s);
      default:
        return where(m, s, low);
    }
  }
  NamedArray seen() const {
    auto q = broadcast_axis(arange(Q), K), k = arange(K);
    switch (mask) {
      case 1:
        return nn::causal_mask(Q, K);
      case 2:
        return nn::causal_mask(Q, K) & (q - k < 17);
      case 3:
        return nn::causal_mask(Q, K) | (k < 40);
      case 4:
        return floor_divide(q, 50) == floor_divide(k, 50);
      case 5:
        return (k < 150) & (q >= 3);
      case 6:
        return random::bernoulli(random::key(5), {Q, K}, 0.5);
      default:
        return nn::causal_mask(Q, K) & (floor_divide(q, 70) == floor_divide(k, 70));
    }
  }
  int below(int n) { return int(random_() % unsigned(n)); }
  bool chance(int of) { return below(of) == 0; }
  void choose(int& what, int n, const char* name) {
    what = below(n);
    text += std::string(", ") + name + " " + std::to_string(what);
  }
  static Axes joined(std::initializer_list<Axes> parts) {
    Axes all;
    for (auto& p : parts) all.insert(all.end(), p.begin(), p.end());
    return all;
  }
  Axes shuffled(Axes axes) {
    std::shuffle(axes.begin(), axes.end(), random_);
    return axes;
  }
  NamedArray draw(const Axes& axes) { return random::normal(random::key(random_()), axes).eval(); }

  std::mt19937 random_;
  bool chance_ = random_() % 2;

 public:
  std::string text;
};

}  // namespace

// HALIAX_TRIALS=40 runs fewer trials.
TEST_CASE("attention: random programs give the same values and gradients tiled and untiled") {
  const char* requested = std::getenv("HALIAX_TRIALS");
  const int trials = requested ? std::atoi(requested) : 500;
  int tiled = 0, both = 0, rounds = 0;
  for (int seed = 0; seed < trials; ++seed) {
    Drawn drawn{unsigned(seed)};
    CAPTURE(drawn.text);
    auto p = drawn.parts();
    auto all_of = [&](const Parts& p) {
      auto [out, g] = value_and_grad([&](const Parts& p) {
        auto y = drawn.transformed(p);
        return std::pair{sum(sin(y) * y), y};
      })(p);
      return Leaves{out.first, out.second, g.query, g.key, g.value, g.bias};
    };
    // Tiles queries, and for odd seeds keys too.
    JitOptions materialized{.scores_budget = most_bytes}, parts{.scores_budget = -(seed % 2)};
    if (drawn.mesh > 0) {
      const Mapping mappings[] = {{{"heads", "data"}, {"b", "model"}},
                                  {{"q", "data"}},
                                  {{"k", "model"}, {"group", "data"}},
                                  {{"q", "data"}, {"heads", "model"}},
                                  {{"q", "data"}}};
      const bool three = drawn.mesh == 5;
      parts.mesh = three ? Mesh{{{"data", 3}}} : Mesh{{{"data", 2}, {"model", 2}}};
      parts.axis_resources = mappings[drawn.mesh - 1];
      parts.ring = drawn.rotates_keys();
    }
    auto expected = jit(all_of, materialized)(p);
    auto f = named_jit(all_of, parts);
    auto got = f(p);
    tiled += !f.report().chunked.empty();
    both += f.report().explain.find(" over k") != std::string::npos;
    auto sent = f.report().collectives;
    rounds +=
        std::any_of(sent.begin(), sent.end(), [](auto& m) { return m.loop.ends_with("k, data"); });
    for (std::size_t k = 0; k < expected.size(); ++k) {
      CAPTURE(k);
      REQUIRE(got[k].axes() == expected[k].axes());
      auto far = max(abs(got[k] - expected[k])).item(), most = max(abs(expected[k])).item();
      CHECK(far <= 1e-5 * (1 + most));
    }
  }
  CHECK(tiled > trials / 2);
  CHECK(both > trials / 8);
  CHECK(rounds > trials / 20);
}
