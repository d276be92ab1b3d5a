// A cache of compiled kernels for the duration of a test.
#pragma once
#include <stdlib.h>

#include <cstdlib>
#include <string>

#include "support/folder.h"

namespace haliax::testing {

struct Cache {
  Folder folder;
  std::string before;
  Cache() {
    if (auto* b = std::getenv("HALIAX_CACHE")) before = b;
    ::setenv("HALIAX_CACHE", folder.path.c_str(), 1);
  }
  ~Cache() {
    before.empty() ? ::unsetenv("HALIAX_CACHE") : ::setenv("HALIAX_CACHE", before.c_str(), 1);
  }
};

}  // namespace haliax::testing
