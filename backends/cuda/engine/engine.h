// The engine of the CUDA backend: runs Programs on the devices of a machine, through its table of
// functions only.
#pragma once
#include <memory>

#include "device_context.h"
#include "one_gpu.h"
#include "program/program.h"

namespace haliax::cuda {

// A rank of a mesh. The devices of a mesh are different GPUs, or all the same GPU. Collectives are
// part of the programs (sequence.h).
class Rank final : public program::Communicator {
 public:
  Rank(std::shared_ptr<DeviceContext>, Handle communicator);
  Rank(std::shared_ptr<DeviceContext>, std::shared_ptr<OneGpu>, int rank);
  ~Rank() override;
  void run(const program::Collective&, const void* const* x, void* const* out, void* scratch,
           std::int64_t bytes) override;
  void fail(const char* why) override;
  const std::int64_t number;  // unique
  bool failed() const { return failed_; }
  // Returns true if transfers meet on the host, so that they cannot be captured in a graph.
  bool meets_on_host() const { return one_gpu_ != nullptr; }
  void exchange(Handle stream, const std::vector<Transfer>&);

 private:
  const std::shared_ptr<DeviceContext> context_;
  const Handle communicator_ = nullptr;
  const std::shared_ptr<OneGpu> one_gpu_;
  const int rank_ = 0;
  bool failed_ = false;
};

std::unique_ptr<program::Executable> make_executable(std::shared_ptr<DeviceContext>,
                                                     const CudaOptions&,
                                                     std::shared_ptr<const program::Program>);
// Machine parameters of an H100: 33 T multiplications per second in f32, 395 T in bf16, 3 TB/s
// memory bandwidth, 50 MB of cache, 1.5 us per step. Not measured by this library.
inline constexpr program::Machine kH100{.multiplications_per_byte = 11,
                                        .multiplications_per_far_byte = 6,
                                        .cache = 40e6,
                                        .core_cache = 1 << 20,
                                        .relative_cost_16bit = 33. / 395,
                                        .step_cost = 5e7};
// options: parsed from HALIAX_CUDA. The table must live forever.
std::unique_ptr<program::Device> make_device(const Api&, const CudaOptions&,
                                             const program::Machine&);

}  // namespace haliax::cuda
