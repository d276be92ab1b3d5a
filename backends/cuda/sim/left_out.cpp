// In place of the simulation where a build is to be quick: meson's option `quick`.
#include "haliax/error.h"
#include "program/devices.h"

namespace haliax::cuda {

std::unique_ptr<program::Device> make_simulated_device() { throw Error("[backend] cuda-sim is left out of this build"); }

}  // namespace haliax::cuda
