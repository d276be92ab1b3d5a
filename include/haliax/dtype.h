// Element types, and their promotion.
#pragma once
#include <cstdint>
#include <iosfwd>
#include <string_view>

#include "haliax/where.h"

namespace [[gnu::visibility("default")]] haliax {

/// The element type of an array.
enum class DType : std::uint8_t {
  f32,     ///< 32-bit float; the default float
  f64,     ///< 64-bit float
  bf16,    ///< 16-bit float with the exponent range of `f32`
  f16,     ///< 16-bit IEEE float
  i8,      ///< signed 8-bit integer
  i16,     ///< signed 16-bit integer
  i32,     ///< signed 32-bit integer; the default integer
  i64,     ///< signed 64-bit integer
  u8,      ///< unsigned 8-bit integer
  u16,     ///< unsigned 16-bit integer
  u32,     ///< unsigned 32-bit integer
  u64,     ///< unsigned 64-bit integer
  boolean  ///< bool, one byte; its name is `"bool"`
};

/// Returns the size of one element in bytes.
int bytes_of(DType dtype);
/// Returns the name: `"f32"`, `"bf16"`, `"bool"`, ...
std::string_view name_of(DType dtype);
/// Writes the name.
std::ostream& operator<<(std::ostream& out, DType dtype);
/// Returns the dtype with a short or a long name: `"f32"` or `"float32"`, `"bool"` or `"boolean"`.
///
/// @throws haliax::Error for any other name
DType dtype_of(std::string_view name, SourceLocation at = SourceLocation::current());
/// Returns true for floats.
bool is_float(DType dtype);
/// Returns true for signed and unsigned integers. A bool is not an integer.
bool is_integer(DType dtype);
/// Returns true for signed integers.
bool is_signed(DType dtype);
/// Returns the dtype of `a op b`.
///
/// As in JAX, floats win over integers, and integers over bools. `bf16` with `f16` is `f32`, and
/// `u32` with `i32` is `i64`. `u64` with a signed integer is `f32`.
DType promote(DType a, DType b);

}  // namespace haliax
