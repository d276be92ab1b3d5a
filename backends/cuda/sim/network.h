// Sends and receives between simulated devices: those of two ranks meet in the order in which they were asked for, and must have
// the same size.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../api.h"

namespace haliax::cuda::sim {

// A group of one rank that has begun, and may wait for others.
struct Meeting {
  int left = 0;                                  // transfers
};
struct Network {
  struct Waiting {
    Transfer transfer;
    std::shared_ptr<Meeting> meeting;
  };
  struct Side {
    std::deque<Waiting> sends, receives;
  };
  std::map<std::pair<int, int>, Side> sides;     // from, to
  std::vector<int> devices;                      // of the ranks; -1: has not joined
  int here = 0;                                  // ranks that have not left
  bool aborted = false;
  std::string failed;                            // what has become of a rank

  std::shared_ptr<Meeting> begin(int rank, const std::vector<Transfer>&);   // under the machine's lock
  bool has_ended(const Meeting& m) const { return m.left == 0 || aborted; }
};

}  // namespace haliax::cuda::sim
