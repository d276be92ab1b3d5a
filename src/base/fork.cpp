// The list of fork handlers, which one pthread_atfork call runs.
#include "base/fork.h"

#include <pthread.h>

#include <algorithm>

namespace haliax {
namespace {

// Filled while the library is loaded, by one thread.
constinit AtFork all[32];
constinit int count = 0;

void before() {
  for (int k = 0; k < count; ++k)
    if (all[k].acquire) all[k].acquire();
}
void after() {
  for (int k = count; k-- > 0;)
    if (all[k].release) all[k].release();
}
void in_child() {
  after();
  for (int k = 0; k < count; ++k)
    if (all[k].in_child) all[k].in_child();
}

}  // namespace

bool at_fork(const AtFork& what) {
  if (count == 0) pthread_atfork(before, after, in_child);
  all[count++] = what;
  std::stable_sort(all, all + count, [](auto& a, auto& b) { return a.order < b.order; });
  return true;
}

}  // namespace haliax
