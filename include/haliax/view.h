// The memory of an array, read in place. haliax.h does not include this.
#pragma once
#include <cstdint>
#include <vector>

#include "haliax/array.h"

namespace [[gnu::visibility("default")]] haliax {

struct HostView {
  const void* data = nullptr;                // valid while the array lives and is not donated
  std::vector<std::int64_t> sizes, strides;  // of the axes asked for, in elements
};

// Computes the array if need be. `axes` names all of its axes, in the order wanted. Raises for another dtype or a missing axis.
HostView host_view(const NamedArray&, DType, const std::vector<AxisSelector>& axes, SourceLocation = SourceLocation::current());

}  // namespace haliax
