// A plugin: a shared library libhaliax_NAME.so that is opened on first use and linked by nothing.
// It provides a backend, a transport between ranks, or both. The plugin and this library must be
// built from the same version, since program.h and ranks.h are the interface between them.
#pragma once

namespace haliax::program {

class Device;
class Ranks;

struct Plugin {
  const char* version;  // library_version() and abi_hash() of its build
  const char* abi;
  // Return the device or the transport, which is never destroyed; null if the plugin has none. Both
  // raise if creation fails. A device may plan on a machine on which it cannot run.
  Device* (*device)() = nullptr;
  Ranks* (*ranks)() = nullptr;
};
const char* library_version();
const char* abi_hash();       // hash of program.h, codes.h and ranks.h
const char* plugin_folder();  // where plugins are installed

}  // namespace haliax::program

// The symbol that a plugin exports.
extern "C" [[gnu::visibility("default")]] const haliax::program::Plugin* haliax_plugin();
