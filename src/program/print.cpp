// A Program as text: one line a step. For people, reports and tests.
#include <string>

#include "program/program.h"

namespace haliax::program {
namespace {

const char* const kCodes[] = {"constant", "load", "iota", "cast", "neg", "abs", "sign", "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "cbrt",
                              "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfinv", "lgamma",
                              "digamma", "floor", "ceil", "round", "trunc", "logical_not", "bit_not", "is_finite", "is_nan", "is_inf", "popcount", "bitcast",
                              "add", "sub", "mul", "div", "floor_div", "mod", "rem", "pow", "max", "min", "atan2", "nextafter", "less", "less_equal", "equal",
                              "not_equal", "bit_and", "bit_or", "bit_xor", "shift_left", "shift_right", "select", "fma", "threefry0", "threefry1",
                              "threefry_xor", "reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_argmax", "reduce_argmin", "store", "store_add",
                              "store_max", "store_min"};

std::string text(const Dims& d) {
  std::string s = "[";
  for (auto n : d) s += (s.size() > 1 ? " " : "") + std::to_string(n);
  return s + "]";
}
std::string text(const Program& p, const View& v) {
  if (v.slot < 0) return "-";
  auto& s = p.slots[std::size_t(v.slot)];
  std::string out = s.home == Home::argument ? "arg" + std::to_string(s.index) : s.home == Home::result ? "out" + std::to_string(s.index) : "%" + std::to_string(v.slot);
  if (s.alias >= 0) out += "=%" + std::to_string(s.alias);
  if (v.offset) out += "+" + std::to_string(v.offset);
  for (auto& t : v.terms) out += t.loop >= 0 ? "+i" + std::to_string(t.loop) + "*" + std::to_string(t.stride) : "+[%" + std::to_string(t.slot) + "]*" + std::to_string(t.stride);
  return out + text(v.strides);
}
void print(const Program& p, const std::vector<Step>& steps, const std::string& indent, std::string& s) {
  for (auto& step : steps) {
    s += indent;
    switch (step.kind) {
      case Kind::fused: {
        auto& f = step.fused;
        Dims outer(f.dims.begin(), f.dims.begin() + f.outer), inner(f.dims.begin() + f.outer, f.dims.end());
        s += "fused " + text(outer) + (inner.empty() ? "" : text(inner));
        for (std::size_t i = 0; i < f.code.size(); ++i) {
          auto& c = f.code[i];
          s += "\n" + indent + "    " + std::to_string(i) + (c.inner ? ": " : ". ") + kCodes[int(c.code)] + " " + std::string(name_of(c.dtype));
          for (int a : c.args) if (a >= 0) s += " " + std::to_string(a);
          if (c.code == Code::constant) s += " " + std::to_string(c.number);
          if (c.view.slot >= 0) s += " " + text(p, c.view);
        }
        break;
      }
      case Kind::contract: {
        auto& c = step.contract;
        s += "contract " + text(p, c.out) + (c.accumulate ? " += " : " = ") + text(p, c.a) + " x " + text(p, c.b) + "  batch" + text(c.batch) + " m" + text(c.m) + " n" + text(c.n) + " k" + text(c.k);
        break;
      }
      case Kind::gather: s += "gather " + text(p, step.gather.out) + " from " + text(p, step.gather.table); break;
      case Kind::scatter: s += "scatter " + text(p, step.scatter.updates) + " into " + text(p, step.scatter.target); break;
      case Kind::sort: s += "sort " + text(p, step.sort.x); break;
      case Kind::cumulative: s += "cumulative " + text(p, step.cumulative.x); break;
      case Kind::copy: s += "copy " + text(step.copy.dims) + " " + text(p, step.copy.x) + " to " + text(p, step.copy.out); break;
      case Kind::custom: {
        auto& c = step.custom;
        Dims outer(c.dims.begin(), c.dims.begin() + c.outer), inner(c.dims.begin() + c.outer, c.dims.end());
        s += std::string(step.why) + " " + text(outer) + text(inner);
        for (auto& x : c.arrays) s += (&x == &c.arrays.back() ? " to " : " ") + text(p, x);
        break;
      }
      case Kind::skip: s += "skip the rest unless " + text(p, step.skip.unless); break;
      case Kind::collective: {
        const char* const names[] = {"all_reduce", "reduce_scatter", "all_gather", "exchange"};
        auto& c = step.collective;
        s += names[int(c.wire)];
        for (auto& x : c.x) s += " " + text(p, x.view);
        s += " to";
        for (auto& out : c.out) s += " " + text(p, out.view);
        break;
      }
      case Kind::loop: s += "loop " + (step.loop.variable < 0 ? "" : "i" + std::to_string(step.loop.variable) + " ") + "x" + std::to_string(step.loop.trips) + (step.loop.reverse ? " reversed" : ""); break;
    }
    if (!step.where.empty()) s += "    # " + std::string(step.why) + " " + step.where;
    s += "\n";
    if (step.kind == Kind::loop) print(p, step.loop.body, indent + "  ", s);
  }
}

}  // namespace

std::string to_string(const Program& p) {
  std::string s = std::to_string(p.arguments) + " arguments, " + std::to_string(p.results) + " results, arena " + std::to_string(p.arena_bytes) + " bytes, peak " +
                  std::to_string(p.peak_bytes) + " bytes\n";
  print(p, p.steps, "", s);
  return s;
}

}  // namespace haliax::program
