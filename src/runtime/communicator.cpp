#include "runtime/communicator.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "base/fork.h"
#include "base/idle.h"
#include "base/scalar.h"
#include "runtime/fold.h"
#include "runtime/rank_communicator.h"
#include "runtime/turn.h"
#include "runtime/walk_dims.h"
#include "transforms/sharding.h"

namespace haliax {
namespace {

using program::Collective;
using program::Dims;
using program::Wire;

// What the threads of a mesh share: each says where its operand lies, all wait, each makes its own result, all wait again. A sum
// is taken in rank order, so that every device has the same bits.
class Meeting {
 public:
  explicit Meeting(int n) : given(std::size_t(n)), devices_(n) {}
  std::vector<std::pair<const Collective*, const void* const*>> given;

  void wait() {
    std::unique_lock hold(lock_);
    if (left_ > 0 && why_.empty()) why_ = "another device has finished without this call";
    if (!why_.empty()) fail_here();
    if (++waiting_ == devices_) {
      waiting_ = 0, ++round_;
      turn_.notify_all();
      return;
    }
    auto mine = round_;
    turn_.wait(hold, [&] { return round_ != mine || !why_.empty(); });
    if (round_ == mine) fail_here();
  }
  void fail(const std::string& why) {
    std::lock_guard hold(lock_);
    if (why_.empty()) why_ = why;
    turn_.notify_all();
  }
  void leave() {   // all calls made
    std::lock_guard hold(lock_);
    ++left_;
    if (waiting_ == 0 || !why_.empty()) return;
    why_ = "another device has finished while this one waits for a call";
    turn_.notify_all();
  }

 private:
  [[noreturn]] void fail_here() const { throw Elsewhere("[mesh] " + why_); }
  std::mutex lock_;
  std::condition_variable turn_;
  int devices_, waiting_ = 0, left_ = 0;
  std::uint64_t round_ = 0;
  std::string why_;
};

std::int64_t offset(const program::View& v, const Dims& at) {   // of an element, in bytes
  std::int64_t o = 0;
  for (std::size_t d = 0; d < at.size(); ++d) o += at[d] * v.strides[d];
  return o * bytes_of(v.dtype);
}

class ThreadCommunicator final : public program::Communicator {
 public:
  ThreadCommunicator(Meeting& m, const Mesh& mesh, int device) : meeting_(m), mesh_(mesh), device_(device) {}
  void run(const Collective& c, const void* const* x, void* const* out, void*, std::int64_t) override {
    meeting_.given[std::size_t(device_)] = {&c, x};
    meeting_.wait();
    auto group = group_of(mesh_, c.over, device_);
    auto differs = std::find_if(group.begin(), group.end(), [&](int d) {
      auto& other = *meeting_.given[std::size_t(d)].first;
      bool same = other.wire == c.wire && other.over == c.over && other.out.size() == c.out.size() && other.monoid == c.monoid;
      return !same || other.size != c.size || other.sent_bytes != c.sent_bytes;
    });
    if (differs != group.end()) {
      meeting_.wait();   // others still look at this call
      throw Error("[mesh] device " + std::to_string(*differs) + " makes another call than device " + std::to_string(device_));
    }
    if (c.wire == Wire::exchange) exchange(c, out);
    else
      for (std::size_t k = 0; k < c.out.size(); ++k) {
        auto* mine = static_cast<std::byte*>(out[k]);
        c.wire == Wire::all_gather ? gather(c, k, group, mine) : reduce(c, k, group, mine);
      }
    meeting_.wait();
  }
  void fail(const char* why) override { meeting_.fail("device " + std::to_string(device_) + " has failed: " + why); }

 private:
  // Where element `at` of array k of another device lies.
  const std::byte* theirs(int device, std::size_t k, const Dims& at) const {
    auto& [how, x] = meeting_.given[std::size_t(device)];
    return static_cast<const std::byte*>(x[k]) + offset(how->x[k].view, at);
  }
  // Positions of the axis that is cut or joined in a block, of which the last may be short.
  static std::int64_t block_size(const Collective& c, std::size_t k, const std::vector<int>& group) {
    auto n = std::int64_t(group.size());
    return (c.size[k] + n - 1) / n;
  }
  void gather(const Collective& c, std::size_t k, const std::vector<int>& group, std::byte* out) const {
    auto& to = c.out[k];
    auto d = std::size_t(c.dim[k]);
    auto step = block_size(c, k, group);
    each_point(to.dims, [&](const Dims& at) {
      Dims from = at;
      from[d] = at[d] % step;
      auto* sent = theirs(group[std::size_t(at[d] / step)], k, from);
      std::memcpy(out + offset(to.view, at), sent, std::size_t(bytes_of(to.view.dtype)));
    });
  }
  void reduce(const Collective& c, std::size_t k, const std::vector<int>& group, std::byte* out) const {
    auto& to = c.out[k];
    auto dtype = to.view.dtype;
    bool scatters = c.wire == Wire::reduce_scatter;
    auto rank = std::find(group.begin(), group.end(), device_) - group.begin();
    each_point(to.dims, [&](const Dims& at) {
      Dims from = at;
      if (scatters) from[std::size_t(c.dim[k])] += rank * block_size(c, k, group);
      auto sum = scalar::load(dtype, theirs(group[0], k, from));
      for (std::size_t g = 1; g < group.size(); ++g) {
        auto v = scalar::load(dtype, theirs(group[g], k, from));
        if (dtype == DType::u64) sum.whole = std::int64_t(folded(c.monoid, std::uint64_t(sum.whole), std::uint64_t(v.whole)));
        else if (!is_float(dtype)) sum.whole = folded(c.monoid, sum.whole, v.whole);
        else if (dtype == DType::f64) sum.real = folded(c.monoid, sum.real, v.real);
        else sum.real = folded(c.monoid, float(sum.real), float(v.real));
      }
      scalar::store(dtype, out + offset(to.view, at), sum);
    });
  }
  void exchange(const Collective& c, void* const* out) const {
    std::vector<std::size_t> next(meeting_.given.size());   // of what each device sends to this one
    for (auto& got : c.receives) {
      auto& sends = meeting_.given[std::size_t(got.device)].first->sends;
      auto& at = next[std::size_t(got.device)];
      while (sends[at].device != device_) ++at;
      auto& sent = sends[at++];
      auto& to = c.out[std::size_t(got.array)].view;
      auto* first = static_cast<std::byte*>(out[std::size_t(got.array)]);
      each_point(got.dims, [&](const Dims& i) {
        Dims from = sent.start, mine = got.start;
        for (std::size_t d = 0; d < i.size(); ++d) from[d] += i[d] * sent.step[d], mine[d] += i[d];
        auto* element = theirs(got.device, std::size_t(sent.array), from);
        std::memcpy(first + offset(to, mine), element, std::size_t(bytes_of(to.dtype)));
      });
    }
  }
  Meeting& meeting_;
  const Mesh& mesh_;
  int device_;
};

std::atomic<int> threads_started{0};

// Threads that wait for work: as many as the largest mesh so far has devices beside the caller's. One call at a time.
class Crew {
 public:
  void run(int n, const std::function<void(int)>& f) {
    auto& c = crew_;
    std::unique_lock hold(c.lock);
    for (int d = c.started + 1; d < n; ++d) {
      std::thread([&c, d, seen = c.work] { c.serve(d, seen); }).detach();
      ++c.started, ++threads_started;
    }
    c.f = &f, c.n = n, c.busy = n - 1, ++c.work;
    c.start.notify_all();
    hold.unlock();
    f(0);
    hold.lock();
    c.done.wait(hold, [&] { return c.busy == 0; });
  }

 private:
  struct State {
    [[noreturn]] void serve(int device, std::uint64_t seen) {
      std::unique_lock hold(lock);
      for (;;) {
        start.wait(hold, [&] { return work != seen; });
        seen = work;
        if (device >= n) continue;
        hold.unlock();
        (*f)(device);
        hold.lock();
        if (--busy == 0) done.notify_one();
      }
    }
    std::mutex lock;
    std::condition_variable start, done;
    const std::function<void(int)>* f = nullptr;
    int started = 0, n = 0, busy = 0;
    std::uint64_t work = 0;
  };
  State& crew_ = *new State;   // never destroyed: its threads end with the process
};
Idle<Crew>& crews() {
  static auto* all = new Idle<Crew>;   // never destroyed: their threads are not
  return *all;
}
// A child has none of their threads.
const bool crew_forks = at_fork({kForkRest, nullptr, nullptr, [] { new (&crews()) Idle<Crew>; }});

}  // namespace

int device_threads() { return threads_started; }

DevicesHere devices_here(const Mesh& mesh) {
  auto* ranks = mesh.devices() > 1 ? peers() : nullptr;
  if (!ranks) return {nullptr, 0, mesh.devices()};
  int each = mesh.devices() / ranks->count();
  return {ranks, ranks->rank() * each, each};
}

void on_devices(const Mesh& mesh, const std::function<void(int, program::Communicator&)>& work, program::Device* backend,
                const std::string& what) {
  program::Dims sizes;
  for (auto& [name, size] : mesh.axes()) sizes.push_back(size);
  auto here = devices_here(mesh);
  if (here.ranks && backend && !backend->is_host())
    throw Error(std::string("[ranks] backend ") + backend->name() + " cannot run on a mesh of several processes; the cpu can");
  Meeting meeting(here.count);
  std::mutex lock;
  std::exception_ptr error;
  bool elsewhere = false;
  auto keep = [&](bool by_another) {   // the first, but rather a cause than what followed from it
    std::lock_guard hold(lock);
    if (!error || (elsewhere && !by_another)) error = std::current_exception(), elsewhere = by_another;
  };
  std::optional<Peers::Call> together;
  if (here.ranks) together.emplace(*here.ranks, what);
  // What devices queue for each other meets in the order of calls, which must be the same on all of them.
  static TurnLock in_turn;
  std::unique_lock turn(in_turn, std::defer_lock);
  if (backend && !backend->is_host()) turn.lock();
  const Scopes scopes;
  auto crew = crews().take();
  if (!crew) crew = std::make_unique<Crew>();
  crew->run(here.count, [&](int k) {
    use_scopes scoped(scopes);
    int d = here.first + k;
    ThreadCommunicator threads(meeting, mesh, d);
    std::optional<RankCommunicator> messages;
    std::shared_ptr<program::Communicator> own;
    program::Communicator* mine = &threads;
    try {
      if (here.ranks) mine = &messages.emplace(*here.ranks, *together, mesh, d);
      else if (backend && !backend->is_host()) own = backend->communicator(sizes, d);
      if (own) mine = own.get();
      work(d, *mine);
      meeting.leave();
    } catch (const Elsewhere&) {
      keep(true);
    } catch (const std::exception& e) {
      keep(false);
      mine->fail(e.what());
    } catch (...) {
      keep(false);
      mine->fail("for a reason that is not known");
    }
  });
  crews().leave(std::move(crew));
  if (error) std::rethrow_exception(error);
}

}  // namespace haliax
