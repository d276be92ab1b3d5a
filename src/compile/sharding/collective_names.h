// What moves, in words.
#pragma once
#include "compile/sharding/moves.h"

namespace haliax {

const char* name_of(Move::Kind);
std::string name_of(const Moved&);
std::string loops_of(const Move&, const Mesh&);  // walked around it
const char* cause_of(const Move&);               // what wants it
// Of sums that share a call a gradient stands for all; of gathers the first, which may be one that
// nobody asked for.
std::string array_of(const Move&);
template <class List, class Text> std::string listed(const List& list, const Text& text_of) {
  std::string out;
  for (auto& x : list) out += (out.empty() ? "" : ", ") + text_of(x);
  return out;
}

}  // namespace haliax
