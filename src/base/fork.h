// After fork a child has one thread, the one that forked, and what other threads were at when it
// did. So that it may go on to use the library, locks are taken before and let go after, and what
// belonged to threads that are not there is made anew.
#pragma once

namespace haliax {

struct AtFork {
  int order = 0;  // locks of lower ones are taken first, as they are everywhere
  void (*acquire)() = nullptr;
  void (*release)() = nullptr;   // in both
  void (*in_child)() = nullptr;  // all of them are let go by then
};
enum ForkOrder : int {
  kForkDevices,  // which wait for work that may want any of the others
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
bool at_fork(const AtFork&);  // for good; when the library is loaded

}  // namespace haliax
