// How many devices a mesh may have.
#pragma once

namespace haliax {

// somebody, by set_devices or HALIAX_DEVICES, for so many or more
bool has_requested(int devices);

}  // namespace haliax
