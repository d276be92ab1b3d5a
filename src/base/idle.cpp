#include "base/idle.h"

#include "base/fork.h"

namespace haliax {

constinit std::mutex idle_lock;
static const bool idle_forks =
    at_fork({kForkIdle, [] { idle_lock.lock(); }, [] { idle_lock.unlock(); }});

}  // namespace haliax
