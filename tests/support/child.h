// A process that a test has forked.
#pragma once
#include <pthread.h>

#include <cstddef>

namespace haliax::test {

// Set in a child: the stacks of its parent's threads are gone, and what only they knew of is no
// leak.
extern bool is_child;

// The thread sanitizer takes the parent's threads for alive in a child, and ends it where a new one
// has the place of one of them. The stacks that they left are too small for larger ones.
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
