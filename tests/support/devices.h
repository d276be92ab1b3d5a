// How many devices there are.
#pragma once
#include "haliax/mesh.h"

struct Devices {  // another number of devices, for the length of a test
  explicit Devices(int n) { haliax::set_devices(n); }
  ~Devices() { haliax::set_devices(before); }
  int before = haliax::devices();
};
