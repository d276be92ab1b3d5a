// Stacks of layers, and trees with another size of an axis.
#include "haliax/stacked.h"

#include "graph/fail.h"
#include "haliax/nn.h"
#include "ops/named.h"

namespace haliax::nn::detail {

NamedArray layer_of(const NamedArray& stacked, const Axis& Layers, std::int64_t i,
                    SourceLocation where) {
  CallSite here(where);
  if (i < 0 || i >= Layers.size) fail("get_layer", "there is no layer {} in {}", i, Layers);
  return stacked.empty() ? stacked : haliax::at(stacked, Layers, i);
}
NamedArray at_layer(const NamedArray& a, const Axis& Layers, std::int64_t i, SourceLocation where) {
  CallSite here(where);
  return a.empty() || !has(a.axes(), Layers.name) ? a : haliax::at(a, Layers, i);
}
void append(Leaves& all, const Leaves& more) { all.insert(all.end(), more.begin(), more.end()); }
Leaves stack_of_layers(const Leaves& all, std::size_t layers, const Axis& Layers,
                       SourceLocation where) {
  CallSite here(where);
  const std::size_t count = all.size() / layers;  // arrays per layer
  if (count * layers != all.size())
    fail("block_seq", "the layers return {} arrays in total; all must return equally many",
         all.size());
  Leaves stacked;
  for (std::size_t k = 0; k < count; ++k) {
    Leaves each;
    for (std::size_t i = 0; i < layers; ++i) each.push_back(all[i * count + k]);
    for (auto& a : each)
      if (a.empty() != each[0].empty())
        fail("block_seq", "a result is empty in some layers; results of all layers are stacked");
    stacked.push_back(each[0].empty() ? each[0] : stack(Layers.name, each));
  }
  return stacked;
}
void check_layers(std::size_t blocks, const Axis& Layers, SourceLocation where) {
  CallSite here(where);
  if (std::int64_t(blocks) != Layers.size)
    fail("block_seq",
         "there are {} blocks, but the layer axis is {}; change `Layers` with `blocks`", blocks,
         Layers);
}

void resize_vocab(const Walk& table_modules, const Walk& head_modules, const AxisSelector& Vocab,
                  std::int64_t new_size, const Key& key, SourceLocation where) {
  CallSite here(where, CallSite::layer);
  std::vector<Embedding*> tables;
  std::vector<Linear*> heads;
  for (auto& m : table_modules.modules()) tables.push_back(static_cast<Embedding*>(m.node));
  for (auto& m : head_modules.modules()) heads.push_back(static_cast<Linear*>(m.node));
  auto in = [&](const AxisSpec& axes) { return has(axes, Vocab.name); };
  std::int64_t count = 0;
  for (auto* e : tables) count += e->Vocab.name == Vocab.name;
  for (auto* l : heads) count += in(l->In) || in(l->Out);
  if (count == 0) fail("resize_vocab", "no Embedding or Linear has the axis {}", Vocab.name);
  const auto keys = key ? random::split(key, int(count)) : std::vector<Key>(std::size_t(count));
  auto next = keys.begin();
  for (auto* e : tables)
    if (e->Vocab.name == Vocab.name) *e = e->resize_embeddings(new_size, *next++);
  auto resized = [&](const AxisSpec& axes) {
    Axes out = axes;
    for (auto& a : out)
      if (a.name == Vocab.name) a = a.resize(new_size);
    return AxisSpec(out);
  };
  for (auto* l : heads) {
    if (!in(l->In) && !in(l->Out)) continue;
    // Weight and bias as a tree; the bias may be missing.
    Leaves arrays{l->weight, l->bias.value_or(NamedArray())};
    arrays = resize_axis(arrays, Vocab.name, new_size, *next++);
    l->weight = arrays[0];
    if (l->bias) l->bias = arrays[1];
    l->In = resized(l->In);
    l->Out = resized(l->Out);
  }
}

}  // namespace haliax::nn::detail

namespace haliax::detail {
namespace {

// Slices the axis, or appends positions to it: random ones with the mean and the deviation of the
// present ones, or their mean if there is no key.
NamedArray with_size(const NamedArray& x, const Axis& axis, std::int64_t new_size, const Key& key) {
  if (new_size <= axis.size) return slice(x, axis, 0, new_size);
  const Axis added = axis.resize(new_size - axis.size);
  const auto axes = replaced(x.axes(), axis.name, {added});
  const auto center = mean(x, axis);
  auto rows = key ? random::truncated_normal(key, axes, -2., 2.) * std_dev(x, axis) + center
                  : rearrange(broadcast_axis(center, added), axes);
  return concatenate(axis.name, {x, astype(rows, x.dtype())});
}

}  // namespace

// With one array the key is its key, as in Haliax; otherwise each array has a key of its own.
Leaves resized(Leaves leaves, const AxisSelector& axis, std::int64_t new_size, const Key& key,
               SourceLocation at) {
  CallSite here(at, CallSite::layer);
  if (new_size < 0)
    fail("resize_axis", "the new size of {} is {}; it must be 0 or more", axis.name, new_size);
  const auto count = leaves.size();
  std::vector<Key> keys(count, key);
  if (key && count > 1) keys = random::split(key, int(count));
  for (std::size_t k = 0; k < count; ++k) {
    auto& x = leaves[k];
    const auto axes = x.empty() ? Axes() : x.axes();
    auto* mine = find_axis(axes, axis.name);
    if (mine && (axis.size < 0 || axis.size == mine->size) && mine->size != new_size)
      x = with_size(x, *mine, new_size, keys[k]);
  }
  return leaves;
}

}  // namespace haliax::detail
