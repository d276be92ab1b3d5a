// Random numbers: Threefry-2x32 with the partitionable layout of JAX, and the same values.
//
// A draw is a pure function of the key and of the position in the array. The position is row-major
// in the order of the requested axes. The values therefore do not depend on the mesh, on chunks or
// on `vmap`.
#pragma once
#include <array>
#include <optional>

#include "haliax/ops.h"
#include "haliax/transforms.h"

namespace [[gnu::visibility("default")]] haliax {

/// @name Keys
/// @{

/// A key of the random number generator.
///
/// A key is two `u32` words along the axis `key_word`, which is last. With other axes it is an
/// array of keys, which `vmap`, `scan` and `nn::Stacked` map over by name. An empty key means no
/// randomness, for example for inference: it splits into empty keys, and draws raise.
struct Key {
  NamedArray words;  ///< the words: `u32`, (..., key_word=2)
  /// Returns true if the key is not empty.
  explicit operator bool() const { return !words.empty(); }
};

/// The name of the axis of the two words of a key.
inline const char* const key_word = "key_word";

/// Returns the words, as in `Key(0, 42)`; for an array of keys its axes, as in `Key((layers=4))`.
std::string to_string(const Key& key);
/// Writes `to_string(key)`.
std::ostream& operator<<(std::ostream& out, const Key& key);

/// @}

namespace random {

namespace detail {
// Assign the keys of `split` and `maybe_rng_split`.
void split_into(Key* first, std::size_t n, const Key& key, SourceLocation);
void maybe_split_into(Key* first, std::size_t n, const Key& key, SourceLocation);
}  // namespace detail

/// @name Creating keys
/// @{

/// Returns the key of a seed: the words (0, seed mod 2^32), as in JAX.
Key key(std::int64_t seed);
/// Returns the key with two given words.
Key key(std::uint32_t word0, std::uint32_t word1);
/// Returns the key, or the array of keys, with words from an array.
///
/// @param words  `u32` array with an axis `key_word` or `word` of size 2
/// @param at     the line that error messages name
/// @throws haliax::Error if the dtype or the axis differs
Key key(const NamedArray& words, SourceLocation at = SourceLocation::current());

/// Returns `n` independent keys. Use each key for one draw.
///
///     auto keys = random::split(key, 3);
///     auto [k1, k2] = random::split<2>(key);
///     auto layers = random::split(key, Layers);   // an array of keys, for nn::Stacked
std::vector<Key> split(const Key& key, int n, SourceLocation at = SourceLocation::current());
/// Returns an array of independent keys along `axis`.
Key split(const Key& key, const Axis& axis, SourceLocation at = SourceLocation::current());
/// Returns `N` independent keys as a `std::array`, for structured bindings.
template <std::size_t N>
std::array<Key, N> split(const Key& key, SourceLocation at = SourceLocation::current()) {
  std::array<Key, N> out;
  detail::split_into(out.data(), N, key, at);
  return out;
}

/// Returns `n` keys, as `split`, except that one key is the key itself. An empty key yields empty
/// keys.
///
/// It corresponds to `maybe_rng_split` of Haliax. `split(key, 1)` returns a key that differs from
/// `key`, as in JAX.
///
///     auto [k1, k2] = random::maybe_rng_split<2>(key);
std::vector<Key> maybe_rng_split(const Key& key, int n = 2,
                                 SourceLocation at = SourceLocation::current());
/// Returns `N` keys as a `std::array`, for structured bindings.
template <std::size_t N>
std::array<Key, N> maybe_rng_split(const Key& key, SourceLocation at = SourceLocation::current()) {
  std::array<Key, N> out;
  detail::maybe_split_into(out.data(), N, key, at);
  return out;
}
/// Returns an array of keys with these axes. If they have one position, it is the key itself.
///
///     random::shaped_rng_split(key, {Layers, Heads});   // words (layers, heads, key_word=2)
Key shaped_rng_split(const Key& key, const AxisSpec& axes,
                     SourceLocation at = SourceLocation::current());

/// Returns a key that depends on `key` and on `data`, for example a step count.
///
/// @param key   the key
/// @param data  C++ integer, or integer array; the axes of an array make an array of keys
Key fold_in(const Key& key, Arr data);

/// @}

/// @name Distributions
/// Each draw has the requested axes, in order. A key must be one key: map over an array of keys
/// with `vmap` or `scan`. Float draws are `f32`, `f64`, `bf16` or `f16`. Bounds are C++ scalars, or
/// arrays whose axes are a subset of the requested axes. All draws raise for an empty key and for
/// another dtype. `bits`, `uniform`, `randint`, `bernoulli`, `permutation`, `choice`, `rademacher`
/// and `categorical` return the values of JAX exactly.
/// @{

/// Draws random bits, as `u8`, `u16`, `u32` or `u64`.
NamedArray bits(const Key& key, const AxisSpec& axes, DType dtype = DType::u32,
                SourceLocation at = SourceLocation::current());

/// Draws floats uniformly from [`minval`, `maxval`).
NamedArray uniform(const Key& key, const AxisSpec& axes, Arr minval = 0., Arr maxval = 1.,
                   DType dtype = DType::f32, SourceLocation at = SourceLocation::current());

/// Draws from the standard normal distribution.
///
///     auto x = random::normal(random::key(0), {Batch, Embed});
NamedArray normal(const Key& key, const AxisSpec& axes, DType dtype = DType::f32,
                  SourceLocation at = SourceLocation::current());

/// Draws from the standard normal distribution, limited to (`lower`, `upper`).
NamedArray truncated_normal(const Key& key, const AxisSpec& axes, Arr lower, Arr upper,
                            DType dtype = DType::f32,
                            SourceLocation at = SourceLocation::current());

/// Draws bools that are true with probability `p`.
///
/// @throws haliax::Error if `p` is a C++ scalar outside of [0, 1]
NamedArray bernoulli(const Key& key, const AxisSpec& axes, Arr p = 0.5,
                     SourceLocation at = SourceLocation::current());

/// Draws integers uniformly from [`minval`, `maxval`).
///
/// @throws haliax::Error if the dtype or a bound is not an integer, or a bound does not fit
NamedArray randint(const Key& key, const AxisSpec& axes, Arr minval, Arr maxval,
                   DType dtype = DType::i32, SourceLocation at = SourceLocation::current());

/// Draws from the standard Gumbel distribution.
NamedArray gumbel(const Key& key, const AxisSpec& axes, DType dtype = DType::f32,
                  SourceLocation at = SourceLocation::current());

/// Draws from the exponential distribution with rate 1.
NamedArray exponential(const Key& key, const AxisSpec& axes, DType dtype = DType::f32,
                       SourceLocation at = SourceLocation::current());

/// Draws from the Laplace distribution with location 0 and scale 1.
NamedArray laplace(const Key& key, const AxisSpec& axes, DType dtype = DType::f32,
                   SourceLocation at = SourceLocation::current());

/// Draws from the logistic distribution with location 0 and scale 1.
NamedArray logistic(const Key& key, const AxisSpec& axes, DType dtype = DType::f32,
                    SourceLocation at = SourceLocation::current());

/// Draws from the Cauchy distribution with location 0 and scale 1.
NamedArray cauchy(const Key& key, const AxisSpec& axes, DType dtype = DType::f32,
                  SourceLocation at = SourceLocation::current());

/// Draws -1 or 1 with equal probability. Any dtype but `bool` is valid.
NamedArray rademacher(const Key& key, const AxisSpec& axes, DType dtype = DType::f32,
                      SourceLocation at = SourceLocation::current());

/// Draws from the Pareto distribution with scale 1.
///
/// @param key    the key
/// @param axes   axes of the result
/// @param b      shape of the distribution, positive
/// @param dtype  dtype of the result
/// @param at     the line that error messages name
NamedArray pareto(const Key& key, const AxisSpec& axes, Arr b, DType dtype = DType::f32,
                  SourceLocation at = SourceLocation::current());

/// Draws from the Weibull distribution.
///
/// @param key            the key
/// @param axes           axes of the result
/// @param scale          scale of the distribution, positive
/// @param concentration  shape of the distribution, positive
/// @param dtype          dtype of the result
/// @param at             the line that error messages name
NamedArray weibull_min(const Key& key, const AxisSpec& axes, Arr scale, Arr concentration,
                       DType dtype = DType::f32, SourceLocation at = SourceLocation::current());

/// Draws positions along `axis` with probabilities `softmax(logits, axis)`.
///
/// @param key     the key
/// @param logits  float array that has `axis`
/// @param axis    the axis of classes
/// @return `i32` array with the other axes of `logits`
/// @throws haliax::Error if `axis` has size 0
///
///     auto ids = random::categorical(key, logits, "vocab");   // (batch, vocab) -> (batch)
NamedArray categorical(const Key& key, Arr logits, const AxisSelector& axis);
/// Draws positions with the axes `shape`, which contain the other axes of `logits`.
/// @throws haliax::Error if `axis` has size 0, or is in `shape`
NamedArray categorical(const Key& key, Arr logits, const AxisSelector& axis,
                       std::optional<AxisSpec> shape);

/// Draws elements of `a` along `axis`.
///
/// @param key      the key
/// @param axes     axes of the draw. They may contain `axis`, and no other axis of `a`.
/// @param a        array that has `axis`
/// @param axis     axis to choose from
/// @param replace  true: an element may be drawn several times
/// @return array with the axes `axes`, then the other axes of `a`
/// @throws haliax::Error if `axis` has size 0, or `replace` is false and there are more draws than
/// positions
///
///     auto rows = random::choice(key, Sample, table, "row");   // (row, embed) -> (sample, embed)
NamedArray choice(const Key& key, const AxisSpec& axes, Arr a, const AxisSelector& axis,
                  bool replace = true);
/// Draws elements with the probabilities `p`, a float array with the only axis `axis`.
/// @throws haliax::Error as above, and if `p` has other axes
NamedArray choice(const Key& key, const AxisSpec& axes, Arr a, const AxisSelector& axis,
                  bool replace, std::optional<Arr> p);

/// Shuffles `x` along `axis`.
///
/// @param key          the key
/// @param x            array that has `axis`
/// @param axis         axis to shuffle
/// @param independent  true: each position along the other axes has its own order
NamedArray permutation(const Key& key, Arr x, const AxisSelector& axis, bool independent = false);

/// Returns the positions of `axis`, from 0 to `axis.size` - 1, in random order.
NamedArray permutation(const Key& key, const Axis& axis,
                       SourceLocation at = SourceLocation::current());

/// Returns a function `(key, axes) -> array` that draws each position of `axis` from its own key.
///
/// The values are those of the function of the same name in Haliax. With the other draws, too, each
/// device computes only its own shard.
///
/// @param draw  `draw(key, axes) -> array`
/// @param axis  one of the axes
/// @param at    the line that error messages name
template <class Draw>
auto generate_sharded(Draw draw, const AxisSelector& axis,
                      SourceLocation at = SourceLocation::current()) {
  return [=](const Key& key, const AxisSpec& axes) {
    auto rest = eliminate_axes(axes, axis, at);
    auto own = [&](const Key& k) { return draw(k, AxisSpec(rest)); };
    auto mine = *find_axis(axes, axis.name);
    return broadcast_to(Arr(vmap(own, mine, at)(split(key, mine, at)), at), axes);
  };
}

/// @}

}  // namespace random
}  // namespace haliax
