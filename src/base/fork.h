// Support for fork. A child process has only the thread that forked, and sees the memory of all
// threads as of the fork. A handler acquires its lock before the fork and releases it after the
// fork, in the parent and the child, so that the child finds consistent state. The child then
// rebuilds state that belonged to other threads, such as a thread pool.
#pragma once

namespace haliax {

struct AtFork {
  int order = 0;  // locks with a lower order are acquired first, as in all other code
  void (*acquire)() = nullptr;
  void (*release)() = nullptr;   // in the parent and in the child
  void (*in_child)() = nullptr;  // runs after all locks are released
};
enum ForkOrder : int {
  kForkDevices,  // held while work runs that may acquire any of the others
  kForkGraph,
  kForkOps,
  kForkProducts,
  kForkObjectPools,
  kForkPieces,
  kForkNodes,
  kForkNames,
  kForkMemory,
  kForkRest
};
// Registers a handler permanently. To be called while the library is loaded.
bool at_fork(const AtFork&);

}  // namespace haliax
