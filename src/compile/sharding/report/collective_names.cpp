// Names of planned collectives and of the arrays that they communicate.
#include "compile/sharding/report/collective_names.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/name.h"

namespace haliax {

const char* name_of(PlannedCollective::Kind k) {
  const char* const names[] = {"reduce-scatter", "all-to-all", "all-reduce",
                               "all-gather",     "ring",       "permute"};
  return names[int(k)];
}
std::string name_of(const CommunicatedArray& a) {
  auto name = [&](std::size_t k) { return std::string(a.names[k].text()); };
  switch (a.what) {
    case CommunicatedArray::What::argument:
      return name(0);
    case CommunicatedArray::What::updated:
      return "new " + name(0);
    case CommunicatedArray::What::op:
      return a.op;
    case CommunicatedArray::What::part:
      return std::string("part of ") + a.op;
    case CommunicatedArray::What::gradient:
      break;
  }
  auto more = a.names.size() == 2  ? " and " + name(1)
              : a.names.size() > 2 ? fmt::format(" and {} more", a.names.size() - 1)
                                   : std::string();
  return "gradient of " + name(0) + more;
}
std::string loops_of(const PlannedCollective& m, const Mesh& mesh) {
  auto out = listed(m.loops, [](Name a) { return std::string(a.text()); });
  if (m.kind != PlannedCollective::Kind::ring) return out;
  return (out.empty() ? "" : out + ", ") + to_string(mesh, m.over);
}
const char* cause_of(const PlannedCollective& m) { return m.cause ? m.cause : "result"; }
std::string array_of(const PlannedCollective& m) {
  auto is_gradient = [](auto& a) { return a.what == CommunicatedArray::What::gradient; };
  auto first =
      m.gathers() ? m.arrays.begin() : std::find_if(m.arrays.begin(), m.arrays.end(), is_gradient);
  if (first == m.arrays.end()) first = m.arrays.begin();
  auto text = name_of(*first) + " " + to_string(first->axes);
  if (m.arrays.size() == 1) return text;
  if (std::all_of(m.arrays.begin(), m.arrays.end(), is_gradient)) text.insert(text.find(' '), "s");
  return fmt::format("{} and {} more", text, m.arrays.size() - 1);
}

}  // namespace haliax
