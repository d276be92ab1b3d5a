#include "graph/axes.h"
#include "graph/fail.h"
#include "haliax/nn.h"

namespace haliax::nn {

KVCache KVCache::init(const Axis& Pos, const AxisSpec& each, const AxisSpec& Batch, DType dtype, SourceLocation at) {
  Here here(at, true);
  Axes axes = Batch, of_each = each;
  if (of_each.empty()) fail("kv_cache", "keys and values need an axis that queries share; say which");
  axes.insert(axes.end(), of_each.begin(), of_each.end() - 1);
  axes.push_back(Pos), axes.push_back(of_each.back());
  return {zeros(axes, dtype), zeros(axes, dtype), zeros(Batch, DType::i32), Pos};
}
NamedArray KVCache::positions(const Axis& New, SourceLocation at) const {
  Here here(at, true);
  return broadcast_axis(lengths, New) + arange(New);
}
NamedArray KVCache::mask(const Axis& New, SourceLocation at) const {
  auto last = positions(New, at);
  Here here(at, true);
  return broadcast_axis(last, Pos) >= arange(Pos);
}
KVCache KVCache::append(Arr key, Arr value, const AxisSelector& New, std::optional<NamedArray> count) const {
  LayerScope scope(key, keys);
  constexpr auto op = "kv_cache";
  auto Next = key.resolve_axis(New);
  if (Next.name == Pos.name) fail(op, "the new positions have the name {} of the cache's; rename them", Pos.name);
  Indices where{{Pos, positions(Next)}};         // of each example its own: where that lies is an index
  for (auto& a : lengths.axes()) where.push_back({a, arange(a)});
  auto written = [&](const char* whose, const NamedArray& all, const NamedArray& x) {
    auto wanted = replaced(all.axes(), Pos.name, {Next});
    if (!same_set(x.axes(), wanted))
      fail(op, "the new {} have axes {}; those of the cache {} are to have {}", whose, x.axes(), all.axes(), wanted);
    return at_set(all, where, astype(x, all.dtype()));
  };
  auto more = count ? astype(*count, DType::i32) : NamedArray(Next.size);
  return {written("keys", keys, key), written("values", values, value), astype(lengths + more, DType::i32), Pos};
}

}  // namespace haliax::nn
