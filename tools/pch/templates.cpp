#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "haliax/haliax.h"

#define HALIAX_EXTERN
#include "tools/pch/templates.h"
