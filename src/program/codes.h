// Instructions of fused steps: their names, and what those compute that are functions of C.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace haliax::program {

// What a point-wise instruction does. The result has the dtype of the instruction; operands have
// been cast to what the code wants, so that arithmetic has operands of its own dtype and
// comparisons have two operands of one dtype.
enum class Code : std::uint8_t {
  // leaves
  constant,  // `number` (floats) or `integer` (integers, bool)
  load,      // reads `view`
  // position along iteration dimension `dim`, times `stride`, plus `integer`, plus loop terms of
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
  // of bits; of bool: logical
  less,
  less_equal,
  equal,
  not_equal,
  bit_and,
  bit_or,
  bit_xor,
  shift_left,
  shift_right,
  // ternary
  select,  // a ? b : c
  fma,     // a * b + c, rounded once
  // four operands: key word 0, key word 1, counter high, counter low (u32); the two words of
  // Threefry-2x32-20 and their xor
  threefry0,
  threefry1,
  threefry_xor,
  // over the inner dimensions: makes one value for each outer point of a value for each inner point
  reduce_sum,
  reduce_prod,
  reduce_max,
  reduce_min,  // max and min pass NaN on
  reduce_argmax,
  reduce_argmin,  // first position (flat over the inner dimensions); a NaN wins
  // writes
  store,      // args[0] into `view`
  store_add,  // view += args[0]; also for max, min below
  store_max,
  store_min,
};
constexpr const char* code_names[] = {  // in that order
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

constexpr int operands_of(Code c) {  // of a point-wise instruction
  return c <= Code::iota           ? 0
         : c <= Code::bitcast      ? 1
         : c <= Code::shift_right  ? 2
         : c <= Code::fma          ? 3
         : c <= Code::threefry_xor ? 4
                                   : 1;
}
// It finds the position of an extreme, which is no value of what it folds.
constexpr bool finds_position(Code c) {
  return c == Code::reduce_argmax || c == Code::reduce_argmin;
}
// It is computed in many steps, where others are an instruction of the machine: what costs more to
// make again than to keep.
constexpr bool takes_steps(Code c) {
  const bool function = c >= Code::exp && c <= Code::digamma && c != Code::sqrt && c != Code::rsqrt;
  return function || c == Code::pow || c == Code::atan2 ||
         (c >= Code::threefry0 && c <= Code::threefry_xor);
}

// Functions of one number that C has: all that a backend has to know of those which it does not
// make in a way of its own.
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
constexpr const Function* function_of(Code c) {  // null: it is none
  for (auto& f : functions)
    if (f.code == c) return &f;
  return nullptr;
}

}  // namespace haliax::program
