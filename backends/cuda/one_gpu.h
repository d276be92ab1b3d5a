// Devices of a mesh that are all one card: NCCL takes each card once, so what they send each other
// is copied there. The threads of the devices meet on the host for that; what they ask for is in
// order with their streams as ever.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "api.h"

namespace haliax::cuda {

class OneGpu {
 public:
  OneGpu(const Api& api, int gpu) : api_(api), gpu_(gpu) {}
  // Of this rank, which goes on in its stream when what it receives has come and what it sends is
  // taken. Waits for the others to ask for their parts; raises when one has failed.
  void exchange(int rank, Handle stream, const std::vector<Transfer>&);
  void fail(const std::string& why);  // those that wait, and all who come, raise

 private:
  using Event = std::shared_ptr<void>;
  struct PeerCopy {
    const void* at = nullptr;
    std::int64_t bytes = 0;
    Event ready = {}, taken = {};  // taken: set by who receives it
  };
  Event recorded(Handle stream) const;
  void wait(std::unique_lock<std::mutex>&, const std::function<bool()>&);

  const Api& api_;
  const int gpu_;
  std::mutex lock_;
  std::condition_variable changed_;
  // from, to: in order
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<PeerCopy>>> on_the_way_;
  std::string failed_;
};

}  // namespace haliax::cuda
