// The legality checks behind each pass. Off in a release build, unless HALIAX_VERIFY=1; on in every test.
#pragma once
#include "graph/loop.h"

namespace haliax {

bool verifies();
void verify(const Nodes& roots, const char* after);               // a graph, bodies of loops included; raises
void verify(const program::Program&, const char* after);          // raises

}  // namespace haliax
