// Sets the number of devices for the duration of a test.
#pragma once
#include "haliax/mesh.h"

struct Devices {  // restores the previous number at the end
  explicit Devices(int n) { haliax::set_devices(n); }
  ~Devices() { haliax::set_devices(before); }
  int before = haliax::devices();
};
