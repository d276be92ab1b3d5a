// Mixed precision: which dtype parameters are kept in, computations done in, results given in, as
// jmp; and on a mesh, which one narrow sums are reduced in: JitOptions::reduce_dtype takes it.
#pragma once
#include <optional>
#include <string_view>

#include "haliax/ops.h"
#include "haliax/tree.h"

namespace [[gnu::visibility("default")]] haliax {

struct Policy {
  static constexpr bool is_static = true;
  DType param = DType::f32, compute = DType::f32, output = DType::f32;
  std::optional<DType> reduce = {};
  Policy() = default;
  // "p=f32,c=bf16,o=f32", also params=, parameter=, compute=, output=, r=f32, reduce=, and float32,
  // bfloat16, ...; one dtype alone is the first three. Raises.
  explicit Policy(std::string_view spec, SourceLocation = SourceLocation::current());
  friend bool operator==(const Policy&, const Policy&) = default;

  // Casts the float arrays of a tree; others stay.
  template <class T>
  T cast_to_param(const T& tree, SourceLocation at = SourceLocation::current()) const {
    return cast(tree, param, at);
  }
  template <class T>
  T cast_to_compute(const T& tree, SourceLocation at = SourceLocation::current()) const {
    return cast(tree, compute, at);
  }
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

std::ostream& operator<<(std::ostream&, const Policy&);  // p=f32,c=bf16,o=f32

}  // namespace haliax
