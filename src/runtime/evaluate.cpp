// Reading values outside of jit: who computes what, and what is kept of it.
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

namespace haliax {
namespace {

// What is being computed has the number of this process as Node::claimed. Never destroyed: threads
// may compute after main.
struct Running {
  std::uint64_t process = 1;
  std::mutex lock = {};
  std::condition_variable changed = {};
  bool claims(const Node& n) {  // it is new
    return std::exchange(n.claimed, process) != process;
  }
  static Running& now() {
    static auto* r = new Running;
    return *r;
  }
};
// In a child nobody computes; the threads that waited are not there either.
const bool running_forks =
    at_fork({kForkRest, [] { Running::now().lock.lock(); }, [] { Running::now().lock.unlock(); },
             [] { new (&Running::now()) Running{Running::now().process + 1}; }});
// calls of compute, around: a kernel of the user's that reads arrays
thread_local int computing = 0;

// What this thread is to compute of those that have no value: all that nobody else does. If that is
// none, the others have been waited for. A thread that computes something already does not wait, or
// two might for each other, but computes it too.
class Claim {
 public:
  Claim() = default;
  void take(const Nodes& wanted) {
    auto& r = Running::now();
    mine.reserve(wanted.size());
    entered_.reserve(wanted.size());
    std::unordered_set<const Node*> taken;
    taken.reserve(wanted.size());
    std::unique_lock hold(r.lock);
    for (;;) {
      bool others = false;
      for (auto& n : wanted) {
        if (!n || n->value || taken.count(n.get())) continue;
        bool is_new = r.claims(*n);
        if (is_new) entered_.push_back(n);
        if (is_new || computing > 0) {
          taken.insert(n.get());
          mine.push_back(n);
        }

        else
          others = true;
      }
      if (!mine.empty() || !others) return;
      r.changed.wait(hold);
    }
  }
  ~Claim() {
    auto& r = Running::now();
    {
      std::lock_guard hold(r.lock);
      for (auto& n : entered_) n->claimed = 0;
    }
    if (!entered_.empty()) r.changed.notify_all();
  }
  Claim(const Claim&) = delete;
  // Of others that this thread computes on the way, those that nobody else does; whoever wants them
  // waits.
  Nodes also(const Nodes& more) {
    if (more.empty()) return {};
    auto& r = Running::now();
    Nodes out;
    out.reserve(more.size());
    entered_.reserve(entered_.size() + more.size());
    std::lock_guard hold(r.lock);
    for (auto& n : more)
      if (!n->value && r.claims(*n)) {
        entered_.push_back(n);
        out.push_back(n);
      }

    return out;
  }
  Nodes mine;

 private:
  Nodes entered_;
};

bool has_value(const Node& n) { return bool(n.value); }
GraphKey graph_key_of(const Nodes& roots) {
  GraphReader reader;
  return graph_key_of(roots, nodes_below(roots, has_value));
}
std::vector<BufferPtr> results_of(const Nodes& roots, GraphKey words, bool& began) {
  struct Count {
    Count() { ++computing; }
    ~Count() { --computing; }
  } count;
  return run_cached(roots, std::move(words), default_backend(), &began);
}
void compute(Claim& claim) {
  // how it was made; else there may be a gradient to take by all that is below
  const bool forgets = context().tracing == 0;
  Nodes roots = claim.mine;
  EagerCache cache;
  GraphKey words;
  {
    GraphReader reader;
    const auto all = nodes_below(roots, has_value);
    require_values(roots, all);
    cache = choose_eager_cache(roots, all);
    append(roots, claim.also(cache.extra_results));
    words = graph_key_of(roots, all);
  }
  std::vector<BufferPtr> made;
  bool began = false;  // what has begun may have printed, and does not run twice
  try {
    made = results_of(roots, std::move(words), began);
  } catch (const VerifyError&) {
    throw;
  } catch (const Error&) {
    if (began || roots.size() == claim.mine.size()) throw;
    roots = claim.mine;  // there may be memory for these alone
    made = results_of(roots, graph_key_of(roots), began);
  }
  DetachedInputs recipes;  // gone when others may read again
  GraphWriter alone;
  for (std::size_t i = 0; i < roots.size(); ++i) {
    auto& n = const_cast<Node&>(*roots[i]);
    if (!n.value && n.donated.empty()) n.value.set(std::move(made[i]));
    if (forgets && !cache.bound.count(&n)) detach(n, recipes);
  }
  if (!forgets) return;
  for (auto& n : cache.free) detach(*n, recipes);
}

}  // namespace

void evaluate(const Nodes& wanted) {
  if (std::all_of(wanted.begin(), wanted.end(), [](auto& n) { return !n || n->value; })) return;
  OutsideGraph outside;
  for (;;) {
    Claim claim;
    claim.take(wanted);
    if (claim.mine.empty()) return;
    compute(claim);
  }
}

}  // namespace haliax
