// Precompiled header of the examples, the tools, the golden runner and the benchmarks' command
// lines: the headers that most of their files include. The compiler reads it as a main file, where
// "#pragma once" is a warning.
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "haliax/haliax.h"
