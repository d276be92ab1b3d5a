// build/tools/passes: prints the passes of the compiler in order, one line each: name, operand,
// effect.
#include <cstdio>

#include "compile/pipeline.h"
#include "examples/command_line.h"

int main(int argc, char** argv) {
  examples::CommandLine line(
      "Prints the passes of the compiler in order, one per line: name, operand, effect.");
  if (auto status = line.parse(argc, argv)) return *status;
  std::fputs(haliax::table_of_passes().c_str(), stdout);
}
