// The key-value cache for decoding.
#include <cmath>

#include "graph/axes.h"
#include "graph/fail.h"
#include "haliax/nn.h"
#include "nn/known.h"
#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax::nn {
namespace {

constexpr auto kCache = "kv_cache";

// Returns the value of a constant scalar, possibly broadcast.
std::optional<double> known(const NamedArray& a) {
  if (!prim::is_number(a.node())) return {};
  return real_of(*prim::stripped(a.node()));
}
void check_lengths(const NamedArray& lengths) {
  if (!is_integer(lengths.dtype()))
    fail(kCache, "lengths: expected integers, got {}", lengths.dtype());
}
// Returns the number of new positions that count, i32, from 0 to all.
NamedArray counted(const NamedArray& count, const Axis& Next, const Axes& texts) {
  const auto dtype = count.dtype();
  const auto number = known(count);  // a C++ integer that was converted to a NamedArray is f32
  bool integral =
      is_integer(dtype) || (number && is_float(dtype) && *number == std::floor(*number));
  if (!integral)
    fail(kCache, "count: expected an integer, the number of valid positions of {1}, got {0}", dtype,
         Next);
  if (number && (*number < 0 || *number > double(Next.size)))
    fail(kCache, "count is {}, which is out of range for the new positions {}; expected 0 to {}",
         *number, Next, Next.size);
  for (auto& a : count.axes())
    if (!has(texts, a.name))
      fail(kCache, "axis {} of the count is not in the lengths {}{}", a.name, texts,
           did_you_mean(a.name, texts));
  if (number) return full(count.axes(), std::int64_t(*number), DType::i32);
  return astype(clip(bytes_of(dtype) < 4 ? astype(count, DType::i32) : count, 0, Next.size),
                DType::i32);
}
void check_room(const NamedArray& lengths, const NamedArray& more, const Axis& Pos) {
  const auto filled = known(lengths), next = known(more);
  if (next && filled.value_or(0) + *next > double(Pos.size))
    fail(kCache, "{} more positions exceed the capacity {}; use a larger cache, or append fewer",
         *next, Pos);
  if ((filled && next) || !is_known(lengths) || !is_known(more)) return;
  const auto needed = std::int64_t(haliax::max(lengths + more).item());
  if (needed > Pos.size)
    fail(kCache,
         "the cache is full: {} positions are needed, but the capacity is {}; use a larger cache, "
         "or append fewer",
         needed, Pos);
}

}  // namespace

KVCache KVCache::init(const Axis& Pos, const AxisSpec& each, const AxisSpec& Batch, DType dtype,
                      SourceLocation at) {
  CallSite here(at, CallSite::layer);
  Axes axes = Batch, of_each = each;
  if (dtype == DType::boolean)
    fail(kCache, "the dtype of the cache is bool; use the dtype of the keys");
  if (of_each.empty()) fail(kCache, "keys and values require an axis that queries share; name it");
  axes.insert(axes.end(), of_each.begin(), of_each.end() - 1);
  axes.push_back(Pos);
  axes.push_back(of_each.back());
  return {zeros(axes, dtype), zeros(axes, dtype), zeros(Batch, DType::i32), Pos};
}
NamedArray KVCache::positions(const Axis& New, SourceLocation at) const {
  CallSite here(at, CallSite::layer);
  check_lengths(lengths);
  return broadcast_axis(lengths, New) + arange(New);
}
NamedArray KVCache::mask(const Axis& New, SourceLocation at) const {
  auto last = positions(New, at);
  CallSite here(at, CallSite::layer);
  return broadcast_axis(last, Pos) >= arange(Pos);
}
KVCache KVCache::append(Arr key, Arr value, const AxisSelector& New,
                        std::optional<NamedArray> count) const {
  LayerScope scope(key, keys);
  auto Next = key.resolve_axis(New);
  if (Next.name == Pos.name)
    fail(kCache, "the new positions have the axis name {} of the cache; rename them", Pos.name);
  // Each example has its own positions, so its batch positions are indices as well.
  Indices where{{Pos, positions(Next)}};
  for (auto& a : lengths.axes()) where.push_back({a, arange(a)});
  auto written = [&](const char* whose, const NamedArray& all, const NamedArray& x) {
    auto requested = replaced(all.axes(), Pos.name, {Next});
    if (!same_set(x.axes(), requested))
      fail(kCache, "the new {} have axes {}; for the cache {}, expected {}", whose, x.axes(),
           all.axes(), requested);
    if (is_float(x.dtype()) && !is_float(all.dtype()))
      fail(kCache,
           "the new {} are {}, but a cache of {} would truncate "
           "them to integers; create it with their dtype",
           whose, x.dtype(), all.dtype());
    return at_set(all, where, astype(x, all.dtype()));
  };
  auto more = count ? counted(*count, Next, lengths.axes()) : full({}, Next.size, DType::i32);
  check_room(lengths, more, Pos);
  auto filled = minimum(lengths + more, Pos.size);
  return {written("keys", keys, key), written("values", values, value), astype(filled, DType::i32),
          Pos};
}

}  // namespace haliax::nn
