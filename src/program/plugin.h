// A shared library of its own, libhaliax_NAME.so, that nothing links: it is opened when it is first
// asked for, and brings a backend, or what carries messages between ranks. It and this library must
// have been built alike; what they speak to each other is program.h and ranks.h.
#pragma once

namespace haliax::program {

class Device;
class Ranks;

struct Plugin {
  const char* version;  // library_version() and abi_hash(), as it was built
  const char* abi;
  // Null: it has none. Neither is ever destroyed; both raise if they cannot be made. A device may
  // plan where it cannot run.
  Device* (*device)() = nullptr;
  Ranks* (*ranks)() = nullptr;
};
const char* library_version();
const char* abi_hash();       // of program.h and ranks.h
const char* plugin_folder();  // where plugins are installed

}  // namespace haliax::program

// what such a library exports
extern "C" [[gnu::visibility("default")]] const haliax::program::Plugin* haliax_plugin();
