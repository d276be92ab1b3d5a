// The error of the verifier.
#pragma once
#include "haliax/error.h"

namespace haliax {

// An invariant that a pass violated. The compiler passes a VerifyError on to the user; after other
// errors it may try an alternative.
class VerifyError : public Error {
 public:
  using Error::Error;
};

}  // namespace haliax
