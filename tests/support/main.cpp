// The main function of the test programs, with the implementation of doctest.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>

#include "support/child.h"
#include "support/update.h"

namespace {
bool update_requested = false;
}
bool haliax::test::updates() { return update_requested; }

bool haliax::test::is_child = false;
#if defined(__SANITIZE_ADDRESS__)
// The sanitizer's library calls this function by name.
extern "C" [[gnu::visibility("default")]] int __lsan_is_turned_off() {
  return haliax::test::is_child;
}
#endif

int main(int argc, char** argv) {
  setenv("HALIAX_VERIFY", "1", 0);  // after every pass, unless the environment sets another value
  for (int i = 1; i < argc; ++i) update_requested |= std::strcmp(argv[i], "--update") == 0;
  return doctest::Context(argc, argv).run();
}
