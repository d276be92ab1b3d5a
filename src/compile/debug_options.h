// Debug options of a compilation, from environment variables. They are read once, when the options
// of a compilation are created; passes do not read the environment.
#pragma once
#include <string>

namespace haliax {

struct DebugOptions {
  bool verify = false;        // HALIAX_VERIFY: run the verifier after every pass
  bool check_finite = false;  // HALIAX_NANS: stop at the first step that computes NaN or infinity
  bool poison = false;        // HALIAX_POISON: overwrite gathered values after their last reader
  std::string print = {};     // HALIAX_PRINT: the pass whose result is printed; "all": every pass
  bool prints(const char* pass) const { return print == pass || print == "all"; }
};

// Raises for a value that is not allowed, at the source line that is being traced.
DebugOptions debug_options();

}  // namespace haliax
