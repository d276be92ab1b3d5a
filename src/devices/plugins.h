// Plugins: shared libraries that are opened when what they bring is first asked for
// (program/plugin.h).
#pragma once
#include <string>
#include <vector>

#include "program/plugin.h"

namespace haliax {

// libhaliax_NAME.so, opened for good; null: it is in none of the folders. Raises for one that
// cannot be used; `what` it is asked for: backend, ranks.
const program::Plugin* plugin(const char* what, const std::string& name);
// for errors: no plugin libhaliax_NAME.so in A, B, ...
std::string in_plugin_folders(const std::string& name);

}  // namespace haliax
