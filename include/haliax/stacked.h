// Stacks of blocks: `nn::Stacked`, which runs its blocks in a loop, and `nn::BlockSeq`, which holds
// them one by one. Both have the same interface. See docs/concepts/modules.md.
#pragma once
#include <cstdint>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "haliax/random.h"
#include "haliax/transforms.h"
#include "haliax/tree.h"

namespace [[gnu::visibility("default")]] haliax {
namespace nn {

namespace detail {
NamedArray layer_of(const NamedArray& stacked, const Axis& Layers, std::int64_t i, SourceLocation);
// Returns the slice of an array that has the axis, otherwise the array.
NamedArray at_layer(const NamedArray&, const Axis& Layers, std::int64_t i, SourceLocation);
void append(Leaves& all, const Leaves& more);
// Returns the stacks of the results of the layers, with the layer axis first. `all` holds the
// arrays of the first layer, then of the second layer, and so on.
Leaves stack_of_layers(const Leaves& all, std::size_t layers, const Axis& Layers, SourceLocation);
// Raises if the number of blocks is not the size of the axis.
void check_layers(std::size_t blocks, const Axis& Layers, SourceLocation);
template <class C> inline constexpr bool is_array = std::is_convertible_v<const C&, const Arr&>;
struct LayersAt {  // the layer axis, and the source location of the call
  Axis axis;
  SourceLocation at;
  LayersAt(const Axis& a, SourceLocation where = SourceLocation::current()) : axis(a), at(where) {}
};
template <class Block, class Carry, class... Args> constexpr bool takes() {
  constexpr bool called = std::is_invocable_v<const Block&, const Carry&, const Args&...>;
  static_assert(called,
                "haliax: a stack calls its blocks: a block must accept the arguments of fold, scan "
                "or vmap.");
  return called;
}
// Calls a block with its arguments.
struct CallBlock {
  template <class Block, class... Args>
  auto operator()(const Block& block, const Args&... args) const {
    return block(args...);
  }
};
}  // namespace detail

/// @name Stacked layers
/// @{

/// Options of `Stacked::init` and `BlockSeq::init`.
struct StackedOptions {
  ScanCheckpoint gradient_checkpointing = {};  ///< Residuals: saved, or rematerialized.
  std::int64_t unroll = 1;                     ///< Layers per iteration of the loop.
};

/// Blocks of equal structure that run one after the other. Each array of `stacked` holds all
/// layers, with the layer axis first, and the program has one loop for any number of layers.
///
///     auto blocks = nn::Stacked<Block>::init(Layers, Block::init, random::split(key, Layers));
///     auto y = blocks.fold(x);
///     blocks.gradient_checkpointing = true;  // rematerializes each layer in the backward pass
///     auto [z, outs] = blocks.scan_via([](const Block& b, const NamedArray& c) {
///       return std::pair(b(c), mean(c));
///     })(x);
/// @see BlockSeq
template <class Block> struct Stacked {
  Block stacked;  ///< The blocks; their arrays have the axis `Layers`.
  Axis Layers;    ///< Layer axis.
  /// Residuals of the loop: saved by default, or rematerialized.
  ScanCheckpoint gradient_checkpointing = {};
  std::int64_t unroll = 1;                  ///< Layers per iteration of the loop.
  static constexpr bool is_stacked = true;  ///< Its arrays have a layer axis.

  /// Initializes one block per layer.
  /// @param Layers   layer axis
  /// @param options  policy for residuals, and unrolling
  /// @param make     function `make(args...)` that returns a `Block`
  /// @param args     arrays and keys with the axis `Layers` are split into layers; all layers share
  ///     the others
  template <class Make, class... Args>
  static Stacked init(detail::LayersAt Layers, StackedOptions options, Make make,
                      const Args&... args) {
    return {haliax::vmap(make, Layers.axis, Layers.at)(args...), Layers.axis,
            std::move(options.gradient_checkpointing), options.unroll};
  }
  template <class Make, class... Args>
  static Stacked init(detail::LayersAt Layers, Make make, const Args&... args) {
    return init(Layers, StackedOptions(), std::move(make), args...);
  }
  /// Returns `block(x, args...)`, applied for each layer in order. Each layer receives the result
  /// of the layer before.
  /// @param x     array
  /// @param args  as in `init`
  template <class... Args> NamedArray fold(Arr x, const Args&... args) const {
    return fold_from<NamedArray>(x, x.at(), args...);
  }
  /// Applies the blocks to a tree, such as a pair of arrays.
  template <class Carry, class... Args>
  requires(!detail::is_array<Carry>) Carry fold(const Carry& x, const Args&... args)
  const { return fold_from<Carry>(x, SourceLocation::current(), args...); }
  /// Applies `block(x, args...)`, which returns a pair `(x, out)`, for each layer in order. Returns
  /// the last `x`, and the stack of all `out` with the layer axis first.
  template <class... Args> auto scan(Arr x, const Args&... args) const {
    return scan_from<NamedArray>(x, x.at(), args...);
  }
  /// Applies the blocks to a tree, such as a pair of arrays.
  template <class Carry, class... Args>
  requires(!detail::is_array<Carry>) auto scan(const Carry& x, const Args&... args) const {
    return scan_from<Carry>(x, SourceLocation::current(), args...);
  }
  /// Returns a function `(x, args...)` that applies `f(block, x, args...)` for each layer in order,
  /// as `fold`, for example to call another method of the block.
  /// @param f   `f(block, x, args...)` -> x
  /// @param at  the line that error messages name
  template <class F> auto fold_via(F f, SourceLocation at = SourceLocation::current()) const {
    return [f, at, self = *this]<class Carry, class... Args>(const Carry& x, const Args&... args) {
      auto step = [&](const Carry& c, const Block& block, const Args&... a) {
        return Carry(f(block, c, a...));
      };
      return haliax::fold(step, self.Layers, self.options(at))(x, self.stacked, args...);
    };
  }
  /// Returns a function `(x, args...)` that applies `f(block, x, args...)` for each layer in order,
  /// as `scan`.
  /// @param f   `f(block, x, args...)` -> `std::pair(x, out)`
  /// @param at  the line that error messages name
  template <class F> auto scan_via(F f, SourceLocation at = SourceLocation::current()) const {
    return [f, at, self = *this]<class Carry, class... Args>(const Carry& x, const Args&... args) {
      auto step = [&](const Carry& c, const Block& block, const Args&... a) {
        return f(block, c, a...);
      };
      return haliax::scan(step, self.Layers, self.options(at))(x, self.stacked, args...);
    };
  }
  /// Applies each block to the same arguments, and returns the stack of the results with the layer
  /// axis first.
  /// @param args  as in `init`
  template <class... Args> auto vmap(const Args&... args) const {
    return vmap_via(detail::CallBlock())(args...);
  }
  /// Returns a function `(args...)` that computes `f(block, args...)` for each layer, as `vmap`.
  /// @param f   `f(block, args...)` -> any tree
  /// @param at  the line that error messages name
  template <class F> auto vmap_via(F f, SourceLocation at = SourceLocation::current()) const {
    return [f, at, self = *this](const auto&... args) {
      return haliax::vmap(f, self.Layers, at)(self.stacked, args...);
    };
  }

  /// Returns layer `i`, from 0, as a block.
  /// @throws haliax::Error if there is no such layer
  Block get_layer(std::int64_t i, SourceLocation at = SourceLocation::current()) const {
    return tree_map([&](const NamedArray& a) { return detail::layer_of(a, Layers, i, at); },
                    stacked);
  }
  /// Returns all layers as blocks.
  std::vector<Block> unstacked(SourceLocation at = SourceLocation::current()) const {
    std::vector<Block> blocks;
    for (std::int64_t i = 0; i < Layers.size; ++i) blocks.push_back(get_layer(i, at));
    return blocks;
  }

 private:
  ScanOptions options(SourceLocation at) const {
    return {.checkpoint = gradient_checkpointing, .unroll = unroll, .at = at};
  }
  template <class Carry, class... Args>
  Carry fold_from(const Carry& x, SourceLocation at, const Args&... args) const {
    if constexpr (detail::takes<Block, Carry, Args...>())
      return fold_via(detail::CallBlock(), at)(x, args...);
    else
      return x;
  }
  template <class Carry, class... Args>
  auto scan_from(const Carry& x, SourceLocation at, const Args&... args) const {
    if constexpr (detail::takes<Block, Carry, Args...>())
      return scan_via(detail::CallBlock(), at)(x, args...);
    else
      return std::pair{x, x};
  }
};

/// Blocks that run one after the other, held one by one: the interface of `Stacked` without a loop.
///
/// Blocks may differ in their static fields and in the sizes of their axes. The program contains
/// each block, so compile time grows with the number of layers. Paths and names in a state dict are
/// those of a `std::vector` of blocks, and those that `Stacked` has in a state dict:
/// `blocks.0.up.weight`.
///
///     auto blocks = nn::BlockSeq<Block>::init(Layers, Block::init, random::split(key, Layers));
///     auto y = blocks.fold(x);
/// @see Stacked
template <class Block> struct BlockSeq {
  std::vector<Block> blocks;  ///< The blocks, in order.
  Axis Layers;                ///< Layer axis, along which arguments are split and results stacked.
  /// Residuals: saved by default; otherwise each block is rematerialized, except for intermediates
  /// with a name that the policy saves.
  ScanCheckpoint gradient_checkpointing = {};

  // An empty name: a field without a level in paths.
  auto haliax_fields() { return std::tie(blocks, Layers, gradient_checkpointing); }
  auto haliax_fields_const() const { return std::tie(blocks, Layers, gradient_checkpointing); }
  static constexpr std::string_view haliax_names() { return ""; }

  /// Initializes one block per layer; see `Stacked::init`.
  template <class Make, class... Args>
  static BlockSeq init(detail::LayersAt Layers, StackedOptions options, Make make,
                       const Args&... args) {
    BlockSeq s{{}, Layers.axis, std::move(options.gradient_checkpointing)};
    for (std::int64_t i = 0; i < Layers.axis.size; ++i)
      s.blocks.push_back(make(layer_argument(args, Layers.axis, i, Layers.at)...));
    return s;
  }
  template <class Make, class... Args>
  static BlockSeq init(detail::LayersAt Layers, Make make, const Args&... args) {
    return init(Layers, StackedOptions(), std::move(make), args...);
  }
  /// Returns `block(x, args...)`, applied for each layer in order.
  /// @param x     array
  /// @param args  as in `init`
  template <class... Args> NamedArray fold(Arr x, const Args&... args) const {
    return fold_via(detail::CallBlock(), x.at())(x.array(), args...);
  }
  /// Applies the blocks to a tree, such as a pair of arrays.
  template <class Carry, class... Args>
  requires(!detail::is_array<Carry>) Carry fold(const Carry& x, const Args&... args)
  const { return fold_via(detail::CallBlock())(x, args...); }
  /// Applies `block(x, args...)`, which returns a pair `(x, out)`, for each layer in order. Returns
  /// the last `x`, and the stack of all `out` with the layer axis first.
  template <class... Args> auto scan(Arr x, const Args&... args) const {
    return scan_via(detail::CallBlock(), x.at())(x.array(), args...);
  }
  /// Applies the blocks to a tree, such as a pair of arrays.
  template <class Carry, class... Args>
  requires(!detail::is_array<Carry>) auto scan(const Carry& x, const Args&... args) const {
    return scan_via(detail::CallBlock())(x, args...);
  }
  /// Returns a function `(x, args...)` that applies `f(block, x, args...)` for each layer in order.
  template <class F> auto fold_via(F f, SourceLocation at = SourceLocation::current()) const {
    return [f, at, self = *this]<class Carry, class... Args>(const Carry& x, const Args&... args) {
      detail::check_layers(self.blocks.size(), self.Layers, at);
      Carry c = x;
      for (std::size_t i = 0; i < self.blocks.size(); ++i)
        c = Carry(self.run(f, at, self.blocks[i], c, self.argument(args, i, at)...));
      return c;
    };
  }
  /// Returns a function `(x, args...)` that applies `f(block, x, args...)`, which returns a pair
  /// `(x, out)`, for each layer in order.
  template <class F> auto scan_via(F f, SourceLocation at = SourceLocation::current()) const {
    return [f, at, self = *this]<class Carry, class... Args>(const Carry& x, const Args&... args) {
      using Pair = std::decay_t<decltype(f(self.blocks[0], x, args...))>;
      detail::check_layers(self.blocks.size(), self.Layers, at);
      Carry c = x;
      std::vector<typename Pair::second_type> outs;
      for (std::size_t i = 0; i < self.blocks.size(); ++i) {
        auto next = self.run(f, at, self.blocks[i], c, self.argument(args, i, at)...);
        c = std::move(next.first);
        outs.push_back(std::move(next.second));
      }
      return std::pair{c, self.stack(outs, at)};
    };
  }
  /// Applies each block to the same arguments, and returns the stack of the results with the layer
  /// axis first.
  template <class... Args> auto vmap(const Args&... args) const {
    return vmap_via(detail::CallBlock())(args...);
  }
  /// Returns a function `(args...)` that computes `f(block, args...)` for each layer.
  template <class F> auto vmap_via(F f, SourceLocation at = SourceLocation::current()) const {
    return [f, at, self = *this](const auto&... args) {
      detail::check_layers(self.blocks.size(), self.Layers, at);
      std::vector<std::decay_t<decltype(f(self.blocks[0], args...))>> outs;
      for (std::size_t i = 0; i < self.blocks.size(); ++i)
        outs.push_back(f(self.blocks[i], self.argument(args, i, at)...));
      return self.stack(outs, at);
    };
  }
  /// Returns layer `i`, from 0.
  /// @throws haliax::Error if there is no such layer
  Block get_layer(std::int64_t i, SourceLocation at = SourceLocation::current()) const {
    detail::layer_of({}, Layers, i, at);
    return blocks.at(std::size_t(i));
  }
  /// Returns all layers.
  std::vector<Block> unstacked() const { return blocks; }

 private:
  template <class A>
  static A layer_argument(const A& a, const Axis& Layers, std::int64_t i, SourceLocation at) {
    if constexpr (Tree<A>)
      return tree_map([&](const NamedArray& x) { return detail::at_layer(x, Layers, i, at); }, a);
    else
      return a;
  }
  template <class A> A argument(const A& a, std::size_t i, SourceLocation at) const {
    return layer_argument(a, Layers, std::int64_t(i), at);
  }
  // Calls f, rematerialized if the policy requests it.
  template <class F, class... Args>
  auto run(const F& f, SourceLocation at, const Block& block, const Args&... args) const {
    if (gradient_checkpointing.policy == ScanCheckpoint::Policy::none) return f(block, args...);
    return checkpoint(f, gradient_checkpointing.saved, at)(block, args...);
  }
  // Returns a tree like the results of the layers, with each array stacked.
  template <class Out> Out stack(const std::vector<Out>& outs, SourceLocation at) const {
    if (outs.empty()) return Out();
    Leaves all;
    for (auto& o : outs) detail::append(all, flatten(o));
    return unflatten(outs[0], detail::stack_of_layers(all, outs.size(), Layers, at));
  }
};

/// @}

}  // namespace nn

/// @name Trees with stacked layers
/// @{

namespace detail {
template <class F, class... A>
NamedArray mapped_over_layers(const F& f, const Axis* first, const Axis* last, const A&... arrays) {
  if (first == last) return f(arrays...);
  auto inner = [&](const A&... a) { return mapped_over_layers(f, first + 1, last, a...); };
  return vmap(inner, *first)(arrays...);
}
Leaves resized(Leaves, const AxisSelector&, std::int64_t new_size, const Key&, SourceLocation);
}  // namespace detail

/// Returns a tree in which each array is `f` of the array, one layer at a time: for arrays of an
/// `nn::Stacked`, `f` receives the array of one layer.
///
/// Optimizers that treat an array as a matrix use it. The layers are computed together, as by
/// `vmap`.
///
/// @param f     `f(array, ...)` -> array
/// @param tree  the first tree
/// @param rest  further trees of the same structure
/// @throws haliax::Error if the trees have different structures
///
///     auto unit = scan_aware_tree_map([](const NamedArray& w) { return w / sqrt(sum(w * w)); },
///                                     model);
template <class F, class T, class... Rest>
T scan_aware_tree_map(const F& f, T tree, const Rest&... rest) {
  Walk w = walk_of(tree, {.modules = true});
  auto map = [&](const auto&... other) {
    for (std::size_t i = 0; i < w.arrays.size(); ++i) {
      const auto& layers = w.layers_of(i);
      const Axis* first = layers.data();
      if (!(w.arrays[i]->empty() || ... || other.arrays[i]->empty()))
        *w.arrays[i] = detail::mapped_over_layers(f, first, first + layers.size(), *w.arrays[i],
                                                  *other.arrays[i]...);
    }
  };
  map(detail::walk_of_same_structure("scan_aware_tree_map", w, tree, rest,
                                     SourceLocation::current())...);
  return tree;
}

/// Returns the tree with another size of an axis, as for a new vocabulary.
///
/// Arrays without the axis stay unchanged. A smaller size drops the last positions. A larger size
/// adds positions with the mean over the axis, plus a normal of the standard deviation over the
/// axis, truncated at 2, if there is a key. Static fields that store the axis stay unchanged: see
/// `nn::Embedding::resize_embeddings` and `nn::resize_vocab`.
///
/// @param tree      array or tree
/// @param axis      axis to resize
/// @param new_size  its new size
/// @param key       random key; with several arrays, each draws from a key of its own
/// @throws haliax::Error if the size is negative
///
///     auto weight = resize_axis(embedding.weight, "vocab", 50304, key);
template <class T>
T resize_axis(const T& tree, const AxisSelector& axis, std::int64_t new_size, const Key& key = {},
              SourceLocation at = SourceLocation::current()) {
  return unflatten(tree, detail::resized(flatten(tree), axis, new_size, key, at));
}

/// @}

}  // namespace haliax
