// Sends and receives between simulated devices: those of two ranks meet in the order in which they
// were asked for, and must have the same size. Ranks are all of this process, or one of them is,
// and speaks to the others by links.
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

// A group of one rank that has begun, and may wait for others.
struct PendingGroup {
  int left = 0;  // transfers
};
struct Network {
  struct Waiting {
    Transfer transfer;
    std::shared_ptr<PendingGroup> group;
  };
  struct Side {
    std::deque<Waiting> sends, receives;
  };
  std::map<std::pair<int, int>, Side> sides;  // from, to
  std::vector<int> devices;                   // of the ranks; -1: has not joined
  int joined = 0;                             // ranks that have not left
  bool aborted = false;
  std::string failed;            // what has become of a rank
  std::unique_ptr<Links> links;  // to ranks of other processes; null: there are none
  int linked = 0;                // the rank that has them
  Check check;                   // who waits for those asks it
  // what others have sent, and nobody has asked for yet
  std::map<int, std::deque<std::string>> here;
  std::set<int> gone;  // ranks

  // All of these under the machine's lock.
  std::shared_ptr<PendingGroup> begin(int rank, const std::vector<Transfer>&);
  bool has_ended(const PendingGroup& m) const { return m.left == 0 || aborted; }
  void look();                        // at what has come by links
  void fail(const std::string& why);  // other processes are told

 private:
  void match(std::pair<int, int>);
  void take(int from);
};

}  // namespace haliax::cuda::sim
