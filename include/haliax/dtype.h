// Element types, and how they combine.
#pragma once
#include <cstdint>
#include <iosfwd>
#include <string_view>

#include "haliax/where.h"

namespace [[gnu::visibility("default")]] haliax {

enum class DType : std::uint8_t {
  f32,
  f64,
  bf16,
  f16,
  i8,
  i16,
  i32,
  i64,
  u8,
  u16,
  u32,
  u64,
  boolean
};

int bytes_of(DType);              // of one element
std::string_view name_of(DType);  // "f32", "bf16", "bool", ...
std::ostream& operator<<(std::ostream&, DType);
// By that name; also "float32", "bfloat16", ...; raises for any other.
DType dtype_of(std::string_view name, SourceLocation = SourceLocation::current());
bool is_float(DType);
bool is_integer(DType);  // signed or unsigned; bool is neither
bool is_signed(DType);   // signed integers
// The dtype of `a op b`, as JAX promotes: floats win over integers, bf16 with f16 is f32, u32 with
// i32 is i64.
DType promote(DType a, DType b);

}  // namespace haliax
