// Sets HALIAX_NANS=1 during its lifetime.
#pragma once
#include <cstdlib>

namespace haliax::test {

struct Nans {
  Nans() { ::setenv("HALIAX_NANS", "1", 1); }
  ~Nans() { ::unsetenv("HALIAX_NANS"); }
};

}  // namespace haliax::test
