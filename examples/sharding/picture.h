// Several pictures of visualize_sharding in one, each with a line above it.
#pragma once
#include <string>
#include <vector>

#include "haliax/haliax.h"

namespace sharding {

struct Panel {
  std::string title;
  haliax::AxisSpec axes;
  haliax::Mapping mapping;
  haliax::Mesh mesh;
};
// Two beside each other; raises if it cannot be written.
void write_picture(const std::string& path, const std::vector<Panel>&);

}  // namespace sharding
