// The blocks of a transformer, as the programs use them.
#pragma once
#include <cmath>

#include "programs.h"

namespace comm {

namespace nn = haliax::nn;
using haliax::Key;

inline NamedArray mean_square(const NamedArray& y) { return mean(y * y); }

struct Mlp {
  nn::Linear up, down;
  static Mlp init(const Axes& a, const Key& key) {
    auto [k1, k2] = haliax::random::split<2>(key);
    return {nn::Linear::init(a.E, a.F, k1, {.out_first = false}),
            nn::Linear::init(a.F, a.E, k2, {.out_first = false})};
  }
  NamedArray operator()(const NamedArray& x) const { return down(nn::gelu(up(x))); }
};
struct Attention {
  nn::Linear qkv, proj;
  static Attention init(const Axes& a, const Key& key) {
    auto [k1, k2] = haliax::random::split<2>(key);
    return {nn::Linear::init(a.E, {a.Q, a.H, a.D}, k1, {.out_first = false}),
            nn::Linear::init({a.H, a.D}, a.E, k2, {.out_first = false})};
  }
  // x (batch, position, embed) -> the same axes
  NamedArray operator()(const NamedArray& x) const {
    auto S = x.resolve_axis("position"), K = S.alias("key_position");
    auto parts = qkv(x).unbind("qkv");
    auto q = parts[0], k = rename(parts[1], S, K), v = rename(parts[2], S, K);
    auto scores = dot(q * (1 / std::sqrt(double(q.axis_size("head_size")))), k, "head_size");
    auto weights = softmax(where(nn::causal_mask(S, K), scores, -1e9), K);
    return proj(dot(weights, v, K));
  }
};

}  // namespace comm
