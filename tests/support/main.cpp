// The one place where doctest's implementation is compiled.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>

#include "support/update.h"

namespace {
bool asked_to_update = false;
}
bool test::updates() { return asked_to_update; }

int main(int argc, char** argv) {
  setenv("HALIAX_VERIFY", "1", 0);   // behind every pass, unless somebody says otherwise
  for (int i = 1; i < argc; ++i) asked_to_update |= std::strcmp(argv[i], "--update") == 0;
  return doctest::Context(argc, argv).run();
}
