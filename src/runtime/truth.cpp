// An array as a truth value: what `if`, `?:`, `assert` and std::max ask of a comparison.
#include "haliax/array.h"
#include "ops/prim.h"

namespace haliax {
namespace {

// Does it depend on what has no value yet: an argument of jit, the carry of a loop, an axis hidden by vmap?
bool is_traced(const NodePtr& root) {
  for (auto& a : root->axes)
    if (a.name.hidden()) return true;
  if (!root->value && !root->free.empty()) return true;
  GraphReader reader;
  for (auto& n : topological({root}, [](const Node& n) { return bool(n.value); }))
    if (n->op == &prim::kInput && !n->value && n->donated.empty()) return true;
  return false;
}

}  // namespace

NamedArray::operator bool() const {
  if (!node_) fail("bool", "an empty NamedArray is neither true nor false; x.empty() asks whether there is an array");
  auto& origin = node_->origin;   // a conversion is not told where it stands: an `if` mostly makes what it asks
  if (size() != 1)
    fail_at(origin, "bool", "an array of " + std::to_string(size()) + " elements " + haliax::to_string(axes()) +
                                " is neither true nor false; all(x) or any(x) says which is meant, where(x, a, b) "
                                "picks for each element");
  try {
    return item(origin.at) != 0;
  } catch (const Error&) {
    if (!is_traced(node_)) throw;
    fail_at(origin, "bool", "C++ cannot decide by a value that is not computed until this function has been traced; "
                            "where(condition, a, b) picks between two values");
  }
}

}  // namespace haliax
