// Helpers for tests that fork a process.
#pragma once
#include <pthread.h>

#include <cstddef>

namespace haliax::test {

// Set in a forked child. Memory that only the stacks of the parent's threads referenced is no leak
// there.
extern bool is_child;

// Doubles the stack size of new threads if the thread sanitizer is active. The sanitizer treats the
// parent's threads as alive in a child, and aborts the child if a new thread is placed at the
// address of one of them. The old stacks are too small for the larger ones.
inline void leave_old_stacks() {
#if defined(__SANITIZE_THREAD__)
  pthread_attr_t attributes;
  std::size_t size = 0;
  pthread_getattr_default_np(&attributes);
  pthread_attr_getstacksize(&attributes, &size);
  pthread_attr_setstacksize(&attributes, size * 2);
  pthread_setattr_default_np(&attributes);
#endif
}

}  // namespace haliax::test
