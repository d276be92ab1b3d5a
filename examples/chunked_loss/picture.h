// Draws measurements: as a line of text, and as an SVG file.
#pragma once
#include "measure.h"

namespace chunked_loss {

struct Row {
  std::string name;
  Measured measured;
};
// Returns `width` characters, from ' ' for zero to '@' for `most`.
std::string sparkline(const std::vector<double>& curve, double most, std::size_t width);
// Draws the memory over time of every method on one scale, and the planned peak and time of every
// chunk size. Raises if the file cannot be written.
void write_picture(const std::string& path, const std::string& title,
                   const std::vector<Row>& methods, const std::vector<Row>& chunks);

}  // namespace chunked_loss
