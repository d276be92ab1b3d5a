// The arrays of a model under the names and shapes that checkpoints of PyTorch and Hugging Face
// have, and back.
#pragma once
#include <concepts>
#include <string>
#include <utility>
#include <vector>

#include "haliax/io.h"
#include "haliax/nn.h"

namespace [[gnu::visibility("default")]] haliax {

// An array of a model, as a checkpoint stores it: Stacked ones layer by layer (`{}` in the path is
// the number), Linear's as a matrix, those of norms as a vector, others as they are.
struct StateEntry {
  std::string path;  // transformer.blocks.{}.attn.c_attn.weight
  NamedArray* array;
  std::vector<std::int64_t> shape;  // of one layer
  std::int64_t layers = -1;         // -1: not stacked
};

// A field's name -> what stands for it in a checkpoint; "" is no level at all.
using StateNames = std::vector<std::pair<std::string, std::string>>;

// What of a file does not fit a model, by the names in the file.
struct StateMismatch {
  // the file lacks it; the model has no place for it
  std::vector<std::string> missing = {}, unused = {};
  std::vector<std::string> other_shape = {}, other_dtype = {};  // than in the model
  bool empty() const {
    return missing.empty() && unused.empty() && other_shape.empty() && other_dtype.empty();
  }
};
struct StateOptions {
  bool strict = true;                 // raise where anything does not fit
  StateMismatch* mismatch = nullptr;  // if not strict: gets what did not
  SourceLocation at = SourceLocation::current();
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
  void check_no_layers() const;  // around: raises
  void add(NamedArray& a);       // as stored
  // without row axes: a vector
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

// The entries point into the model.
template <class T>
std::vector<StateEntry> state_entries(T& model, const StateNames& names = {},
                                      SourceLocation at = SourceLocation::current()) {
  detail::StateWalk w{names, at};
  detail::collect_state<T>(w, &model);
  return std::move(w.entries);
}
template <class T>
TensorFile to_state_dict(T model, const StateNames& names = {},
                         SourceLocation at = SourceLocation::current()) {
  return detail::save_state(state_entries(model, names, at), at);
}
// `like` with the arrays of the file. Raises for tensors that are missing, left over, of another
// shape or dtype, and lists the first ten. With {.strict = false} what is missing or has another
// shape stays as it is in `like` (layer by layer), and another dtype is cast.
template <class T, std::same_as<StateNames> N>  // never deduced from braces: those are options
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
