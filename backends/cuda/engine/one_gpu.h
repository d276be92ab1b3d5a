// Transfers between devices of a mesh that are all the same GPU. NCCL accepts each GPU only once,
// so transfers are copies within the GPU. The threads of the devices meet on the host; the copies
// are ordered in their streams.
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

#include "../api.h"

namespace haliax::cuda {

class OneGpu {
 public:
  OneGpu(const Api& api, int gpu) : api_(api), gpu_(gpu) {}
  // Runs the transfers of this rank. The stream continues after its receives have arrived and its
  // sends have been copied. Blocks until the peers have started their part, and raises an error if
  // one has failed.
  void exchange(int rank, Handle stream, const std::vector<Transfer>&);
  void fail(const std::string& why);  // waiting and later callers raise the error

 private:
  using Event = std::shared_ptr<void>;
  struct PeerCopy {
    const void* at = nullptr;
    std::int64_t bytes = 0;
    Event ready = {}, taken = {};  // taken: set by the receiver
  };
  Event recorded(Handle stream) const;
  void wait(std::unique_lock<std::mutex>&, const std::function<bool()>&);

  const Api& api_;
  const int gpu_;
  std::mutex lock_;
  std::condition_variable changed_;
  // (from, to) -> copies in order
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<PeerCopy>>> on_the_way_;
  std::string failed_;
};

}  // namespace haliax::cuda
