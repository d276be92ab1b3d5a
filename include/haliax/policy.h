// Mixed precision: the dtypes of parameters, of computations and of results, as in jmp. See
// docs/how-to/training.md.
#pragma once
#include <optional>
#include <string_view>

#include "haliax/ops.h"
#include "haliax/tree.h"

namespace [[gnu::visibility("default")]] haliax {

/// A policy for mixed precision.
///
///     Policy policy("p=f32,c=bf16,o=f32");
///     auto y = policy.cast_to_compute(model)(policy.cast_to_compute(x));
struct Policy {
  static constexpr bool is_static = true;  ///< A policy is a static value in a tree.
  DType param = DType::f32;                ///< Dtype of parameters.
  DType compute = DType::f32;              ///< Dtype of computations.
  DType output = DType::f32;               ///< Dtype of results.
  /// Dtype of partial sums over a mesh, for `JitOptions::reduce_dtype`.
  std::optional<DType> reduce = {};
  /// Creates a policy in which all dtypes are `f32`.
  Policy() = default;
  /// Parses a policy.
  ///
  /// @param spec  one dtype, for parameters, computations and results; or parts such as
  ///     `"p=f32,c=bf16,o=f32,r=f32"`. Long names: `params`, `compute`, `output`, `reduce`. Dtypes:
  ///     `f32`, `float32`, `full`, `f16`, `half`, `bf16`, `bfloat16`, ... Parts that are missing
  ///     are `f32`, and `r` is not set.
  /// @throws haliax::Error if the specification is invalid, or a dtype is not a float
  explicit Policy(std::string_view spec, SourceLocation at = SourceLocation::current());
  /// Compares all dtypes.
  friend bool operator==(const Policy&, const Policy&) = default;

  /// Returns the tree with all arrays of floats cast to `param`. Other arrays stay unchanged.
  template <class T>
  T cast_to_param(const T& tree, SourceLocation at = SourceLocation::current()) const {
    return cast(tree, param, at);
  }
  /// Returns the tree with all arrays of floats cast to `compute`.
  template <class T>
  T cast_to_compute(const T& tree, SourceLocation at = SourceLocation::current()) const {
    return cast(tree, compute, at);
  }
  /// Returns the tree with all arrays of floats cast to `output`.
  template <class T>
  T cast_to_output(const T& tree, SourceLocation at = SourceLocation::current()) const {
    return cast(tree, output, at);
  }

 private:
  template <class T> static T cast(const T& tree, DType to, SourceLocation at) {
    return tree_map(
        [&](const NamedArray& a) {
          return !a.empty() && is_float(a.dtype()) ? a.astype(to, at) : a;
        },
        tree);
  }
};

/// Prints `p=f32,c=bf16,o=f32`, and `,r=f32` if `reduce` is set.
std::ostream& operator<<(std::ostream& out, const Policy& policy);

}  // namespace haliax
