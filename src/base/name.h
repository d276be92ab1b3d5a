// The interned string of a Name, hidden names, and suggestions for misspelled names.
#pragma once
#include <functional>
#include <string>

#include "haliax/axis.h"
#include "haliax/where.h"

namespace haliax {

struct NameData {
  std::string text;
  bool hidden = false;
  SourceLocation by = {};  // location of the vmap that created a hidden name
};

// Creates a name that prints like `shown` and equals no other name: the axis that an enclosing vmap
// hides.
Name fresh_hidden(Name shown, SourceLocation by = {});

// Returns "; did you mean embed?" with the candidate nearest to `requested` in edit distance, or ""
// if no candidate is near enough.
std::string did_you_mean(std::string_view requested, const std::vector<std::string>& candidates);
std::string did_you_mean(Name requested, const Axes& candidates);
// The same for the entries of a table. `name` is a callable or a data member that returns the name
// of an entry.
template <class Table, class NameOf>
std::string did_you_mean(std::string_view requested, const Table& table, NameOf name) {
  std::vector<std::string> names;
  for (auto& entry : table) names.emplace_back(std::invoke(name, entry));
  return did_you_mean(requested, names);
}

}  // namespace haliax
