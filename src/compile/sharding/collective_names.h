// What moves, in words.
#pragma once
#include "compile/sharding/planned_collectives.h"

namespace haliax {

const char* name_of(PlannedCollective::Kind);
std::string name_of(const CommunicatedArray&);
std::string loops_of(const PlannedCollective&, const Mesh&);  // walked around it
const char* cause_of(const PlannedCollective&);               // what wants it
// Of sums that share a call a gradient stands for all; of gathers the first, which may be one that
// nobody asked for.
std::string array_of(const PlannedCollective&);
template <class List, class Text> std::string listed(const List& list, const Text& text_of) {
  std::string out;
  for (auto& x : list) out += (out.empty() ? "" : ", ") + text_of(x);
  return out;
}

}  // namespace haliax
