// Plugins: shared libraries that are opened on first use (program/plugin.h).
#pragma once
#include <string>
#include <vector>

#include "program/plugin.h"

namespace haliax {

// Returns the plugin libhaliax_NAME.so, which is never closed, or null if no folder has it. Raises
// if it cannot be used. `what` is its role in messages: backend, ranks.
const program::Plugin* plugin(const char* what, const std::string& name);
// Returns "no plugin libhaliax_NAME.so in A, B, ...", for errors.
std::string in_plugin_folders(const std::string& name);

}  // namespace haliax
