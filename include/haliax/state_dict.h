// State dicts: the arrays of a model as named tensors, with the names and shapes of PyTorch and
// Hugging Face checkpoints. See docs/how-to/checkpoints.md. haliax.h does not include this header.
#pragma once
#include <concepts>
#include <string>
#include <utility>
#include <vector>

#include "haliax/io.h"
#include "haliax/nn.h"

namespace [[gnu::visibility("default")]] haliax {

/// An array of a model, as a checkpoint stores it. The weight of a `Linear` is a matrix, the arrays
/// of a norm are vectors, the arrays of a `Stacked` are one tensor per layer, and other arrays have
/// their own axes.
struct StateEntry {
  /// Name of the tensor. Braces stand for the number of the layer: `blocks.{}.mlp.weight`.
  std::string path;
  NamedArray* array;                ///< The array in the model.
  std::vector<std::int64_t> shape;  ///< Shape of the tensor of one layer.
  std::int64_t layers = -1;         ///< Number of layers; -1: not stacked.
};

/// Pairs of a field name and its name in a checkpoint. The empty name removes the level. A pair
/// applies to all fields of that name.
///
///     StateNames names{{"blocks", "h"}, {"body", ""}};
using StateNames = std::vector<std::pair<std::string, std::string>>;

/// The differences between a file and a model, by tensor name.
struct StateMismatch {
  std::vector<std::string> missing = {};      ///< Tensors that the file lacks.
  std::vector<std::string> unused = {};       ///< Tensors that the model lacks.
  std::vector<std::string> other_shape = {};  ///< Tensors whose shape differs from the model.
  std::vector<std::string> other_dtype = {};  ///< Tensors whose dtype differs from the model.
  /// Returns true if there is no difference.
  bool empty() const {
    return missing.empty() && unused.empty() && other_shape.empty() && other_dtype.empty();
  }
};
/// Options of `from_state_dict`.
struct StateOptions {
  bool strict = true;                 ///< Raises if the file and the model differ.
  StateMismatch* mismatch = nullptr;  ///< If not null and not strict: receives the differences.
  SourceLocation at = SourceLocation::current();  ///< Location that errors name.
};

namespace detail {

struct StateWalk {
  const StateNames& names;
  SourceLocation at;
  std::vector<StateEntry> entries = {};
  std::string path = {};
  std::int64_t layers = -1;

  using Visit = void (*)(StateWalk&, void*);
  void named(std::string_view field, Visit visit, void* node);
  void check_no_layers() const;  // raises inside of layers
  void add(NamedArray& a);       // with its own axes
  // A vector if there are no row axes.
  void add_matrix(std::string_view field, NamedArray& a, std::size_t row_axes);
  void add(nn::Linear&);
  void add_norm(std::optional<NamedArray>& weight, std::optional<NamedArray>& bias);
};

template <class T> void collect_state(StateWalk& w, void* address) {
  using reflect::Kind;
  constexpr Kind kind = reflect::kind<T>;
  T& node = *static_cast<T*>(address);
  auto visit = [&](std::string_view name, auto& part) {
    w.named(name, &collect_state<std::remove_reference_t<decltype(part)>>, &part);
  };
  if constexpr (std::is_same_v<T, nn::Linear>) {
    w.add(node);
  } else if constexpr (std::is_same_v<T, nn::LayerNorm> || std::is_same_v<T, nn::RmsNorm>) {
    w.add_norm(node.weight, node.bias);
  } else if constexpr (requires {
                         node.stacked;
                         node.Layers;
                       }) {
    w.check_no_layers();
    w.layers = node.Layers.size;
    w.named("{}", &collect_state<std::remove_reference_t<decltype(node.stacked)>>, &node.stacked);
    w.layers = -1;
  } else if constexpr (kind == Kind::leaf) {
    w.add(node);
  } else if constexpr (kind == Kind::frozen) {
    collect_state<decltype(node.value)>(w, &node.value);
  } else if constexpr (kind == Kind::optional) {
    if (node) collect_state<typename T::value_type>(w, &*node);
  } else if constexpr (kind == Kind::sequence) {
    using Item = typename T::value_type;
    if constexpr (!std::is_same_v<Item, bool>)
      for (std::size_t i = 0; i < node.size(); ++i)
        w.named(std::to_string(i), &collect_state<Item>, &node[i]);
  } else if constexpr (kind == Kind::map) {
    for (auto& [key, value] : node) w.named(key, &collect_state<typename T::mapped_type>, &value);
  } else if constexpr (kind == Kind::tuple) {
    std::size_t i = 0;
    std::apply([&](auto&... part) { (visit(std::to_string(i++), part), ...); }, node);
  } else if constexpr (kind == Kind::fields || kind == Kind::listed) {
    auto each = [&](auto&... part) {
      std::string_view names[sizeof...(part) + 1], *next = names;
      reflect::write_names<T>(names, sizeof...(part));
      (visit(*next++, part), ...);
    };
    if constexpr (kind == Kind::fields)
      reflect::apply(node, each);
    else
      std::apply(each, reflect::Access::fields(node));
  }
}

TensorFile save_state(const std::vector<StateEntry>&, SourceLocation);
void load_state(const std::vector<StateEntry>&, const TensorFile&, const StateOptions&);

}  // namespace detail

/// Returns the arrays of a model with their names and shapes. The entries point into the model.
/// @throws haliax::Error if a `Stacked` contains a `Stacked`
template <class T>
std::vector<StateEntry> state_entries(T& model, const StateNames& names = {},
                                      SourceLocation at = SourceLocation::current()) {
  detail::StateWalk w{names, at};
  detail::collect_state<T>(w, &model);
  return std::move(w.entries);
}
/// Returns the arrays of a model as named tensors, sorted by name. Reads all values.
///
///     write_safetensors("model.safetensors", to_state_dict(model));
///
/// @param model  model, or any tree of named fields
/// @param names  other names for fields
/// @throws haliax::Error if two arrays have the same name
template <class T>
TensorFile to_state_dict(T model, const StateNames& names = {},
                         SourceLocation at = SourceLocation::current()) {
  return detail::save_state(state_entries(model, names, at), at);
}
/// Returns `like` with the values of a file.
///
///     auto model = from_state_dict(read_safetensors(path), Model::init(key), names);
///
/// @param file     tensors
/// @param like     model with the expected axes and dtypes
/// @param names    other names for fields, as in `to_state_dict`
/// @param options  with `{.strict = false}`, a tensor that is missing or has another shape leaves
///     its array (or layer) unchanged, and a tensor of another dtype is cast
/// @throws haliax::Error if strict, and tensors are missing, unused, or have another shape or
///     dtype; the error lists the first ten
template <class T, std::same_as<StateNames> N>  // not deduced from braces, which are options
T from_state_dict(const TensorFile& file, T like, const N& names,
                  const StateOptions& options = {}) {
  detail::load_state(state_entries(like, names, options.at), file, options);
  detail::note_fields(walk_of(like, {.paths = true}));
  return like;
}
template <class T>
T from_state_dict(const TensorFile& file, T like, const StateOptions& options = {}) {
  return from_state_dict(file, std::move(like), StateNames(), options);
}

}  // namespace haliax
