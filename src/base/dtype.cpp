// The table of dtypes: names, sizes, classes and promotion.
#include "haliax/dtype.h"

#include <algorithm>
#include <array>
#include <ostream>

#include "base/name.h"
#include "base/scalar.h"
#include "base/where.h"
#include "haliax/error.h"

namespace haliax {
namespace {

enum class Class : std::uint8_t { boolean, integer, real };
struct Facts {
  DType dtype;
  const char* name;
  const char* long_name;
  int bytes;
  Class cls;
  bool is_signed;
};
constexpr std::array<Facts, 13> kRows{{
    {DType::f32, "f32", "float32", 4, Class::real, true},
    {DType::f64, "f64", "float64", 8, Class::real, true},
    {DType::bf16, "bf16", "bfloat16", 2, Class::real, true},
    {DType::f16, "f16", "float16", 2, Class::real, true},
    {DType::i8, "i8", "int8", 1, Class::integer, true},
    {DType::i16, "i16", "int16", 2, Class::integer, true},
    {DType::i32, "i32", "int32", 4, Class::integer, true},
    {DType::i64, "i64", "int64", 8, Class::integer, true},
    {DType::u8, "u8", "uint8", 1, Class::integer, false},
    {DType::u16, "u16", "uint16", 2, Class::integer, false},
    {DType::u32, "u32", "uint32", 4, Class::integer, false},
    {DType::u64, "u64", "uint64", 8, Class::integer, false},
    {DType::boolean, "bool", "boolean", 1, Class::boolean, false},
}};
constexpr bool as_in_scalar(const Facts& r) {
  return kRows[std::size_t(r.dtype)].dtype == r.dtype &&
         scalar::holds_real(r.dtype) == (r.cls == Class::real) &&
         scalar::bytes_per(r.dtype) == r.bytes && scalar::is_unsigned(r.dtype) == !r.is_signed;
}
static_assert(std::all_of(kRows.begin(), kRows.end(), as_in_scalar));
const Facts& row(DType d) { return kRows[std::size_t(d)]; }

}  // namespace

int bytes_of(DType d) { return row(d).bytes; }
std::string_view name_of(DType d) { return row(d).name; }
std::ostream& operator<<(std::ostream& out, DType d) { return out << name_of(d); }
bool is_float(DType d) { return row(d).cls == Class::real; }
bool is_integer(DType d) { return row(d).cls == Class::integer; }
bool is_signed(DType d) { return is_integer(d) && row(d).is_signed; }

DType dtype_of(std::string_view name, SourceLocation at) {
  for (auto& r : kRows)
    if (name == r.name || name == r.long_name) return r.dtype;
  auto place = to_string(at);
  throw Error("[dtype] there is no dtype " + std::string(name) +
              did_you_mean(name, kRows, &Facts::long_name) + (place.empty() ? "" : "; " + place));
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  auto &x = row(a), &y = row(b);
  // floats win over integers, and integers over bool
  if (x.cls != y.cls) return x.cls > y.cls ? a : b;
  // bf16 and f16 promote to f32
  if (x.cls == Class::real) return x.bytes == y.bytes ? DType::f32 : x.bytes > y.bytes ? a : b;
  if (x.is_signed == y.is_signed) return x.bytes > y.bytes ? a : b;
  auto &s = x.is_signed ? x : y, &u = x.is_signed ? y : x;
  if (s.bytes > u.bytes) return s.dtype;
  constexpr DType wider[]{DType::i16, DType::i32, DType::i64};
  return u.bytes >= 8 ? DType::f32 : wider[u.bytes == 1 ? 0 : u.bytes == 2 ? 1 : 2];
}

}  // namespace haliax
