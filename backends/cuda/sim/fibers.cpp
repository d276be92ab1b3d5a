// Fibers: switches between the threads of a block.
#include "fibers.h"

#include <fmt/format.h>
#include <ucontext.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "haliax/error.h"
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace haliax::cuda {
namespace {

constexpr std::size_t stack_bytes = 64 << 10;
constexpr unsigned warp = 32;

// ---- context switches: callee-saved registers on x86-64, ucontext elsewhere ----
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
extern "C" void haliax_switch_fiber(void** from, void* to);
asm(R"(
.text
.globl haliax_switch_fiber
.hidden haliax_switch_fiber
.type haliax_switch_fiber, @function
haliax_switch_fiber:
  push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp
  ret
.size haliax_switch_fiber, .-haliax_switch_fiber
)");
struct Registers {
  void* top = nullptr;
  void begin(std::byte* stack, void (*entry)()) {
    auto** p = reinterpret_cast<void**>((reinterpret_cast<std::uintptr_t>(stack) + stack_bytes) &
                                        ~std::uintptr_t(15));
    *--p = nullptr;  // return address of entry, which never returns
    *--p = reinterpret_cast<void*>(entry);
    for (int k = 0; k < 6; ++k) *--p = nullptr;
    top = p;
  }
  void go_to(Registers& to) { haliax_switch_fiber(&top, to.top); }
};
#else
struct Registers {
  ucontext_t context = {};
  void begin(std::byte* stack, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = stack_bytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
  }
  void go_to(Registers& to) { swapcontext(&context, &to.context); }
};
#endif

// The address sanitizer requires notice of each switch, because it stores frames that other code
// may point to separately for each stack.
#if defined(__SANITIZE_ADDRESS__)
class Place {
 public:
  void begin(std::byte* stack, void (*entry)()) {
    // finished threads leave poisoned memory
    __asan_unpoison_memory_region(stack, stack_bytes);
    bottom_ = stack;
    size_ = stack_bytes;
    frames_ = nullptr;
    registers_.begin(stack, entry);
  }
  void go_to(Place& to, bool for_good = false) {
    __sanitizer_start_switch_fiber(for_good ? nullptr : &frames_, to.bottom_, to.size_);
    came_from() = this;
    registers_.go_to(to.registers_);
    arrive();
  }
  // Completes a switch. Stores the bounds of the stack that was left.
  void arrive() {
    __sanitizer_finish_switch_fiber(frames_, &came_from()->bottom_, &came_from()->size_);
  }

 private:
  static Place*& came_from() {
    static thread_local Place* from = nullptr;
    return from;
  }
  Registers registers_;
  const void* bottom_ = nullptr;
  std::size_t size_ = 0;
  void* frames_ = nullptr;
};
#else
struct Place : Registers {
  void go_to(Place& to, [[maybe_unused]] bool for_good = false) { Registers::go_to(to); }
  void arrive() {}
};
#endif

enum class State { ready, at_block, at_warp, done };
struct Fiber {
  Place place;
  std::unique_ptr<std::byte[]> stack{new std::byte[stack_bytes]};
  State state = State::ready;
  unsigned long long given = 0;  // to the other lanes
  // alternating: a fast lane may publish its next value before a slow lane has read this one
  unsigned long long seen[2] = {};
  int parity = 0;
};

struct Block {
  std::vector<std::unique_ptr<Fiber>> fibers;
  Place outside;
  unsigned current = 0;
  const std::function<void()>* thread = nullptr;
  Fiber& mine() { return *fibers[current]; }
  void wait(State s) {
    mine().state = s;
    mine().place.go_to(outside, s == State::done);
  }
};
Block& block() {
  static thread_local Block b;
  return b;
}
void enter() {
  block().mine().place.arrive();
  (*block().thread)();
  block().wait(State::done);
}
void wait_for_block() { block().wait(State::at_block); }
unsigned long long from_lane(unsigned long long value, int lane) {
  auto& b = block();
  auto& me = b.mine();
  const int parity = me.parity ^= 1;
  me.seen[parity] = value;
  const unsigned first = b.current / warp * warp;
  b.wait(State::at_warp);
  return b.fibers[first + unsigned(lane)]->seen[parity];
}

}  // namespace

void run_block(SimulatedThread& at, const std::function<void()>& thread, std::uint64_t seed) {
  auto& b = block();
  const unsigned n = at.threads;
  while (b.fibers.size() < n) b.fibers.push_back(std::make_unique<Fiber>());
  b.thread = &thread;
  at.wait_for_block = wait_for_block;
  at.from_lane = from_lane;
  for (unsigned k = 0; k < n; ++k) {
    auto& f = *b.fibers[k];
    f.state = State::ready;
    f.parity = 0;
    f.place.begin(f.stack.get(), enter);
  }
  std::vector<unsigned> order(n);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
  auto count = [&](unsigned from, unsigned to, State s) {
    unsigned out = 0;
    for (auto k = from; k < to; ++k) out += b.fibers[k]->state == s;
    return out;
  };
  auto release = [&](unsigned from, unsigned to) {
    for (auto k = from; k < to; ++k) b.fibers[k]->state = State::ready;
  };
  // Each warp runs as far as it can by itself. This exposes threads that need another warp's result
  // without synchronization.
  std::vector<std::vector<unsigned>> warps((n + warp - 1) / warp);
  for (auto k : order) warps[k / warp].push_back(k);
  auto go_on = [&](const std::vector<unsigned>& mine, unsigned first) {
    const auto end = first + unsigned(mine.size());
    for (;;) {
      for (auto k : mine) {
        if (b.fibers[k]->state != State::ready) continue;
        b.current = k;
        at.x = k;
        b.outside.go_to(b.fibers[k]->place);
      }
      if (count(first, end, State::at_warp) < end - first) return;
      release(first, end);
    }
  };
  for (;;) {
    for (auto k : order)
      if (k % warp == 0) go_on(warps[k / warp], k);
    const auto done = count(0, n, State::done);
    if (done == n) return;
    const auto waiting = count(0, n, State::at_block);
    if (waiting < n)
      throw Error(fmt::format(
          "[cuda] {} of {} threads of a block wait for all, {} for their warp, {} are done",
          waiting, n, count(0, n, State::at_warp), done));
    release(0, n);
  }
}

}  // namespace haliax::cuda
