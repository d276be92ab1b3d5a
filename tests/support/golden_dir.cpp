#include "golden_dir.h"

std::string golden_dir() { return HALIAX_GOLDEN_DIR; }
