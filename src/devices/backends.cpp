// The registry of backends: linked backends and plugins, each created on first use.
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "base/fork.h"
#include "base/name.h"
#include "base/thread_pool.h"
#include "program/devices.h"
#include "graph/node.h"
#include "devices/backends.h"
#include "devices/plugins.h"

namespace haliax {
namespace {

using program::Device;
using Make = std::unique_ptr<Device> (*)();

struct Linked {
  const char* name;
  Make make;
  bool is_listed;  // listed in the error for an unknown name
};
const Linked linked[] = {
    {"cpu", [] { return cpu::make_cpu_device(0); }, true},
    {"reference", reference::make_reference_device, true},
    {"separate-memory", [] { return separate_memory::make_separate_memory_device(); }, false},
    {"cuda-sim", cuda::make_simulated_device, false}};

Device& from_plugin(const std::string& name) {
  auto* found = plugin("backend", name);
  if (found && found->device) return *found->device();
  if (found) fail("backend", fmt::format("the plugin {} has no backend", name));
  std::vector<std::string> there;
  for (auto& l : linked)
    if (l.is_listed) there.push_back(l.name);
  const char* requested = std::getenv("HALIAX_BACKEND");
  fail("backend",
       fmt::format("there is no backend {}{}{}; available are {}; {}; HALIAX_PLUGINS=FOLDER adds a "
                   "folder of plugins",
                   name, requested && requested == name ? " (from HALIAX_BACKEND)" : "",
                   did_you_mean(name, there), fmt::join(there, " and "), in_plugin_folders(name)));
}

// The backends created so far, as a list. Never destroyed, and read without a lock, since every
// call looks up its backend.
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
  (void)default_threads(context().origin.at);  // raises here, where the source location is known
  auto found =
      std::find_if(std::begin(linked), std::end(linked), [&](auto& l) { return l.name == name; });
  auto& device = found != std::end(linked) ? *found->make().release() : from_plugin(name);
  known.store(new Registered{name, &device, known.load()}, std::memory_order_release);
  return device;
}

}  // namespace haliax
