// Mixed-precision policies: parsing and printing.
#include "haliax/policy.h"

#include <ostream>

#include "base/name.h"
#include "graph/fail.h"

namespace haliax {
namespace {

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
  while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
  return s;
}

DType float_called(std::string_view name, std::string_view spec) {
  if (name == "half") return DType::f16;
  if (name == "full") return DType::f32;
  std::string why;
  try {
    if (auto d = dtype_of(name, SourceLocation()); is_float(d)) return d;
    why = std::string(name) + " is not a float";
  } catch (const Error& e) {
    why = e.what();
  }
  fail("policy", "\"{}\": {}", spec, why);
}

}  // namespace

Policy::Policy(std::string_view spec, SourceLocation at) {
  CallSite here(at);
  if (spec.find('=') == spec.npos) {
    param = compute = output = float_called(trimmed(spec), spec);
    return;
  }
  std::optional<DType> params, computation, outputs;
  struct Setting {
    const char* name;
    std::optional<DType>& dtype;
  };
  const Setting fields[] = {
      {"p", params},          {"params", params}, {"param", params},        {"parameter", params},
      {"parameters", params}, {"c", computation}, {"compute", computation}, {"o", outputs},
      {"output", outputs},    {"r", reduce},      {"reduce", reduce}};
  for (std::string_view rest = spec;; rest.remove_prefix(rest.find(',') + 1)) {
    auto part = trimmed(rest.substr(0, rest.find(',')));
    auto equals = part.find('=');
    if (equals == part.npos)
      fail("policy", "\"{}\": \"{}\" has no =; write it as p=f32,c=bf16,o=f32", spec, part);
    auto name = trimmed(part.substr(0, equals));
    auto field =
        std::find_if(std::begin(fields), std::end(fields), [&](auto& f) { return name == f.name; });
    if (field == std::end(fields))
      fail("policy", "\"{}\": there is no part {}{}; write it as p=f32,c=bf16,o=f32", spec, name,
           did_you_mean(name, fields, [](auto& f) { return f.name; }));
    if (field->dtype) fail("policy", "\"{}\": {} is specified twice", spec, part);
    field->dtype = float_called(trimmed(part.substr(equals + 1)), spec);
    if (rest.find(',') == rest.npos) break;
  }
  param = params.value_or(param);
  compute = computation.value_or(compute);
  output = outputs.value_or(output);
}

std::ostream& operator<<(std::ostream& out, const Policy& p) {
  out << "p=" << p.param << ",c=" << p.compute << ",o=" << p.output;
  return p.reduce ? out << ",r=" << *p.reduce : out;
}

}  // namespace haliax
