// The devices of a mesh: threads of this process, or of several ranks, and their communicators.
#pragma once
#include <functional>

#include "haliax/mesh.h"
#include "program/program.h"
#include "devices/ranks.h"

namespace haliax {

// The devices of a mesh that belong to this process: all of them, or a contiguous share if the
// process is one of several ranks.
struct LocalDevices {
  Peers* ranks = nullptr;  // ranks that share the mesh; null: no other rank takes part
  int first = 0, count = 1;
};
LocalDevices local_devices(const Mesh&);
// Returns the backend device that runs a local `device` of a mesh; with a null mesh, of an array on
// no mesh. The ranks of a host use the backend devices in turn and wrap around after the last.
// Either each rank sees its own devices, or the backend rejects a shared one.
int backend_device_of(program::Device& backend, const Mesh*, int device);

// Runs work(device, communicator) concurrently on all local devices of the mesh. The first runs on
// the calling thread, the others on threads that are reused; concurrent calls have separate
// threads. The communicator is that of the backend if it has one. If a device raises, or runs
// different collectives than the others, all devices stop, on other ranks too, and the first error
// is raised here. `what` describes the call in messages.
void on_devices(const Mesh&, const std::function<void(int device, program::Communicator&)>& work,
                program::Device* backend = nullptr, const std::string& what = "a call on a mesh");
// Counters of this process, over all meshes, for tests.
int device_threads();            // threads started
std::int64_t exchanged_bytes();  // bytes that threads received by `exchange`

}  // namespace haliax
