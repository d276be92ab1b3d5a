// An array as a truth value: what `if`, `?:`, `assert` and std::max ask of a comparison.
#include "haliax/array.h"
#include "runtime/run.h"

namespace haliax {

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
    auto tracer = tracer_below(node_);
    if (!tracer || tracer->left || tracer->shape) throw;
    fail_at(origin, "bool", "C++ cannot decide by a value that is not computed until this function has been traced; "
                            "where(condition, a, b) picks between two values");
  }
}

}  // namespace haliax
