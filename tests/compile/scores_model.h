// Attention of small sizes, and comparisons of its tiled and materialized plans.
#pragma once
#include <doctest/doctest.h>
#include <array>
#include <functional>
#include "haliax/haliax.h"
#include "support/devices.h"
#include "support/threads.h"

namespace haliax::scores_model {

inline const Axis B{"b", 2}, H{"heads", 3}, Q{"q", 13}, K{"k", 13}, D{"d", 4};
struct Parts {
  NamedArray query, key, value, bias;
  HALIAX_FIELDS(query, key, value, bias)
};
using In = const NamedArray&;
using Attention = std::function<NamedArray(const Parts&)>;

inline NamedArray draw(int seed, const Axes& axes, DType dtype = DType::f32) {
  return random::normal(random::key(seed), axes).astype(dtype).eval();
}
inline Parts parts(DType dtype = DType::f32) {
  return {draw(1, {B, H, Q, D}, dtype), draw(2, {B, H, K, D}, dtype), draw(3, {B, H, K, D}, dtype),
          draw(4, {H, Q, K}, dtype)};
}
// Returns the loss, the auxiliary result, and the gradients.
inline Leaves all_of(const Attention& f, const Parts& p) {
  auto loss = [&](const Parts& p) {
    auto y = f(p).astype(DType::f32);
    return std::pair{sum(sin(y) * y), sum(y, "heads")};
  };
  auto [both, g] = value_and_grad(loss)(p);
  return {both.first, both.second, g.query, g.key, g.value, g.bias};
}
inline void same(const Leaves& got, const Leaves& expected, double tolerance) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t k = 0; k < got.size(); ++k) {
    CAPTURE(k);
    auto x = got[k].astype(DType::f64), y = expected[k].astype(DType::f64);
    CHECK(max(abs(x - y)).item() <= tolerance * (1 + max(abs(y)).item()));
  }
}
// Checks that tiled attention matches materialized attention, and that no array of the size of the
// scores is planned.
inline void check_tiled(const char* what, const Attention& f, const Parts& p = parts(),
                        double tolerance = 2e-6) {
  CAPTURE(std::string(what));
  auto materialized =
      jit([&](const Parts& p) { return all_of(f, p); }, {.scores_budget = most_bytes});
  auto tiled = jit([&](const Parts& p) { return all_of(f, p); }, {.scores_budget = 0});
  auto expected = materialized(p);
  same(tiled(p), expected, tolerance);
  CHECK(materialized.report().chunked.empty());
  REQUIRE(tiled.report().chunked.size() > 0);
  CHECK(tiled.report().explain.find("over q") != std::string::npos);
  auto both = jit([&](const Parts& p) { return all_of(f, p); }, {.scores_budget = -1});
  same(both(p), expected, tolerance * 4);
  same(jit([&](const Parts& p) { return all_of(f, p); },
           {.backend = "reference", .scores_budget = 0})(p),
       expected, tolerance * 4);
}
inline NamedArray scores(const Parts& p) { return dot(p.query, p.key, "d") / 2.f; }
inline NamedArray causal() { return nn::causal_mask(Q, K); }

}  // namespace haliax::scores_model
