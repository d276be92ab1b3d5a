// Collectives of a mesh whose devices belong to several ranks.
#pragma once
#include <map>
#include <memory>

#include "haliax/mesh.h"
#include "program/program.h"
#include "devices/ranks.h"

namespace haliax {

// A communicator that sends messages between pairs of devices. Each block is sent directly to the
// device that needs it, and each device reduces its own share in rank order. The communication
// volume equals that of a ring, and results are bitwise identical to those of threads. Messages are
// packed, a few MiB at a time. The first call of start() creates a thread, which then runs all
// collectives in order.
class RankCommunicator final : public program::Communicator {
 public:
  // `device` is a device of the mesh. Each rank has an equal, contiguous share of the devices.
  RankCommunicator(Peers&, const Peers::JointCall&, const Mesh&, int device);
  ~RankCommunicator() override;  // In: all started collectives are finished
  void run(const program::Collective&, const void* const* x, void* const* out, void* scratch,
           std::int64_t scratch_bytes) override;
  std::int64_t start(const program::Collective&, const void* const* x, void* const* out,
                     void* scratch, std::int64_t scratch_bytes) override;
  void finish(std::int64_t call) override;
  void fail(const char* why) override;

 private:
  class CollectiveRun;
  class Queue;
  std::uint64_t next_key(const program::Collective&);
  Peers& peers_;
  const Mesh& mesh_;
  const int device_;
  const std::uint64_t call_;
  // per mesh axes: a hash of the call and its collectives so far
  std::map<std::vector<int>, std::uint64_t> keys_;
  std::unique_ptr<Queue> queue_;  // queue of started collectives; null: none was started
};

// Returns the devices that differ from `device` only along these mesh axes (major to minor), in
// rank order.
std::vector<int> group_of(const Mesh&, const std::vector<int>& over, int device);

}  // namespace haliax
