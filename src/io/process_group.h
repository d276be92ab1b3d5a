// The processes that share a state: the devices of each, and their communication.
//
// All code that saves and loads uses this interface. The default is one process that has all
// devices. A runtime with several processes provides its own.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "haliax/mesh.h"

namespace haliax {

struct ProcessGroup {
  int rank = 0, count = 1;
  std::function<int(const Mesh&, int device)> rank_of = [](const Mesh&, int) { return 0; };
  // Returns the strings of all processes, by rank. It is also a barrier. Raises if a process is
  // lost. All processes call it in the same order, from one thread at a time.
  std::function<std::vector<std::string>(const std::string& mine)> all_gather =
      [](const std::string& mine) { return std::vector<std::string>{mine}; };
  // Returns the same group for another thread, with separate messages. All processes create
  // separate groups in the same order. Null: this group serves all threads.
  std::function<ProcessGroup()> separate_group = {};
};
const ProcessGroup& all_processes();  // the processes of this program

}  // namespace haliax
