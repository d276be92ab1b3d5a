#include "runtime/eval_cache.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <mutex>
#include <new>
#include <unordered_map>

#include "base/fork.h"
#include "graph/walk.h"
#include "ops/prim.h"

namespace haliax {
namespace {

constexpr std::size_t kMostPrograms = 64, kMostNodes = 4096;
constexpr std::int64_t kMostIdle = 64 << 10;     // bytes of an arena that waits for the next call

// A graph as words: what its Program depends on, and nothing else. Equal graphs have equal words.
class Shape {
 public:
  std::vector<std::uint64_t> words;
  std::vector<BufferPtr> arrays;                 // that it reads, each once, in order

  // False: no such words, as a node holds what words cannot say (a loop, the user's own function), or has no value any more.
  bool read(const Nodes& roots, const std::string& backend_name) {
    GraphReader reader;
    auto has_value = [](const Node& n) { return bool(n.value); };
    nodes_ = topological(roots, has_value);
    if (nodes_.size() > kMostNodes || current_mesh()) return false;
    words.reserve(24 * nodes_.size()), arrays.reserve(8);
    add(std::hash<std::string>()(backend_name));
    add(context().origin.at);
    for (auto& n : nodes_)
      if (!add(*n)) return false;
    for (auto& r : roots) add(number_of(r));
    return true;
  }
  std::size_t hash() const {
    std::uint64_t h = words.size();
    for (auto w : words) h = (std::rotl(h, 23) ^ w) * 0x9E3779B97F4A7C15u;
    return h;
  }

 private:
  void add(std::uint64_t word) { words.push_back(word); }
  void add(const void* p) { words.push_back(std::uint64_t(p)); }
  void add(const SourceLocation& at) { add(at.file_name()), add(std::uint64_t(at.line())); }
  void add(Name name) {                            // one that vmap hides is another in each call: which it is, in their order
    if (!name.hidden()) return add(name.data());
    auto at = std::find(hidden_.begin(), hidden_.end(), name);
    add(std::uint64_t(at - hidden_.begin()));
    if (at != hidden_.end()) return;
    hidden_.push_back(name);
    add(Name(name.text()).data()), add(name.data()->by);
  }
  void add(const Axes& axes) {
    for (auto& a : axes) add(a.name), add(std::uint64_t(a.size));
  }
  bool add(const Node& n) {
    bool unlike_others = n.attr.payload && n.op != &prim::kTracer;   // a tracer's says nothing more
    if (unlike_others || (!n.value && n.op->kind != Kind::leaf && !n.donated.empty())) return false;
    add(std::uint64_t(n.dtype) | n.axes.size() << 8 | n.in.size() << 24 | n.attr.names.size() << 40 | n.attr.ints.size() << 52);
    add(n.axes);
    if (n.value) {
      auto array = n.value.get();
      if (!array) return false;
      auto known = std::find(arrays.begin(), arrays.end(), array);
      add(std::uint64_t(known - arrays.begin()));
      if (known == arrays.end()) arrays.push_back(std::move(array));
      return true;
    }
    add(n.op);
    for (auto& x : n.in) add(x ? number_of(x) : ~std::uint64_t(0));
    for (auto& name : n.attr.names) add(name);
    for (auto i : n.attr.ints) add(std::uint64_t(i));
    add(std::bit_cast<std::uint64_t>(n.attr.number));
    add(n.origin.at), add(n.origin.module.data()), add(n.origin.made.data()), add(std::uint64_t(n.origin.backward));
    return true;
  }
  std::uint64_t number_of(const NodePtr& n) const {   // by age, as `topological` sorts them
    auto at = std::lower_bound(nodes_.begin(), nodes_.end(), n->id, [](auto& a, auto id) { return a->id < id; });
    return std::uint64_t(at - nodes_.begin());
  }

  Nodes nodes_;
  Names hidden_;
};

struct CompiledShape {
  std::vector<std::uint64_t> words;
  Compiled compiled;
  std::vector<std::size_t> reads;                // of its arguments, which of the shape's arrays
};
using CompiledShapePtr = std::shared_ptr<const CompiledShape>;

// Never destroyed: threads may compute after main.
class Cache {
 public:
  static Cache& of_process() {
    static auto* c = new Cache;
    return *c;
  }
  CompiledShapePtr find(std::size_t hash, const Shape& shape) {
    std::lock_guard hold(lock_);
    for (auto [at, end] = known_.equal_range(hash); at != end; ++at)
      if (at->second->words == shape.words) return at->second;
    return nullptr;
  }
  void keep(std::size_t hash, const CompiledShapePtr& made) {
    CompiledShapePtr oldest;                     // gone without the lock
    std::lock_guard hold(lock_);
    known_.emplace(hash, made), by_age_.push_back(hash), ++planned_;
    if (by_age_.size() <= kMostPrograms) return;
    auto first = known_.find(by_age_.front());
    oldest = std::move(first->second);
    known_.erase(first), by_age_.pop_front();
  }
  std::uint64_t planned() {
    std::lock_guard hold(lock_);
    return planned_;
  }
  void hold() { lock_.lock(); }
  void let_go() { lock_.unlock(); }

 private:
  std::mutex lock_;
  std::unordered_multimap<std::size_t, CompiledShapePtr> known_;
  std::deque<std::size_t> by_age_;
  std::uint64_t planned_ = 0;
};
const bool cache_forks = at_fork({kForkRest, [] { Cache::of_process().hold(); }, [] { Cache::of_process().let_go(); },
                                  [] { new (&Cache::of_process()) Cache; }});

// Null: it reads an array that the shape does not know.
CompiledShapePtr planned(const Nodes& roots, const std::string& backend_name, const Shape& shape) {
  auto made = std::make_shared<CompiledShape>(CompiledShape{shape.words, compile(roots, backend_name), {}});
  GraphReader reader;
  for (auto& n : made->compiled.captured) {
    auto at = std::find(shape.arrays.begin(), shape.arrays.end(), n->value.get());
    if (at == shape.arrays.end()) return nullptr;
    made->reads.push_back(std::size_t(at - shape.arrays.begin()));
  }
  made->compiled.captured.clear();
  return made;
}

}  // namespace

std::uint64_t evaluations_planned() { return Cache::of_process().planned(); }

std::vector<BufferPtr> call_again(const Nodes& roots, const std::string& backend_name, bool* began) {
  Shape shape;
  if (!shape.read(roots, backend_name)) return call(compile(roots, backend_name), {}, nullptr, began);
  auto& cache = Cache::of_process();
  const auto hash = shape.hash();
  auto program = cache.find(hash, shape);
  if (!program) {
    program = planned(roots, backend_name, shape);
    if (!program) return call(compile(roots, backend_name), {}, nullptr, began);
    cache.keep(hash, program);
  }
  auto& c = program->compiled;
  std::vector<Given> given;
  for (auto k : program->reads) given.push_back({shape.arrays[k], c.memory.address(*shape.arrays[k])});
  auto made = call(c, given, nullptr, began);
  if (c.program->arena_bytes > kMostIdle) c.arenas.take();
  return made;
}

}  // namespace haliax
