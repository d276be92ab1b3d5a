// What runs Programs on the devices of a machine, over its table of functions alone.
#pragma once
#include <memory>

#include "lane.h"
#include "program/program.h"

namespace haliax::cuda {

// A rank of a mesh, each of whose devices is one of the machine's. Its collectives are parts of the programs (sequence.h).
class Rank final : public program::Communicator {
 public:
  Rank(std::shared_ptr<Lane>, Handle communicator);
  ~Rank() override;
  void run(const program::Collective&, const void* const* x, void* const* out, void* scratch, std::int64_t bytes) override;
  void fail(const char* why) override;
  const std::int64_t number;                     // no two have the same
  bool failed() const { return failed_; }
  void exchange(Handle stream, const std::vector<Transfer>& t) { lane_->api.exchange(communicator_, stream, t); }

 private:
  const std::shared_ptr<Lane> lane_;
  Handle communicator_;
  bool failed_ = false;
};

std::unique_ptr<program::Executable> make_executable(std::shared_ptr<Lane>, const Words&,
                                                     std::shared_ptr<const program::Program>);
// words: of HALIAX_CUDA. The table lives for ever.
std::unique_ptr<program::Device> make_device(const Api&, const Words&, const program::Machine&);

}  // namespace haliax::cuda
