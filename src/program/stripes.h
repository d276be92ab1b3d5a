// Loops that go through a slot stripe by stripe: in turn t they touch nothing of it but stripe t.
// Stripes are found only where strides and terms prove that; where they do not, it costs memory and
// nothing else.
#pragma once
#include <map>
#include <optional>

#include "program/program.h"

namespace haliax {

// Stripe t: the bytes whose number, over `width`, modulo `count`, is t.
struct Stripes {
  std::int64_t width = 0, count = 0;
  friend bool operator==(const Stripes&, const Stripes&) = default;
};
using Trips = std::map<int, std::int64_t>;  // of loops, by variable
// Those that a view of the step goes through in the turns of the loop that counts by `variable`;
// none: it goes elsewhere, too, or that cannot be seen. trips: of the loops around the step.
std::optional<Stripes> stripes_of(const program::Step&, const program::View&, int variable,
                                  const Trips& trips);
bool same_place(const program::View&, const program::View&);  // but for the slot

}  // namespace haliax
