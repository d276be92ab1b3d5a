// A linear head on random hidden states, shared by the tests of chunked losses.
#pragma once
#include "haliax/losses.h"

namespace haliax::test {

struct HeadParameters {
  NamedArray x, w;  // (tokens, embed), (vocab, embed)
};
inline NamedArray normal(int seed, const AxisSpec& axes, DType d) {
  return random::normal(random::key(seed), axes, DType::f64).astype(d).eval();
}
struct HeadModel {
  Axis Tokens, Embed, Vocab;
  HeadParameters parameters(DType d) const {
    return {normal(1, {Tokens, Embed}, d), normal(2, {Vocab, Embed}, d)};
  }
  NamedArray ids() const {
    return random::randint(random::key(3), Tokens, 0, int(Vocab.size)).eval();
  }
};

}  // namespace haliax::test
