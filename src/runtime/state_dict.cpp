#include "haliax/state_dict.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include "base/name.h"

namespace haliax::detail {
namespace {

std::string of_layer(const StateEntry& e, std::int64_t layer) {
  auto name = e.path;
  if (auto hole = name.find("{}"); hole != name.npos) name.replace(hole, 2, std::to_string(layer));
  return name;
}
std::int64_t tensors_of(const StateEntry& e) { return e.layers < 0 ? 1 : e.layers; }

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string s = "(";
  for (auto n : shape) s += (s.size() > 1 ? ", " : "") + std::to_string(n);
  return s + ")";
}

}  // namespace

void StateWalk::named(std::string_view field, Visit visit, void* node) {
  auto mark = path.size();
  auto renamed = std::find_if(names.begin(), names.end(), [&](auto& n) { return n.first == field; });
  auto name = renamed == names.end() ? field : std::string_view(renamed->second);
  if (!name.empty() && !path.empty()) path += '.';
  path += name;
  visit(*this, node);
  path.resize(mark);
}

void StateWalk::add(NamedArray& a) {
  if (a.empty()) return;
  auto axes = a.axes();
  std::vector<std::int64_t> shape;
  for (std::size_t i = layers < 0 ? 0 : 1; i < axes.size(); ++i) shape.push_back(axes[i].size);  // the layer axis comes first
  entries.push_back({path, &a, std::move(shape), layers});
}
void StateWalk::add_matrix(std::string_view field, NamedArray& a, std::size_t row_axes) {
  if (a.empty()) return;
  named(
      field, [](StateWalk& w, void* array) { w.add(*static_cast<NamedArray*>(array)); }, &a);
  auto& stored = entries.back().shape;
  auto product = [](auto from, auto to) { return std::accumulate(from, to, std::int64_t(1), std::multiplies<>()); };
  auto split = stored.begin() + std::ptrdiff_t(std::min(row_axes, stored.size()));
  std::vector<std::int64_t> shape{product(split, stored.end())};
  if (row_axes > 0) shape.insert(shape.begin(), product(stored.begin(), split));
  stored = std::move(shape);
}
void StateWalk::add(nn::Linear& l) {
  auto axes = l.weight.axes();
  auto &in = l.In.axes(), &out = l.Out.axes();
  bool out_first = !out.empty() && axes.size() >= in.size() + out.size() && axes[axes.size() - in.size() - out.size()] == out[0];
  add_matrix("weight", l.weight, out_first ? out.size() : in.size());
  if (l.bias) add_matrix("bias", *l.bias, 0);
}
void StateWalk::add_norm(std::optional<NamedArray>& weight, std::optional<NamedArray>& bias) {
  if (weight) add_matrix("weight", *weight, 0);
  if (bias) add_matrix("bias", *bias, 0);
}

TensorFile save_state(const std::vector<StateEntry>& entries) {
  std::vector<NamedArray> all;
  for (auto& e : entries) all.push_back(*e.array);
  eval(all);
  TensorFile file;
  file.metadata = {{"format", "pt"}};
  std::set<std::string> seen;
  for (auto& e : entries) {
    auto bytes = e.array->bytes();
    auto n = tensors_of(e);
    auto each = n ? bytes.size() / std::size_t(n) : 0;
    for (std::int64_t i = 0; i < n; ++i) {
      auto name = of_layer(e, i);
      if (!seen.insert(name).second)
        throw Error("[state_dict] two arrays are called " + name + "; give their fields other names");
      auto from = bytes.begin() + std::ptrdiff_t(each) * i;
      file.tensors.push_back({name, e.array->dtype(), e.shape, {from, from + std::ptrdiff_t(each)}});
    }
  }
  std::sort(file.tensors.begin(), file.tensors.end(), [](auto& a, auto& b) { return a.name < b.name; });
  return file;
}

std::vector<std::string> load_state(const std::vector<StateEntry>& entries, const TensorFile& file) {
  std::vector<std::string> there;
  for (auto& t : file.tensors) there.push_back(t.name);
  std::set<std::string> unused(there.begin(), there.end());
  for (auto& e : entries) {
    std::vector<std::byte> bytes;
    DType dtype = e.array->dtype();
    for (std::int64_t i = 0; i < tensors_of(e); ++i) {
      auto name = of_layer(e, i);
      auto* t = file.find(name);
      if (!t) throw Error("[state_dict] the file has no tensor " + name + did_you_mean(name, there));
      if (t->shape != e.shape)
        throw Error("[state_dict] the tensor " + name + " has shape " + shape_text(t->shape) + ", but the model wants " +
                    shape_text(e.shape));
      if (i > 0 && t->dtype != dtype)
        throw Error("[state_dict] the tensor " + name + " is " + std::string(name_of(t->dtype)) + ", but that of layer 0 is " +
                    std::string(name_of(dtype)));
      dtype = t->dtype;
      if (auto size = std::accumulate(t->shape.begin(), t->shape.end(), std::int64_t(bytes_of(dtype)), std::multiplies<>());
          std::int64_t(t->data.size()) != size)
        throw Error("[state_dict] the tensor " + name + " has " + std::to_string(t->data.size()) + " bytes, not the " +
                    std::to_string(size) + " of " + shape_text(t->shape) + " " + std::string(name_of(dtype)));
      bytes.insert(bytes.end(), t->data.begin(), t->data.end());
      unused.erase(name);
    }
    auto wanted = e.array->dtype();
    auto loaded = from_bytes(bytes, dtype, e.array->axes());
    *e.array = dtype == wanted ? loaded : loaded.astype(wanted);
  }
  return {unused.begin(), unused.end()};
}

}  // namespace haliax::detail
