// build/tools/passes: prints the passes of the compiler in order, one line each: name, operand,
// effect.
#include <cstdio>

#include "compile/pipeline.h"

int main() { std::fputs(haliax::table_of_passes().c_str(), stdout); }
