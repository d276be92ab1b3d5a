// Parsed once for all of the graph's layers: what most of their files include.
// The compiler reads it as a main file, where "#pragma once" is a warning.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "graph/node.h"
