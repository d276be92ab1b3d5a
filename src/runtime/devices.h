// How many devices a mesh may have.
#pragma once

namespace haliax {

bool has_asked_for(int devices);   // somebody, by set_devices or HALIAX_DEVICES, for so many or more

}  // namespace haliax
