// What a test could not do here. tools/run_tests.py counts such a test as skipped, not as passed,
// and gives the reason.
#pragma once
#include <cstdio>

namespace haliax::testing {

inline void left_out(const char* test, const char* why) {
  std::printf("left out: %s: %s\n", test, why);
}

}  // namespace haliax::testing
