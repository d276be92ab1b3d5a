// The processes that share a state: who of them has which devices, and how they tell each other.
//
// All that asks this goes through here. One process has all devices and hears itself alone, which
// is what a ProcessGroup is by default; a runtime of several processes fills in its own.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "haliax/mesh.h"

namespace haliax {

struct ProcessGroup {
  int rank = 0, count = 1;
  std::function<int(const Mesh&, int device)> rank_of = [](const Mesh&, int) { return 0; };
  // What each of them says, by rank; returns when all have spoken, so that it is a barrier, too.
  // Raises where one is gone. Called in the same order everywhere, by one thread at a time.
  std::function<std::vector<std::string>(const std::string& mine)> all_gather =
      [](const std::string& mine) { return std::vector<std::string>{mine}; };
  // The same processes for a thread of its own: what they say there does not meet what they say
  // here. Made in the same order everywhere. Null: this one serves all threads.
  std::function<ProcessGroup()> separate_group = {};
};
const ProcessGroup& all_processes();  // of this program

}  // namespace haliax
