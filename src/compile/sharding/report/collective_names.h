// Names and descriptions of planned collectives, for reports.
#pragma once
#include "compile/sharding/report/planned_collectives.h"

namespace haliax {

const char* name_of(PlannedCollective::Kind);
std::string name_of(const CommunicatedArray&);
std::string loops_of(const PlannedCollective&, const Mesh&);  // enclosing loops
const char* cause_of(const PlannedCollective&);               // the op that reads its result
// Describes the arrays of a collective by one of them and a count. The first array represents the
// arrays of a gather; it may be unrequested. A gradient represents the arrays of a reduction.
std::string array_of(const PlannedCollective&);
template <class List, class Text> std::string listed(const List& list, const Text& text_of) {
  std::string out;
  for (auto& x : list) out += (out.empty() ? "" : ", ") + text_of(x);
  return out;
}

}  // namespace haliax
