// Stripes: loops that access disjoint parts of a slot, where iteration t accesses only stripe t.
// Stripes are reported only if strides and terms prove them. An undetected stripe costs memory and
// nothing else.
#pragma once
#include <map>
#include <optional>

#include "program/program.h"

namespace haliax {

// Byte b belongs to stripe (b / width) % count.
struct Stripes {
  // width in bytes
  std::int64_t width = 0, count = 0;
  friend bool operator==(const Stripes&, const Stripes&) = default;
};
using Trips = std::map<int, std::int64_t>;  // trip counts by loop variable
// Returns the stripes that a view accesses in the iterations of the loop with this variable.
// Returns nothing if the view has no stripes or if they cannot be proven. `trips` has the loops
// around the step.
std::optional<Stripes> stripes_of(const program::Step&, const program::View&, int variable,
                                  const Trips& trips);
// Returns true if both views have the same offset, strides, terms and dtype. Their slots may
// differ.
bool same_place(const program::View&, const program::View&);

}  // namespace haliax
