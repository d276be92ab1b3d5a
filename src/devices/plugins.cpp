// The search for plugins, and the check that their build matches.
#include "devices/plugins.h"

#include <dlfcn.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "graph/fail.h"

namespace haliax {
namespace {

// Returns the folders of plugins, in order: HALIAX_PLUGINS, the folder of the program or library,
// its parent (a build folder), and the installation folder.
std::vector<std::string> folders() {
  std::vector<std::string> out;
  std::string requested = std::getenv("HALIAX_PLUGINS") ? std::getenv("HALIAX_PLUGINS") : "";
  for (std::size_t from = 0; from < requested.size();) {
    auto end = std::min(requested.find(':', from), requested.size());
    if (end > from) out.push_back(requested.substr(from, end - from));
    from = end + 1;
  }
  std::error_code ignored;
  Dl_info mine{};
  if (dladdr(reinterpret_cast<void*>(&folders), &mine) && mine.dli_fname) {
    // for the main program, dladdr returns the path of the command
    auto file = std::filesystem::canonical(mine.dli_fname, ignored);
    if (file.empty()) file = std::filesystem::canonical("/proc/self/exe", ignored);
    out.push_back(file.parent_path().string());
    out.push_back(file.parent_path().parent_path().string());
  }
  out.push_back(program::plugin_folder());
  return out;
}
bool is_file_name(const std::string& name) {
  return !name.empty() &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_-") == name.npos;
}

// Returns the name of the missing dependency from an error of dlopen (libNAME.so.1), or the error
// itself.
std::string missing(const std::string& message, const std::string& file) {
  auto colon = message.find(": cannot open shared object file");
  auto name = message.substr(0, colon);
  if (colon == message.npos || name == file) return message;
  return fmt::format(
      "it requires {0}, which is not found; add the folder of {0} to the loader's path "
      "(LD_LIBRARY_PATH, ldconfig)",
      name);
}
const program::Plugin& opened(const char* what, const std::string& name, const std::string& file) {
  auto refuse = [&](const std::string& why) {
    fail(what, fmt::format("{} ({}) cannot be used: {}", name, file, why));
  };
  auto* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    auto* message = dlerror();
    refuse(missing(message ? message : "", file));
  }
  auto* entry = reinterpret_cast<decltype(&haliax_plugin)>(dlsym(library, "haliax_plugin"));
  if (!entry) refuse("it is not a plugin: it has no function haliax_plugin");
  auto& plugin = *entry();
  const std::string version = plugin.version, abi = plugin.abi;
  if (version != program::library_version() || abi != program::abi_hash())
    refuse(fmt::format(
        "it was built for haliax {} ({}), but this is {} ({}); build both from the same sources",
        version, abi, program::library_version(), program::abi_hash()));
  return plugin;
}

}  // namespace

const program::Plugin* plugin(const char* what, const std::string& name) {
  for (auto& folder : folders()) {
    auto file = fmt::format("{}/libhaliax_{}.so", folder, name);
    std::error_code ignored;
    if (is_file_name(name) && std::filesystem::exists(file, ignored))
      return &opened(what, name, file);
  }
  return nullptr;
}
std::string in_plugin_folders(const std::string& name) {
  return fmt::format("no plugin libhaliax_{}.so in {}", name, fmt::join(folders(), ", "));
}

}  // namespace haliax
