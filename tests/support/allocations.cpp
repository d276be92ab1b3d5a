// Counts calls of operator new and makes single ones fail.
#include "allocations.h"

#include <dlfcn.h>
#include <execinfo.h>

#include <atomic>
#include <cstdlib>
#include <new>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HALIAX_SANITIZED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HALIAX_SANITIZED
#endif

namespace haliax {

#if defined(HALIAX_SANITIZED)
const bool owns_operator_new = false;
#else
const bool owns_operator_new = true;
#endif

namespace {

std::atomic<long> all{0}, by_onednn{0};
std::atomic<bool> counting{false};
thread_local long until_failure = -1;  // allocations until one fails; negative: none fails
thread_local bool inside = false;      // true while count() runs, because backtrace may allocate

// Returns the base address of a shared oneDNN; null if oneDNN is linked into the program.
const void* onednn() {
  Dl_info info{}, own{};
  void* f = dlsym(RTLD_DEFAULT, "dnnl_primitive_execute");
  if (!f || !dladdr(f, &info) || !dladdr(reinterpret_cast<void*>(&count_allocations), &own) ||
      info.dli_fbase == own.dli_fbase)
    return nullptr;
  return info.dli_fbase;
}
[[maybe_unused]] void count() {
  if (inside) return;
  inside = true;
  void* frames[12];
  const int n = backtrace(frames, 12);
  static const void* library = onednn();
  bool theirs = false;
  for (int i = 0; i < n && !theirs; ++i) {
    Dl_info info{};
    theirs = library && dladdr(frames[i], &info) && info.dli_fbase == library;
  }
  all += 1;
  by_onednn += theirs;
  inside = false;
}

}  // namespace

void count_allocations() {
  all = 0;
  by_onednn = 0;
  counting = true;
}
Allocations stop_counting_allocations() {
  counting = false;
  return {all, by_onednn};
}

FailingAllocation::FailingAllocation(long n) { until_failure = n; }
FailingAllocation::~FailingAllocation() { until_failure = -1; }
bool FailingAllocation::happened() const { return until_failure < 0; }

}  // namespace haliax

#if !defined(HALIAX_SANITIZED)
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (haliax::counting.load(std::memory_order_relaxed)) haliax::count();
  if (haliax::until_failure >= 0 && haliax::until_failure-- == 0) throw std::bad_alloc();
  if (void* p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
#endif
