// Backends by name: those that are linked in, and plugins, which are opened when they are first asked for.
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>

#include "base/fork.h"
#include "base/name.h"
#include "program/devices.h"
#include "program/plugin.h"
#include "runtime/run.h"

namespace haliax {
namespace {

using program::Device;
using Make = std::unique_ptr<Device> (*)();

struct Linked {
  const char* name;
  Make make;
  bool told;                                     // to who asks for one that is not there
};
const Linked linked[] = {{"cpu", [] { return cpu::make_cpu_device(0); }, true},
                         {"reference", reference::make_reference_device, true},
                         {"apart", [] { return apart::make_apart_device(); }, false},
                         {"cuda-sim", cuda::make_simulated_device, false}};

// Where plugins may lie: where HALIAX_PLUGINS says, beside the program or the library, one folder above (a folder of builds),
// where they are installed.
std::vector<std::string> folders() {
  std::vector<std::string> out;
  std::string asked = std::getenv("HALIAX_PLUGINS") ? std::getenv("HALIAX_PLUGINS") : "";
  for (std::size_t from = 0; from < asked.size();) {
    auto end = std::min(asked.find(':', from), asked.size());
    if (end > from) out.push_back(asked.substr(from, end - from));
    from = end + 1;
  }
  std::error_code ignored;
  Dl_info mine{};
  if (dladdr(reinterpret_cast<void*>(&folders), &mine) && mine.dli_fname) {
    auto file = std::filesystem::canonical(mine.dli_fname, ignored);   // what dladdr says of a program is how it was called
    if (file.empty()) file = std::filesystem::canonical("/proc/self/exe", ignored);
    out.push_back(file.parent_path().string());
    out.push_back(file.parent_path().parent_path().string());
  }
  out.push_back(program::plugin_folder());
  return out;
}
bool is_file_name(const std::string& name) {
  return !name.empty() && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_-") == name.npos;
}

// libNAME.so.1, where dlopen says that it does not find that; else what it says.
std::string missing(const std::string& said, const std::string& file) {
  auto colon = said.find(": cannot open shared object file");
  auto name = said.substr(0, colon);
  if (colon == said.npos || name == file) return said;
  return fmt::format("it needs {0}, which is not found; is the folder of {0} in the loader's path (LD_LIBRARY_PATH, ldconfig)?",
                     name);
}
Device& opened(const std::string& name, const std::string& file) {
  auto refuse = [&](const std::string& why) { fail("backend", fmt::format("{} ({}) cannot be used: {}", name, file, why)); };
  auto* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    auto* said = dlerror();
    refuse(missing(said ? said : "", file));
  }
  auto* entry = reinterpret_cast<decltype(&haliax_plugin)>(dlsym(library, "haliax_plugin"));
  if (!entry) refuse("it is no plugin: it has no function haliax_plugin");
  auto& plugin = *entry();
  const std::string version = plugin.version, border = plugin.border;
  if (version != program::library_version() || border != program::border_hash())
    refuse(fmt::format("it was built for haliax {} ({}), and this is {} ({}); build both from the same sources", version, border,
                       program::library_version(), program::border_hash()));
  return *plugin.device();
}
Device& from_plugin(const std::string& name) {
  auto searched = folders();
  for (auto& folder : searched) {
    auto file = fmt::format("{}/libhaliax_{}.so", folder, name);
    std::error_code ignored;
    if (is_file_name(name) && std::filesystem::exists(file, ignored)) return opened(name, file);
  }
  std::vector<std::string> there;
  for (auto& l : linked)
    if (l.told) there.push_back(l.name);
  fail("backend", fmt::format("there is no backend {0}{1}; there are {2}, and no plugin libhaliax_{0}.so in {3}; "
                              "HALIAX_PLUGINS=FOLDER says where it lies",
                              name, did_you_mean(name, there), fmt::join(there, " and "), fmt::join(searched, ", ")));
}

// Those that were asked for. Never destroyed; found without a lock, as every call asks.
struct Registered {
  std::string name;
  Device* device;
  const Registered* next;
};
constinit std::atomic<const Registered*> known{nullptr};
constinit std::mutex making;
const bool forks = at_fork({kForkDevices, [] { making.lock(); }, [] { making.unlock(); }});

Device* known_as(const std::string& name) {
  for (auto* k = known.load(std::memory_order_acquire); k; k = k->next)
    if (k->name == name) return k->device;
  return nullptr;
}

}  // namespace

Device& backend(const std::string& name) {
  if (auto* device = known_as(name)) return *device;
  std::lock_guard hold(making);
  if (auto* device = known_as(name)) return *device;
  auto found = std::find_if(std::begin(linked), std::end(linked), [&](auto& l) { return l.name == name; });
  auto& device = found != std::end(linked) ? *found->make().release() : from_plugin(name);
  known.store(new Registered{name, &device, known.load()}, std::memory_order_release);
  return device;
}

}  // namespace haliax
