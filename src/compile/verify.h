// The legality checks behind each pass. Off in a release build, unless HALIAX_VERIFY=1; on in every test.
#pragma once
#include "graph/loop.h"

namespace haliax {

bool verifies();
// A graph, bodies of loops included; raises. Axes and dtypes are what ops make of their operands; carries and results fit; no
// index or carry is read outside of its loop; borders of regions have the walked axis, and what enters leaves; collectives and
// custom gradients fit their operands.
void verify(const Nodes& roots, const char* after);

}  // namespace haliax
