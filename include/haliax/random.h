// Random numbers: Threefry-2x32 with JAX's partitionable layout, bit for bit. A draw is a pure
// function of (key, position), so that the numbers are the same on every mesh and in every chunk.
// The position is row-major in the order of the axes asked for.
#pragma once
#include <array>
#include <optional>

#include "haliax/ops.h"
#include "haliax/transforms.h"

namespace [[gnu::visibility("default")]] haliax {

// A key: two u32 words along the axis `key_word`, which comes last; other axes make it an array of
// keys, mapped by name in vmap, scan and Stacked. An empty key stands for "no randomness"
// (inference): it splits into empty keys.
struct Key {
  NamedArray words;
  explicit operator bool() const { return !words.empty(); }
};
inline const char* const key_word = "key_word";
std::string to_string(const Key&);  // Key(0, 42): its words; of an array of keys Key((layers=4))
std::ostream& operator<<(std::ostream&, const Key&);

namespace random {

Key key(std::int64_t seed);  // (0, seed mod 2^32), as JAX
Key key(std::uint32_t word0, std::uint32_t word1);
Key key(const NamedArray& words,
        // raw words: u32, with an axis of size 2 called key_word or word
        SourceLocation = SourceLocation::current());
std::vector<Key> split(const Key&, int n, SourceLocation = SourceLocation::current());
// keys along that axis
Key split(const Key&, const Axis&, SourceLocation = SourceLocation::current());
template <std::size_t N>
std::array<Key, N> split(const Key& k, SourceLocation at = SourceLocation::current()) {
  auto keys = split(k, int(N), at);
  std::array<Key, N> out;
  for (std::size_t i = 0; i < N; ++i) out[i] = keys[i];
  return out;
}
Key fold_in(const Key&, Arr data);

// dtype of bits: u8, u16, u32 or u64. Floats: f32, f64, bf16, f16.
NamedArray bits(const Key&, const AxisSpec&, DType = DType::u32,
                SourceLocation = SourceLocation::current());
NamedArray uniform(const Key&, const AxisSpec&, Arr minval = 0., Arr maxval = 1.,
                   DType = DType::f32, SourceLocation = SourceLocation::current());
NamedArray normal(const Key&, const AxisSpec&, DType = DType::f32,
                  SourceLocation = SourceLocation::current());
NamedArray truncated_normal(const Key&, const AxisSpec&, Arr lower, Arr upper, DType = DType::f32,
                            SourceLocation = SourceLocation::current());
NamedArray bernoulli(const Key&, const AxisSpec&, Arr p = 0.5,
                     SourceLocation = SourceLocation::current());
NamedArray randint(const Key&, const AxisSpec&, Arr minval, Arr maxval, DType = DType::i32,
                   SourceLocation = SourceLocation::current());
NamedArray gumbel(const Key&, const AxisSpec&, DType = DType::f32,
                  SourceLocation = SourceLocation::current());
NamedArray exponential(const Key&, const AxisSpec&, DType = DType::f32,
                       SourceLocation = SourceLocation::current());
NamedArray categorical(const Key&, Arr logits, const AxisSelector& axis,
                       std::optional<AxisSpec> shape = {});
NamedArray permutation(const Key&, Arr x, const AxisSelector& axis, bool independent = false);
// of 0 ... size - 1
NamedArray permutation(const Key&, const Axis&, SourceLocation = SourceLocation::current());

// generate_sharded(draw, axis)(key, axes), with draw(key, axes): each position of `axis`, one of
// the axes, from a key of its own, so that a device makes only its part. Every draw here is made so
// anyway; this one gives the numbers of Haliax's function of that name.
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

}  // namespace random
}  // namespace haliax
