// Conversion of an array to bool, for `if`, `?:`, `assert` and std::max on comparisons.
#include <string_view>

#include "base/where.h"
#include "graph/lock.h"
#include "haliax/array.h"
#include "runtime/tracers.h"

namespace haliax {
namespace {

// Returns the source line of the user's code that created the operands of a comparison inside the
// standard library, such as in std::max or == of vectors.
std::string created_at(const NodePtr& compared) {
  auto in_library = [](const Node& n) {
    return std::string_view(n.origin.at.file_name()).find("/c++/") != std::string_view::npos;
  };
  GraphReader reader;
  auto n = compared;
  while (in_library(*n) && !n->in.empty() && n->in[0]) n = n->in[0];
  return n == compared || in_library(*n)
             ? ""
             : "; the compared array was created at " + to_string(n->origin.at);
}

}  // namespace

NamedArray::operator bool() const {
  if (!node_)
    fail("bool",
         "an empty NamedArray has no truth value; use x.empty() to test whether there is an array");
  // A conversion has no source location of its own; an `if` usually contains the comparison.
  auto& origin = node_->origin;
  if (size() != 1)
    fail_at(origin, "bool",
            "an array of " + std::to_string(size()) + " elements " + haliax::to_string(axes()) +
                " has no truth value; use all(x) or any(x) for one value, or where(x, a, b) "
                "to select elementwise" +
                created_at(node_));
  const auto tracer = node_->value ? std::nullopt : tracer_below(node_);
  if (tracer && !tracer->has_ended && !tracer->has_shape_only)
    fail_at(origin, "bool",
            "an array has no truth value inside a traced function, since it is not computed yet; "
            "use where(condition, a, b) to select, or cond to branch" +
                created_at(node_));
  return item(origin.at) != 0;
}

}  // namespace haliax
