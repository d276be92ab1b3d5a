// A training step of GPT-2 124M, its planned memory over time: with all scores, and as it is
// compiled. A picture.
#pragma once
#include <string>

// raises if it cannot be written
void draw_step(const std::string& path, const std::string& backend);
