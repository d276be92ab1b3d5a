// Reads the debug options from the environment.
#include "compile/debug_options.h"

#include <cstdlib>

#include "base/environment.h"
#include "compile/pipeline.h"
#include "graph/node.h"

namespace haliax {
namespace {

std::string printed_pass(SourceLocation at) {
  const char* value = std::getenv("HALIAX_PRINT");
  std::string pass = value ? value : "";
  std::string names;
  bool known = pass.empty() || pass == "all";
  for (auto& p : passes()) {
    known |= pass == p.name;
    names += std::string(" ") + p.name;
  }
  if (!known) fail_env("HALIAX_PRINT", pass, "all or a pass:" + names, at);
  return pass;
}

}  // namespace

DebugOptions debug_options() {
  const auto at = context().origin.at;
  return {.verify = env_check_enabled("HALIAX_VERIFY", at),
          .check_finite = env_flag("HALIAX_NANS", false, at),
          .poison = env_check_enabled("HALIAX_POISON", at),
          .print = printed_pass(at)};
}

}  // namespace haliax
