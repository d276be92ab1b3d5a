// The location of the golden data of this checkout.
#pragma once
#include <string>

/// The absolute path of tests/golden.
std::string golden_dir();
