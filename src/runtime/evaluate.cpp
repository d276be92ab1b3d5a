// Evaluation outside of `jit`: assigns nodes to threads, computes their values and caches
// intermediates.
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <new>
#include <unordered_set>
#include <utility>

#include "base/fork.h"
#include "base/verify_error.h"
#include "graph/traversal.h"
#include "runtime/eval_cache.h"
#include "runtime/eager_cache_policy.h"
#include "runtime/run.h"
#include "runtime/tracers.h"

namespace haliax {
namespace {

// The nodes that are being computed: `Node::claimed` is the number of this process. Never
// destroyed, because threads may compute after main.
struct ClaimedNodes {
  std::uint64_t process = 1;
  std::mutex lock = {};
  std::condition_variable changed = {};
  bool try_claim(const Node& n) {  // returns true if no thread had claimed the node
    return std::exchange(n.claimed, process) != process;
  }
  static ClaimedNodes& instance() {
    static auto* r = new ClaimedNodes;
    return *r;
  }
};
// After a fork, no thread of the child computes, and the waiting threads do not exist.
const bool claimed_nodes_forks = at_fork(
    {kForkRest, [] { ClaimedNodes::instance().lock.lock(); },
     [] { ClaimedNodes::instance().lock.unlock(); },
     [] { new (&ClaimedNodes::instance()) ClaimedNodes{ClaimedNodes::instance().process + 1}; }});
// Depth of calls of `compute` on this thread. A custom op of the user may read arrays.
thread_local int computing = 0;

// The nodes without values that this thread computes: all requested nodes that no other thread has
// claimed. If there are none, waits for the other threads. A thread that already computes does not
// wait, since two threads could wait for each other; it computes the nodes as well.
class Claim {
 public:
  Claim() = default;
  void take(const Nodes& requested) {
    auto& r = ClaimedNodes::instance();
    to_compute.reserve(requested.size());
    claimed_.reserve(requested.size());
    std::unordered_set<const Node*> taken;
    taken.reserve(requested.size());
    std::unique_lock hold(r.lock);
    for (;;) {
      bool others = false;
      for (auto& n : requested) {
        if (!n || n->value || taken.count(n.get())) continue;
        bool is_new = r.try_claim(*n);
        if (is_new) claimed_.push_back(n);
        if (is_new || computing > 0) {
          taken.insert(n.get());
          to_compute.push_back(n);
        } else
          others = true;
      }
      if (!to_compute.empty() || !others) return;
      r.changed.wait(hold);
    }
  }
  ~Claim() {
    auto& r = ClaimedNodes::instance();
    {
      std::lock_guard hold(r.lock);
      for (auto& n : claimed_) n->claimed = 0;
    }
    if (!claimed_.empty()) r.changed.notify_all();
  }
  Claim(const Claim&) = delete;
  // Claims additional nodes that this thread computes as intermediates. Other threads that need
  // them wait.
  Nodes claim_more(const Nodes& more) {
    if (more.empty()) return {};
    auto& r = ClaimedNodes::instance();
    Nodes out;
    out.reserve(more.size());
    claimed_.reserve(claimed_.size() + more.size());
    std::lock_guard hold(r.lock);
    for (auto& n : more)
      if (!n->value && r.try_claim(*n)) {
        claimed_.push_back(n);
        out.push_back(n);
      }
    return out;
  }
  Nodes to_compute;

 private:
  Nodes claimed_;
};

bool has_value(const Node& n) { return bool(n.value); }
GraphKey graph_key_of(const Nodes& roots) {
  GraphReader reader;
  return graph_key_of(roots, nodes_below(roots, has_value));
}
std::vector<BufferPtr> results_of(const Nodes& roots, GraphKey key, bool& began) {
  struct Count {
    Count() { ++computing; }
    ~Count() { --computing; }
  } count;
  return run_cached(roots, std::move(key), default_backend(), &began);
}
void compute(Claim& claim) {
  // A node drops its operands after the evaluation, unless a trace is in progress: a gradient may
  // still be computed with respect to a node below.
  const bool detaches = context().tracing == 0;
  Nodes roots = claim.to_compute;
  EagerCache cache;
  GraphKey key;
  {
    GraphReader reader;
    const auto all = nodes_below(roots, has_value);
    require_values(roots, all);
    cache = choose_eager_cache(roots, all);
    append(roots, claim.claim_more(cache.extra_results));
    key = graph_key_of(roots, all);
  }
  std::vector<BufferPtr> created;
  bool began = false;  // a Program that has begun may have printed, so it is not run again
  try {
    created = results_of(roots, std::move(key), began);
  } catch (const VerifyError&) {
    throw;
  } catch (const Error&) {
    if (began || roots.size() == claim.to_compute.size()) throw;
    // An array that was not requested may be the cause: it exceeds the memory, or a budget of its
    // own. Its error is raised when it is read.
    roots = claim.to_compute;
    created = results_of(roots, graph_key_of(roots), began);
  }
  DetachedInputs detached;  // freed after the graph lock is released
  GraphWriter alone;
  for (std::size_t i = 0; i < roots.size(); ++i) {
    auto& n = const_cast<Node&>(*roots[i]);
    if (!n.value && n.donated.empty()) n.value.set(std::move(created[i]));
    if (detaches && !cache.bound.count(&n)) detach(n, detached);
  }
  if (!detaches) return;
  for (auto& n : cache.unbound) detach(*n, detached);
}

}  // namespace

void evaluate(const Nodes& requested) {
  if (std::all_of(requested.begin(), requested.end(), [](auto& n) { return !n || n->value; }))
    return;
  OutsideGraph outside;  // `compute` takes the write lock, which must not nest in a read lock
  // Each round computes the nodes that no other thread has claimed, or waits for the threads that
  // have claimed them. Ends when all nodes have values.
  for (;;) {
    Claim claim;
    claim.take(requested);
    if (claim.to_compute.empty()) return;
    compute(claim);
  }
}

}  // namespace haliax
