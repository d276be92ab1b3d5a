// Instructions of fused steps: codes, names, operand counts, and the C functions that compute some
// of them.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace haliax::program {

// An elementwise instruction. The result has the dtype of the instruction. Operands are cast
// beforehand: arithmetic has operands of its own dtype, and a comparison has two operands of one
// dtype. The order has a meaning: the predicates below test ranges.
enum class Code : std::uint8_t {
  // leaves
  constant,  // `number` for floats, `integer` for integers and bool
  load,      // reads `view`
  // position along dim `dim` of the step, times `stride`, plus `integer`, plus the loop terms of
  // `view`
  iota,
  // unary
  cast,
  neg,
  abs,
  sign,
  exp,
  exp2,
  expm1,
  log,
  log2,
  log1p,
  sqrt,
  rsqrt,
  cbrt,
  sin,
  cos,
  tan,
  asin,
  acos,
  atan,
  sinh,
  cosh,
  tanh,
  sigmoid,
  asinh,
  acosh,
  atanh,
  erf,
  erfinv,
  lgamma,
  digamma,
  floor,
  ceil,
  round,
  trunc,
  logical_not,
  bit_not,
  is_finite,
  is_nan,
  is_inf,
  popcount,
  bitcast,
  // binary
  add,
  sub,
  mul,
  div,
  floor_div,
  mod,
  rem,
  pow,
  max,
  min,
  atan2,
  nextafter,
  less,
  less_equal,
  equal,
  not_equal,
  // bitwise; logical for bool
  bit_and,
  bit_or,
  bit_xor,
  shift_left,
  shift_right,
  // ternary
  select,  // a ? b : c
  fma,     // a * b + c, rounded once
  // four operands (u32): key word 0, key word 1, counter high, counter low; yield the two words of
  // Threefry-2x32-20 and their xor
  threefry0,
  threefry1,
  threefry_xor,
  // reductions over the inner dims: one value per outer position
  reduce_sum,
  reduce_prod,
  // NaN if an element is NaN
  reduce_max,
  reduce_min,
  // first position, counted row-major over the inner dims; the position of a NaN if there is one
  reduce_argmax,
  reduce_argmin,
  // writes
  store,      // view = args[0]
  store_add,  // view += args[0]
  store_max,  // view = max(view, args[0])
  store_min,  // view = min(view, args[0])
};
constexpr const char* code_names[] = {  // in the order of Code
    "constant",   "load",        "iota",          "cast",          "neg",         "abs",
    "sign",       "exp",         "exp2",          "expm1",         "log",         "log2",
    "log1p",      "sqrt",        "rsqrt",         "cbrt",          "sin",         "cos",
    "tan",        "asin",        "acos",          "atan",          "sinh",        "cosh",
    "tanh",       "sigmoid",     "asinh",         "acosh",         "atanh",       "erf",
    "erfinv",     "lgamma",      "digamma",       "floor",         "ceil",        "round",
    "trunc",      "logical_not", "bit_not",       "is_finite",     "is_nan",      "is_inf",
    "popcount",   "bitcast",     "add",           "sub",           "mul",         "div",
    "floor_div",  "mod",         "rem",           "pow",           "max",         "min",
    "atan2",      "nextafter",   "less",          "less_equal",    "equal",       "not_equal",
    "bit_and",    "bit_or",      "bit_xor",       "shift_left",    "shift_right", "select",
    "fma",        "threefry0",   "threefry1",     "threefry_xor",  "reduce_sum",  "reduce_prod",
    "reduce_max", "reduce_min",  "reduce_argmax", "reduce_argmin", "store",       "store_add",
    "store_max",  "store_min"};

static_assert(std::size(code_names) == std::size_t(Code::store_min) + 1);

// Returns true for an instruction without operands.
constexpr bool is_leaf(Code c) { return c <= Code::iota; }
constexpr bool is_comparison(Code c) { return c >= Code::less && c <= Code::not_equal; }
// Returns true for a test of one float.
constexpr bool is_float_test(Code c) { return c >= Code::is_finite && c <= Code::is_inf; }
// Returns true if the result is a bool for operands of any dtype.
constexpr bool yields_bool(Code c) {
  return is_comparison(c) || is_float_test(c) || c == Code::logical_not;
}
// Returns true for an instruction on the bits of integers or on bools.
constexpr bool is_bitwise(Code c) {
  return c == Code::bit_not || (c >= Code::bit_and && c <= Code::shift_right);
}
// Returns true if the result is the nearest integer in some direction.
constexpr bool is_rounding(Code c) { return c >= Code::floor && c <= Code::trunc; }
constexpr bool is_threefry(Code c) { return c >= Code::threefry0 && c <= Code::threefry_xor; }
constexpr bool is_reduction(Code c) { return c >= Code::reduce_sum && c <= Code::reduce_argmin; }
constexpr bool is_store(Code c) { return c >= Code::store; }
// Returns true if the instruction accesses the memory of its view.
constexpr bool accesses_memory(Code c) { return c == Code::load || is_store(c); }
// Returns the number of operands of an instruction.
constexpr int operands_of(Code c) {
  return is_leaf(c)                ? 0
         : c <= Code::bitcast      ? 1
         : c <= Code::shift_right  ? 2
         : c <= Code::fma          ? 3
         : c <= Code::threefry_xor ? 4
                                   : 1;
}
// Returns true if the instruction yields a position rather than a value of its operand.
constexpr bool finds_position(Code c) {
  return c == Code::reduce_argmax || c == Code::reduce_argmin;
}
// Returns true if the instruction takes many machine instructions, so that saving its result is
// cheaper than recomputing it.
constexpr bool is_expensive(Code c) {
  const bool function = c >= Code::exp && c <= Code::digamma && c != Code::sqrt && c != Code::rsqrt;
  return function || c == Code::pow || c == Code::atan2 || is_threefry(c);
}

// The elementwise functions that the C library has. A backend uses them wherever it has no
// implementation of its own.
struct Function {
  Code code;
  const char* name;
  double (*of)(double);
};
constexpr Function functions[] = {
    {Code::exp, "exp", std::exp},       {Code::exp2, "exp2", std::exp2},
    {Code::expm1, "expm1", std::expm1}, {Code::log, "log", std::log},
    {Code::log2, "log2", std::log2},    {Code::log1p, "log1p", std::log1p},
    {Code::sqrt, "sqrt", std::sqrt},    {Code::cbrt, "cbrt", std::cbrt},
    {Code::sin, "sin", std::sin},       {Code::cos, "cos", std::cos},
    {Code::tan, "tan", std::tan},       {Code::asin, "asin", std::asin},
    {Code::acos, "acos", std::acos},    {Code::atan, "atan", std::atan},
    {Code::sinh, "sinh", std::sinh},    {Code::cosh, "cosh", std::cosh},
    {Code::tanh, "tanh", std::tanh},    {Code::asinh, "asinh", std::asinh},
    {Code::acosh, "acosh", std::acosh}, {Code::atanh, "atanh", std::atanh},
    {Code::erf, "erf", std::erf},       {Code::lgamma, "lgamma", std::lgamma},
    {Code::floor, "floor", std::floor}, {Code::ceil, "ceil", std::ceil},
    {Code::round, "rint", std::rint},   {Code::trunc, "trunc", std::trunc}};
// Returns the C function of an instruction, or null if it has none.
constexpr const Function* function_of(Code c) {
  for (auto& f : functions)
    if (f.code == c) return &f;
  return nullptr;
}

}  // namespace haliax::program
