// Reports a test that cannot run on this machine. tools/run_tests.py counts the test as skipped,
// not as passed, and prints the reason.
#pragma once
#include <cstdio>

namespace haliax::testing {

inline void left_out(const char* test, const char* why) {
  std::printf("left out: %s: %s\n", test, why);
}

}  // namespace haliax::testing
