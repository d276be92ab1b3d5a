// One device as the engine has it: its streams, its memory, what is copied to and from it, and the
// fault that has ended it.
#pragma once
#include <array>
#include <memory>
#include <mutex>
#include <string>

#include "api.h"
#include "program/program.h"

namespace haliax::cuda {

// whoever has memory of it keeps it, too
class DeviceContext : public std::enable_shared_from_this<DeviceContext> {
 public:
  // sync: faults name their step, as runs wait for each
  DeviceContext(const Api&, int device, int sm, bool sync);
  ~DeviceContext();

  const Api& api;
  const int device, sm;            // sm: what it can do, 90 is sm_90
  std::mutex running;              // held while a run is asked for
  const Handle stream, side;       // what is asked for in order; collectives, beside it
  const Handle graph, graph_side;  // the same where graphs are written down

  program::Memory allocate(std::int64_t bytes);
  void put(const program::Box&);
  void get(const program::Box&);
  void copy(const program::Box&);
  void* workspace();  // of products

  // f asks the device for something that may raise a Fault. What is raised then, and from then on,
  // names the call that caused it.
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
  // What is asked for meanwhile is of a run of this program; also if it is given up.
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
  void settle(std::int64_t run) noexcept;  // waits until it has ended, one way or the other
  void settle() noexcept;                  // the same, for all that was asked for

 private:
  struct Half {  // of the host's memory for copies: one is filled while the other is copied
    std::byte* data = nullptr;
    Handle event = nullptr;
  };
  static constexpr std::int64_t kHalf = 4 << 20;
  void refuse_if_failed();
  [[noreturn]] void fail(const std::string& why);
  [[noreturn]] void end(const std::string& error);  // raises it, now and from now on
  std::int64_t done() const;
  void* allocate_bytes(std::int64_t bytes);
  Half& half(std::int64_t k);
  void put_bytes(std::byte* to, const std::byte* from, std::int64_t bytes);
  void get_bytes(std::byte* to, const std::byte* from, std::int64_t bytes);
  void copy_there(const program::Box&);  // by a kernel, or at once where both lie in one piece

  std::mutex copying_;
  std::array<Half, 2> halves_ = {};
  void* workspace_ = nullptr;
  std::int64_t runs_ = 0;
  std::int64_t* done_ = nullptr;  // the number of the last run that the device has ended
  std::array<std::shared_ptr<const program::Program>, 256> last_ = {};  // by number
  const bool sync_;
  std::string failed_;
  std::mutex failing_;
};

}  // namespace haliax::cuda
