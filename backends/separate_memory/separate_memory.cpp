// The cpu backend on devices that share no memory with the host. It tests the device interface for
// separate memory on machines without such devices.
// The memory of a device is protected except while the device runs work on it. New memory is filled
// with NaN. Each device has one thread, which runs the queued work in order while the caller
// continues.
#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <list>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "base/fork.h"
#include "base/protected_memory.h"
#include "haliax/error.h"
#include "program/devices.h"

namespace haliax::separate_memory {
namespace {

using namespace program;

// One device: its memory, its thread and its queue of work.
class Unit {
 public:
  int number = 0;
  using Work = std::list<std::function<void()>>;
  // Queues work and returns immediately. The work must not raise.
  void post(Work one) {
    std::lock_guard hold(lock_);
    if (!started_) std::thread([this] { serve(); }).detach();
    started_ = true;
    work_.splice(work_.end(), one);
    ++posted_;
    changed_.notify_all();
  }
  // Waits for all work that was posted before.
  void wait() {
    std::unique_lock hold(lock_);
    changed_.wait(hold, [this, mine = posted_] { return done_ >= mine; });
  }
  // Runs work on the caller's thread after all posted work. The work may wait for other devices,
  // whose threads may have to run other work first.
  template <class F> void here(const F& work) {
    wait();
    memory_.opened(work);
  }
  // Counts a call. Raises the error of an earlier run, if one has failed.
  void begin(std::int64_t Counts::*what) {
    if (what == &Counts::gets) wait();
    std::lock_guard hold(lock_);
    ++(counts_.*what);
    if (!failed_.empty() && (what == &Counts::runs || what == &Counts::gets)) throw Error(failed_);
  }
  void enqueue(const std::string& called, std::function<void()> run) {
    post({[this, called, run = std::move(run)] {
      try {
        std::unique_lock hold(lock_);
        if (!failed_.empty()) return;
        if (auto planted = std::exchange(planted_, ""); !planted.empty()) throw Error(planted);
        hold.unlock();
        run();
      } catch (const std::exception& e) {
        std::lock_guard hold(lock_);
        failed_ = "[separate-memory] device " + std::to_string(number) +
                  " has failed in the call of " + called + ": " + e.what() +
                  "; it cannot run any more programs";
      }
    }});
  }
  Memory allocate(std::int64_t bytes) {
    const auto size = (std::max<std::int64_t>(bytes, 1) + 63) / 64 * 64;
    Work fill{[] {}}, back{[] {}};  // allocated here, because releasing memory must not allocate
    auto* got = memory_.take(size);
    if (!got) {
      wait();
      got = memory_.take(size);
    }
    // after wait(), all memory that was released before is free
    if (!got)
      throw Error("[memory] " + std::to_string(bytes) +
                  " bytes are requested, but not available on separate-memory device " +
                  std::to_string(number));
    fill.front() = [got, size] { std::memset(got, 0xff, std::size_t(size)); };
    back.front() = [this, got] { memory_.give_back(got); };
    Memory out(got, [this, back = std::move(back)](void*) mutable { post(std::move(back)); });
    post(std::move(fill));
    return out;
  }
  Counts counts() {
    wait();
    std::lock_guard hold(lock_);
    counts_.bytes = memory_.in_use();
    return counts_;
  }
  void plant(const char* what) {
    wait();
    std::lock_guard hold(lock_);
    planted_ = what ? what : "";
    if (!what) failed_.clear();
  }
  void hold() {
    lock_.lock();
    memory_.lock().lock();
  }
  void let_go() {
    memory_.lock().unlock();
    lock_.unlock();
  }
  // Resets the device in a forked child, which lacks the device's thread. Work that this thread was
  // running counts as done.
  void in_child() {
    new (&changed_) std::condition_variable;
    started_ = false;
    done_ = posted_ - std::int64_t(work_.size());
    if (!work_.empty()) post({[] {}});
  }

 private:
  [[noreturn]] void serve() {
    std::unique_lock hold(lock_);
    for (;; ++done_, changed_.notify_all()) {
      changed_.wait(hold, [this] { return !work_.empty(); });
      auto work = std::move(work_.front());
      work_.pop_front();
      hold.unlock();
      memory_.opened(work);
      work = nullptr;
      hold.lock();
    }
  }
  ProtectedMemory memory_;
  std::mutex lock_;  // guards all members below
  std::condition_variable changed_;
  Work work_;
  std::int64_t posted_ = 0, done_ = 0;
  bool started_ = false;
  std::string failed_, planted_;
  Counts counts_;
};

using Units = std::array<Unit, 64>;
constinit Units* units = nullptr;  // never destroyed, because memory may be released after main
Unit& unit(int d) { return units->at(std::size_t(d)); }
template <void (Unit::*F)()> void each_unit() {
  for (int d = 0; units && d < int(units->size()); ++d) (unit(d).*F)();
}
const bool waits = at_fork({kForkDevices, each_unit<&Unit::wait>});
const bool forks = at_fork(
    {kForkRest, each_unit<&Unit::hold>, each_unit<&Unit::let_go>, each_unit<&Unit::in_child>});

// Returns true if the steps communicate with other devices or call the host.
bool blocks(const std::vector<Step>& steps) {
  return std::any_of(steps.begin(), steps.end(), [](auto& s) {
    return s.kind == Kind::collective || s.kind == Kind::host || blocks(s.body);
  });
}
// An executable that runs asynchronously on the thread of its device. Programs that block run on
// the caller's thread.
class DeferredExecutable final : public Executable {
 public:
  DeferredExecutable(std::shared_ptr<Executable> steps, const Program& p)
      : steps_(std::move(steps)), called_(p.called), unit_(unit(p.backend_device)),
        blocks_(blocks(p.steps)) {}
  void run(const std::vector<void*>& arguments, const std::vector<void*>& results, void* arena,
           Communicator* comm) override {
    if (blocks_) unit_.wait();
    unit_.begin(&Counts::runs);
    if (blocks_)
      unit_.here([&] { steps_->run(arguments, results, arena, comm); });
    else
      unit_.enqueue(called_,
                    [=, steps = steps_] { steps->run(arguments, results, arena, nullptr); });
  }

 private:
  std::shared_ptr<Executable> steps_;  // shared with queued runs
  std::string called_;
  Unit& unit_;
  bool blocks_;
};

class SeparateMemoryDevice final : public Device {
 public:
  const char* name() const override { return "separate-memory"; }
  std::int64_t scratch_bytes(const Step& s, int workers) const override {
    return steps_->scratch_bytes(s, workers);
  }
  int parallel_slots(const Step& l, std::int64_t iterations, std::int64_t parallel_slot_bytes,
                     int workers) const override {
    return steps_->parallel_slots(l, iterations, parallel_slot_bytes, workers);
  }
  Machine machine() const override { return steps_->machine(); }
  std::unique_ptr<Executable> compile(std::shared_ptr<const Program> p) override {
    return std::make_unique<DeferredExecutable>(steps_->compile(p), *p);
  }
  bool is_host() const override { return false; }
  int devices() const override { return int(units->size()); }
  Memory allocate(std::int64_t bytes, int d) override { return unit(d).allocate(bytes); }
  void put(const Box& b, int d) override {
    unit(d).begin(&Counts::puts);
    unit(d).here([&] { copy_on_host(b); });
  }
  void get(const Box& b, int d) override {
    unit(d).begin(&Counts::gets);
    unit(d).here([&] { copy_on_host(b); });
  }
  void copy(const Box& b, int d) override {
    unit(d).begin(&Counts::copies);
    unit(d).post({[b] { copy_on_host(b); }});
  }

 private:
  std::unique_ptr<Device> steps_ = cpu::make_cpu_device(0);
};

}  // namespace

std::unique_ptr<Device> make_separate_memory_device() {
  static std::once_flag once;
  std::call_once(once, [] {
    units = new Units;
    for (std::size_t d = 0; d < units->size(); ++d) unit(int(d)).number = int(d);
  });
  return std::make_unique<SeparateMemoryDevice>();
}
Counts counts(int device) {
  make_separate_memory_device();
  return unit(device).counts();
}
void inject_error(int device, const char* what) { unit(device).plant(what); }

}  // namespace haliax::separate_memory
