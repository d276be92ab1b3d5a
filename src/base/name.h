// The interned text behind a Name, and names that vmap makes.
#pragma once
#include <functional>
#include <string>

#include "haliax/axis.h"
#include "haliax/where.h"

namespace haliax {

struct NameData {
  std::string text;
  bool hidden = false;
  SourceLocation by = {};  // of a hidden one: where the vmap was written
};

// A name that prints like `shown` and equals no other name: the axis that an enclosing vmap hides.
Name fresh_hidden(Name shown, SourceLocation by = {});

// The candidate nearest to `wanted` in edit distance, if it is near enough: "; did you mean
// embed?"; else "".
std::string did_you_mean(std::string_view wanted, const std::vector<std::string>& candidates);
std::string did_you_mean(Name wanted, const Axes& candidates);
// Of the entries of a table; name(entry), or entry.*name: what it is called.
template <class Table, class NameOf>
std::string did_you_mean(std::string_view wanted, const Table& table, NameOf name) {
  std::vector<std::string> names;
  for (auto& entry : table) names.emplace_back(std::invoke(name, entry));
  return did_you_mean(wanted, names);
}

}  // namespace haliax
