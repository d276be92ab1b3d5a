// Combines several pictures of visualize_sharding into one, each with a title.
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
// Draws two pictures per row. Raises if the file cannot be written.
void write_picture(const std::string& path, const std::vector<Panel>&);

}  // namespace sharding
