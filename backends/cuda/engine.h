// What runs Programs on the devices of a machine, over its table of functions alone.
#pragma once
#include <memory>

#include "lane.h"
#include "one_card.h"
#include "program/program.h"

namespace haliax::cuda {

// A rank of a mesh, each of whose devices is one of the machine's, or all the same. Its collectives
// are parts of the programs (sequence.h).
class Rank final : public program::Communicator {
 public:
  Rank(std::shared_ptr<Lane>, Handle communicator);
  Rank(std::shared_ptr<Lane>, std::shared_ptr<OneCard>, int rank);
  ~Rank() override;
  void run(const program::Collective&, const void* const* x, void* const* out, void* scratch,
           std::int64_t bytes) override;
  void fail(const char* why) override;
  const std::int64_t number;  // no two have the same
  bool failed() const { return failed_; }
  // so that what it does cannot be written down
  bool meets_on_host() const { return one_card_ != nullptr; }
  void exchange(Handle stream, const std::vector<Transfer>&);

 private:
  const std::shared_ptr<Lane> lane_;
  const Handle communicator_ = nullptr;
  const std::shared_ptr<OneCard> one_card_;
  const int rank_ = 0;
  bool failed_ = false;
};

std::unique_ptr<program::Executable> make_executable(std::shared_ptr<Lane>, const Words&,
                                                     std::shared_ptr<const program::Program>);
// Of an H100 (docs/cuda.md): 33 T multiplications a second in f32 and 395 T in bf16, 3 TB/s, 50 MB
// of cache; 1.5 us a step. Not measured by this library.
inline constexpr program::Machine kH100{.multiplications_per_byte = 11,
                                        .multiplications_per_far_byte = 6,
                                        .cache = 40e6,
                                        .near = 1 << 20,
                                        .narrow = 33. / 395,
                                        .step = 5e7};
// words: of HALIAX_CUDA. The table lives for ever.
std::unique_ptr<program::Device> make_device(const Api&, const Words&, const program::Machine&);

}  // namespace haliax::cuda
