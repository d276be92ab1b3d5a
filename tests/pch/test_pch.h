// Precompiled header of the tests: the headers that most test files include. The compiler reads it
// as a main file, where "#pragma once" is a warning.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "haliax/haliax.h"
