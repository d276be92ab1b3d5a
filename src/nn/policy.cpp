#include "haliax/policy.h"

#include <array>

#include "base/name.h"
#include "graph/node.h"

namespace haliax {
namespace {

enum class Part { param, compute, output, reduce };
struct Field {
  const char* name;
  Part part;
};
constexpr std::array fields{
    Field{"p", Part::param},          Field{"params", Part::param}, Field{"param", Part::param},     Field{"parameter", Part::param},
    Field{"parameters", Part::param}, Field{"c", Part::compute},    Field{"compute", Part::compute}, Field{"o", Part::output},
    Field{"output", Part::output},    Field{"r", Part::reduce},     Field{"reduce", Part::reduce}};

void set(Policy& p, Part part, DType d) {
  switch (part) {
    case Part::param: p.param = d; return;
    case Part::compute: p.compute = d; return;
    case Part::output: p.output = d; return;
    case Part::reduce: p.reduce = d; return;
  }
}

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
  } catch (const Error& e) { why = e.what(); }
  fail("policy", "\"" + std::string(spec) + "\": " + why);
}

Part field_called(std::string_view name, std::string_view spec) {
  std::vector<std::string> known;
  for (auto& f : fields) {
    if (name == f.name) return f.part;
    known.emplace_back(f.name);
  }
  fail("policy", "\"" + std::string(spec) + "\": no part is called " + std::string(name) + did_you_mean(name, known) +
                     "; write it as p=f32,c=bf16,o=f32");
}

}  // namespace

Policy::Policy(std::string_view spec, SourceLocation at) {
  Here here(at);
  if (spec.find('=') == spec.npos) {
    param = compute = output = float_called(trimmed(spec), spec);
    return;
  }
  std::string_view rest = spec;
  std::vector<Part> seen;
  while (true) {
    auto comma = rest.find(',');
    auto part = trimmed(rest.substr(0, comma));
    auto equals = part.find('=');
    if (equals == part.npos)
      fail("policy", "\"" + std::string(spec) + "\": \"" + std::string(part) + "\" has no =; write it as p=f32,c=bf16,o=f32");
    auto field = field_called(trimmed(part.substr(0, equals)), spec);
    for (auto s : seen)
      if (s == field) fail("policy", "\"" + std::string(spec) + "\": " + std::string(part) + " says again what was said before");
    seen.push_back(field);
    set(*this, field, float_called(trimmed(part.substr(equals + 1)), spec));
    if (comma == rest.npos) return;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace haliax
