// The legality checks behind each pass. Off in a release build, unless HALIAX_VERIFY=1; on in every
// test.
#pragma once
#include "compile/lower/layout.h"
#include "compile/loops/loops.h"

namespace haliax {

// A graph, bodies of loops included; raises. Axes and dtypes are what ops make of their operands;
// carries and results fit; no index or carry is read outside of its loop; borders of regions have
// the walked axis, and what enters leaves; collectives and custom gradients fit their operands.
// Parts of turns make each result of their loop, and layouts have a value's axes.
void verify(const Nodes& roots, const char* after, const IterationParts& = {}, const Layouts& = {});

}  // namespace haliax
