// Draws the planned memory over time of a training step of GPT-2 124M: with all scores, and as
// compiled.
#pragma once
#include <string>

// Raises if the file cannot be written.
void draw_step(const std::string& path, const std::string& backend);
