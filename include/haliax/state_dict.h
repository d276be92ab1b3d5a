// State dicts: the arrays of a model as named tensors, with the names and shapes of PyTorch and
// Hugging Face checkpoints. See docs/how-to/checkpoints.md. haliax.h does not include this header.
#pragma once
#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "haliax/io.h"
#include "haliax/nn.h"

namespace [[gnu::visibility("default")]] haliax {

namespace detail {
struct StateWalk;
template <class T> void add_state_field(StateWalk&, std::string_view name, T& field);
template <class Tree, class Load>
void add_converted_state(StateWalk&, std::string_view name, Tree stored, Load load);
// A tree that is computed from a module for a checkpoint.
struct StateConversion {
  virtual ~StateConversion() = default;
  virtual void load() = 0;  // assigns the fields of the module
  int depth() const { return outer ? outer->depth() + 1 : 0; }
  std::shared_ptr<StateConversion> outer = {};  // whose tree holds the module; null: none
};
}  // namespace detail

/// An array of a model, as a checkpoint stores it. The weight of a `Linear` is a matrix, the arrays
/// of a norm are vectors, the arrays of a `Stacked` are one tensor per layer, and other arrays have
/// their own axes.
struct StateEntry {
  /// Name of the tensor. Braces stand for a position along each axis of `split`, in order:
  /// `blocks.{}.mlp.weight`.
  std::string path;
  NamedArray* array;                ///< The array in the model.
  std::vector<std::int64_t> shape;  ///< Shape of one tensor.
  std::int64_t layers = -1;         ///< Number of layers; -1: not stacked.
  /// Positions of the axes of which each index is a tensor of its own: the layer axis, experts.
  std::vector<std::size_t> split = {};
  /// Positions of the other axes, in the order of the tensor; empty: the order of the array.
  std::vector<std::size_t> order = {};
  /// Owner of the array, if it is computed from a module (`StateFields::converted`).
  std::shared_ptr<detail::StateConversion> conversion = {};
};

/// Pairs of a field name and its name in a checkpoint. The empty name removes the level. A pair
/// applies to all fields of that name.
///
///     StateNames names{{"blocks", "h"}, {"body", ""}};
///
/// A module declares the names of its own fields as a static function `state_names`. They apply to
/// its fields alone, wherever the module is in a model. A list that is passed to a function takes
/// precedence.
///
///     struct Body {
///       nn::Embedding tokens;
///       nn::Stacked<Block> blocks;
///       static StateNames state_names() { return {{"tokens", "wte"}, {"blocks", "h"}}; }
///     };
using StateNames = std::vector<std::pair<std::string, std::string>>;

/// The layout of an array in a checkpoint; see `StateFields::array`.
struct StoredAs {
  /// Axes of which each index is a tensor of its own. The name has one `{}` for each, in order.
  Names split = {};
  /// The axes of each dimension of a tensor, in order. A dimension of several axes is flattened,
  /// and a dimension without axes has size 1. Default: one dimension for each axis of the array.
  std::optional<std::vector<Names>> dims = {};
};

/// The fields of a module in a checkpoint. A module whose arrays are stored in another layout than
/// its own defines a member function `state_fields`, which adds each of its fields. The function is
/// used for saving and for loading.
///
///     struct Experts {
///       NamedArray up;    // (expert, embed, mlp)
///       NamedArray beta;  // ()
///       nn::Linear out;
///       void state_fields(StateFields& fields) {
///         // experts.0.w1.weight (mlp, embed), experts.1.w1.weight, ...
///         fields.array("experts.{}.w1.weight", up,
///                      {.split = {"expert"}, .dims = {{{"mlp"}, {"embed"}}}});
///         fields.array("beta", beta, {.dims = {{{}}}});  // shape (1)
///         fields.field("out_proj", out);
///       }
///     };
///
/// Inside of a `Stacked`, the arrays have the layer axis as well, which the module does not name.
/// `Checkpoints` does not use `state_fields`: it stores arrays in their own layout.
class StateFields {
 public:
  explicit StateFields(detail::StateWalk& walk) : walk_(walk) {}
  /// Adds a field that is stored as it would be without `state_fields`.
  /// @param name   name in the checkpoint; empty: no level of its own
  /// @param field  array, module or any other tree
  template <class T> void field(std::string_view name, T& field) {
    detail::add_state_field(walk_, name, field);
  }
  /// Adds an array with another layout. Data is only moved: it is read in place, without a copy of
  /// the array in the layout of the file.
  /// @param name   name in the checkpoint, with one `{}` for each axis of `as.split`
  /// @param array  array of the module; an empty array is skipped
  /// @param as     axes of the tensors
  /// @throws haliax::Error if `as` names an axis that the array lacks, or lacks an axis of the
  /// array
  void array(std::string_view name, NamedArray& array, const StoredAs& as);
  /// Adds a tree that is computed from the module, such as one matrix for three fields. While a
  /// checkpoint loads, both the tree and the fields are in memory.
  /// @param name    name in the checkpoint
  /// @param stored  tree to store, computed from the fields
  /// @param load    function `load(tree)` that assigns the fields; called with the loaded tree
  ///
  ///     fields.converted("qk", concatenate("out", {q, k}), [this](const NamedArray& qk) {
  ///       auto parts = split(qk, "out", {Q, K});
  ///       q = parts[0];
  ///       k = parts[1];
  ///     });
  template <class Tree, class Load> void converted(std::string_view name, Tree stored, Load load) {
    detail::add_converted_state(walk_, name, std::move(stored), std::move(load));
  }

 private:
  detail::StateWalk& walk_;
};

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
/// The dtypes that `from_state_dict` converts to the dtype of the model.
enum class ConvertDtypes : std::uint8_t {
  none,    ///< A tensor must have the dtype of the model.
  floats,  ///< Floats are converted to other floats.
  all      ///< All dtypes are converted, as `astype` does.
};
/// Options of `from_state_dict`. The defaults are those of Haliax: tensors that the model lacks are
/// ignored, floats are converted, and other differences raise.
struct StateOptions {
  /// An array, or a layer, without a tensor keeps its value.
  bool allow_missing = false;
  /// Tensors that the model lacks are ignored.
  bool allow_unused = true;
  /// An array, or a layer, whose tensor has another shape keeps its value.
  bool allow_other_shape = false;
  ConvertDtypes convert = ConvertDtypes::floats;  ///< Dtypes that are converted.
  StateMismatch* mismatch = nullptr;              ///< If not null: receives all differences.
  std::string prefix = {};  ///< Precedes all names: `"model"` reads `model.wte.weight`.
  bool unflatten = true;    ///< A `Linear` is a matrix in the file, and a norm a vector.
  SourceLocation at = {};   ///< Location that errors name. Default: the line of the call.
};
/// Options of `to_state_dict`.
struct ToStateOptions {
  std::string prefix = {};  ///< Precedes all names: `"model"` writes `model.wte.weight`.
  bool flatten = true;      ///< Writes a `Linear` as a matrix, and a norm as a vector.
  /// Selects the arrays to write, by name and value; null: all. `path` has braces for layers.
  bool (*filter)(const std::string& path, const NamedArray& array) = nullptr;
  SourceLocation at = {};  ///< Location that errors name. Default: the line of the call.
};

/// Returns `prefix.leaf`. If either is empty, returns the other.
std::string with_prefix(std::string_view prefix, std::string_view leaf);

namespace detail {

template <class T>
concept has_state_fields = requires(T& module, StateFields& fields) {
  module.state_fields(fields);
};
template <class T>
concept has_state_names = requires {
  StateNames(T::state_names());
};

// The modules of a model that are flattened in a checkpoint.
struct FlatModules {
  struct Norm {
    AxisSpec* axis;
    std::optional<NamedArray>*weight, *bias;
  };
  std::vector<nn::Linear*> linears = {};
  std::vector<Norm> norms = {};
};

struct StateWalk {
  const StateNames& names;
  SourceLocation at;
  bool flatten = true;
  bool own_layout = true;  // false: ignores `state_fields`, and splits the outer layers alone
  std::string path = {};
  std::vector<StateEntry> entries = {};
  Axes layers = {};           // layer axes, outermost first
  StateNames own_names = {};  // names for fields of the current module
  std::shared_ptr<StateConversion> conversion = {};
  FlatModules* modules = nullptr;  // if not null: collects modules in place of arrays

  using Visit = void (*)(StateWalk&, void*);
  void named(std::string_view field, Visit visit, void* node);  // by its name in the checkpoint
  void at_name(std::string_view name, Visit visit, void* node);
  void in_layers(const Axis& Layers, Visit visit, void* node);
  void add(NamedArray& a);  // with its own axes
  // A vector if there are no row axes.
  void add_matrix(std::string_view field, NamedArray& a, std::size_t row_axes);
  void add(nn::Linear&);
  void add_norm(AxisSpec& axis, std::optional<NamedArray>& weight, std::optional<NamedArray>& bias);
  void add_as(std::string_view name, NamedArray& a, const StoredAs& as);
  NamedArray layers_first(const NamedArray& a) const;
};

template <class T> void collect_state(StateWalk& w, void* address) {
  using reflect::Kind;
  constexpr Kind kind = reflect::kind<T>;
  T& node = *static_cast<T*>(address);
  auto visit = [&](std::string_view name, auto& part) {
    w.named(name, &collect_state<std::remove_reference_t<decltype(part)>>, &part);
  };
  if constexpr (has_state_fields<T>)
    if (w.own_layout) {
      StateFields fields(w);
      return node.state_fields(fields);
    }
  if constexpr (std::is_same_v<T, nn::Linear>) {
    w.add(node);
  } else if constexpr (std::is_same_v<T, nn::LayerNorm> || std::is_same_v<T, nn::RmsNorm>) {
    w.add_norm(node.axis, node.weight, node.bias);
  } else if constexpr (requires {
                         node.stacked;
                         node.Layers;
                       }) {
    w.in_layers(node.Layers, &collect_state<std::remove_reference_t<decltype(node.stacked)>>,
                &node.stacked);
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
      if constexpr (has_state_names<T>) w.own_names = T::state_names();
      (visit(*next++, part), ...);
    };
    if constexpr (kind == Kind::fields)
      reflect::apply(node, each);
    else
      std::apply(each, reflect::Access::fields(node));
  }
}

template <class Tree, class Load> struct StateConversionOf final : StateConversion {
  StateConversionOf(Tree t, Load f) : tree(std::move(t)), assign(std::move(f)) {}
  void load() override { assign(std::as_const(tree)); }
  Tree tree;
  Load assign;
};

template <class T> std::vector<StateEntry> entries_of(T& model, StateWalk walk) {
  collect_state<T>(walk, &model);
  return std::move(walk.entries);
}
// The arrays of a model in their own layout, for checkpoints of training.
template <class T>
std::vector<StateEntry> checkpoint_entries(T& model, const StateNames& names, SourceLocation at) {
  return entries_of(model, {.names = names, .at = at, .own_layout = false});
}
template <class T> FlatModules flat_modules(T& model) {
  FlatModules modules;
  entries_of(model, {.names = {}, .at = {}, .own_layout = false, .modules = &modules});
  return modules;
}
void flatten_modules(const FlatModules&, SourceLocation);
void unflatten_modules(const FlatModules&, const FlatModules& like, SourceLocation);
TensorFile save_state(std::vector<StateEntry>, const ToStateOptions&);
void load_state(const std::vector<StateEntry>&, const TensorFile&, const StateOptions&);

template <class T> void add_state_field(StateWalk& walk, std::string_view name, T& field) {
  walk.at_name(name, &collect_state<T>, &field);
}
template <class Tree, class Load>
void add_converted_state(StateWalk& walk, std::string_view name, Tree stored, Load load) {
  Tree tree = tree_map([&](const NamedArray& a) { return walk.layers_first(a); }, stored);
  auto owner = std::make_shared<StateConversionOf<Tree, Load>>(std::move(tree), std::move(load));
  owner->outer = std::exchange(walk.conversion, owner);
  walk.at_name(name, &collect_state<Tree>, &owner->tree);
  walk.conversion = owner->outer;
}

}  // namespace detail

/// Returns the arrays of a model with their names and shapes. The entries point into the model.
/// @param model    model, or any tree of named fields
/// @param names    other names for fields
/// @param flatten  false: a `Linear` and a norm have their own axes
template <class T>
std::vector<StateEntry> state_entries(T& model, const StateNames& names = {}, bool flatten = true,
                                      SourceLocation at = SourceLocation::current()) {
  return detail::entries_of(model, {.names = names, .at = at, .flatten = flatten});
}
/// Returns the arrays of a model as named tensors, sorted by name. Reads all values.
///
///     write_safetensors("model.safetensors", to_state_dict(model));
///
/// @param model    model, or any tree of named fields
/// @param names    other names for fields
/// @param options  prefix, filter and layout
/// @throws haliax::Error if two arrays have the same name
template <class T>
TensorFile to_state_dict(T model, const StateNames& names = {}, ToStateOptions options = {},
                         SourceLocation at = SourceLocation::current()) {
  options = detail::located(std::move(options), at);
  return detail::save_state(state_entries(model, names, options.flatten, options.at), options);
}
/// Returns `to_state_dict(model, names, options)`, under Haliax's name.
template <class T>
TensorFile to_torch_compatible_state_dict(T model, const StateNames& names = {},
                                          ToStateOptions options = {},
                                          SourceLocation at = SourceLocation::current()) {
  return to_state_dict(std::move(model), names, std::move(options), at);
}
/// Returns `to_state_dict(model, names, options)` without flattening, as Haliax does. Tensors of a
/// `TensorFile` are in host memory.
template <class T>
TensorFile to_numpy_state_dict(T model, const StateNames& names = {}, ToStateOptions options = {},
                               SourceLocation at = SourceLocation::current()) {
  options.flatten = false;
  return to_state_dict(std::move(model), names, std::move(options), at);
}
/// Returns a model whose `Linear` layers have one input axis `__IN__` and one output axis
/// `__OUT__`, and whose norms have one axis `__OUT`: the layout that `to_state_dict` writes.
/// Layer axes remain. Axes that are single are renamed as well.
template <class T>
T flatten_modules_for_export(T model, SourceLocation at = SourceLocation::current()) {
  detail::flatten_modules(detail::flat_modules(model), at);
  return model;
}
/// Returns the inverse of `flatten_modules_for_export`.
/// @param model  flattened model
/// @param like   model with the axes of the result; its values are not read
/// @throws haliax::Error if the sizes differ
template <class T>
T unflatten_modules_from_export(T model, T like, SourceLocation at = SourceLocation::current()) {
  detail::unflatten_modules(detail::flat_modules(model), detail::flat_modules(like), at);
  return model;
}
/// Returns `like` with the values of a file.
///
///     auto model = from_state_dict(read_safetensors(path), Model::init(key), names);
///     StateMismatch mismatch;
///     model = from_state_dict(file, model, {.allow_missing = true, .mismatch = &mismatch});
///
/// Each array has the placement of the array in `like`, or else that of the mesh and the mapping in
/// scope.
///
/// @param file     tensors
/// @param like     model with the expected axes and dtypes; its values are only read for tensors
///     that are allowed to be missing, so that it may be a result of `eval_shape`
/// @param names    other names for fields, as in `to_state_dict`
/// @param options  differences that are allowed, prefix and layout
/// @throws haliax::Error if tensors are missing, or have another shape or dtype, and the options do
///     not allow it; the error lists the first ten. Nothing is loaded then.
template <class T, std::same_as<StateNames> N>  // not deduced from braces, which are options
T from_state_dict(const TensorFile& file, T like, const N& names, StateOptions options = {},
                  SourceLocation at = SourceLocation::current()) {
  options = detail::located(std::move(options), at);
  detail::load_state(state_entries(like, names, options.unflatten, options.at), file, options);
  detail::note_fields(walk_of(like, {.paths = true}));
  return like;
}
template <class T>
T from_state_dict(const TensorFile& file, T like, StateOptions options = {},
                  SourceLocation at = SourceLocation::current()) {
  return from_state_dict(file, std::move(like), StateNames(), std::move(options), at);
}
/// Returns `from_state_dict(file, like, ...)`, under Haliax's name.
template <class T, std::same_as<StateNames> N>
T from_torch_compatible_state_dict(const TensorFile& file, T like, const N& names,
                                   StateOptions options = {},
                                   SourceLocation at = SourceLocation::current()) {
  return from_state_dict(file, std::move(like), names, std::move(options), at);
}
template <class T>
T from_torch_compatible_state_dict(const TensorFile& file, T like, StateOptions options = {},
                                   SourceLocation at = SourceLocation::current()) {
  return from_state_dict(file, std::move(like), StateNames(), std::move(options), at);
}

}  // namespace haliax
