#pragma once
#include "haliax/error.h"

namespace haliax {

// What a pass has got wrong, as the verifier finds it. No reason to try another way, as other
// errors are: the user sees it.
class VerifyError : public Error {
 public:
  using Error::Error;
};

}  // namespace haliax
