// Trees of arrays: modules, and vectors, pairs, tuples, optionals and maps of them.
//
// A module is a plain struct. Reflection over aggregates finds its fields and their names, without
// a base class and without registration. Arrays are the leaves of a tree, and all other values are
// static: they are part of its structure.
//
//     struct Block {
//       nn::Linear up, down;          // modules
//       NamedArray scale;             // a parameter
//       Frozen<NamedArray> mask;      // saved and sharded, but not trained
//       double rate = 0.5;            // static
//     };
#pragma once
#include <array>
#include <concepts>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "haliax/array.h"
#include "haliax/axis.h"
#include "haliax/error.h"

namespace [[gnu::visibility("default")]] haliax {

/// @name Fields of modules
/// @{

/// A field whose arrays are not trained: gradients and optimizers skip it. `jit`, sharding and
/// checkpoints treat its arrays as other leaves.
template <class T> struct Frozen {
  T value;  ///< an array or a tree
  /// Returns the value.
  const T& operator*() const { return value; }
  const T* operator->() const { return &value; }
};
template <class T> Frozen(T) -> Frozen<T>;

/// True for types whose values are static and compared by `==`. Such a type must not hold arrays.
///
/// Define `static constexpr bool is_static = true;` in the type, or specialize this variable for a
/// type of another library.
template <class T> inline constexpr bool is_static = requires { requires T::is_static; };

/// Lists the fields of a class with a constructor, private members, a base class or more than 32
/// fields. It may be anywhere in the class.
///
/// A trailing underscore is not part of the path of a field.
///
///     class Counter {
///      public:
///       explicit Counter(const NamedArray& start) : count_(start) {}
///
///      private:
///       NamedArray count_;       // its path is "count"
///       HALIAX_FIELDS(count_)
///     };
#define HALIAX_FIELDS(...)                                           \
  friend struct ::haliax::reflect::Access;                           \
  auto haliax_fields() { return std::tie(__VA_ARGS__); }             \
  auto haliax_fields_const() const { return std::tie(__VA_ARGS__); } \
  static constexpr std::string_view haliax_names() { return #__VA_ARGS__; }

}  // namespace haliax

#include "haliax/detail/tree_fields.h"  // uses Frozen and is_static

namespace [[gnu::visibility("default")]] haliax {

/// A type that may be a tree, judged by the type alone. Its fields are checked where it is used.
template <class T>
concept Tree = !reflect::is_refused(reflect::kind<T>);

namespace detail {
[[noreturn]] void refuse_empty(const char* op, const char* what, SourceLocation);
}

/// A callable as a static field of a module, including its captures.
///
/// Copies are equal. Two functions that are created separately are not equal, so `jit` traces again
/// if a field holds another function. Arrays that the function captures are not parameters.
///
///     struct Layer {
///       StaticFunction<NamedArray(const NamedArray&)> activation;
///     };
template <class Signature> class StaticFunction;
/// A `StaticFunction` with parameters `A...` and result `R`.
template <class R, class... A> class StaticFunction<R(A...)> {
 public:
  static constexpr bool is_static = true;  ///< a field of a module is static
  /// Creates an empty function. A call of it raises.
  StaticFunction() = default;
  /// Converts a callable.
  template <class F>
  requires(std::is_invocable_r_v<R, const F&, A...> && !std::is_same_v<F, StaticFunction>)
      StaticFunction(F f)
      : f_(std::make_shared<const F>(std::move(f))), call_([](const void* self, A... a) -> R {
          return (*static_cast<const F*>(self))(std::forward<A>(a)...);
        }) {}
  /// Calls the function.
  R operator()(A... a, SourceLocation at = SourceLocation::current()) const {
    if (!f_)
      detail::refuse_empty("StaticFunction", "it is empty; assign a function to it first", at);
    return call_(f_.get(), std::forward<A>(a)...);
  }
  /// Returns true if the function is not empty.
  explicit operator bool() const { return f_ != nullptr; }
  friend bool operator==(const StaticFunction& a, const StaticFunction& b) { return a.f_ == b.f_; }

 private:
  std::shared_ptr<const void> f_;
  R (*call_)(const void*, A...) = nullptr;
};

/// @}

namespace detail {
std::uint64_t arrays_copied();  // on this thread
}

/// @name Traversal
/// The interface between trees and the library. Programs rarely need it.
/// @{

/// A value of a static type, which is compared by its type and by `==`.
class StaticValue {
 public:
  /// Stores a copy of a value.
  template <class T> static StaticValue of(const T& value) {
    StaticValue v;
    const auto before = detail::arrays_copied();
    v.value_ = std::make_shared<const T>(value);
    v.holds_array_ = detail::arrays_copied() != before;
    v.equal_ = [](const void* a, const void* b) {
      return bool(*static_cast<const T*>(a) == *static_cast<const T*>(b));
    };
    return v;
  }
  /// Returns true if the value holds an array, for example in a private member.
  bool holds_array() const { return holds_array_; }
  friend bool operator==(const StaticValue& a, const StaticValue& b) {
    return a.equal_ == b.equal_ && (!a.equal_ || a.equal_(a.value_.get(), b.value_.get()));
  }

 private:
  std::shared_ptr<const void> value_;
  bool holds_array_ = false;
  // Unique for each type, so it also identifies the type.
  bool (*equal_)(const void*, const void*) = nullptr;
};

/// The modules and layer axes of a traversal. A std::unique_ptr would compile more slowly.
struct WalkModules {
  struct Found;  ///< defined in src/graph/tree.cpp
  WalkModules() = default;
  WalkModules(WalkModules&&) noexcept;
  ~WalkModules();
  Found* found = nullptr;  ///< owned; null if nothing is found
};

/// The contents of one or several trees, in the order of the fields.
struct Walk {
  bool with_paths = false;    ///< collects paths
  bool with_statics = false;  ///< collects static values
  bool with_modules = false;  ///< collects modules, inference flags and layer axes

  std::vector<NamedArray*> arrays;  ///< the arrays, inside of the tree
  std::vector<bool> frozen;         ///< for each array: true inside of a `Frozen`
  std::vector<std::string> paths;   ///< for each array: its path, such as `blocks.0.attn.weight`
  /// The static values as bytes.
  ///
  /// Two trees of one type have equal `statics` and `values` if and only if their static fields,
  /// the lengths of their vectors and the presence of their optionals are equal. It is not relevant
  /// which arrays are empty.
  std::string statics;
  std::vector<StaticValue> values;   ///< static values that are compared by `==`
  std::vector<std::string> unequal;  ///< paths of static functions that cannot be compared
  std::vector<std::string> holding;  ///< paths of static values that hold arrays
  /// A static value as a string, for messages.
  struct Described {
    std::string path;     ///< its path
    std::string text;     ///< the value
    std::size_t end = 0;  ///< end of its bytes in `statics`
    int value = -1;       ///< index in `values`, or -1
  };
  std::vector<Described> described;  ///< with paths and statics: each static value

  /// A module of the tree.
  struct Module {
    std::string path;            ///< its path
    void* node;                  ///< its address
    void (*type)(Walk&, void*);  ///< the function that traverses its type, and identifies it
  };
  /// A range of modules.
  struct Modules {
    const Module* first;                           ///< the first module
    const Module* last;                            ///< the end of the range
    const Module* begin() const { return first; }  ///< for range loops
    const Module* end() const { return last; }     ///< for range loops
  };
  /// The weight of a layer, with its input and output axes.
  struct Matrix {
    const NamedArray* weight;  ///< its address in the tree
    AxisSpec In, Out;          ///< the axes
  };

  Walk();
  Walk(Walk&&) noexcept;
  ~Walk();
  /// Requests the modules of some types. The contents of a collected module are not traversed if
  /// `stop` is true.
  void collect(std::initializer_list<void (*)(Walk&, void*)> types, bool stop);
  /// Returns the modules of the requested types. With modules only, like the next three functions.
  Modules modules() const;
  /// Returns the weight of a module with `In` and `Out`; null for another array.
  const Matrix* matrix_of(const NamedArray* weight) const;
  /// Returns the enclosing layer axes of an array, by its position in `arrays`.
  const std::vector<Axis>& layers_of(std::size_t array) const;
  /// Assigns each field `bool inference`.
  void set_inference(bool value) const;
  /// Returns true if both have equal static values.
  bool same_statics(const Walk& other) const;
  /// Returns the arrays.
  std::vector<NamedArray> leaves() const;
  /// Assigns the arrays of the tree. Raises if the number differs.
  void assign(const std::vector<NamedArray>& leaves,
              SourceLocation at = SourceLocation::current()) const;

  // Members for `visit`. They are not templates, so that a module adds little code and
  // compiles quickly.

  /// A part of a tree, with the function that traverses its type.
  struct Part {
    void* node;                        ///< address of the part
    void (*visit)(Walk&, void* node);  ///< traverses it
  };
  /// A function that writes the names of fields.
  using WriteNames = void (*)(std::string_view* names, std::size_t count);

  std::string path;        ///< path of the current part
  int frozen_depth = 0;    ///< number of `Frozen` around it
  WalkModules in_modules;  ///< with modules: modules and layer axes

  /// Adds a field `bool inference`.
  void inference_flag(bool& flag);
  /// Adds the weight of a layer.
  void matrix(const NamedArray& weight, const AxisSpec& In, const AxisSpec& Out);
  /// Enters layers with this axis.
  void begin_layers(const Axis& axis);
  /// Leaves the innermost layers.
  void end_layers();
  /// Adds an array.
  void leaf(NamedArray& array);
  /// Traverses the fields of a struct, or of a tuple if `names` is null.
  void parts(const Part* parts, std::size_t count, WriteNames names);
  /// Traverses the items of a sequence in contiguous memory.
  void items(void* first, std::size_t size_of_item, std::size_t count, void (*visit)(Walk&, void*));
  /// Adds a module if its type is collected. Returns true if its contents are a leaf.
  bool module(void* node, void (*type)(Walk&, void*));
  /// Traverses a part under a name. An empty name adds no level to the path.
  void named(std::string_view name, const Part& part);
  /// Adds the bytes of a static value.
  void add_bytes(const void* bytes, std::size_t size);
  /// Adds a static value. The template is for arithmetic types, enums and pointers.
  template <class T> void add(const T& x) {
    add_bytes(&x, sizeof x);
    if constexpr (std::is_floating_point_v<T>)
      note(double(x));
    else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>)
      note(std::int64_t(x));
    else
      note("");
  }
  /// Adds the length of a sequence.
  void add_length(std::size_t length);
  /// Stores the value that was added last as a string, for messages.
  void note(double value);
  void note(std::int64_t value);
  void note(const char* value);
  /// Adds a static value of a type of the library.
  void add(const std::string& value);
  void add(std::string_view value);
  void add(Name value);
  void add(const Axis& value);
  void add(const AxisSelector& value);
  void add(const AxisSpec& value);
  void add(const AxisSelection& value);
  void add(StaticValue value);
  /// Adds the path of a static function that cannot be compared.
  void add_unequal();
};

/// Adds the contents of `tree` to `w`.
template <class T> void walk(Walk& w, T& tree);

/// Adds the contents of the tree at an address to `w`. There is one function per type.
template <class T> void visit(Walk& w, void* address);
/// Returns the address of `visit<T>`, or null if `T` cannot be a field.
template <class T> constexpr auto visitor() -> void (*)(Walk&, void*) {
  if constexpr (reflect::is_refused(reflect::fault_of<T>()))
    return nullptr;
  else
    return &visit<T>;
}
/// Adds the contents of the tree at an address to `w`. There is one function per type.
template <class T> void visit(Walk& w, void* address) {
  using reflect::Kind;
  constexpr Kind kind = reflect::kind<T>;
  T& node = *static_cast<T*>(address);
  if constexpr (kind == Kind::listed || kind == Kind::fields) {
    using M = std::remove_const_t<T>;
    if (w.with_modules) {
      if (w.module(address, &visit<M>)) return;
      if constexpr (requires(M & m) {
                      { m.inference } -> std::same_as<bool&>;
                    })
        w.inference_flag(static_cast<M*>(address)->inference);
      if constexpr (requires(M & m) {
                      { m.weight } -> std::same_as<NamedArray&>;
                      { m.In } -> std::same_as<AxisSpec&>;
                      { m.Out } -> std::same_as<AxisSpec&>;
                    })
        w.matrix(node.weight, node.In, node.Out);
      if constexpr (requires { requires M::is_stacked; }) w.begin_layers(node.Layers);
    }
  }
  auto erase = [](const void* p) { return const_cast<void*>(p); };
  auto parts = [&]<class... P>(P&... part) {
    const Walk::Part table[] = {{erase(&part), &visit<P>}..., {nullptr, nullptr}};
    w.parts(table, sizeof...(part), nullptr);
  };
  auto fields = [&]<class... P>(P&... part) {
    const Walk::Part table[] = {{erase(&part), visitor<P>()}..., {nullptr, nullptr}};
    w.parts(table, sizeof...(part), &reflect::write_names<std::remove_const_t<T>>);
    return reflect::Types<std::remove_const_t<P>...>();
  };
  if constexpr (kind == Kind::leaf) {
    static_assert(
        !std::is_const_v<T>,
        "haliax: a field that holds arrays must not be const, as no new tree could be built.");
    if constexpr (!std::is_const_v<T>) w.leaf(node);
  } else if constexpr (kind == Kind::frozen) {
    ++w.frozen_depth;
    walk(w, node.value);
    --w.frozen_depth;
  } else if constexpr (kind == Kind::plain) {
    if (w.with_statics) w.add(node);
  } else if constexpr (kind == Kind::value) {
    if (w.with_statics) w.add(StaticValue::of(node));
  } else if constexpr (kind == Kind::function) {
    if (!w.with_statics) return;
    auto* plain = reflect::target_of(node);  // pointers to functions can be compared
    w.add(plain != nullptr);
    if (plain)
      w.add(*plain);
    else if (node)
      w.add_unequal();
  } else if constexpr (kind == Kind::optional) {
    if (w.with_statics) w.add(node.has_value());
    if (node) walk(w, *node);
  } else if constexpr (kind == Kind::map) {
    if (w.with_statics) w.add_length(node.size());
    for (auto& [key, value] : node) {
      if (w.with_statics) w.add(key);
      Walk::Part item{erase(&value), &visit<std::remove_reference_t<decltype(value)>>};
      w.named(key, item);
    }
  } else if constexpr (kind == Kind::sequence) {
    using Item = typename T::value_type;
    if (w.with_statics) w.add_length(node.size());
    if constexpr (std::is_same_v<Item, bool>) {  // items of std::vector<bool> have no address
      if (w.with_statics)
        for (bool x : node) w.add(x);
    } else {
      w.items(erase(node.data()), sizeof(Item), node.size(),
              &visit<std::remove_pointer_t<decltype(node.data())>>);
    }
  } else if constexpr (kind == Kind::tuple) {
    std::apply(parts, node);
  } else if constexpr (kind == Kind::listed) {
    reflect::check_fields<std::remove_const_t<T>>(
        std::apply(fields, reflect::Access::fields(node)));
  } else if constexpr (kind == Kind::fields) {
    reflect::check_fields<std::remove_const_t<T>>(reflect::apply(node, fields));
  } else if constexpr (kind != Kind::nothing) {
    reflect::refuse<kind, std::remove_const_t<T>>();
  }
  if constexpr (requires { requires T::is_stacked; })
    if (w.with_modules) w.end_layers();
}

/// Adds the contents of `tree` to `w`.
template <class T> void walk(Walk& w, T& tree) {
  haliax::visit<T>(w, const_cast<void*>(static_cast<const void*>(&tree)));
}

/// Options of `walk_of`.
struct WalkOptions {
  bool paths = false;    ///< collects paths
  bool statics = false;  ///< collects static values
  bool modules = false;  ///< collects modules, inference flags and layer axes
};

/// Returns the contents of a tree.
///
/// The arrays are inside of `tree`, so they are valid while it exists. Assign them only if `tree`
/// is not const.
template <class T> Walk walk_of(const T& tree, WalkOptions options = {}) {
  Walk w;
  w.with_paths = options.paths;
  w.with_statics = options.statics;
  w.with_modules = options.modules;
  haliax::visit<T>(w, const_cast<T*>(&tree));  // qualified, so that it is not std::visit
  return w;
}

/// @}

/// @name Functions of trees
/// Trees are values: these functions return new trees.
/// @{

/// The arrays of a tree, in the order of its fields.
using Leaves = std::vector<NamedArray>;

/// Returns the arrays of a tree, in the order of its fields.
template <class T> Leaves flatten(const T& tree) { return walk_of(tree).leaves(); }

/// Returns the tree `like` with other arrays, in the order of `flatten`.
///
/// @throws haliax::Error if the number of arrays differs
template <class T>
T unflatten(T like, const Leaves& leaves, SourceLocation at = SourceLocation::current()) {
  walk_of(like).assign(leaves, at);
  return like;
}

/// Returns `flatten(tree)`: the name in JAX and Haliax.
template <class T> Leaves tree_leaves(const T& tree) { return flatten(tree); }
/// Returns the arrays of a tree, and the tree itself as the structure for `tree_unflatten`.
template <class T> std::pair<Leaves, T> tree_flatten(const T& tree) {
  return {flatten(tree), tree};
}
/// Returns `unflatten(structure, leaves)`.
///
/// @throws haliax::Error if the number of arrays differs
///
///     auto [leaves, structure] = tree_flatten(model);
///     auto same = tree_unflatten(structure, leaves);
template <class T>
T tree_unflatten(T structure, const Leaves& leaves, SourceLocation at = SourceLocation::current()) {
  return unflatten(std::move(structure), leaves, at);
}

namespace detail {
// Stores the fields of the arrays for error messages. `Walk` must have paths.
void note_fields(const Walk&);
// Raises if the numbers of arrays differ, with the first path that only one of them has. Both must
// have paths.
void check_same_structure(const char* op, const Walk&, const Walk&, SourceLocation);
template <class T, class U>
Walk walk_of_same_structure(const char* op, const Walk& w, const T& tree, const U& other,
                            SourceLocation at) {
  Walk o = walk_of(other);
  if (o.arrays.size() != w.arrays.size())
    check_same_structure(op, walk_of(tree, {.paths = true}), walk_of(other, {.paths = true}), at);
  return o;
}
template <class F, class T, class... Ts>
T tree_mapped(F& f, T tree, [[maybe_unused]] SourceLocation at, const Ts&... trees) {
  Walk w = walk_of(tree);
  auto map = [&](const auto&... other) {
    for (std::size_t i = 0; i < w.arrays.size(); ++i)
      if (!(w.arrays[i]->empty() || ... || other.arrays[i]->empty()))
        *w.arrays[i] = f(std::as_const(*w.arrays[i]), std::as_const(*other.arrays[i])...);
  };
  map(walk_of_same_structure("tree_map", w, tree, trees, at)...);
  return tree;
}
}  // namespace detail

/// Returns a tree in which each array is `f` of the array and the corresponding arrays of the other
/// trees.
///
/// An array that is empty in one of the trees is unchanged.
///
/// @param f     `f(array, ...)` -> array
/// @param tree  the first tree
/// @param at    the line that error messages name
/// @throws haliax::Error if the trees have different structures
///
///     auto next = tree_map([](auto& p, auto& g) { return p - 0.1 * g; }, model, grads);
template <class F, class T>
T tree_map(F&& f, T tree, SourceLocation at = SourceLocation::current()) {
  return detail::tree_mapped(f, std::move(tree), at);
}
template <class F, class T, class T2>
T tree_map(F&& f, T tree, const T2& second, SourceLocation at = SourceLocation::current()) {
  return detail::tree_mapped(f, std::move(tree), at, second);
}
template <class F, class T, class T2, class T3>
T tree_map(F&& f, T tree, const T2& second, const T3& third,
           SourceLocation at = SourceLocation::current()) {
  return detail::tree_mapped(f, std::move(tree), at, second, third);
}
template <class F, class T, class T2, class T3, class T4>
T tree_map(F&& f, T tree, const T2& second, const T3& third, const T4& fourth,
           SourceLocation at = SourceLocation::current()) {
  return detail::tree_mapped(f, std::move(tree), at, second, third, fourth);
}

/// Calls `f(path, array, frozen)` for each array. `f` may assign the array if the tree is not
/// const.
template <class T, class F> void for_each_leaf(T& tree, F&& f) {
  using Leaf = std::conditional_t<std::is_const_v<T>, const NamedArray, NamedArray>;
  Walk w = walk_of(tree, {.paths = true});
  for (std::size_t i = 0; i < w.arrays.size(); ++i)
    f(std::as_const(w.paths[i]), static_cast<Leaf&>(*w.arrays[i]), bool(w.frozen[i]));
}

namespace detail {
template <class... M, class T> Walk walk_of_modules(const T& tree, bool stop) {
  Walk w;
  w.with_paths = true;
  w.with_modules = true;
  w.collect({&haliax::visit<M>...}, stop);
  haliax::visit<T>(w, const_cast<T*>(&tree));
  return w;
}
}  // namespace detail

/// Calls `f(path, module)` for each module of type `M`, in the order of the fields. Modules inside
/// of modules of type `M` are included. `f` may change the module if the tree is not const.
///
///     for_each_module<nn::Dropout>(model, [](auto& path, nn::Dropout& d) { d.pdrop = 0; });
///
/// @param tree  the tree
/// @param f     `f(path, module)`
template <class M, class T, class F> void for_each_module(T& tree, F&& f) {
  using Found = std::conditional_t<std::is_const_v<T>, const M, M>;
  const Walk w = detail::walk_of_modules<M>(tree, false);
  for (auto& m : w.modules()) f(std::as_const(m.path), *static_cast<Found*>(m.node));
}

/// The types of modules that `tree_map` treats as leaves; see `is_leaf`.
template <class... M> struct LeafModules {};
/// Selects types of modules for `tree_map(f, tree, is_leaf<nn::Linear>)`.
template <class... M> inline constexpr LeafModules<M...> is_leaf{};

/// Returns a tree in which each module of a type `M` is `f` of the module, and each array outside
/// of these modules is `f` of the array. If `f` does not accept arrays, they stay unchanged.
///
///     auto halves = tree_map([](const nn::Linear& l) { return half_of(l); }, model,
///                            is_leaf<nn::Linear>);
///
/// @param f     `f(module)` -> module of the same type
/// @param tree  the tree
template <class F, class T, class... M> T tree_map(F&& f, T tree, LeafModules<M...>) {
  const Walk w = detail::walk_of_modules<M...>(tree, true);
  auto assign = [&]<class One>(const Walk::Module& m, std::type_identity<One>) {
    if (m.type != &haliax::visit<One>) return;
    auto& module = *static_cast<One*>(m.node);
    module = f(std::as_const(module));
  };
  for (auto& m : w.modules()) (assign(m, std::type_identity<M>()), ...);
  if constexpr (std::is_invocable_r_v<NamedArray, F&, const NamedArray&>)
    for (auto* a : w.arrays)
      if (!a->empty()) *a = f(std::as_const(*a));
  return tree;
}

/// Returns a copy of the model in which each field `bool inference` is `value`, as those of all
/// `nn::Dropout`. The flags are static, so `jit` traces the two modes separately.
///
///     auto eval_model = inference_mode(model);          // dropout returns its argument
///     auto train_model = inference_mode(model, false);  // dropout is active
template <class T> T inference_mode(T model, bool value = true) {
  walk_of(model, {.modules = true}).set_inference(value);
  return model;
}

/// Returns the path of each array, such as `blocks.0.attn.weight`, in the order of `flatten`.
template <class T> std::vector<std::string> tree_paths(const T& tree) {
  return walk_of(tree, {.paths = true}).paths;
}

/// @}

/// @name Parts of trees
/// @{

/// Selects arrays of a tree.
///
/// | argument | selects |
/// |---|---|
/// | `{}` | all arrays |
/// | `"lora"`, `"blocks.attn"` | arrays whose path contains the string |
/// | `f(path, array) -> bool` | arrays for which the function returns true |
/// | `!filter` | all others |
///
/// A path is the path of `tree_paths`, or the same path without the level `stacked` of
/// `nn::Stacked`, as in error messages and checkpoints.
class LeafFilter {
 public:
  /// Selects all arrays.
  LeafFilter() = default;
  /// Selects the arrays whose path contains a string.
  LeafFilter(const char* part) : part_(part) {}
  LeafFilter(std::string part) : part_(std::move(part)) {}
  /// Selects the arrays for which `f(path, array)` is true.
  template <class F>
  requires(std::is_invocable_r_v<bool, const F&, const std::string&, const NamedArray&> &&
           !std::is_same_v<F, LeafFilter>) LeafFilter(F f)
      : f_(std::make_shared<const F>(std::move(f))),
        call_([](const void* g, const std::string& path, const NamedArray& leaf) -> bool {
          return (*static_cast<const F*>(g))(path, leaf);
        }) {}
  /// Returns a filter that selects all other arrays.
  LeafFilter operator!() const;
  /// Returns true if the filter selects an array.
  bool operator()(const std::string& path, const NamedArray& leaf) const;
  /// Returns true if the filter selects all arrays.
  bool all() const { return part_.empty() && !f_ && !inverted_; }
  /// Returns the selection of the arrays of `tree`, which has paths. Empty arrays are not selected.
  ///
  /// @throws haliax::Error if no path contains the string
  std::vector<bool> chosen(const char* op, const Walk& tree, SourceLocation at) const;

 private:
  std::string part_;
  std::shared_ptr<const void> f_;
  bool (*call_)(const void*, const std::string&, const NamedArray&) = nullptr;
  bool inverted_ = false;
};

namespace detail {
// Returns the leaves with all others empty.
Leaves only_leaves(Leaves, const std::vector<bool>&);
// Returns the first leaves, with the leaves of the second in the place of empty ones.
Leaves merged_leaves(Leaves, const Leaves&);
// Returns the chosen leaves that are floats and not Frozen.
std::vector<bool> trainable_of(const Walk&, std::vector<bool> chosen);
}  // namespace detail

/// Returns the tree with only the selected arrays; the others are empty.
///
/// `jit`, optimizers and `tree_map` skip empty arrays.
///
/// @throws haliax::Error if no path contains the string of the filter
///
///     auto adapters = filter(model, "lora");
template <class T>
T filter(const T& tree, const LeafFilter& keep, SourceLocation at = SourceLocation::current()) {
  Walk w = walk_of(tree, {.paths = true});
  return unflatten(tree, detail::only_leaves(w.leaves(), keep.chosen("filter", w, at)));
}

/// Returns the tree with only the selected arrays, and the tree with only the others.
/// @see combine
template <class T>
std::pair<T, T> partition(const T& tree, const LeafFilter& first,
                          SourceLocation at = SourceLocation::current()) {
  return {filter(tree, first, at), filter(tree, !first, at)};
}

/// Merges two trees of the same structure: where an array of `first` is empty, the result has the
/// array of `second`.
///
///     auto [adapters, rest] = partition(model, "lora");
///     auto same = combine(adapters, rest);
template <class T>
T combine(const T& first, const T& second, SourceLocation at = SourceLocation::current()) {
  auto others =
      detail::walk_of_same_structure("combine", walk_of(first), first, second, at).leaves();
  return unflatten(first, detail::merged_leaves(flatten(first), others));
}

/// Returns the model with only its trainable arrays: selected floats that are not in `Frozen`.
template <class T>
T trainable(const T& model, const LeafFilter& keep = {},
            SourceLocation at = SourceLocation::current()) {
  Walk w = walk_of(model, {.paths = true});
  return unflatten(model, detail::only_leaves(w.leaves(), detail::trainable_of(
                                                              w, keep.chosen("trainable", w, at))));
}

/// @}

/// @name Trees as strings
/// @{

namespace detail {
std::string tree_text(const Walk&);
std::string summary(const Walk&, int depth);
std::ostream& write(std::ostream&, const std::string&);
}  // namespace detail

/// Returns one line for each array: path, dtype and axes, elements, bytes; then the sums. It
/// computes no values.
template <class T> std::string tree_to_string(const T& tree) {
  return detail::tree_text(walk_of(tree, {.paths = true}));
}

/// Returns a table of modules: numbers of arrays and parameters, bytes, and frozen parameters.
///
/// @param model  a tree
/// @param depth  number of levels to show; -1: all
template <class T> std::string summary(const T& model, int depth = -1) {
  return detail::summary(walk_of(model, {.paths = true}), depth);
}

/// A tree that holds arrays: a module, the state of an optimizer, a vector of arrays, ...
template <class T>
concept ArrayTree = Tree<T> &&(reflect::kind<T> == reflect::Kind::frozen ||
                               reflect::kind<T> >= reflect::Kind::optional) &&
                    reflect::holds_array<std::remove_cv_t<T>>();
/// Writes `tree_to_string(tree)`.
template <ArrayTree T> std::ostream& operator<<(std::ostream& out, const T& tree) {
  return detail::write(out, tree_to_string(tree));
}

/// @}

namespace nn {
using haliax::operator<<;
}  // namespace nn
namespace optim {
using haliax::operator<<;
}

}  // namespace haliax
