// The devices of a mesh: threads of this process, or of several ranks; and how they speak to each
// other.
#pragma once
#include <functional>

#include "haliax/mesh.h"
#include "program/program.h"
#include "devices/ranks.h"

namespace haliax {

// Those of the mesh's devices that this process has: all, or where it is one of several ranks its
// share, one after the other.
struct LocalDevices {
  Peers* ranks = nullptr;  // that share the mesh; null: none
  int first = 0, count = 1;
};
LocalDevices local_devices(const Mesh&);
// Which of a backend's devices does what `device` of a mesh does, one that is here; mesh null: what
// is on none. The ranks of a host take them in turn, from the first again where there are no more:
// either each rank sees its own, or the backend refuses.
int backend_device_of(program::Device& backend, const Mesh*, int device);

// Does work(device, its communicator) on every device of the mesh that is here at once: the first
// on the caller's thread, the others on threads that are kept from call to call; calls at the same
// time have threads of their own. The communicator is the backend's, if that has one. If a device
// raises, or makes other calls than the others, all of them end, those of other ranks too, and what
// the first of them raised is raised here. what: the call, for people.
void on_devices(const Mesh&, const std::function<void(int device, program::Communicator&)>& work,
                program::Device* backend = nullptr, const std::string& what = "a call on a mesh");
// Of this process so far, for all meshes; for tests.
int device_threads();            // started
std::int64_t exchanged_bytes();  // that threads got of each other in exchanges

}  // namespace haliax
