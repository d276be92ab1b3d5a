// A small model with a head for tests of linear_cross_entropy, and comparisons with a loss on full
// logits.
#pragma once
#include <doctest/doctest.h>
#include <cmath>
#include "examples/chunked_loss/methods.h"
#include "haliax/jit.h"
#include "haliax/losses.h"
#include "haliax/nn.h"
#include "support/head_model.h"
#include "support/near.h"

namespace haliax::lce_model {

inline const Axis Tokens{"tokens", 12}, Embed{"embed", 6}, Vocab{"vocab", 16};

using Parameters = test::HeadParameters;
inline const test::HeadModel model{Tokens, Embed, Vocab};
inline NamedArray normal(int seed, const AxisSpec& axes, DType d = DType::f64) {
  return test::normal(seed, axes, d);
}
inline Parameters parameters(DType d = DType::f64) { return model.parameters(d); }
inline NamedArray ids() { return model.ids(); }

inline nn::LinearCrossEntropy losses(const Parameters& p, nn::LinearCrossEntropyOptions o = {}) {
  return nn::linear_cross_entropy(p.x, p.w, ids(), Embed, Vocab, o);
}
inline nn::LinearCrossEntropyOptions per_token(std::int64_t chunk,
                                               ChunkForm form = ChunkForm::automatic) {
  return {.chunks = {.chunk = chunk, .form = form}, .reduction = nn::Reduction::none};
}
using Cost = std::pair<int, int>;                             // contractions, loops
template <class F, class P> Cost costs_of(F f, const P& p) {  // f(p) -> a scalar or a tree
  auto r = jit(f).compile(p);
  return {r.contractions, r.loops};
}
template <class F> auto with_gradient(F f) {
  return [=](const auto& p) { return value_and_grad(f)(p); };
}

// Checks that `f` and the reference have the same value and gradients.
template <class F, class G, class P>
inline void same(F f, G by_the_book, const P& p, double tolerance = 1e-12) {
  auto got = flatten(jit(value_and_grad(f))(p)),
       expected = flatten(jit(value_and_grad(by_the_book))(p));
  REQUIRE(got.size() == expected.size());
  for (std::size_t k = 0; k < got.size(); ++k) {
    CAPTURE(k);
    CHECK(difference(got[k], expected[k], tolerance) == "");
  }
}
template <class F> std::string message(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace haliax::lce_model
