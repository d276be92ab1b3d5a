// How the devices of a mesh speak to each other where they lie in several ranks: by messages.
#pragma once
#include <map>
#include <memory>

#include "haliax/mesh.h"
#include "program/program.h"
#include "devices/ranks.h"

namespace haliax {

// Every block goes straight to who wants it, and sums are taken by who wants them, in rank order:
// the bytes that a ring would send, and the bits of threads. What is sent is packed, a few MiB at a
// time. From the first call that is started, a thread makes them, in order.
class RankCommunicator final : public program::Communicator {
 public:
  // device: of the mesh. Each rank has as many as this one, one after the other.
  RankCommunicator(Peers&, const Peers::JointCall&, const Mesh&, int device);
  ~RankCommunicator() override;  // what was started has been finished
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
  // of the call and the collectives so far over these mesh axes
  std::map<std::vector<int>, std::uint64_t> keys_;
  std::unique_ptr<Queue> queue_;  // of calls that were started; null: none was
};

// All devices that differ from this one only along these mesh axes, major to minor: in rank order.
std::vector<int> group_of(const Mesh&, const std::vector<int>& over, int device);

}  // namespace haliax
