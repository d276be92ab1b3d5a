// Where the golden data of this checkout lies.
#pragma once
#include <string>

/// The absolute path of tests/golden.
std::string golden_dir();
