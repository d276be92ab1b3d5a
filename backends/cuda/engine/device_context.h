// A device of the engine: its streams, its memory, its copies, and the fault that has stopped it.
#pragma once
#include <array>
#include <memory>
#include <mutex>
#include <string>

#include "../api.h"
#include "program/program.h"

namespace haliax::cuda {

// Shared: memory of the device keeps its context alive.
class DeviceContext : public std::enable_shared_from_this<DeviceContext> {
 public:
  // sync: each run is waited for, so that faults name their step.
  DeviceContext(const Api&, int device, int sm, bool sync);
  ~DeviceContext();

  const Api& api;
  const int device, sm;            // sm: compute capability, 90 is sm_90
  std::mutex running;              // held while a run is queued
  const Handle stream, side;       // main stream; stream of collectives, concurrent with it
  const Handle graph, graph_side;  // the same two, for capturing graphs

  program::Memory allocate(std::int64_t bytes);
  void put(const program::Box&);
  void get(const program::Box&);
  void copy(const program::Box&);
  void* workspace();  // workspace of matmuls

  // Calls f, which may raise a Fault. A Fault becomes an error that names the call that caused it,
  // and all later calls raise this error.
  template <class F> auto checked_call(const F& f) {
    refuse_if_failed();
    try {
      return f();
    } catch (const Lost& lost) {
      end(lost.what());
    } catch (const Fault& fault) {
      fail(fault.what());
    }
  }
  // Work that is queued during the lifetime of a Run belongs to a run of this program, also if the
  // run is abandoned.
  class Run {
   public:
    Run(DeviceContext&, const std::shared_ptr<const program::Program>&);
    ~Run();
    void end();
    const std::int64_t number;  // 1, 2, ...

   private:
    DeviceContext& context_;
    bool ended_ = false;
  };
  void settle(std::int64_t run) noexcept;  // waits until the run has ended or failed
  void settle() noexcept;                  // the same for all queued runs

 private:
  // Half of the host's copy buffer: the host fills one half while the other one is copied.
  struct Half {
    std::byte* data = nullptr;
    Handle event = nullptr;
  };
  static constexpr std::int64_t kHalf = 4 << 20;
  void refuse_if_failed();
  [[noreturn]] void fail(const std::string& why);
  [[noreturn]] void end(const std::string& error);  // raises the error, now and in all later calls
  std::int64_t done() const;
  void* allocate_bytes(std::int64_t bytes);
  Half& half(std::int64_t k);
  // Copies a box between the host and the device. Strided boxes are packed at their side.
  void transfer(const program::Box&, bool to_device);
  void put_bytes(std::byte* to, const std::byte* from, std::int64_t bytes);
  void get_bytes(std::byte* to, const std::byte* from, std::int64_t bytes);
  void copy_there(const program::Box&);  // by a kernel, or by one copy if both sides are contiguous

  std::mutex copying_;
  std::array<Half, 2> halves_ = {};
  void* workspace_ = nullptr;
  std::int64_t runs_ = 0;
  std::int64_t* done_ = nullptr;  // number of the last completed run
  std::array<std::shared_ptr<const program::Program>, 256> last_ = {};  // programs by run number
  const bool sync_;
  std::string failed_;
  std::mutex failing_;
};

}  // namespace haliax::cuda
