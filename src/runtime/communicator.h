// The devices of a mesh as threads of this process, and how they speak to each other.
#pragma once
#include <functional>

#include "haliax/mesh.h"
#include "program/program.h"

namespace haliax {

// Does work(device, its communicator) on every device of the mesh at once: the first on the caller's thread, the others on
// threads that are kept from call to call; calls at the same time have threads of their own. The communicator is the backend's,
// if that has one. If a device raises, or makes other calls than the others, all of them end, and what the first of them raised
// is raised here.
void on_devices(const Mesh&, const std::function<void(int device, program::Communicator&)>& work,
                program::Device* backend = nullptr);
int device_threads();   // started so far, for all meshes: for tests

}  // namespace haliax
