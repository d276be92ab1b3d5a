#include "runtime/keep.h"

#include <algorithm>
#include <unordered_map>

#include "graph/loop.h"
#include "ops/attr.h"
#include "ops/prim.h"
#include "transforms/rewrite.h"

namespace haliax {
namespace {

constexpr std::int64_t kSmall = 64 << 20;   // bytes that are kept, whatever a computation takes
constexpr int kViews = 4;                   // of a view of a view ... so many are made again where they are read

struct Seen {
  long references = 0;                      // from nodes that were seen too
  bool computed = false;                    // or only below what has a value
  bool bound = false, wanted = false;
  Names walked;                             // axes of it that are walked in chunks: it need never exist as a whole
  int views = 0;
};

class Search {
 public:
  explicit Search(const Nodes& roots) {
    for (auto& r : roots) roots_.insert(r.get()), visit(r.get(), true);
    while (!todo_.empty()) {
      auto [n, computed] = todo_.back();
      todo_.pop_back();
      go_below(*n, computed);
    }
    std::sort(order_.begin(), order_.end(), [](auto* a, auto* b) { return a->id < b->id; });
  }
  Keep run() {
    for (auto* n : order_) learn(*n);
    for (std::size_t k = order_.size(); k-- > 0;) choose(*order_[k]);
    auto better = [&](auto* a, auto* b) { return rank(*a) < rank(*b); };
    std::stable_sort(chosen_.begin(), chosen_.end(), better);
    std::int64_t left = 2 * most();
    for (auto* n : chosen_) {
      if (n->bytes() > left) continue;
      left -= n->bytes();
      out_.more.push_back(n->shared_from_this());
    }
    return std::move(out_);
  }

 private:
  void visit(const Node* n, bool computed) {
    auto [at, is_new] = seen_.try_emplace(n);
    if (is_new) order_.push_back(n);
    bool more = computed && !at->second.computed;
    at->second.computed |= computed;
    if (is_new || more) todo_.push_back({n, computed});
  }
  // Counts the references of a node when it is first seen; a node below a value may turn out to be computed after all.
  void go_below(const Node& n, bool computed) {
    bool first = counted_.insert(&n).second;
    bool below = computed && !n.value;
    auto refer = [&](const Node* x) {
      if (!x) return;
      visit(x, below);
      if (first) ++seen_.at(x).references;
    };
    for (auto& x : n.in) refer(x.get());
    auto* payload = n.attr.payload.get();
    if (!payload) return;
    bool counts = first && payloads_.insert(payload).second;
    for (auto* x : payload->held()) {
      visit(x, below && n.op == &kLoop);
      if (counts) ++seen_.at(x).references;
    }
  }
  bool referred_to(const Node& n) const { return n.weak_from_this().use_count() > seen_.at(&n).references; }
  static bool passes_on(const Node& n) {         // the value of in[0], or a view of it
    return n.op->kind == Kind::view || (n.op->kind == Kind::wrap && n.op != &kCustom && n.op != &prim::kLeave);
  }

  // Inputs first.
  void learn(const Node& n) {
    auto& me = seen_.at(&n);
    me.bound = n.op == &prim::kTracer && referred_to(n);
    auto add = [&](const NodePtr& x) {
      if (x) me.bound |= seen_.at(x.get()).bound;
    };
    for (auto& x : n.in) add(x);
    if (n.op == &kLoop)
      for (auto& r : loop_of(n).results)
        for (auto& v : r.value) add(v);
    me.walked = walked(n);
    if (passes_on(n) && !n.in.empty() && n.in[0]) me.views = n.value ? 0 : seen_.at(n.in[0].get()).views + 1;
    if (me.bound) out_.bound.insert(&n);
    else if (n.value && n.op->kind != Kind::leaf && context().tracing == 0) out_.free.push_back(n.shared_from_this());
    bool stored = me.computed && n.free.empty() && me.walked.empty() && is_stored(n);
    if (stored || roots_.count(&n) || n.value) stored_ += n.bytes();
  }
  Names walked(const Node& n) const {
    Names out;
    auto add = [&](Name a) {
      if (has(n.axes, a) && !has(out, a)) out.push_back(a);
    };
    if (n.op == &kResult) {
      auto& from = n.in[0]->op == &kLoop ? result_of(n).value[0] : n.in[0]->in[result_number(n)];
      for (auto a : seen_.at(from.get()).walked) add(a);
      return out;
    }
    for (std::size_t k = 0; n.op != &kLoop && k < n.in.size(); ++k)
      if (n.in[k])
        for (auto a : seen_.at(n.in[k].get()).walked) {
          auto rule = along(n, k, a);
          add(rule.way == Along::Way::map ? rule.point : a);
        }
    if (n.op == &prim::kEnter) add(n.attr.names[0]);
    if (n.op == &prim::kLeave) std::erase(out, n.attr.names[0]);
    return out;
  }
  static bool is_stored(const Node& n) {         // or is point by point, and so may never be in memory
    auto kind = n.op->kind;
    return kind == Kind::contract || kind == Kind::step || kind == Kind::result;
  }
  // Users first.
  void choose(const Node& n) {
    auto& me = seen_.at(&n);
    if (!me.computed || n.value || n.op->kind == Kind::leaf || n.op->kind == Kind::loop || n.op == &kCustom) return;
    me.wanted |= referred_to(n);
    if (!me.wanted || roots_.count(&n)) return;
    if (passes_on(n) && (n.op->kind == Kind::wrap || (me.views <= kViews && n.bytes() >= n.in[0]->bytes()))) {
      for (auto& x : n.in)
        if (x) seen_.at(x.get()).wanted = true;
    } else if (n.free.empty() && me.walked.empty() && n.bytes() <= most() && !is_free(n.shared_from_this())) {
      chosen_.push_back(&n);
    }
  }
  std::int64_t most() const { return std::max(kSmall, stored_); }
  std::tuple<bool, bool, std::int64_t> rank(const Node& n) const { return {seen_.at(&n).bound, !is_stored(n), n.bytes()}; }

  std::unordered_map<const Node*, Seen> seen_;
  std::unordered_set<const Node*> roots_, counted_;
  std::unordered_set<const Payload*> payloads_;
  std::vector<const Node*> order_, chosen_;
  std::vector<std::pair<const Node*, bool>> todo_;
  std::int64_t stored_ = 0;
  Keep out_;
};

}  // namespace

Keep what_to_keep(const Nodes& roots) { return Search(roots).run(); }

}  // namespace haliax
