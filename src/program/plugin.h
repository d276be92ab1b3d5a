// A backend in a shared library of its own, libhaliax_NAME.so, that nothing links: it is opened when NAME is first asked for. It
// and this library must have been built alike; what they speak to each other is program.h.
#pragma once

namespace haliax::program {

class Device;

struct Plugin {
  const char* version;              // library_version() and border_hash(), as it was built
  const char* border;
  Device* (*device)();              // never destroyed; raises if it cannot be made. It may plan where it cannot run
};
const char* library_version();
const char* border_hash();          // of program.h
const char* plugin_folder();        // where plugins are installed

}  // namespace haliax::program

extern "C" [[gnu::visibility("default")]] const haliax::program::Plugin* haliax_plugin();   // what such a library exports
