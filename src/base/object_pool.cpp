// The lock of all object pools.
#include "base/object_pool.h"

#include "base/fork.h"

namespace haliax {

constinit std::mutex object_pool_lock;
static const bool object_pool_forks =
    at_fork({kForkObjectPools, [] { object_pool_lock.lock(); }, [] { object_pool_lock.unlock(); }});

}  // namespace haliax
