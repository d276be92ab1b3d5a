// build/tools/passes: the passes of the compiler in order, a line each: name, what it works on,
// what it does.
#include <cstdio>

#include "compile/pipeline.h"

int main() { std::fputs(haliax::table_of_passes().c_str(), stdout); }
