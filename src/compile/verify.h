// Legality checks that run after each pass. Disabled in a release build unless HALIAX_VERIFY=1;
// enabled in all tests.
#pragma once
#include "compile/lower/layout.h"
#include "compile/loops/early_exit.h"

namespace haliax {

// Checks a graph, bodies of loops included. Raises if a check fails.
//
// - Axes and dtypes of each node follow from its op and its operands. Collectives and custom
//   gradients match their operands.
// - Carries and results of loops match; an index or a carry is only read in its loop.
// - Region boundaries are around arrays with the tiled axis, and each value that enters a region
//   leaves it.
// - Parts of iterations compute each result of their loop.
// - Layouts have the axes of the value.
void verify(const Nodes& roots, const char* after, const IterationParts& = {}, const Layouts& = {});

}  // namespace haliax
