// Random numbers. Every draw is an elementwise hash of (key, position), so vmap, loops and meshes
// need no special rules.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/dtype_hint.h"
#include "base/scalar.h"
#include "haliax/fmt.h"
#include "haliax/mesh.h"
#include "haliax/random.h"
#include "ops/attr.h"
#include "ops/named.h"

namespace haliax::random {
namespace {

using namespace ops;

NodePtr u32(std::int64_t v) { return prim::integer(v, DType::u32); }
Axis word_axis() { return {key_word, 2}; }
NodePtr first_word() { return prim::equal(prim::iota(word_axis(), DType::u32), u32(0)); }

// ---- keys: the words have axes (hidden..., others..., key_word) ----
Key pack(NodeRef w0, NodeRef w1) {
  auto axes = with_hidden({w0, w1}, union_axes(visible(*w0), visible(*w1), context().origin.at));
  axes.push_back(word_axis());
  return {NamedArray(prim::map(prim::kSelect, {first_word(), w0, w1}, DType::u32, &axes))};
}
NodePtr word(const Key& k, int i) {
  auto& n = k.words.node();
  // For the result of `pack`, the words are operands and are never stored.
  if (n->op == &prim::kSelect && n->in[0] == first_word()) return n->in[std::size_t(i) + 1];
  return prim::at_position(n, key_word, i);
}
// Raises unless the key is a single key. An array of keys is for vmap, scan and Stacked, inside of
// which it is a single key.
void check_key(const char* op, const Key& k) {
  if (!k) fail(op, "the key is empty; pass a key, or call the layer in inference mode");
  auto* mine = find(*k.words.node(), key_word);
  if (!mine || mine->size != 2 || k.words.dtype() != DType::u32)
    fail(op, fmt::format("words of a key: expected two u32 along key_word, got {} {}",
                         k.words.dtype(), to_string(k.words.axes())));
  if (auto axes = without(k.words.axes(), {word_axis()}); !axes.empty())
    fail(op, "expected one key, got an array of keys over " + to_string(axes) +
                 "; use vmap or scan to draw with each key");
}

// ---- bits ----
struct Position {
  NodePtr high, low;
};
// Returns the row-major position over `axes`, as two words of 32 bits.
Position position(const Axes& axes) {
  bool wide = double(axis_size(axes)) > 4294967296.0;
  auto at = prim::flat_position(axes, wide ? DType::u64 : DType::u32);
  if (!wide) return {u32(0), at};
  return {prim::cast((NamedArray(at) >> 32).node(), DType::u32), prim::cast(at, DType::u32)};
}
NodePtr hash(Code word_or_xor, const Key& k, const Position& at) {
  return prim::threefry(word_or_xor, word(k, 0), word(k, 1), at.high, at.low);
}
Key hashed(const Key& k, const Position& at) {
  return pack(hash(Code::threefry0, k, at), hash(Code::threefry1, k, at));
}

NodePtr raw_bits(const Key& k, const Axes& axes, DType d) {
  auto at = position(axes);
  if (d != DType::u64) return prim::cast(hash(Code::threefry_xor, k, at), d);
  auto half = [&](Code c) { return NamedArray(prim::cast(hash(c, k, at), DType::u64)); };
  return ((half(Code::threefry0) << 32) | half(Code::threefry1)).node();
}

// Returns the result of a draw: hidden axes first, then the requested axes, in their order.
NamedArray drawn(NodeRef x, const Axes& requested) {
  return constrained("random", NamedArray(prim::fit(x, with_hidden({x}, requested))));
}

void check_float(const char* op, DType d) {
  if (!is_float(d))
    fail(op,
         "dtype: expected a float dtype, got " + text(d) + "; use randint or bits for integers");
}
// The start of a draw: the call site for errors, as long as the object lives, and the checks.
struct Draw {
  CallSite here;
  Draw(const char* op, const Key& k, const Axes& axes, SourceLocation at, DType real = DType::f32)
      : here(at, CallSite::layer) {
    check_key(op, k);
    check_new(op, axes);
    check_float(op, real);
  }
};

// ---- floats ----
// Draws from [0, 1): the mantissa consists of random bits. The number of bits per dtype is the same
// as in JAX (8 for bf16).
NodePtr unit(const Key& k, const Axes& axes, DType d) {
  struct Layout {
    DType drawn, stored;
    int shift;
    std::int64_t one;
  };
  Layout f = d == DType::f64    ? Layout{DType::u64, DType::u64, 12, 0x3FF0000000000000}
             : d == DType::f16  ? Layout{DType::u16, DType::u16, 6, 0x3C00}
             : d == DType::bf16 ? Layout{DType::u8, DType::u16, 1, 0x3F80}
                                : Layout{DType::u32, DType::u32, 9, 0x3F800000};
  NamedArray mantissa(prim::cast(raw_bits(k, axes, f.drawn), f.stored));
  auto in_one_two = (mantissa >> f.shift) | NamedArray(prim::integer(f.one, f.stored));
  return prim::sub(prim::bitcast(in_one_two.node(), d), prim::number(1, d));
}
// Returns a parameter of a distribution (a bound, a scale, a probability) as a node that broadcasts
// to the draw.
NodePtr parameter(const char* op, Arr a, DType d, const Axes& axes) {
  if (a.is_number()) return prim::number(a.number(), d);
  node_of(op, a);  // raises if it is an empty array
  for (auto& b : a.axes()) {
    auto* mine = find_axis(axes, b.name);
    if (!mine)
      fail(op, fmt::format("a parameter has axis {}, which is not in {}{}", b.name, to_string(axes),
                           did_you_mean(b.name, axes)));
    if (mine->size != b.size)
      fail(op, fmt::format("axis {} has size {} in a parameter, but {} in the draw", b.name, b.size,
                           mine->size));
  }
  return prim::cast(a.node(), d);
}
// Returns max(low, u * (high - low) + low), rounded once.
NodePtr between(NodeRef u, NodeRef low, NodeRef high) {
  bool fixed = prim::is_number(low) && prim::is_number(high);
  if (fixed && real_of(*low) == 0 && real_of(*high) == 1) return u;
  auto width =
      fixed ? prim::number(real_of(*high) - real_of(*low), u->dtype) : prim::sub(high, low);
  return prim::max(low, prim::fma(u, width, low));
}
double smallest_normal(DType d) {
  return d == DType::f64   ? std::numeric_limits<double>::min()
         : d == DType::f16 ? 0x1p-14
                           : 0x1p-126;
}
double below_one(DType d) {
  return 1 - (d == DType::f64    ? 0x1p-53
              : d == DType::f16  ? 0x1p-11
              : d == DType::bf16 ? 0x1p-8
                                 : 0x1p-24);
}
NodePtr from_erf(NodeRef u) {
  return prim::scale(prim::map(prim::kErfinv, {u}, u->dtype), std::sqrt(2.0));
}
NodePtr gumbel_of(const Key& k, const Axes& axes, DType d) {
  auto u = between(unit(k, axes, d), prim::number(smallest_normal(d), d), prim::number(1, d));
  return prim::neg(prim::log(prim::neg(prim::log(u))));
}

// ---- integers ----
std::int64_t integral(const char* op, Arr a) {
  if (!a.is_real()) return a.integer();
  if (a.number() != std::floor(a.number()) || std::abs(a.number()) > 0x1p53)
    fail(op, std::to_string(a.number()) + " is not an integer");
  return std::int64_t(a.number());
}
NodePtr rest(NodeRef a, NodeRef b) { return mod(NamedArray(a), NamedArray(b)).node(); }

// Returns a random order of an axis: several rounds of a sort by random bits. The number of rounds
// makes the effect of equal bits negligible.
NodePtr shuffled(Key k, const Axes& drawn_over, const Axis& axis) {
  auto total = double(std::max<std::int64_t>(1, axis_size(drawn_over)));
  int rounds = int(std::ceil(3 * std::log(total) / std::log(4294967295.0)));
  NodePtr order;  // positions along the axis, with axes (hidden..., drawn_over)
  for (int i = 0; i < rounds; ++i) {
    auto keys = split<2>(k, context().origin.at);
    k = keys[0];
    auto step = prim::argsort(raw_bits(keys[1], drawn_over, DType::u32), axis.name);
    order = order ? prim::gather(order, {{axis.name, step}}, step->axes, program::Outside::clamp)
                  : step;
  }
  return order ? order : prim::iota(axis);
}

}  // namespace

Key key(std::int64_t seed) { return key(0, std::uint32_t(seed)); }
Key key(std::uint32_t word0, std::uint32_t word1) { return pack(u32(word0), u32(word1)); }
Key key(const NamedArray& words, SourceLocation at) {
  CallSite here(at);
  if (words.empty()) return {};
  auto n = words.node();
  if (n->dtype != DType::u32)
    fail("random.key", "words of a key: expected u32, got " + text(n->dtype));
  if (!find(*n, key_word)) n = prim::rename(n, {"word"}, {key_word});
  auto* mine = find(*n, key_word);
  if (!mine || mine->size != 2)
    fail("random.key", fmt::format("a key has an axis {} (or word) of size 2; these words are {}",
                                   key_word, to_string(words.axes())));
  auto axes = joined(without(visible(*n), {*mine}), {*mine});
  return {NamedArray(prim::fit(n, with_hidden({n}, axes)))};
}

std::vector<Key> split(const Key& k, int n, SourceLocation at) {
  CallSite here(at);
  if (n < 0) fail("random.split", fmt::format("n is {}; it must not be negative", n));
  std::vector<Key> keys(static_cast<std::size_t>(n));
  if (!k) return keys;
  check_key("random.split", k);
  for (int i = 0; i < n; ++i) keys[std::size_t(i)] = hashed(k, {u32(0), u32(i)});
  return keys;
}
Key split(const Key& k, const Axis& axis, SourceLocation at) {
  CallSite here(at);
  if (!k) return {};
  check_key("random.split", k);
  if (axis.name == Name(key_word))
    fail("random.split", "the axis name key_word is reserved; use another name");
  return hashed(k, position({axis}));
}
std::vector<Key> maybe_rng_split(const Key& k, int n, SourceLocation at) {
  if (n == 1) return {k};
  return split(k, n, at);
}
namespace detail {
void split_into(Key* first, std::size_t n, const Key& k, SourceLocation at) {
  auto keys = split(k, int(n), at);
  std::move(keys.begin(), keys.end(), first);
}
void maybe_split_into(Key* first, std::size_t n, const Key& k, SourceLocation at) {
  auto keys = maybe_rng_split(k, int(n), at);
  std::move(keys.begin(), keys.end(), first);
}
}  // namespace detail
Key shaped_rng_split(const Key& k, const AxisSpec& spec, SourceLocation at) {
  CallSite here(at);
  if (!k) return {};
  constexpr auto op = "random.shaped_rng_split";
  check_key(op, k);
  auto& axes = spec.axes();
  check_unique(op, axes);
  if (has(axes, key_word)) fail(op, "the axis name key_word is reserved; use another name");
  if (axis_size(axes) != 1) return hashed(k, position(axes));
  auto all = axes;
  all.push_back(word_axis());
  auto& words = k.words.node();
  return {NamedArray(prim::fit(words, with_hidden({words}, all)))};
}
Key fold_in(const Key& k, Arr data) {
  if (!k) return {};
  CallSite here(data.at(), CallSite::layer);
  check_key("random.fold_in", k);
  if (data.is_number())
    return hashed(k, {u32(0), u32(std::int64_t(std::uint32_t(integral("random.fold_in", data))))});
  if (!is_integer(data.dtype()))
    fail("random.fold_in",
         "data: expected integers, got " + text(data.dtype()) + integer_hint(data.dtype()));
  if (data.has_axis(key_word))
    fail("random.fold_in", "data has the axis key_word, which is reserved");
  return hashed(k, {u32(0), prim::cast(data.node(), DType::u32)});
}

NamedArray bits(const Key& k, const AxisSpec& spec, DType d, SourceLocation at) {
  Draw here("random.bits", k, spec, at);
  if (!is_integer(d) || is_signed(d))
    fail("random.bits", "dtype: expected u8, u16, u32 or u64, got " + text(d));
  return drawn(raw_bits(k, spec, d), spec);
}
NamedArray uniform(const Key& k, const AxisSpec& spec, Arr minval, Arr maxval, DType d,
                   SourceLocation at) {
  constexpr auto op = "random.uniform";
  Draw here(op, k, spec, at, d);
  return drawn(
      between(unit(k, spec, d), parameter(op, minval, d, spec), parameter(op, maxval, d, spec)),
      spec);
}
NamedArray normal(const Key& k, const AxisSpec& spec, DType d, SourceLocation at) {
  Draw here("random.normal", k, spec, at, d);
  return drawn(
      from_erf(between(unit(k, spec, d), prim::number(-below_one(d), d), prim::number(1, d))),
      spec);
}
NamedArray truncated_normal(const Key& k, const AxisSpec& spec, Arr lower, Arr upper, DType d,
                            SourceLocation at) {
  constexpr auto op = "random.truncated_normal";
  Draw here(op, k, spec, at, d);
  auto low = parameter(op, lower, d, spec), high = parameter(op, upper, d, spec);
  auto below = [&](NodeRef b) {  // probability below the bound, up to the affine map of erf
    if (prim::is_number(b)) return prim::number(std::erf(real_of(*b) * std::sqrt(0.5)), d);
    return prim::map(prim::kErf, {prim::scale(b, std::sqrt(0.5))}, d);
  };
  auto towards = [&](NodeRef b, double end) {
    return nextafter(NamedArray(prim::stop_gradient(b)), NamedArray(prim::number(end, d))).node();
  };
  auto x = from_erf(between(unit(k, spec, d), below(low), below(high)));
  constexpr auto infinity = std::numeric_limits<double>::infinity();
  return drawn(prim::min(prim::max(x, towards(low, infinity)), towards(high, -infinity)), spec);
}
NamedArray bernoulli(const Key& k, const AxisSpec& spec, Arr p, SourceLocation at) {
  constexpr auto op = "random.bernoulli";
  Draw here(op, k, spec, at);
  if (p.is_number() && !(p.number() >= 0 && p.number() <= 1))
    fail(op, fmt::format("p is {}; it must be from 0 to 1", p.number()));
  return drawn(prim::less(unit(k, spec, DType::f32), parameter(op, p, DType::f32, spec)), spec);
}

namespace {
// The range of random integers: the minimum, the number of values (`span`; null: all words), and
// 2^W mod span for words of W bits. The latter is the square of 2^(W/2), which wraps as in JAX.
struct DrawnRange {
  NodePtr low, span, times;
};
// The dtypes of a draw of integers: words of random bits, and the dtype to compute in.
struct IntegerDraw {
  DType word, work;
  std::int64_t half;  // 2^(W/2)
  explicit IntegerDraw(DType d)
      : word(bytes_of(d) == 8 ? DType::u64 : DType::u32),
        work(bytes_of(d) == 8 || d == DType::u32 ? d : DType::i32),
        half(bytes_of(d) == 8 ? std::int64_t(1) << 32 : std::int64_t(1) << 16) {}
};
DrawnRange constant_range(const char* op, std::int64_t low, std::int64_t high, DType d) {
  const auto least = scalar::lowest(d).integer, most = scalar::highest(d).integer;
  if (low < least || low > most) fail(op, fmt::format("minval {} does not fit {}", low, d));
  if (high > most + 1)
    fail(op, fmt::format("maxval {} is more than one past the greatest {}", high, d));
  const IntegerDraw draw(d);
  const auto count = std::max<std::int64_t>(1, high - low);
  DrawnRange range{prim::integer(low, draw.work), nullptr, nullptr};
  if (count < (std::int64_t(1) << 32)) {
    auto m = std::uint32_t(draw.half % count);
    range.span = u32(count);
    range.times = u32(std::int64_t(std::uint32_t(m * m) % std::uint32_t(count)));
  }
  return range;
}
DrawnRange array_range(NodeRef low, NodeRef high, const IntegerDraw& draw) {
  auto one = prim::integer(1, draw.word);
  auto span = prim::select(prim::less(low, high), prim::cast(prim::sub(high, low), draw.word), one);
  auto m = rest(prim::integer(draw.half, draw.word), span);
  return {low, span, rest(prim::mul(m, m), span)};
}
}  // namespace

// Returns low + r mod span, where r has twice the bits of a word: (high word * 2^W + low word) mod
// span.
NamedArray randint(const Key& k, const AxisSpec& spec, Arr minval, Arr maxval, DType d,
                   SourceLocation at) {
  constexpr auto op = "random.randint";
  Draw here(op, k, spec, at);
  if (!is_integer(d)) fail(op, "dtype: expected an integer dtype, got " + text(d));
  for (auto* b : {&minval, &maxval})
    if (!b->is_number() && !is_integer(b->dtype()))
      fail(op, "bounds: expected integers, got " + text(b->dtype()));
  const IntegerDraw draw(d);
  DrawnRange range;
  if (minval.is_number() && maxval.is_number() && bytes_of(d) < 8) {
    const auto low = integral(op, minval), high = integral(op, maxval);
    range = constant_range(op, low, high, d);
  } else {
    auto limit = [&](Arr a) {
      return a.is_number() ? prim::integer(integral(op, a), draw.work)
                           : parameter(op, a, draw.work, spec);
    };
    auto low = limit(minval);
    range = array_range(low, limit(maxval), draw);
  }
  auto keys = split<2>(k, context().origin.at);
  auto high = raw_bits(keys[0], spec, draw.word), low = raw_bits(keys[1], spec, draw.word);
  auto offset = low;
  if (auto& span = range.span)
    offset = rest(prim::add(prim::mul(rest(high, span), range.times), rest(low, span)), span);
  return drawn(prim::cast(prim::add(range.low, prim::cast(offset, draw.work)), d), spec);
}
NamedArray gumbel(const Key& k, const AxisSpec& spec, DType d, SourceLocation at) {
  Draw here("random.gumbel", k, spec, at, d);
  return drawn(gumbel_of(k, spec, d), spec);
}
NamedArray exponential(const Key& k, const AxisSpec& spec, DType d, SourceLocation at) {
  Draw here("random.exponential", k, spec, at, d);
  return drawn(prim::neg(prim::map(prim::kLog1p, {prim::neg(unit(k, spec, d))}, d)), spec);
}

// ---- samplers that transform uniform draws, with the formulas of JAX ----
namespace {
NodePtr drawn_between(const Key& k, const Axes& axes, DType d, double low) {
  return between(unit(k, axes, d), prim::number(low, d), prim::number(1, d));
}
NodePtr log1p(NodeRef x) { return prim::map(prim::kLog1p, {x}, x->dtype); }
NodePtr standard_exponential(const Key& k, const Axes& axes, DType d) {
  return prim::neg(log1p(prim::neg(unit(k, axes, d))));
}
// Returns the difference of 1 and the next larger number.
double epsilon_of(DType d) { return 2 * (1 - below_one(d)); }
}  // namespace

NamedArray laplace(const Key& k, const AxisSpec& spec, DType d, SourceLocation at) {
  Draw here("random.laplace", k, spec, at, d);
  auto u = drawn_between(k, spec, d, -below_one(d));
  return drawn(prim::mul(prim::sign(u), log1p(prim::neg(prim::abs(u)))), spec);
}
NamedArray logistic(const Key& k, const AxisSpec& spec, DType d, SourceLocation at) {
  Draw here("random.logistic", k, spec, at, d);
  auto u = drawn_between(k, spec, d, smallest_normal(d));
  return drawn(prim::sub(prim::log(u), log1p(prim::neg(u))), spec);
}
NamedArray cauchy(const Key& k, const AxisSpec& spec, DType d, SourceLocation at) {
  Draw here("random.cauchy", k, spec, at, d);
  auto u = drawn_between(k, spec, d, epsilon_of(d));
  auto angle = prim::scale(prim::sub(u, prim::number(0.5, d)), std::numbers::pi);
  return drawn(tan(NamedArray(angle)).node(), spec);
}
NamedArray rademacher(const Key& k, const AxisSpec& spec, DType d, SourceLocation at) {
  constexpr auto op = "random.rademacher";
  Draw here(op, k, spec, at);
  if (d == DType::boolean) fail(op, "dtype: expected floats or integers, got bool");
  auto heads = prim::less(unit(k, spec, DType::f32), prim::number(0.5, DType::f32));
  auto minus = is_float(d) ? prim::number(-1, d) : prim::integer(-1, d);
  return drawn(prim::select(heads, is_float(d) ? prim::number(1, d) : prim::integer(1, d), minus),
               spec);
}
NamedArray pareto(const Key& k, const AxisSpec& spec, Arr b, DType d, SourceLocation at) {
  constexpr auto op = "random.pareto";
  Draw here(op, k, spec, at, d);
  auto e = standard_exponential(k, spec, d);
  return drawn(prim::exp(prim::div(e, parameter(op, b, d, spec))), spec);
}
NamedArray weibull_min(const Key& k, const AxisSpec& spec, Arr scale, Arr concentration, DType d,
                       SourceLocation at) {
  constexpr auto op = "random.weibull_min";
  Draw here(op, k, spec, at, d);
  auto e = standard_exponential(k, spec, d);
  auto exponent = prim::reciprocal(parameter(op, concentration, d, spec));
  return drawn(prim::mul(prim::pow(e, exponent), parameter(op, scale, d, spec)), spec);
}

// The maximum of logits plus Gumbel noise is at position i with probability softmax(logits)[i].
NamedArray categorical(const Key& k, Arr logits, const AxisSelector& axis) {
  return categorical(k, std::move(logits), axis, std::nullopt);
}
NamedArray categorical(const Key& k, Arr logits, const AxisSelector& axis,
                       std::optional<AxisSpec> shape) {
  CallSite here(logits.at(), CallSite::layer);
  constexpr auto op = "random.categorical";
  check_key(op, k);
  auto x = node_of(op, logits);
  auto along = axis_of(op, x, axis);
  check_float(op, x->dtype);
  if (along.size == 0) fail(op, fmt::format("axis {} has no positions to choose from", along));
  auto given = visible(*x), rest = without(given, {along});
  Axes requested = shape ? shape->axes() : rest;
  check_unique(op, requested);
  if (has(requested, along.name))
    fail(op, fmt::format("axis {} is sampled, so it must not be in the shape {}", along.name,
                         to_string(requested)));
  for (auto& a : rest)
    if (auto* mine = find_axis(requested, a.name); !mine || mine->size != a.size)
      fail(op,
           fmt::format("axis {} of the logits is not in the shape {}", a, to_string(requested)));
  // (axes that only the shape has..., axes of the logits)
  auto noise = gumbel_of(k, joined(without(requested, given), given), x->dtype);
  auto score = prim::add(x, noise);
  return drawn(prim::argreduce(true, score, without(score->axes, {along}), {along}), requested);
}

namespace {
// The first positions of a random order. With probabilities, the order of Gumbel noise plus log(p).
NodePtr positions_without_replacement(const Key& k, const Axes& requested, const Axis& along,
                                      NodeRef p) {
  const Axis slots(Name("(draws)"), axis_size(requested));
  NodePtr order;
  if (p) {
    auto score = prim::add(gumbel_of(k, {along}, p->dtype), prim::log(p));
    order = top_k(NamedArray(score), along, slots.size, slots.name).second.node();
  } else {
    order = prim::rename(prim::slice(shuffled(k, {along}, along), along.name, 0, slots.size),
                         {along.name}, {slots.name});
  }
  if (requested.empty()) return prim::at_position(order, slots.name, 0);
  return prim::unflatten(order, slots.name, requested);
}
// The inverse of the cumulative distribution, at uniform draws: the number of sums that are less.
NodePtr positions_by_probability(const Key& k, const Axes& requested, const Axis& along,
                                 NodeRef p) {
  auto sums = prim::cumulative(Monoid::sum, p, along.name);
  auto total = prim::at_position(sums, along.name, along.size - 1);
  auto one = prim::number(1, p->dtype);
  auto r = prim::mul(total, prim::sub(one, unit(k, requested, p->dtype)));
  // An axis of the draw may have the name of the axis.
  const Axis stored_axis(Name("(choices)"), along.size);
  auto stored = prim::rename(sums, {along.name}, {stored_axis.name});
  auto before = prim::cast(prim::less(stored, r), prim::position_dtype(along.size));
  return prim::reduce(Monoid::sum, before, without(before->axes, {stored_axis}));
}
// Returns the positions that `choice` selects along an axis, with the axes `requested`. `p`: the
// probabilities along the axis, or null.
NodePtr chosen_positions(const Key& k, const Axes& requested, const Axis& along, bool replace,
                         NodeRef p) {
  if (!replace) return positions_without_replacement(k, requested, along, p);
  if (p) return positions_by_probability(k, requested, along, p);
  const auto at = context().origin.at;
  return randint(k, requested, 0, Arr(along.size, at), prim::position_dtype(along.size), at).node();
}
}  // namespace

NamedArray choice(const Key& k, const AxisSpec& spec, Arr a, const AxisSelector& axis,
                  bool replace) {
  return choice(k, spec, std::move(a), axis, replace, std::nullopt);
}
NamedArray choice(const Key& k, const AxisSpec& spec, Arr a, const AxisSelector& axis, bool replace,
                  std::optional<Arr> p) {
  CallSite here(a.at(), CallSite::layer);
  constexpr auto op = "random.choice";
  check_key(op, k);
  auto n = node_of(op, a);
  auto along = axis_of(op, n, axis);
  auto& requested = spec.axes();
  check_unique(op, requested);
  auto rest = without(visible(*n), {along});
  for (auto& r : requested)
    if (has(rest, r.name))
      fail(op, fmt::format("axis {} of the draw is also an axis of the array: {}; rename one of "
                           "them",
                           r.name, to_string(visible(*n))));
  const auto draws = axis_size(requested);
  if (along.size == 0 && draws > 0)
    fail(op, fmt::format("axis {} has no positions to choose from", along));
  if (!replace && draws > along.size)
    fail(op, fmt::format("{} draws {} without replacement exceed the positions of axis {}", draws,
                         to_string(requested), along));
  NodePtr weights;
  if (p) {
    weights = node_of(op, *p);
    if (visible(*weights) != Axes{along})
      fail(op, fmt::format("p: expected the axes {}, got {}", to_string(Axes{along}),
                           to_string(visible(*weights))));
    weights = prim::cast(weights, float_of(weights->dtype));
  }
  auto shown = joined(requested, rest);
  if (draws == 0) return drawn(prim::filled(0, n->dtype, shown), shown);
  auto ids = chosen_positions(k, requested, along, replace, weights);
  return drawn(
      prim::gather(n, {{along.name, ids}}, with_hidden({ids, n}, shown), program::Outside::clamp),
      shown);
}

NamedArray permutation(const Key& k, Arr x, const AxisSelector& axis, bool independent) {
  CallSite here(x.at(), CallSite::layer);
  constexpr auto op = "random.permutation";
  check_key(op, k);
  auto n = node_of(op, x);
  auto along = axis_of(op, n, axis);
  auto requested = visible(*n);
  auto order = shuffled(k, independent ? requested : Axes{along}, along);
  return drawn(prim::gather(n, {{along.name, order}}, with_hidden({order, n}, requested),
                            program::Outside::clamp),
               requested);
}
NamedArray permutation(const Key& k, const Axis& axis, SourceLocation at) {
  CallSite here(at, CallSite::layer);
  check_key("random.permutation", k);
  return drawn(shuffled(k, {axis}, axis), {axis});
}

}  // namespace haliax::random
