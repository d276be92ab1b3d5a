// The thread pool: workers that spin briefly between jobs, with work stealing by blocks.
#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/environment.h"
#include "base/fork.h"
#include "base/where.h"
#include "haliax/error.h"
#include "haliax/jit.h"

namespace haliax {
namespace {

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

constexpr int kMost = 1024;

// Returns the number of cores for this process: the cores of its affinity mask. If the mask has all
// cores, the cores are divided by the number of MPI processes on this machine.
int cores_here() {
  const auto all = int(std::thread::hardware_concurrency());
  int mine = all, together = 1;
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) mine = CPU_COUNT(&set);
#endif
  if (const char* text = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE")) together = std::atoi(text);
  return std::clamp(mine < all ? mine : all / std::max(together, 1), 1, kMost);
}

// The remaining blocks of one worker. The owner takes the first block, other workers steal the
// last.
class Share {
 public:
  void set(std::int64_t first, std::int64_t end) {
    range_.store(join(first, end), std::memory_order_relaxed);
  }
  // Returns a block, or -1 if none is left.
  std::int64_t take(bool last) {
    std::uint64_t range = range_.load(std::memory_order_relaxed);
    for (;;) {
      const auto first = static_cast<std::int64_t>(range & 0xffffffff),
                 end = static_cast<std::int64_t>(range >> 32);
      if (first >= end) return -1;
      const std::uint64_t rest = last ? join(first, end - 1) : join(first + 1, end);
      if (range_.compare_exchange_weak(range, rest, std::memory_order_relaxed))
        return last ? end - 1 : first;
    }
  }

 private:
  static std::uint64_t join(std::int64_t first, std::int64_t end) {
    return static_cast<std::uint64_t>(end) << 32 | static_cast<std::uint64_t>(first);
  }
  alignas(64) std::atomic<std::uint64_t> range_{0};
};

thread_local bool in_block = false;  // this thread runs a task of the pool

// Never destroyed, as threads may compute after main returns.
class Pool {
 public:
  explicit Pool(int count) { start(count); }
  int size() const { return size_.load(std::memory_order_relaxed); }
  // Changes the number of threads, after running work is finished.
  void resize(int count) {
    std::lock_guard lock(busy_);
    if (count == size()) return;
    stop_.store(true);
    epoch_.fetch_add(1);
    epoch_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    stop_.store(false);
    start(count);
  }

  // Runs a job. Returns false if another caller occupies the pool.
  bool run(std::int64_t blocks, int workers, BlockTask task, void* context) {
    std::unique_lock lock(busy_, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    task_ = task;
    context_ = context;
    limit_ = std::min(workers, size());
    for (int i = 0; i < limit_; ++i)
      shares_[static_cast<std::size_t>(i)].set(blocks * i / limit_, blocks * (i + 1) / limit_);
    open_.store(true);
    epoch_.fetch_add(1);
    if (sleepers_.load() > 0) epoch_.notify_all();
    take_blocks(0);
    // A worker either observes the closed job or is counted in `inside_`, since both accesses are
    // sequentially consistent.
    open_.store(false);
    for (int spins = 0; inside_.load() != 0; ++spins) {
      if (spins < 4096)
        relax();
      else
        std::this_thread::yield();
    }
    return true;
  }

 private:
  void start(int count) {
    shares_ = std::vector<Share>(static_cast<std::size_t>(count));
    workers_.clear();
    workers_.reserve(static_cast<std::size_t>(count) - 1);
    for (int i = 1; i < count; ++i) workers_.emplace_back([this, i] { work(i); });
    size_.store(count, std::memory_order_relaxed);
  }
  void take_blocks(int worker) {
    for (int i = 0; i < limit_; ++i) {
      Share& share = shares_[static_cast<std::size_t>((worker + i) % limit_)];
      for (std::int64_t block; (block = share.take(i > 0)) >= 0;) task_(context_, block, worker);
    }
  }
  void work(int worker) {
    // Tens of microseconds: longer than the usual gap between two steps.
    constexpr int spin_count = 1 << 13;
    std::uint32_t seen = 0;
    in_block = true;
    for (;;) {
      for (int spins = 0; epoch_.load() == seen; ++spins) {
        if (spins < spin_count) {
          relax();
          continue;
        }
        sleepers_.fetch_add(1);
        epoch_.wait(seen);
        sleepers_.fetch_sub(1);
      }
      seen = epoch_.load();
      if (stop_.load()) return;
      inside_.fetch_add(1);
      if (open_.load() && worker < limit_) take_blocks(worker);
      inside_.fetch_sub(1);
    }
  }

  std::mutex busy_;
  std::atomic<int> size_{1};
  BlockTask task_ = nullptr;
  void* context_ = nullptr;
  int limit_ = 0;
  std::vector<Share> shares_;
  alignas(64) std::atomic<std::uint32_t> epoch_{0};
  std::atomic<bool> open_{false}, stop_{false};
  std::atomic<int> sleepers_{0};
  alignas(64) std::atomic<int> inside_{0};
  std::vector<std::thread> workers_;
};

constinit std::mutex making;
constinit std::atomic<Pool*> current{nullptr};
std::atomic<int> configured_threads{0};  // the argument of set_threads; 0 for the default
// A child process creates its own pool, since it has none of the parent's threads.
const bool pool_forks = at_fork(
    {kForkRest, [] { making.lock(); }, [] { making.unlock(); }, [] { current.store(nullptr); }});

Pool& pool() {
  if (Pool* p = current.load(std::memory_order_acquire)) return *p;
  std::lock_guard lock(making);
  if (!current.load())
    current.store(new Pool(configured_threads > 0 ? configured_threads.load() : default_threads()));
  return *current.load();
}

}  // namespace

void set_threads(int count, SourceLocation at) {
  auto refuse = [&](const std::string& what) {
    auto place = to_string(at);
    throw Error("[set_threads] " + what + (place.empty() ? "" : "; " + place));
  };
  if (in_block)
    refuse("must not be called by a function that runs on these threads; call it outside");
  if (count < 0 || count > kMost)
    refuse("count is " + std::to_string(count) + "; expected 1 to " + std::to_string(kMost) +
           ", or 0 for the default");
  const int now = count > 0 ? count : default_threads(at);
  configured_threads = count;
  pool().resize(now);
}

int default_threads(SourceLocation at) {
  const int cores = cores_here();
  return int(env_integer("HALIAX_THREADS", 1, kMost, at).value_or(cores));
}

int threads() { return pool().size(); }

void parallel_for(std::int64_t blocks, int workers, BlockTask task, void* context) {
  Pool* p = blocks > 1 && workers > 1 && !in_block ? &pool() : nullptr;
  const bool outer = std::exchange(in_block, true);  // a nested call runs on this thread only
  if (!p || p->size() == 1 || !p->run(blocks, workers, task, context))
    for (std::int64_t block = 0; block < blocks; ++block) task(context, block, 0);
  in_block = outer;
}

}  // namespace haliax
