// Search for the intermediates of an evaluation that are cached.
#include "runtime/eager_cache_policy.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <tuple>

#include "graph/loop.h"
#include "ops/attr.h"
#include "ops/prim.h"
#include "transforms/rewrite.h"

namespace haliax {
namespace {

// bytes that may be cached for any computation
constexpr std::int64_t kAlwaysCachedBytes = 64 << 20;
constexpr int kViews = 4;  // views up to this depth are recomputed by their readers

struct NodeFacts {
  const Node* node = nullptr;
  // Range in `edges_`: its operands, and the nodes that its payload holds.
  std::uint32_t first = 0, count = 0;
  long reference_count = 0;  // references from other nodes of the search
  bool is_root = false;
  bool computed = false;   // by this evaluation, not only below a node with a value
  bool bound = false;      // depends on a tracer that is still referred to (EagerCache::bound)
  bool requested = false;  // a view of it is still referred to, and is not cached itself
  int views = 0;           // length of the chain of views that ends here
  // Axes along which a region tiles it, so that it may never be materialized.
  Names chunked_axes = {};
};

// Finds the nodes whose value the user can read again: they have owners that are not nodes of the
// search, such as a NamedArray.
//
// For example, given loss = f(p1) and p1 = step(p0): if the user still has p1, p1 is an additional
// result. Otherwise, each loss would recompute all previous steps.
class CacheSearch {
 public:
  explicit CacheSearch(const Nodes& roots) {
    all_.reserve(16);
    edges_.reserve(16);
    for (auto& r : roots) all_[number_of(r.get())].is_root = true;
    for (std::uint32_t k = 0; k < all_.size(); ++k) add_references(k);
    by_age_.resize(all_.size());
    std::iota(by_age_.begin(), by_age_.end(), 0u);
    auto older = [&](auto a, auto b) { return all_[a].node->id < all_[b].node->id; };
    std::sort(by_age_.begin(), by_age_.end(), older);
    for (auto k = by_age_.rbegin(); k != by_age_.rend(); ++k) mark_operands(all_[*k]);
  }
  EagerCache run() {
    for (auto k : by_age_) add_facts(all_[k]);
    for (auto k = by_age_.rbegin(); k != by_age_.rend(); ++k) choose(all_[*k]);
    std::stable_sort(chosen_.begin(), chosen_.end(),
                     [](auto* a, auto* b) { return rank(*a) < rank(*b); });
    std::int64_t left = 2 * max_bytes();
    for (auto* s : chosen_) {
      if (s->node->bytes() > left) continue;
      left -= s->node->bytes();
      out_.extra_results.push_back(s->node->shared_from_this());
    }
    return std::move(out_);
  }

 private:
  std::uint32_t number_of(const Node* n) {
    auto [number, is_new] = numbers_(n);
    if (is_new) all_.emplace_back().node = n;
    return number;
  }
  void add_references(std::uint32_t k) {
    auto& n = *all_[k].node;
    auto first = edges_.size();
    auto add = [&](const Node* x, bool counts) {
      auto to = number_of(x);
      edges_.push_back(to);
      all_[to].reference_count += counts;
    };
    for (auto& x : n.in)
      if (x) add(x.get(), true);
    if (auto* payload = n.attr.payload.get())
      if (auto held = payload->held(); !held.empty()) {
        bool counts = payloads_.insert(payload).second;
        for (auto* x : held) add(x, counts);
      }
    all_[k].first = std::uint32_t(first);
    all_[k].count = std::uint32_t(edges_.size() - first);
  }
  std::span<const std::uint32_t> references_of(const NodeFacts& s) const {
    return {edges_.data() + s.first, s.count};
  }
  // More owners than the search has seen: an array of the user, or a tracer.
  static bool is_held_by_user(const NodeFacts& s) {
    return s.node->weak_from_this().use_count() > s.reference_count;
  }
  static bool forwards_operand(const Node& n) {  // the value of in[0], or a view of it
    return n.op->kind == Kind::view ||
           (n.op->kind == Kind::wrap && n.op != &kCustomVjp && n.op != &prim::kLeave);
  }
  void mark_operands(NodeFacts& me) {  // readers first
    me.computed |= me.is_root;
    if (!me.computed || me.node->value) return;
    auto operands = references_of(me);
    // The operands of its backward function are not computed.
    if (me.node->op == &kCustomVjp) operands = operands.first(me.node->in.size());
    for (auto x : operands) all_[x].computed = true;
  }

  void add_facts(NodeFacts& me) {  // operands first
    auto& n = *me.node;
    me.bound = n.op == &prim::kTracer && is_held_by_user(me);
    for (auto x : references_of(me)) me.bound |= all_[x].bound;
    regions_ |= n.op == &prim::kEnter;
    if (regions_) me.chunked_axes = chunked_axes(me);
    if (forwards_operand(n) && !n.value && !n.in.empty() && n.in[0])
      me.views = all_[references_of(me)[0]].views + 1;
    if (me.bound)
      out_.bound.insert(&n);
    else if (n.value && n.op->kind != Kind::leaf)
      out_.unbound.push_back(n.shared_from_this());
    bool stored = me.computed && n.free.empty() && me.chunked_axes.empty() && is_stored(n);
    if (stored || me.is_root || n.value) stored_ += n.bytes();
  }
  Names chunked_axes(const NodeFacts& me) {
    auto& n = *me.node;
    Names out;
    auto add = [&](Name a) {
      if (has(n.axes, a) && !has(out, a)) out.push_back(a);
    };
    if (n.op == &kResult) {
      auto& from = n.in[0]->op == &kLoop ? result_of(n).value[0] : n.in[0]->in[result_number(n)];
      for (auto a : all_[number_of(from.get())].chunked_axes) add(a);
      return out;
    }
    auto next = references_of(me).begin();
    for (std::size_t k = 0; n.op != &kLoop && k < n.in.size(); ++k) {
      if (!n.in[k]) continue;
      for (auto a : all_[*next++].chunked_axes) {
        auto rule = along(n, k, a);
        add(rule.way == Along::Way::map ? rule.point : a);
      }
    }
    if (n.op == &prim::kEnter) add(tiled_axis(n.attr).name);
    if (n.op == &prim::kLeave) std::erase(out, tiled_axis(n.attr).name);
    return out;
  }
  static bool is_stored(const Node& n) {  // other nodes may be fused and never be in memory
    auto kind = n.op->kind;
    return kind == Kind::contract || kind == Kind::step || kind == Kind::result;
  }
  void choose(NodeFacts& me) {  // readers first
    auto& n = *me.node;
    if (!me.computed || me.is_root || n.value) return;
    if (n.op->kind == Kind::leaf || n.op->kind == Kind::loop || n.op == &kCustomVjp) return;
    if (!me.requested && !is_held_by_user(me)) return;
    if (forwards_operand(n) &&
        (n.op->kind == Kind::wrap || (me.views <= kViews && n.bytes() >= n.in[0]->bytes()))) {
      for (auto x : references_of(me)) all_[x].requested = true;
    } else if (n.free.empty() && me.chunked_axes.empty() && n.bytes() <= max_bytes() &&
               !is_generated(n.shared_from_this())) {
      chosen_.push_back(&me);
    }
  }
  std::int64_t max_bytes() const { return std::max(kAlwaysCachedBytes, stored_); }
  static std::tuple<bool, bool, std::int64_t> rank(const NodeFacts& s) {
    return {s.bound, !is_stored(*s.node), s.node->bytes()};
  }

  Numbering numbers_;
  std::vector<NodeFacts> all_;
  std::vector<std::uint32_t> edges_, by_age_;
  std::unordered_set<const Payload*> payloads_;
  std::vector<const NodeFacts*> chosen_;
  std::int64_t stored_ = 0;
  bool regions_ = false;
  EagerCache out_;
};

}  // namespace

EagerCache choose_eager_cache(const Nodes& roots, const std::vector<const Node*>& nodes) {
  // If each op is a root itself, as for an op that is read directly, there is nothing else to
  // cache.
  auto is_op = [](auto& n) { return n->op->kind != Kind::leaf; };
  auto plain = [](auto* n) { return n->op->kind == Kind::leaf || (!n->value && !n->attr.payload); };
  const bool alone = std::all_of(roots.begin(), roots.end(), is_op) &&
                     std::all_of(nodes.begin(), nodes.end(), plain) &&
                     std::size_t(std::count_if(nodes.begin(), nodes.end(), is_op)) == roots.size();
  return alone ? EagerCache{} : CacheSearch(roots).run();
}

}  // namespace haliax
