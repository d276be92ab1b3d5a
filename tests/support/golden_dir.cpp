// Returns the path of the golden data, which the build defines.
#include "golden_dir.h"

std::string golden_dir() { return HALIAX_GOLDEN_DIR; }
