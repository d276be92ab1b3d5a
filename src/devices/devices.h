// The number of devices of a mesh.
#pragma once

namespace haliax {

// Returns true if set_devices or HALIAX_DEVICES set the number of devices to at least `devices`.
bool has_requested(int devices);

}  // namespace haliax
