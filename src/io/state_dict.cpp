// State dicts: names and shapes of the tensors of a state, and copies between a state and a file.
#include "haliax/state_dict.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/name.h"
#include "graph/node.h"
#include "haliax/ops.h"
#include "io/state_names.h"

namespace haliax::detail {
namespace {

std::int64_t tensors_of(const StateEntry& e) { return e.layers < 0 ? 1 : e.layers; }

using Sizes = std::vector<std::int64_t>;
std::string shape_text(const Sizes& shape) { return fmt::format("({})", fmt::join(shape, ", ")); }

}  // namespace

void StateWalk::named(std::string_view field, Visit visit, void* node) {
  auto mark = path.size();
  auto renamed =
      std::find_if(names.begin(), names.end(), [&](auto& n) { return n.first == field; });
  auto name = renamed == names.end() ? field : std::string_view(renamed->second);
  if (!name.empty() && !path.empty()) path += '.';
  path += name;
  visit(*this, node);
  path.resize(mark);
}

void StateWalk::check_no_layers() const {
  CallSite here(at);
  if (layers >= 0) fail("state_dict", "nested layers are not supported in a checkpoint: " + path);
}

void StateWalk::add(NamedArray& a) {
  if (a.empty()) return;
  auto axes = a.axes();
  std::vector<std::int64_t> shape;
  // the layer axis is first
  for (std::size_t i = layers < 0 ? 0 : 1; i < axes.size(); ++i) shape.push_back(axes[i].size);
  entries.push_back({path, &a, std::move(shape), layers});
}
void StateWalk::add_matrix(std::string_view field, NamedArray& a, std::size_t row_axes) {
  if (a.empty()) return;
  named(
      field, [](StateWalk& w, void* array) { w.add(*static_cast<NamedArray*>(array)); }, &a);
  auto& stored = entries.back().shape;
  auto split = stored.begin() + std::ptrdiff_t(std::min(row_axes, stored.size()));
  Sizes shape{program::points({split, stored.end()})};
  if (row_axes > 0) shape.insert(shape.begin(), program::points({stored.begin(), split}));
  stored = std::move(shape);
}
void StateWalk::add(nn::Linear& l) {
  // an empty weight belongs to another part of the model; see `filter`
  auto axes = l.weight.empty() ? Axes() : l.weight.axes();
  auto &in = l.In.axes(), &out = l.Out.axes();
  bool out_first = !out.empty() && axes.size() >= in.size() + out.size() &&
                   axes[axes.size() - in.size() - out.size()] == out[0];
  add_matrix("weight", l.weight, out_first ? out.size() : in.size());
  if (l.bias) add_matrix("bias", *l.bias, 0);
}
void StateWalk::add_norm(std::optional<NamedArray>& weight, std::optional<NamedArray>& bias) {
  if (weight) add_matrix("weight", *weight, 0);
  if (bias) add_matrix("bias", *bias, 0);
}

TensorFile save_state(const std::vector<StateEntry>& entries, SourceLocation at) {
  CallSite here(at);
  std::vector<NamedArray> all;
  for (auto& e : entries) all.push_back(*e.array);
  eval(all, at);
  TensorFile file;
  file.metadata = {{"format", "pt"}};
  std::set<std::string> seen;
  for (auto& e : entries) {
    auto bytes = e.array->bytes();
    auto n = tensors_of(e);
    auto each = n ? bytes.size() / std::size_t(n) : 0;
    for (std::int64_t i = 0; i < n; ++i) {
      auto name = name_of_layer(e.path, i);
      if (!seen.insert(name).second)
        fail("state_dict", "two arrays have the name " + name + "; rename one of their fields");
      auto from = bytes.begin() + std::ptrdiff_t(each) * i;
      file.tensors.push_back(
          {name, e.array->dtype(), e.shape, {from, from + std::ptrdiff_t(each)}});
    }
  }
  std::sort(file.tensors.begin(), file.tensors.end(),
            [](auto& a, auto& b) { return a.name < b.name; });
  return file;
}

namespace {

// Returns the tensors of a file for an array of the model, layer by layer; null if one is missing
// or has another shape. Records all mismatches.
std::vector<const Tensor*> taken_by(const StateEntry& e, const TensorFile& file,
                                    StateMismatch& wrong, std::vector<std::string>& problems,
                                    std::set<std::string>& unused) {
  std::vector<const Tensor*> out;
  for (std::int64_t i = 0; i < tensors_of(e); ++i) {
    auto name = name_of_layer(e.path, i);
    auto* t = file.find(name);
    unused.erase(name);
    if (!t) {
      wrong.missing.push_back(name);
      problems.push_back(name + " is missing" + did_you_mean(name, file.tensors, &Tensor::name));
    } else if (t->shape != e.shape) {
      wrong.other_shape.push_back(name);
      problems.push_back(fmt::format("{} has shape {}, but the model expects {}", name,
                                     shape_text(t->shape), shape_text(e.shape)));
      t = nullptr;
    } else if (t->dtype != e.array->dtype()) {
      wrong.other_dtype.push_back(name);
      problems.push_back(fmt::format("{} is {}, but the model expects {}", name, name_of(t->dtype),
                                     name_of(e.array->dtype())));
    }
    out.push_back(t);
  }
  return out;
}
// Returns the array of these tensors, cast to its own dtype. Layers without a tensor keep their
// values.
NamedArray joined(const StateEntry& e, const std::vector<const Tensor*>& tensors) {
  auto dtype = e.array->dtype();
  auto axes = e.array->axes();
  bool same_dtype = std::all_of(tensors.begin(), tensors.end(),
                                [&](auto* t) { return t && t->dtype == tensors[0]->dtype; });
  if (same_dtype && !tensors.empty()) {
    std::vector<std::byte> bytes;
    for (auto* t : tensors) bytes.insert(bytes.end(), t->data.begin(), t->data.end());
    auto loaded = from_bytes(bytes, tensors[0]->dtype, axes);
    return loaded.dtype() == dtype ? loaded : loaded.astype(dtype);
  }
  if (e.layers < 0 || tensors.empty()) return *e.array;
  std::vector<NamedArray> layers;
  Axes of_one(axes.begin() + 1, axes.end());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (auto* t = tensors[i])
      layers.push_back(from_bytes(t->data, t->dtype, of_one).astype(dtype));
    else
      layers.push_back(at(*e.array, axes[0], std::int64_t(i)));
  }
  return stack(axes[0], layers);
}
// Returns "the file has 4 layers h.{}, the model 3" for each stack with a different number of
// layers.
std::vector<std::string> other_layers(const std::vector<StateEntry>& entries,
                                      const TensorFile& file) {
  std::vector<std::string> out;
  std::set<std::string> seen;
  for (auto& e : entries) {
    auto hole = e.path.find("{}");
    if (e.layers < 0 || hole == e.path.npos || !seen.insert(e.path.substr(0, hole)).second)
      continue;
    std::set<std::string> numbers;
    for (auto& t : file.tensors) {
      if (t.name.compare(0, hole, e.path, 0, hole) != 0) continue;
      auto end = t.name.find_first_not_of("0123456789", hole);
      if (end != hole && end != t.name.npos && t.name[end] == '.')
        numbers.insert(t.name.substr(hole, end - hole));
    }
    if (!numbers.empty() && std::int64_t(numbers.size()) != e.layers)
      out.push_back(fmt::format("the file has {} layers {}, but the model has {}", numbers.size(),
                                e.path.substr(0, hole + 2), e.layers));
  }
  return out;
}

}  // namespace

void load_state(const std::vector<StateEntry>& entries, const TensorFile& file,
                const StateOptions& options) {
  CallSite here(options.at);
  StateMismatch wrong;
  auto problems = other_layers(entries, file);
  auto about_layers = problems.size();
  std::set<std::string> unused;
  for (auto& t : file.tensors) {
    unused.insert(t.name);
    auto size = bytes_of(t.dtype) * program::points(t.shape);
    if (std::int64_t(t.data.size()) != size)
      fail("from_state_dict",
           fmt::format("the tensor {} has {} bytes, not the {} of {} {}", t.name, t.data.size(),
                       size, shape_text(t.shape), name_of(t.dtype)));
  }
  std::vector<std::vector<const Tensor*>> taken;
  for (auto& e : entries) taken.push_back(taken_by(e, file, wrong, problems, unused));
  for (auto& name : unused) problems.push_back(name + " is unexpected");
  wrong.unused.assign(unused.begin(), unused.end());
  if (options.strict && !wrong.empty()) {
    constexpr std::size_t most = 10;
    auto count = problems.size() - about_layers;
    auto text = fmt::format("{} tensor{} not match:", count, count == 1 ? " does" : "s do");
    for (std::size_t i = 0; i < about_layers + std::min(count, most); ++i)
      text += "\n  " + problems[i];
    if (count > most) text += "\n  and " + std::to_string(count - most) + " more";
    fail("from_state_dict",
         text + "\n{.strict = false} loads the matching tensors and lists the rest");
  }
  for (std::size_t k = 0; k < entries.size(); ++k) *entries[k].array = joined(entries[k], taken[k]);
  if (options.mismatch) *options.mismatch = std::move(wrong);
}

}  // namespace haliax::detail
