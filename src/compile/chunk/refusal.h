// Why a region cannot be tiled.
#pragma once
#include "haliax/error.h"

namespace haliax {

// Raised by Region and by the search for tile sizes. The search tries another plan after a refusal;
// the user sees it as an error if no plan is left. Other errors propagate.
class Refusal : public Error {
 public:
  using Error::Error;
};

}  // namespace haliax
