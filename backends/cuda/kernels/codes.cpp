// The instructions of fused steps as kernel source; see codes.h.
#include "codes.h"

#include <fmt/format.h>

#include <map>

namespace haliax::cuda {

using program::Code;
using program::Instr;

namespace {

// Returns the function of an instruction on wide numbers: one of kernel.h, or a C function.
std::string text_of(Code c) {
  static const std::map<Code, const char*> own{{Code::neg, "scalar::negate"},
                                               {Code::abs, "kernel::abs"},
                                               {Code::sign, "scalar::sign"},
                                               {Code::log1p, "kernel::log1p"},
                                               {Code::rsqrt, "kernel::rsqrt"},
                                               {Code::erfinv, "kernel::erfinv"},
                                               {Code::sigmoid, "scalar::sigmoid"},
                                               {Code::digamma, "kernel::digamma"},
                                               {Code::add, "add"},
                                               {Code::sub, "sub"},
                                               {Code::mul, "mul"},
                                               {Code::div, "scalar::div"},
                                               {Code::floor_div, "scalar::floor_div"},
                                               {Code::mod, "scalar::mod"},
                                               {Code::rem, "scalar::rem"},
                                               {Code::pow, "power"},
                                               {Code::max, "scalar::max"},
                                               {Code::min, "scalar::min"},
                                               {Code::atan2, "std::atan2"},
                                               {Code::fma, "kernel::fma"}};
  auto mine = own.find(c);
  return mine != own.end() ? mine->second : fmt::format("std::{}", program::function_of(c)->name);
}
const char* operator_of(Code c) {
  switch (c) {
    case Code::less:
      return "<";
    case Code::less_equal:
      return "<=";
    case Code::equal:
      return "==";
    case Code::not_equal:
      return "!=";
    case Code::bit_and:
      return "&";
    case Code::bit_or:
      return "|";
    case Code::bit_xor:
      return "^";
    default:
      return nullptr;
  }
}

}  // namespace

bool is_long(Code c) {
  const bool divides = c == Code::div || c == Code::rem || c == Code::mod || c == Code::floor_div;
  return divides || c == Code::sqrt || c == Code::rsqrt || is_expensive(c);
}
std::string fold_of(Code c) {
  if (finds_position(c)) return c == Code::reduce_argmax ? "First{true}" : "First{false}";
  return cuda::fold_of(program::monoid_of(c));
}

std::string value_source(const Instr& in, const std::string* x, DType first) {
  auto S = element_of(in.dtype);
  auto A = element_of(first);
  auto call = [&](const std::string& f) {
    std::string args;
    for (std::size_t a = 0; a < operands(in).size(); ++a)
      args += fmt::format("{}wide({})", a ? ", " : "", x[a]);
    return fmt::format("result<{}>({}({}))", S, f, args);
  };
  if (auto* op = operator_of(in.code)) {
    return is_comparison(in.code)
               ? fmt::format("{} {} {}", x[0], op, x[1])
               : fmt::format("result<{}>(wide({}) {} wide({}))", S, x[0], op, x[1]);
  }
  switch (in.code) {
    case Code::cast:
      return fmt::format("cast<{}, {}>({})", S, A, x[0]);
    case Code::bitcast:
      return fmt::format("of_bits<{}>(bits<{}>({}))", S, A, x[0]);
    case Code::logical_not:
      return fmt::format("{} == 0", x[0]);
    case Code::bit_not:
      return in.dtype == DType::boolean ? "!" + x[0]
                                        : fmt::format("result<{}>(~wide({}))", S, x[0]);
    case Code::is_finite:
      return fmt::format("is_finite({})", x[0]);
    case Code::is_nan:
      return fmt::format("is_nan({})", x[0]);
    case Code::is_inf:
      return fmt::format("is_inf({})", x[0]);
    case Code::popcount:
      return fmt::format("result<{}>(__popcll(std::make_unsigned_t<{}>({})))", S, A, x[0]);
    case Code::nextafter:
      return fmt::format("kernel::nextafter<{}>({}, {})", S, x[0], x[1]);
    case Code::shift_left:
    case Code::shift_right:
      return fmt::format("result<{}>(scalar::{}(wide({}), wide({}), {}))", S,
                         in.code == Code::shift_left ? "shift_left" : "shift_right", x[0], x[1],
                         8 * bytes_of(in.dtype));
    case Code::select:
      return fmt::format("{} ? {} : {}", x[0], x[1], x[2]);
    case Code::threefry0:
    case Code::threefry1:
    case Code::threefry_xor: {
      auto words = fmt::format("scalar::threefry({}, {}, {}, {})", x[0], x[1], x[2], x[3]);
      return in.code == Code::threefry0   ? words + ".a"
             : in.code == Code::threefry1 ? words + ".b"
                                          : "xor_of(" + words + ")";
    }
    case Code::floor:
    case Code::ceil:
    case Code::round:
    case Code::trunc:
      if (!is_float(in.dtype)) return x[0];
      break;
    default:
      break;
  }
  return call(text_of(in.code));
}

}  // namespace haliax::cuda
