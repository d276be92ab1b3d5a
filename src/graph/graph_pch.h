// The precompiled header of the graph layers: the headers that most of their files include. It has
// no "#pragma once", since the compiler reads it as a main file and would warn.
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
