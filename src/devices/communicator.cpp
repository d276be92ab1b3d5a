// Collectives between the threads of one process, and the threads that run the devices of a mesh.
#include "devices/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "base/fork.h"
#include "base/object_pool.h"
#include "devices/reduce.h"
#include "devices/rank_communicator.h"
#include "devices/trace_lock.h"
#include "transforms/sharding.h"

namespace haliax {
namespace {

using program::Collective;
using program::SkipFlag;
using program::CollectiveKind;

std::atomic<std::int64_t> exchanged{0};

// State that the threads of a mesh share. For a collective, each thread publishes the addresses of
// its operands and results, and all threads of the group meet. Each thread then computes its own
// results directly from the memory of the others, and all meet again. Sums are in rank order, so
// results are bitwise identical on all devices. Each group has its own barrier: devices may run
// different numbers of collectives in a sharded loop.
class Rendezvous {
 public:
  struct Arrival {
    const Collective* how = nullptr;
    void* const* x = nullptr;
    void* const* out = nullptr;
  };
  explicit Rendezvous(int n)
      : arrivals(std::size_t(n)), waits_in_(std::size_t(n)), finished_(std::size_t(n)) {}
  std::vector<Arrival> arrivals;  // by device

  // The devices of a collective.
  struct Group {
    std::vector<int> devices;
    std::condition_variable round_done;
    std::size_t waiting = 0;
    std::uint64_t round = 0;
    bool has(int device) const {
      return std::find(devices.begin(), devices.end(), device) != devices.end();
    }
  };
  Group& group(std::vector<int> devices) {
    std::sort(devices.begin(), devices.end());
    std::lock_guard hold(lock_);
    auto& known = groups_[devices];
    if (known.devices.empty()) known.devices = std::move(devices);
    return known;
  }
  // Waits for the group. Raises if a device has failed, or if a device of the group can no longer
  // arrive.
  void arrive(Group& g, int device) {
    std::unique_lock hold(lock_);
    for (int d : g.devices)
      if (finished_[std::size_t(d)]) fail_all("another device finished without this collective");
    if (!error_.empty()) throw_error();
    waits_in_[std::size_t(device)] = &g;
    if (is_last(g)) return end_round(g, hold);
    fail_if_deadlocked();
    auto mine = g.round;
    g.round_done.wait(hold, [&] { return g.round != mine || !error_.empty(); });
    if (g.round == mine) throw_error();
  }
  // Waits a second time, so that no device releases its arrays while another still reads them.
  // Every device that has arrived must call it.
  void wait(Group& g) {
    std::unique_lock hold(lock_);
    if (is_last(g)) return end_round(g, hold);
    auto mine = g.round;
    g.round_done.wait(hold, [&] { return g.round != mine; });
  }
  void fail(const std::string& why) {
    std::lock_guard hold(lock_);
    fail_all(why);
  }
  // Marks a device as finished: it runs no more collectives.
  void leave(int device) {
    std::lock_guard hold(lock_);
    finished_[std::size_t(device)] = true;
    for (auto* g : waits_in_)
      if (g && g->has(device))
        fail_all("another device finished while this device waits in a collective");
  }

 private:
  // Counts an arrival. Returns true for the last one, which must call end_round.
  bool is_last(Group& g) {
    if (++g.waiting < g.devices.size()) return false;
    g.waiting = 0;
    ++g.round;
    for (int d : g.devices) waits_in_[std::size_t(d)] = nullptr;
    return true;
  }
  void end_round(Group& g, std::unique_lock<std::mutex>& hold) {
    hold.unlock();  // before the notification, since the woken threads need it
    g.round_done.notify_all();
  }
  // Fails the mesh, so that `arrive` raises, if no device runs and some device waits for one that
  // waits in another group: no group can complete. For example, on a 2 x 2 mesh, devices 0, 1, 3
  // and 2 wait in the groups {0, 1}, {1, 3}, {2, 3} and {0, 2}.
  void fail_if_deadlocked() {
    for (std::size_t d = 0; d < waits_in_.size(); ++d)
      if (!waits_in_[d] && !finished_[d]) return;
    for (std::size_t d = 0; d < waits_in_.size(); ++d)
      for (int other : waits_in_[d] ? waits_in_[d]->devices : std::vector<int>())
        if (auto* there = waits_in_[std::size_t(other)]; there && there != waits_in_[d])
          return fail_all(fmt::format("device {} makes a different call than device {}", other, d));
  }
  void fail_all(const std::string& why) {
    if (error_.empty()) error_ = why;
    for (auto& [devices, g] : groups_) g.round_done.notify_all();
  }
  [[noreturn]] void throw_error() const { throw RemoteError("[mesh] " + error_); }
  std::mutex lock_;
  std::map<std::vector<int>, Group> groups_;
  std::vector<Group*> waits_in_;  // per device: the group in which it waits, or null
  std::vector<char> finished_;
  std::string error_;
};

class ThreadCommunicator final : public program::Communicator {
 public:
  ThreadCommunicator(Rendezvous& m, const Mesh& mesh, int device)
      : rendezvous_(m), mesh_(mesh), device_(device) {}
  void run(const Collective& c, const void* const* x, void* const* out, void*,
           std::int64_t) override {
    std::vector<void*> given;  // read only
    for (std::size_t k = 0; k < c.x.size(); ++k) given.push_back(const_cast<void*>(x[k]));
    rendezvous_.arrivals[std::size_t(device_)] = {&c, given.data(), out};
    group_ = group_of(mesh_, c.over, device_);
    mine_ = std::size_t(std::find(group_.begin(), group_.end(), device_) - group_.begin());
    current_group_ = &rendezvous_.group(group_);
    rendezvous_.arrive(*current_group_, device_);
    refuse_others(c);
    const bool by_shares = reduces_by_shares();
    switch (c.kind) {
      case CollectiveKind::exchange:
        exchange(c, out);
        break;
      case CollectiveKind::all_gather:
        gather(c, out);
        break;
      case CollectiveKind::reduce_scatter:
        reduce_scatter(c, out);
        break;
      case CollectiveKind::all_reduce:
        sum(c, out, by_shares);
        break;
    }
    if (by_shares) {
      wait();
      if (c.kind == CollectiveKind::all_reduce) gather_shares(c, out);
    }
    wait();
  }
  void fail(const char* why) override {
    rendezvous_.fail("device " + std::to_string(device_) + " has failed: " + why);
  }

 private:
  using Arrival = Rendezvous::Arrival;
  void wait() { rendezvous_.wait(*current_group_); }
  void refuse_others(const Collective& c) {
    auto differs = std::find_if(group_.begin(), group_.end(), [&](int d) {
      auto& other = *call_of(d).how;
      bool same = other.kind == c.kind && other.over == c.over &&
                  other.out.size() == c.out.size() && other.monoid == c.monoid;
      return !same || other.size != c.size || other.sent_bytes != c.sent_bytes;
    });
    if (differs == group_.end()) return;
    wait();  // other devices still read this call
    throw Error("[mesh] device " + std::to_string(*differs) +
                " makes a different call than device " + std::to_string(device_));
  }
  const Arrival& call_of(int device) const { return rendezvous_.arrivals[std::size_t(device)]; }
  void gather(const Collective& c, void* const* out) const {
    for (std::size_t k = 0; k < c.out.size(); ++k)
      for (std::size_t g = 0; g < group_.size(); ++g) {
        auto& from = call_of(group_[g]);
        auto [first, size] = block_in_group(c, k, group_.size(), g);
        copy_patch(full_patch(from.x[k], from.how->x[k]),
                   slice_patch(out[k], c.out[k], c.dim[k], first, size));
      }
  }
  void reduce_scatter(const Collective& c, void* const* out) const {
    for (std::size_t k = 0; k < c.out.size(); ++k) {
      auto [first, size] = block_in_group(c, k, group_.size(), mine_);
      Patches parts;
      for (int d : group_)
        parts.push_back(slice_patch(call_of(d).x[k], call_of(d).how->x[k], c.dim[k], first, size));
      reduce_parts(c.monoid, parts, full_patch(out[k], c.out[k]));
    }
  }
  // Returns true if the arrays are large. Each device then reduces its share of them and copies the
  // other shares from the other devices, which needs one more barrier.
  bool reduces_by_shares() const {
    return std::any_of(group_.begin(), group_.end(), [&](int d) {
      auto& how = *call_of(d).how;
      if (how.kind != CollectiveKind::all_reduce) return false;
      std::int64_t bytes = 0;
      for (auto& o : how.out) bytes += program::points(o.dims) * bytes_of(o.view.dtype);
      return bytes >= kReduceBySharesBytes;
    });
  }
  // Returns the elements in the memory order of the first device of the group, so that all devices
  // split the array into the same shares.
  Patch in_order(void* at, const program::Operand& o, std::size_t k) const {
    auto& first = call_of(group_[0]);
    return reordered(full_patch(at, o), order_in_memory(first.how->x[k].view.strides));
  }
  void sum(const Collective& c, void* const* out, bool by_shares) const {
    for (std::size_t k = 0; k < c.out.size(); ++k) {
      auto own_part = [&](const Patch& p) {
        return by_shares ? share_of(p, group_.size(), mine_) : p;
      };
      Patches parts;
      for (int d : group_)
        parts.push_back(own_part(in_order(call_of(d).x[k], call_of(d).how->x[k], k)));
      reduce_parts(c.monoid, parts, own_part(in_order(out[k], c.out[k], k)));
    }
  }
  void gather_shares(const Collective& c, void* const* out) const {
    for (std::size_t k = 0; k < c.out.size(); ++k)
      for (std::size_t g = 0; g < group_.size(); ++g) {
        auto& from = call_of(group_[g]);
        auto theirs = in_order(from.out[k], from.how->out[k], k),
             here = in_order(out[k], c.out[k], k);
        if (g == mine_) continue;
        copy_patch(share_of(theirs, group_.size(), g), share_of(here, group_.size(), g));
      }
  }
  void exchange(const Collective& c, void* const* out) const {
    // per sending device: the next of its sends to this device
    std::vector<std::size_t> next(rendezvous_.arrivals.size());
    const bool unread = c.skip_flag == SkipFlag::unread && !participates(c, call_of(device_).x);
    for (auto& got : c.receives) {
      auto& from = call_of(got.device);
      const bool own = got.device == device_;
      if (unread && !own) continue;
      if (c.skip_flag == SkipFlag::zeros && !own && !participates(*from.how, from.x)) {
        fill_zeros(
            box_patch(out[got.array], c.out[std::size_t(got.array)], got.start, got.dims, nullptr));
        continue;
      }
      auto& sends = from.how->sends;
      auto& at = next[std::size_t(got.device)];
      while (sends[at].device != device_) ++at;
      auto& sent = sends[at++];
      auto theirs = std::size_t(sent.array), mine = std::size_t(got.array);
      const auto dims = sent_dims(*from.how, from.x, sent.start, got.dims);
      copy_patch(box_patch(from.x[theirs], from.how->x[theirs], sent.start, dims, &sent.step),
                 box_patch(out[mine], c.out[mine], got.start, dims, nullptr));
      if (dims != got.dims)
        fill_rest(box_patch(out[mine], c.out[mine], got.start, got.dims, nullptr), dims);
      if (!own) exchanged += program::points(dims) * bytes_of(c.out[mine].view.dtype);
    }
  }
  // Size in bytes from which one more barrier is faster than a full reduction on each device
  // (measured with 4 devices on 2 cores).
  static constexpr std::int64_t kReduceBySharesBytes = 64 << 10;
  Rendezvous& rendezvous_;
  const Mesh& mesh_;
  int device_;
  std::vector<int> group_;                      // devices of the collective, in rank order
  std::size_t mine_ = 0;                        // index of this device in group_
  Rendezvous::Group* current_group_ = nullptr;  // barrier of the group
};

std::atomic<int> threads_started{0};

// Threads that wait for work: one per device of the largest mesh so far, except for the device of
// the calling thread. Serves one call at a time.
class DeviceThreads {
 public:
  void run(int n, const std::function<void(int)>& f) {
    auto& shared = shared_;
    std::unique_lock hold(shared.lock);
    for (int d = shared.started + 1; d < n; ++d) {
      std::thread([&shared, d, seen = shared.work] { shared.serve(d, seen); }).detach();
      ++shared.started;
      ++threads_started;
    }
    shared.f = &f;
    shared.n = n;
    shared.busy = n - 1;
    ++shared.work;
    hold.unlock();
    shared.start.notify_all();
    f(0);
    hold.lock();
    shared.done.wait(hold, [&] { return shared.busy == 0; });
  }

 private:
  struct Shared {
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
  Shared& shared_ = *new Shared;  // never destroyed, since its threads end with the process
};
ObjectPool<DeviceThreads>& idle_device_threads() {
  static auto* all = new ObjectPool<DeviceThreads>;  // never destroyed, since its threads are not
  return *all;
}
// A child process has none of the threads, so its pool starts empty.
const bool idle_threads_forks = at_fork(
    {kForkRest, nullptr, nullptr, [] { new (&idle_device_threads()) ObjectPool<DeviceThreads>; }});

}  // namespace

int device_threads() { return threads_started; }
std::int64_t exchanged_bytes() { return exchanged; }

LocalDevices local_devices(const Mesh& mesh) {
  auto* ranks = mesh.devices() > 1 ? peers() : nullptr;
  if (!ranks) return {nullptr, 0, mesh.devices()};
  int each = mesh.devices() / ranks->count();
  return {ranks, ranks->rank() * each, each};
}

int backend_device_of(program::Device& backend, const Mesh* mesh, int device) {
  auto* ranks = backend.is_host() ? nullptr : peers();
  if (!ranks) return device;
  const auto here = mesh ? local_devices(*mesh) : LocalDevices();
  const int each = devices() / ranks->count();
  return (ranks->local_rank() * each + device - here.first) % backend.devices();
}

void on_devices(const Mesh& mesh, const std::function<void(int, program::Communicator&)>& work,
                program::Device* backend, const std::string& what) {
  program::Dims sizes;
  for (auto& [name, size] : mesh.axes()) sizes.push_back(size);
  auto here = local_devices(mesh);
  Rendezvous rendezvous(here.count);
  std::mutex lock;
  std::exception_ptr error;
  bool is_remote = false;
  // Records the first error. An error of this device replaces an error that another device caused.
  auto keep = [&](bool by_another) {
    std::lock_guard hold(lock);
    if (!error || (is_remote && !by_another)) {
      error = std::current_exception();
      is_remote = by_another;
    }
  };
  auto fail_device = [&](int device, program::Communicator& mine, const char* why) {
    keep(false);
    mine.fail(why);
    if (here.ranks) here.ranks->fail(fmt::format("device {}: {}", device, why));
  };
  std::optional<Peers::JointCall> together;
  if (here.ranks) together.emplace(*here.ranks, what);
  // Devices match their collectives in the order of the calls, so the order must be the same on all
  // devices.
  static TraceLock communicator_lock;
  std::unique_lock device_lock(communicator_lock, std::defer_lock);
  if (backend && !backend->is_host()) device_lock.lock();
  const Scopes scopes;
  auto threads = idle_device_threads().take();
  if (!threads) threads = std::make_unique<DeviceThreads>();
  threads->run(here.count, [&](int k) {
    use_scopes scoped(scopes);
    int d = here.first + k;
    ThreadCommunicator local(rendezvous, mesh, d);
    std::optional<RankCommunicator> messages;
    std::shared_ptr<program::Communicator> own;
    program::Communicator* mine = &local;
    try {
      if (backend && !backend->is_host())
        own = backend->communicator(sizes, d, backend_device_of(*backend, &mesh, d), here.ranks);
      if (own)
        mine = own.get();
      else if (here.ranks)
        mine = &messages.emplace(*here.ranks, *together, mesh, d);
      work(d, *mine);
      rendezvous.leave(k);
    } catch (const RemoteError&) {
      keep(true);
    } catch (const std::exception& e) {
      fail_device(d, *mine, e.what());
    } catch (...) {
      fail_device(d, *mine, "for an unknown reason");
    }
  });
  idle_device_threads().put(std::move(threads));
  if (error) std::rethrow_exception(error);
}

}  // namespace haliax
