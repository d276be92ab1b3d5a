// Programs of graphs that were evaluated before: one that is made of the same ops, at the same lines, is planned once, and called
// again with other arrays.
#pragma once
#include <string>
#include <vector>

#include "runtime/run.h"

namespace haliax {

// The values of the roots, in order, on this backend. began: as for call.
std::vector<BufferPtr> call_again(const Nodes& roots, const std::string& backend_name, bool* began);
std::uint64_t evaluations_planned();             // so far; others were found

}  // namespace haliax
