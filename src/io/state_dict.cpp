// State dicts: names and shapes of the tensors of a state, and the tensors of a state in memory.
#include "haliax/state_dict.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/name.h"
#include "graph/fail.h"
#include "graph/node.h"
#include "haliax/ops.h"
#include "io/load_state.h"
#include "io/read_region.h"
#include "io/save_state.h"
#include "io/state_names.h"

namespace haliax {
namespace {

using Sizes = std::vector<std::int64_t>;

// Returns true if a weight is (..., out, in). Layer axes may come first.
bool is_out_first(const Axes& weight, const Axes& in, const Axes& out) {
  return !out.empty() && weight.size() >= in.size() + out.size() &&
         weight[weight.size() - in.size() - out.size()] == out[0];
}

}  // namespace

std::string with_prefix(std::string_view prefix, std::string_view leaf) {
  std::string out(prefix);
  if (!out.empty() && !leaf.empty()) out += '.';
  return out += leaf;
}

namespace detail {

void StateWalk::named(std::string_view field, Visit visit, void* node) {
  auto renamed = [&](const StateNames& list) {
    auto at = std::find_if(list.begin(), list.end(), [&](auto& n) { return n.first == field; });
    return at == list.end() ? nullptr : &at->second;
  };
  auto* name = renamed(names);
  if (!name) name = renamed(own_names);
  at_name(name ? std::string_view(*name) : field, visit, node);
}
void StateWalk::at_name(std::string_view name, Visit visit, void* node) {
  auto mark = path.size();
  if (!name.empty() && !path.empty()) path += '.';
  path += name;
  auto own = std::exchange(own_names, {});
  visit(*this, node);
  own_names = std::move(own);
  path.resize(mark);
}
void StateWalk::in_layers(const Axis& Layers, Visit visit, void* node) {
  if (!own_layout && !layers.empty()) return at_name("", visit, node);
  layers.push_back(Layers);
  at_name("{}", visit, node);
  layers.pop_back();
}

void StateWalk::add(NamedArray& a) {
  if (a.empty() || modules) return;
  auto axes = a.axes();
  if (axes.size() < layers.size()) {
    CallSite here(at);
    fail("state_dict", "the array {} lacks the layer axis: it has {}", path, axes);
  }
  StateEntry e{path, &a, {}};
  for (std::size_t i = 0; i < axes.size(); ++i)
    if (i < layers.size())
      e.split.push_back(i);
    else
      e.shape.push_back(axes[i].size);
  if (!layers.empty()) e.layers = layers[0].size;
  e.conversion = conversion;
  entries.push_back(std::move(e));
}
void StateWalk::add_matrix(std::string_view field, NamedArray& a, std::size_t row_axes) {
  if (a.empty()) return;
  named(
      field, [](StateWalk& w, void* array) { w.add(*static_cast<NamedArray*>(array)); }, &a);
  if (!flatten) return;
  auto& stored = entries.back().shape;  // `add` has appended the entry of this array
  auto split = stored.begin() + std::ptrdiff_t(std::min(row_axes, stored.size()));
  Sizes shape{program::points({split, stored.end()})};
  if (row_axes > 0) shape.insert(shape.begin(), program::points({stored.begin(), split}));
  stored = std::move(shape);
}
void StateWalk::add(nn::Linear& l) {
  if (modules) return modules->linears.push_back(&l);
  if (const double scale = l.reparam.active_scale; own_layout && scale != 1) {
    auto stored = l;
    if (!l.weight.empty()) stored.weight = l.weight * scale;
    stored.reparam.active_scale = 1;
    return add_converted_state(*this, "", stored, [&l, scale](const nn::Linear& loaded) {
      const auto reparam = l.reparam;
      l = loaded;
      l.reparam = reparam;
      if (!l.weight.empty()) l.weight = l.weight / scale;
    });
  }
  // an empty weight belongs to another part of the model; see `filter`
  auto axes = l.weight.empty() ? Axes() : l.weight.axes();
  auto &in = l.In.axes(), &out = l.Out.axes();
  const bool out_first = is_out_first(axes, in, out);
  add_matrix("weight", l.weight, out_first ? out.size() : in.size());
  if (l.bias) add_matrix("bias", *l.bias, 0);
  if (!l.lora) return;
  add_matrix("lora_A.weight", l.lora->A, 1);
  add_matrix("lora_B.weight", l.lora->B, out.size());
}
void StateWalk::add_norm(AxisSpec& axis, std::optional<NamedArray>& weight,
                         std::optional<NamedArray>& bias) {
  if (modules) return modules->norms.push_back({&axis, &weight, &bias});
  if (weight) add_matrix("weight", *weight, 0);
  if (bias) add_matrix("bias", *bias, 0);
}

void StateWalk::add_as(std::string_view name, NamedArray& a, const StoredAs& as) {
  if (a.empty()) return;
  at_name(
      name, [](StateWalk& w, void* array) { w.add(*static_cast<NamedArray*>(array)); }, &a);
  auto& e = entries.back();
  const auto axes = a.axes();
  CallSite here(at);
  std::vector<bool> used(axes.size());
  std::fill_n(used.begin(), e.split.size(), true);
  auto take = [&](Name axis) {
    for (std::size_t i = layers.size(); i < axes.size(); ++i) {
      if (axes[i].name != axis) continue;
      if (used[i]) fail("state_fields", "{}: axis {} occurs twice in `StoredAs`", e.path, axis);
      used[i] = true;
      return i;
    }
    fail("state_fields", "{}: axis {} is not in {}{}", e.path, axis, axes,
         did_you_mean(axis, axes));
  };
  for (Name axis : as.split) e.split.push_back(take(axis));
  e.shape.clear();
  if (as.dims) {
    for (auto& dim : *as.dims) {
      std::int64_t size = 1;
      for (Name axis : dim) {
        e.order.push_back(take(axis));
        size *= axes[e.order.back()].size;
      }
      e.shape.push_back(size);
    }
    for (std::size_t i = 0; i < axes.size(); ++i)
      if (!used[i])
        fail("state_fields", "{}: `StoredAs` lacks axis {} of {}", e.path, axes[i].name, axes);
  } else {
    for (auto i : order_of(e)) e.shape.push_back(axes[i].size);
  }
}

NamedArray StateWalk::layers_first(const NamedArray& a) const {
  if (a.empty() || layers.empty()) return a;
  Names order;
  for (auto& l : layers) order.push_back(l.name);
  order.push_back("...");
  return rearrange(a, order);
}

}  // namespace detail

void StateFields::array(std::string_view name, NamedArray& array, const StoredAs& as) {
  walk_.add_as(name, array, as);
}

std::vector<SplitName> tensors_of(const StateEntry& e) {
  const auto axes = e.array->axes();
  std::vector<SplitName> out{{e.path, {}}};
  for (auto axis : e.split) {
    std::vector<SplitName> next;
    for (auto& t : out)
      for (std::int64_t i = 0; i < axes[axis].size; ++i) {
        next.push_back({name_of_layer(t.name, i), t.index});
        next.back().index.push_back(i);
      }
    out = std::move(next);
  }
  return out;
}
std::vector<std::size_t> order_of(const StateEntry& e) {
  if (!e.order.empty()) return e.order;
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < e.array->axes().size(); ++i)
    if (std::find(e.split.begin(), e.split.end(), i) == e.split.end()) out.push_back(i);
  return out;
}

EntryBytes::EntryBytes(const StateEntry& e) : entry_(e), width_(bytes_of(e.array->dtype())) {
  e.array->eval();
  {
    GraphReader reader;
    value_ = e.array->node()->value.get();
  }
  if (value_->on_host() || value_->bytes() == 0) {
    if (value_->bytes() > 0) bytes_ = {value_->data(), std::size_t(value_->bytes())};
  } else {
    copy_ = std::make_unique<Buffer>(value_->bytes());
    value_->device_storage()->write(copy_->data());  // the array itself keeps no copy
    bytes_ = {copy_->data(), std::size_t(copy_->bytes())};
  }
  const auto axes = e.array->axes();
  Sizes sizes;
  for (auto& a : axes) sizes.push_back(a.size);
  strides_ = program::row_major(sizes);
  std::vector<RegionDim> dims;
  for (auto i : order_of(e)) dims.push_back({sizes[i], 0, sizes[i], strides_[i]});
  for (auto& d : merged(dims)) {
    sizes_.push_back(d.size);
    order_strides_.push_back(d.stride);
  }
  in_order_ = sizes_.empty() || (sizes_.size() == 1 && order_strides_[0] == 1);
  each_ = std::size_t(program::points(sizes_)) * std::size_t(width_);
}
std::span<const std::byte> EntryBytes::of(const std::vector<std::int64_t>& index) {
  std::int64_t first = 0;
  for (std::size_t k = 0; k < index.size(); ++k) first += index[k] * strides_[entry_.split[k]];
  if (bytes_.empty()) return {};
  const auto* from = bytes_.data() + first * width_;
  if (in_order_) return {from, each_};
  scratch_.resize(each_);
  copy_strided(from, order_strides_, scratch_.data(), program::row_major(sizes_), sizes_, width_);
  return scratch_;
}

TensorFile detail::save_state(std::vector<StateEntry> entries, const ToStateOptions& options) {
  CallSite here(options.at);
  if (options.filter)
    std::erase_if(entries, [&](auto& e) { return !options.filter(e.path, *e.array); });
  std::vector<NamedArray> all;
  for (auto& e : entries) all.push_back(*e.array);
  eval(all, options.at);
  TensorFile file;
  file.metadata = {{"format", "pt"}};
  std::set<std::string> seen;
  for (auto& e : entries) {
    e.path = with_prefix(options.prefix, e.path);
    EntryBytes bytes(e);
    for (auto& [name, index] : tensors_of(e)) {
      if (!seen.insert(name).second)
        fail("state_dict", "two arrays have the name " + name + "; rename one of their fields");
      auto data = bytes.of(index);
      file.tensors.push_back({name, e.array->dtype(), e.shape, {data.begin(), data.end()}});
    }
  }
  std::sort(file.tensors.begin(), file.tensors.end(),
            [](auto& a, auto& b) { return a.name < b.name; });
  return file;
}

void detail::load_state(const std::vector<StateEntry>& entries, const TensorFile& file,
                        const StateOptions& options) {
  CallSite here(options.at);
  for (auto& t : file.tensors)
    if (auto size = bytes_of(t.dtype) * program::points(t.shape);
        std::int64_t(t.data.size()) != size)
      fail("from_state_dict",
           fmt::format("the tensor {} has {} bytes, not the {} of ({}) {}", t.name, t.data.size(),
                       size, fmt::join(t.shape, ", "), name_of(t.dtype)));
  load_entries("from_state_dict", entries, TensorsInMemory(file), options, all_processes());
}

}  // namespace haliax
