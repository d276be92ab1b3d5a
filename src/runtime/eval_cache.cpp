// The cache of evaluated graphs: encodes graphs as keys and finds their Programs.
#include "runtime/eval_cache.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <mutex>
#include <new>
#include <unordered_map>

#include "base/fork.h"
#include "graph/traversal.h"
#include "ops/prim.h"

namespace haliax {
namespace {

constexpr std::size_t kMostPrograms = 64, kMostNodes = 4096;
// bytes of an arena that is retained for the next call
constexpr std::int64_t kMostIdle = 64 << 10;

// Encodes a graph as integers. `nodes`: all nodes of the graph, by age.
class GraphEncoder {
 public:
  explicit GraphEncoder(const std::vector<const Node*>& nodes) : nodes_(nodes) {}
  // Returns an empty key if a node cannot be encoded (a loop, a function of the user), or if its
  // value has been donated.
  GraphKey of(const Nodes& roots) {
    out_.words.reserve(16 * nodes_.size() + roots.size() + 4);
    out_.arrays.reserve(4);
    add(context().origin.at);
    for (auto* n : nodes_)
      if (!add(*n)) return {};
    for (auto& r : roots) add(number_of(*r));
    return std::move(out_);
  }

 private:
  void add(std::uint64_t word) { out_.words.push_back(word); }
  void add(const void* p) { add(std::uint64_t(p)); }
  void add(const SourceLocation& at) {
    add(at.file_name());
    add(std::uint64_t(at.line()));
  }
  // A name that `vmap` hides differs between calls; it is encoded by its position among the hidden
  // names.
  void add(Name name) {
    if (!name.hidden()) return add(name.data());
    auto at = std::find(hidden_.begin(), hidden_.end(), name);
    add(std::uint64_t(at - hidden_.begin()));
    if (at != hidden_.end()) return;
    hidden_.push_back(name);
    add(Name(name.text()).data());
    add(name.data()->by);
  }
  void add(const Axes& axes) {
    for (auto& a : axes) {
      add(a.name);
      add(std::uint64_t(a.size));
    }
  }
  bool add(const Node& n) {
    // The payload of a tracer adds nothing to the key.
    bool unlike_others = n.attr.payload && n.op != &prim::kTracer;
    if (unlike_others || (!n.value && n.op->kind != Kind::leaf && !n.donated.empty())) return false;
    add(std::uint64_t(n.dtype) | n.axes.size() << 8 | n.in.size() << 24 |
        n.attr.names.size() << 40 | n.attr.ints.size() << 52);
    add(n.axes);
    if (n.value && !prim::needs_no_memory(n)) {
      auto array = n.value.get();
      if (!array) return false;
      auto& arrays = out_.arrays;
      auto known = std::find(arrays.begin(), arrays.end(), array);
      add(std::uint64_t(known - arrays.begin()));
      if (known == arrays.end()) arrays.push_back(std::move(array));
      return true;
    }
    add(n.op);
    for (auto& x : n.in) add(x ? number_of(*x) : ~std::uint64_t(0));
    for (auto& name : n.attr.names) add(name);
    for (auto i : n.attr.ints) add(std::uint64_t(i));
    add(std::bit_cast<std::uint64_t>(n.attr.number));
    add(n.origin.at);
    add(n.origin.module.data());
    add(n.origin.scope.data());
    add(n.origin.weight_created.data());
    add(std::uint64_t(n.origin.backward));
    return true;
  }
  std::uint64_t number_of(const Node& n) const {  // position by age; nodes_ is sorted by age
    auto at = std::lower_bound(nodes_.begin(), nodes_.end(), n.id,
                               [](auto* a, auto id) { return a->id < id; });
    return std::uint64_t(at - nodes_.begin());
  }

  const std::vector<const Node*>& nodes_;
  GraphKey out_;
  Names hidden_;
};
std::uint64_t hash_of(const std::vector<std::uint64_t>& words) {
  std::uint64_t h = words.size();
  for (auto w : words) h = (std::rotl(h, 23) ^ w) * 0x9E3779B97F4A7C15u;
  return h;
}

struct CompiledGraph {
  std::vector<std::uint64_t> words;
  Compiled compiled;
  std::vector<std::size_t> reads = {};  // by argument: index into the arrays of the graph
};
using CompiledGraphPtr = std::shared_ptr<const CompiledGraph>;

// Never destroyed, because threads may compute after main.
class Cache {
 public:
  static Cache& of_process() {
    static auto* c = new Cache;
    return *c;
  }
  CompiledGraphPtr find(std::uint64_t hash, const std::vector<std::uint64_t>& words) {
    std::lock_guard hold(lock_);
    for (auto [at, end] = known_.equal_range(hash); at != end; ++at)
      if (at->second->words == words) return at->second;
    return nullptr;
  }
  void insert(std::uint64_t hash, const CompiledGraphPtr& created) {
    CompiledGraphPtr oldest;  // freed after the lock is released
    std::lock_guard hold(lock_);
    known_.emplace(hash, created);
    by_age_.push_back(hash);
    ++planned_;
    if (by_age_.size() <= kMostPrograms) return;
    auto first = known_.find(by_age_.front());
    oldest = std::move(first->second);
    known_.erase(first);
    by_age_.pop_front();
  }
  std::uint64_t planned() {
    std::lock_guard hold(lock_);
    return planned_;
  }
  void lock() { lock_.lock(); }
  void unlock() { lock_.unlock(); }

 private:
  std::mutex lock_;
  std::unordered_multimap<std::uint64_t, CompiledGraphPtr> known_;
  std::deque<std::uint64_t> by_age_;
  std::uint64_t planned_ = 0;
};
const bool cache_forks =
    at_fork({kForkRest, [] { Cache::of_process().lock(); }, [] { Cache::of_process().unlock(); },
             [] { new (&Cache::of_process()) Cache; }});

// Compiles the graph. Returns null if the Program reads an array that is not in the key.
CompiledGraphPtr planned(const Nodes& roots, const std::string& backend_name, const GraphKey& key) {
  auto created =
      std::make_shared<CompiledGraph>(CompiledGraph{key.words, compile(roots, backend_name)});
  GraphReader reader;
  for (auto& n : created->compiled.captured) {
    auto at = std::find(key.arrays.begin(), key.arrays.end(), n->value.get());
    if (at == key.arrays.end()) return nullptr;
    created->reads.push_back(std::size_t(at - key.arrays.begin()));
  }
  created->compiled.captured.clear();
  return created;
}

}  // namespace

std::uint64_t planned_evaluations() { return Cache::of_process().planned(); }

GraphKey graph_key_of(const Nodes& roots, const std::vector<const Node*>& nodes) {
  return nodes.size() > kMostNodes || current_mesh() ? GraphKey{} : GraphEncoder(nodes).of(roots);
}

std::vector<BufferPtr> run_cached(const Nodes& roots, GraphKey key, const std::string& backend_name,
                                  bool* began) {
  if (key.words.empty()) return call(compile(roots, backend_name), {}, nullptr, began);
  key.words.push_back(std::hash<std::string>()(backend_name));
  auto& cache = Cache::of_process();
  const auto hash = hash_of(key.words);
  auto program = cache.find(hash, key.words);
  if (!program) {
    program = planned(roots, backend_name, key);
    if (!program) return call(compile(roots, backend_name), {}, nullptr, began);
    cache.insert(hash, program);
  }
  auto& c = program->compiled;
  std::vector<ArgumentValue> given;  // `graph` owns the arrays
  given.reserve(program->reads.size());
  for (auto k : program->reads) given.push_back({nullptr, c.memory.address(*key.arrays[k])});
  auto created = call(c, given, nullptr, began);
  if (c.program->arena_bytes > kMostIdle) c.idle.take();
  return created;
}

}  // namespace haliax
