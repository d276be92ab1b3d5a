// Elementwise ops under the names of Haliax.
#include "haliax/aliases.h"
#include "table.h"

namespace golden {

namespace hx = haliax;
using hx::Arr;
using hx::NamedArray;

namespace {

void unary(Table& t, const char* name, NamedArray (*f)(Arr)) {
  t[name] = [f](const Arrays& in, const Value&) { return Arrays{f(input(in, 0))}; };
}
// Adds an op with two inputs, or with one input and a scalar.
void binary(Table& t, const char* name, NamedArray (*f)(Arr, Arr)) {
  t[name] = [f](const Arrays& in, const Value& args) {
    if (const Value* lhs = args.find("lhs")) return Arrays{f(number_of(*lhs), input(in, 0))};
    if (const Value* rhs = args.find("rhs")) return Arrays{f(input(in, 0), number_of(*rhs))};
    return Arrays{f(input(in, 0), input(in, 1))};
  };
}

}  // namespace

void add_elementwise_ops(Table& t) {
  unary(t, "abs", hx::abs);
  unary(t, "sign", hx::sign);
  unary(t, "negative", hx::negative);
  unary(t, "positive", hx::positive);
  unary(t, "square", hx::square);
  unary(t, "reciprocal", hx::reciprocal);
  unary(t, "exp", hx::exp);
  unary(t, "exp2", hx::exp2);
  unary(t, "expm1", hx::expm1);
  unary(t, "log", hx::log);
  unary(t, "log2", hx::log2);
  unary(t, "log10", hx::log10);
  unary(t, "log1p", hx::log1p);
  unary(t, "sqrt", hx::sqrt);
  unary(t, "rsqrt", hx::rsqrt);
  unary(t, "cbrt", hx::cbrt);
  unary(t, "sin", hx::sin);
  unary(t, "cos", hx::cos);
  unary(t, "tan", hx::tan);
  unary(t, "arcsin", hx::arcsin);
  unary(t, "arccos", hx::arccos);
  unary(t, "arctan", hx::arctan);
  unary(t, "sinh", hx::sinh);
  unary(t, "cosh", hx::cosh);
  unary(t, "tanh", hx::tanh);
  unary(t, "arcsinh", hx::arcsinh);
  unary(t, "arccosh", hx::arccosh);
  unary(t, "arctanh", hx::arctanh);
  unary(t, "erf", hx::erf);
  unary(t, "erfinv", hx::erfinv);
  unary(t, "deg2rad", hx::deg2rad);
  unary(t, "rad2deg", hx::rad2deg);
  unary(t, "floor", hx::floor);
  unary(t, "ceil", hx::ceil);
  unary(t, "trunc", hx::trunc);
  unary(t, "isfinite", hx::isfinite);
  unary(t, "isnan", hx::isnan);
  unary(t, "isinf", hx::isinf);
  unary(t, "isneginf", hx::isneginf);
  unary(t, "isposinf", hx::isposinf);
  unary(t, "signbit", hx::signbit);
  unary(t, "logical_not", hx::logical_not);
  unary(t, "bitwise_not", hx::bitwise_not);
  unary(t, "absolute", hx::absolute);
  unary(t, "fabs", hx::fabs);
  unary(t, "rint", hx::rint);
  unary(t, "fix", hx::fix);
  unary(t, "degrees", hx::degrees);
  unary(t, "radians", hx::radians);
  unary(t, "invert", hx::invert);
  unary(t, "copy", hx::copy);
  unary(t, "sinc", hx::sinc);
  unary(t, "i0", hx::i0);
  t["round"] = t["around"] = [](const Arrays& in, const Value& args) {
    const Value* decimals = args.find("decimals");
    return Arrays{hx::around(input(in, 0), decimals ? int(decimals->as_integer()) : 0)};
  };
  t["isclose"] = [](const Arrays& in, const Value& args) {
    hx::CloseOptions o;
    if (const Value* rtol = args.find("rtol")) o.rtol = rtol->as_real();
    if (const Value* atol = args.find("atol")) o.atol = atol->as_real();
    o.equal_nan = args["equal_nan"].as_flag(false);
    return Arrays{hx::isclose(input(in, 0), input(in, 1), o)};
  };
  t["nonzero"] = [](const Arrays& in, const Value& args) {
    const Value* fill = args.find("fill_value");
    return hx::nonzero(input(in, 0), axis_of(args["new_axis"]), fill ? fill->as_integer() : 0);
  };
  t["astype"] = [](const Arrays& in, const Value& args) {
    return Arrays{hx::astype(input(in, 0), hx::dtype_of(args["dtype"].as_text()))};
  };

  binary(t, "add", hx::add);
  binary(t, "subtract", hx::subtract);
  binary(t, "multiply", hx::multiply);
  binary(t, "divide", hx::divide);
  binary(t, "power", hx::power);
  binary(t, "maximum", hx::maximum);
  binary(t, "minimum", hx::minimum);
  binary(t, "floor_divide", hx::floor_divide);
  binary(t, "mod", hx::mod);
  binary(t, "fmod", hx::fmod);
  binary(t, "arctan2", hx::arctan2);
  binary(t, "hypot", hx::hypot);
  binary(t, "logaddexp", hx::logaddexp);
  binary(t, "nextafter", hx::nextafter);
  binary(t, "fmax", hx::fmax);
  binary(t, "fmin", hx::fmin);
  binary(t, "true_divide", hx::true_divide);
  binary(t, "remainder", hx::remainder);
  binary(t, "logaddexp2", hx::logaddexp2);
  binary(t, "float_power", hx::float_power);
  binary(t, "equal", hx::equal);
  binary(t, "not_equal", hx::not_equal);
  binary(t, "less", hx::less);
  binary(t, "less_equal", hx::less_equal);
  binary(t, "greater", hx::greater);
  binary(t, "greater_equal", hx::greater_equal);
  binary(t, "logical_and", hx::logical_and);
  binary(t, "logical_or", hx::logical_or);
  binary(t, "logical_xor", hx::logical_xor);
  binary(t, "bitwise_and", hx::bitwise_and);
  binary(t, "bitwise_or", hx::bitwise_or);
  binary(t, "bitwise_xor", hx::bitwise_xor);
  binary(t, "left_shift", hx::left_shift);
  binary(t, "right_shift", hx::right_shift);

  t["divmod"] = [](const Arrays& in, const Value& args) {
    const Value *lhs = args.find("lhs"), *rhs = args.find("rhs");
    auto [quotient, rest] = lhs   ? hx::divmod(number_of(*lhs), input(in, 0))
                            : rhs ? hx::divmod(input(in, 0), number_of(*rhs))
                                  : hx::divmod(input(in, 0), input(in, 1));
    return Arrays{quotient, rest};
  };
  t["where"] = [](const Arrays& in, const Value& args) {
    std::size_t next = 1;
    auto choice = [&](const char* name) -> Arr {
      const Value* number = args.find(name);
      return number ? number_of(*number) : Arr(input(in, next++));
    };
    const Arr x = choice("x"), y = choice("y");
    return Arrays{hx::where(input(in, 0), x, y)};
  };
  t["clip"] = [](const Arrays& in, const Value& args) {
    std::size_t next = 1;
    auto bound = [&](const char* name) -> std::optional<Arr> {
      if (const Value* number = args.find(name)) return number_of(*number);
      if (next < in.size()) return Arr(in[next++]);
      return {};
    };
    const auto low = bound("min"), high = bound("max");
    return Arrays{hx::clip(input(in, 0), low, high)};
  };
}

}  // namespace golden
