// A shared lock for readers of the graph, with priority for writers.
#include "graph/lock.h"

#include <atomic>
#include <cstdint>

#include "base/fork.h"
#include "graph/threads.h"

namespace haliax {
namespace {

// The number of readers, and a bit for a waiting or active writer, which keeps new readers out.
// Constant-initialized and never destroyed.
constexpr std::uint32_t kWriter = 1u << 31;
constinit std::atomic<std::uint32_t> state{0};
constinit std::atomic<int> threads{0};  // threads that have ever read
[[gnu::tls_model("initial-exec")]] thread_local bool is_registered = false;
// in the static TLS block, since every op reads it
[[gnu::tls_model("initial-exec")]] thread_local int depth = 0;

void lock_shared() noexcept {
  auto now = state.load(std::memory_order_relaxed);
  for (;;) {
    if (now & kWriter) {
      state.wait(now, std::memory_order_relaxed);
      now = state.load(std::memory_order_relaxed);
    } else if (state.compare_exchange_weak(now, now + 1, std::memory_order_acquire,
                                           std::memory_order_relaxed))
      return;
  }
}
void unlock_shared() noexcept {
  // a writer waits for the last reader
  if (state.fetch_sub(1, std::memory_order_release) == (kWriter | 1)) state.notify_all();
}

}  // namespace

static void lock_exclusive() noexcept;
static void unlock_exclusive() noexcept;
// Registers a thread at its first read. No thread reads meanwhile, as readers rely on the number of
// threads (is_single_threaded).
static void register_thread() noexcept {
  lock_exclusive();
  threads.fetch_add(1, std::memory_order_relaxed);
  unlock_exclusive();
  is_registered = true;
}
bool is_single_threaded() { return threads.load(std::memory_order_relaxed) == 1; }

void GraphReader::enter() noexcept {
  if (depth++ > 0) return;
  if (!is_registered) register_thread();
  lock_shared();
}
void GraphReader::leave() noexcept {
  if (--depth == 0) unlock_shared();
}

static void lock_exclusive() noexcept {
  for (;;) {
    auto before = state.fetch_or(kWriter, std::memory_order_acquire);
    if (!(before & kWriter)) break;
    state.wait(before, std::memory_order_relaxed);
  }
  for (;;) {
    auto now = state.load(std::memory_order_acquire);
    if (now == kWriter) return;
    state.wait(now, std::memory_order_relaxed);
  }
}
static void unlock_exclusive() noexcept {
  state.fetch_and(~kWriter, std::memory_order_release);
  state.notify_all();
}
static const bool graph_forks = at_fork({kForkGraph, lock_exclusive, unlock_exclusive});

GraphWriter::GraphWriter() noexcept { lock_exclusive(); }
GraphWriter::~GraphWriter() { unlock_exclusive(); }

OutsideGraph::OutsideGraph() noexcept : depth_(depth) {
  depth = 0;
  if (depth_ > 0) unlock_shared();
}
OutsideGraph::~OutsideGraph() {
  if (depth_ > 0) lock_shared();
  depth = depth_;
}

}  // namespace haliax
