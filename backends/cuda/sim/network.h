// Sends and receives between simulated devices. Transfers between two ranks match in order, and
// must have equal sizes. Either all ranks are in this process, or one of them is and communicates
// with the others by links.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../api.h"
#include "links.h"

namespace haliax::cuda::sim {

// A group of transfers of one rank that has started, and may wait for peers.
struct PendingGroup {
  int left = 0;  // number of transfers left
};
struct Network {
  struct Waiting {
    Transfer transfer;
    std::shared_ptr<PendingGroup> group;
  };
  struct Side {
    std::deque<Waiting> sends, receives;
  };
  std::map<std::pair<int, int>, Side> sides;  // by (from, to)
  std::vector<int> devices;                   // by rank; -1: has not joined
  int joined = 0;                             // number of ranks that have not left
  bool aborted = false;
  std::string failed;            // error of a failed rank
  std::unique_ptr<Links> links;  // to ranks in other processes; null: none
  int linked = 0;                // the rank in this process
  Check check;                   // called while waiting for other processes
  // received data without a matching receive
  std::map<int, std::deque<std::string>> here;
  std::set<int> ended;  // ranks whose processes have ended

  // All of these require the machine's lock.
  std::shared_ptr<PendingGroup> begin(int rank, const std::vector<Transfer>&);
  bool has_ended(const PendingGroup& m) const { return m.left == 0 || aborted; }
  void look();                        // processes received packets
  void fail(const std::string& why);  // notifies other processes

 private:
  void match(std::pair<int, int>);
  void take(int from);
};

}  // namespace haliax::cuda::sim
