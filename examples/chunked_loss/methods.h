// Methods to compute one cross entropy and the gradients of hidden states and head, over part of
// the tokens (or of the vocabulary) at a time.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "haliax/haliax.h"

namespace chunked_loss {

using namespace haliax;

struct Sizes {
  std::int64_t tokens = 2048, embed = 256, vocab = 16384;
  std::int64_t chunk = 256;   // tokens
  std::int64_t memory = 0;    // bytes; 0: the default of the library
  std::string dtype = "f32";  // dtype of hidden states and head; logits are f32
};
struct Parameters {
  NamedArray x, w;  // (tokens, embed), (vocab, embed)
};
// Returns the mean loss; ids (tokens).
using Loss = std::function<NamedArray(const Parameters&, const NamedArray& ids)>;
struct Method {
  std::string name;
  Loss loss;
};

// The sum of the losses of some tokens, which every method computes: x (tokens, embed), ids
// (tokens) -> ()
inline NamedArray sum_of_losses(const NamedArray& x, const NamedArray& w, const NamedArray& ids) {
  auto logits = astype(dot(x, w, "embed"), DType::f32);
  return nn::cross_entropy_loss(logits, "vocab", ids, {.reduction = nn::Reduction::sum});
}

// Returns all methods. `tokens` must be a multiple of `chunk`.
inline std::vector<Method> methods(const Sizes& s) {
  const Axis Blocks{"block", s.tokens / s.chunk}, Chunk{"tokens_of_block", s.chunk};
  const auto n = double(s.tokens);
  auto blocks = [=](const NamedArray& a) { return unflatten_axis(a, "tokens", {Blocks, Chunk}); };
  // A scan over blocks that carries the sum. `step` also returns each block's loss, as a metric.
  auto scanned = [=](ScanCheckpoint checkpoint) {
    return [=](const Parameters& p, const NamedArray& ids) {
      auto step = [w = p.w](const NamedArray& sum, const NamedArray& x, const NamedArray& i) {
        auto loss = sum_of_losses(x, w, i);
        return std::pair{sum + loss, loss};
      };
      auto [last, losses] =
          scan(step, Blocks, {.checkpoint = checkpoint})(zeros({}), blocks(p.x), blocks(ids));
      return last / n;
    };
  };
  auto folded = [=](const Parameters& p, const NamedArray& ids) {
    auto step = [w = p.w](const NamedArray& sum, const NamedArray& x, const NamedArray& i) {
      return sum + sum_of_losses(x, w, i);
    };
    return fold(step, Blocks)(zeros({}), blocks(p.x), blocks(ids)) / n;
  };
  // Applies a transform to the loss of a block: one block after the other, or all at once.
  auto of_each = [=](auto transform) {
    return [=](const Parameters& p, const NamedArray& ids) {
      auto loss = [w = p.w](const NamedArray& x, const NamedArray& i) {
        return sum_of_losses(x, w, i);
      };
      return sum(transform(loss)(blocks(p.x), blocks(ids))) / n;
    };
  };
  auto reduced = [=](const AxisSelection& chunked_axis, ChunkOptions chunks) {
    return [=](const Parameters& p, const NamedArray& ids) {
      return nn::linear_cross_entropy(p.x, p.w, ids, "embed", "vocab",
                                      {.walked = chunked_axis, .chunks = chunks})
          .loss;
    };
  };
  // The same number of logits per chunk.
  const auto columns = std::max<std::int64_t>(1, s.vocab * s.chunk / s.tokens);
  return {
      {"as is", [=](const Parameters& p,
                    const NamedArray& ids) { return sum_of_losses(p.x, p.w, ids) / n; }},
      {"scan", scanned(false)},
      {"scan, checkpoint", scanned(true)},
      {"fold", folded},
      {"map", of_each([=](auto f) { return map(f, Blocks); })},
      {"vmap", of_each([=](auto f) { return vmap(f, Blocks); })},
      {"vmap, checkpoint", of_each([=](auto f) { return vmap(checkpoint(f), Blocks); })},
      {"chunked by tokens", reduced("tokens", {.chunk = s.chunk})},
      {"chunked by vocabulary", reduced("vocab", {.chunk = columns})},
      {"chunked by budget", reduced("tokens", {.memory = s.memory})},
  };
}

// Returns chunked_reduce with 64, 128, ... 8192 tokens per chunk.
inline std::vector<Method> sweep(const Sizes& s) {
  std::vector<Method> out;
  for (std::int64_t chunk = 64; chunk <= std::min<std::int64_t>(8192, s.tokens); chunk *= 2)
    out.push_back({std::to_string(chunk), [=](const Parameters& p, const NamedArray& ids) {
                     return nn::linear_cross_entropy(p.x, p.w, ids, "embed", "vocab",
                                                     {.chunks = {.chunk = chunk}})
                         .loss;
                   }});
  return out;
}

inline Parameters make_parameters(const Sizes& s) {
  const Axis Tokens{"tokens", s.tokens}, Embed{"embed", s.embed}, Vocab{"vocab", s.vocab};
  auto [kx, kw] = random::split<2>(random::key(0));
  auto d = dtype_of(s.dtype);
  return {random::normal(kx, {Tokens, Embed}).astype(d),
          (random::normal(kw, {Vocab, Embed}) * 0.1).astype(d)};
}
inline NamedArray make_ids(const Sizes& s) {
  return random::randint(random::key(1), Axis("tokens", s.tokens), 0, s.vocab);
}

}  // namespace chunked_loss
