// Rematerialization: a value that was gathered or summed over devices is saved for later readers,
// or communicated again. Neither way distinguishes forward from backward nodes, so gradients that
// are written by hand are handled equally.
//
// Residuals. If a loop over layers sums a value over devices, and a later loop would rematerialize
// the value and sum it again, the first loop saves it as a stack. The same applies to sums in the
// tiles of a loss, if they are no larger than the slices that the loop reads; logits are larger and
// are not saved. Afterwards the graph has new roots and is planned again.
//
// Regathering. In models whose layers are unrolled, weights are gathered outside of loops over
// layers. If the gathered copies were retained, all of them would be resident at once.
//
// - A loop that computes gradients in each iteration, over microbatches, gathers its weights before
//   the loop only up to a limit. It gathers all other weights in each iteration.
// - Other weights are freed during the longest interval without a reader, which is usually between
//   the forward and the backward pass, and are gathered again. Weights with the shortest intervals
//   stay resident, up to the size of one bucket. The backward pass reads the last weights first.
//
// Afterwards, a gather may have copies: versions of one node in one sharding, which are read at
// different times.
#include <algorithm>
#include <set>

#include "ops/attr.h"
#include "ops/prim.h"
#include "compile/loops/loops.h"
#include "compile/sharding/passes.h"
#include "compile/sharding/planner.h"

namespace haliax::partitioning {
namespace {

// ---- residuals ----
// A value that a loop would communicate again: the loop that communicates it first, and the value
// in both loops.
struct Residual {
  NodePtr loop, earlier, later;
};
// A loop whose stacks the body of a later loop reads. A slice of a stack equals the value that the
// earlier body stacked.
struct StackingLoop {
  NodePtr loop = {};  // null: the body reads no stack, or stacks of several loops
  Rewrite to = {};
  std::int64_t slice_bytes = 0;  // bytes of the largest slice of any array that the body reads
};
bool runs_over(const Loop& l, const Node* index) {
  return l.index.size() == 1 && l.index[0].get() == index;
}
StackingLoop stacking_loop_of(GlobalGraph& graph, int loop, const Node* index) {
  StackingLoop out;
  bool several = false;
  for (int n : graph.level(loop, 0).order) {
    auto& s = graph.ptr(n);
    if (!is_slice_at(*s, index)) continue;
    out.slice_bytes = std::max(out.slice_bytes, s->bytes());
    auto& stack = s->in[0];
    if (!is_loop_result(*stack) || !runs_over(loop_of(*stack), index)) continue;
    several |= out.loop && out.loop != stack->in[0];
    out.loop = stack->in[0];
    out.to[s.get()] = result_of(*stack).value[0];
  }
  if (several) out.to = {};
  return out;
}
// Returns true if the loop computes the value in this sharding, and can stack it over its
// iterations. A loop over chunks only stacks values that have the chunk axis.
bool can_stack(const Plan& plan, const GlobalGraph& graph, const LoopPlan& p, const NodePtr& value,
               const Sharding& sharding) {
  auto& l = loop_of(graph.node(p.node));
  auto* chunk = find(*value, l.axis.name);
  auto& versions = plan.body(p.bodies[0]).versions;
  bool computes = std::any_of(versions.begin(), versions.end(), [&](int k) {
    auto& v = plan.version(k);
    return v.live && graph.ptr(v.node) == value && v.sharding == sharding;
  });
  return computes && (l.drop ? !chunk : chunk && chunk->size == prim::index_chunk(*l.index[0]));
}
// Returns the values that the loop would communicate again. For example, given layers whose
// backward pass sums y = dot(x, w) over `model` again, returns y in the forward and in the backward
// loop. Two loops over the tiles of a loss may also share a node.
std::vector<Residual> residuals_of(const Plan& plan, GlobalGraph& graph, const LoopPlan& p,
                                   bool gathers_too) {
  std::vector<Residual> out;
  auto& l = loop_of(graph.node(p.node));
  auto* index = l.index[0].get();
  auto& body = plan.body(p.bodies[0]);
  auto communicates = [&](int k) {
    auto& v = plan.version(k);
    return v.live && v.is<Reshard>() && v.communicates() && (v.sums() || gathers_too);
  };
  if (l.index.size() != 1 || std::none_of(body.versions.begin(), body.versions.end(), communicates))
    return out;
  const auto stacking = stacking_loop_of(graph, p.node, index);
  for (int k : body.versions) {
    auto& v = plan.version(k);
    auto& later = graph.ptr(v.node);
    if (!communicates(k) || stacking.to.count(later.get())) continue;  // or saved already
    auto to = stacking.to;
    auto earlier = substitute({later}, to, index)[0];
    const bool is_shared = earlier == later;
    if (is_shared && (!v.sums() || later->bytes() > stacking.slice_bytes)) continue;
    for (auto& other : plan.loops) {
      if (other.node == p.node) break;
      auto& loop = graph.ptr(other.node);
      bool is_sibling =
          runs_over(loop_of(*loop), index) && plan.body(other.bodies[0]).parent == body.parent;
      if (!(is_shared ? is_sibling : loop == stacking.loop) ||
          !can_stack(plan, graph, other, earlier, v.sharding))
        continue;
      out.push_back({loop, earlier, later});
      break;
    }
  }
  return out;
}
// Returns the roots, in which one loop stacks the values that later loops would communicate again,
// and these loops read the stacks.
Nodes with_residuals(const Nodes& roots, const Plan& plan, GlobalGraph& graph, bool gathers_too) {
  std::vector<Residual> residuals;
  for (auto& p : plan.loops)
    for (auto& r : residuals_of(plan, graph, p, gathers_too)) residuals.push_back(std::move(r));
  if (residuals.empty()) return roots;
  // One loop at a time, and values that loops share last.
  auto is_shared = [](auto& r) { return r.earlier == r.later; };
  auto chosen = *std::min_element(residuals.begin(), residuals.end(),
                                  [&](auto& a, auto& b) { return is_shared(a) < is_shared(b); });
  Loop more = loop_of(*chosen.loop);
  // (value in later loops, index of its stack in the results)
  std::vector<std::pair<NodePtr, std::size_t>> stacks;
  for (auto& r : residuals)
    if (r.loop == chosen.loop && is_shared(r) == is_shared(chosen))
      stacks.push_back({r.later, add_result(more, {ResultKind::stack, Monoid::sum, {r.earlier}})});
  auto index = more.index[0];
  const bool drop = more.drop;
  Rewrite to;
  auto created = replace_loop(chosen.loop, std::move(more), to);
  for (auto& [later, k] : stacks)
    to[later.get()] = prim::slice_at(loop_result(created, k), index, drop);
  return substitute(roots, to);
}
// Saves residuals and plans again, until there are no more residuals to save. A saved residual may
// allow further ones. It may also replace an earlier one, in an endless cycle: after some rounds
// without improvement, the best round is used.
Planned with_all_residuals(Planned best, bool regather, const Replan& replan) {
  constexpr int most_idle = 4;  // rounds that save no bytes
  Planned next;
  auto* last = &best;
  for (int idle = 0; idle < most_idle;) {
    auto roots = with_residuals(last->roots, last->plan, *last->graph, !regather);
    if (roots == last->roots) break;
    next = replan(roots, regather);
    last = &next;
    idle = next.plan.bytes < best.plan.bytes ? 0 : idle + 1;
    if (next.plan.bytes > best.plan.bytes) continue;
    best = std::move(next);
    last = &best;
  }
  return best;
}

// ---- weights that are gathered again ----
// A gathered weight and some of its readers: those in one loop, or those in this body.
struct GatheredWeight {
  // The gathers, one per mesh axis, and casts and views of the gathered weight, in order.
  std::vector<int> versions;
  std::vector<int> readers;  // versions that read them: in this body, or in one loop
  int body = -1;             // the innermost body that contains all readers
  // The longest interval without a read: the places of the reads before and after it. -1: all reads
  // are at one place.
  int idle_from = -1, idle_to = -1;
  double bytes = 0;
  bool is_in_loop = false;
  bool is_idle() const { return idle_from >= 0; }
};

struct Regather {
  Plan& plan;
  const GlobalGraph& graph;
  std::vector<std::vector<int>> readers;
  std::vector<int> loop_version;  // per body: the version of its loop; -1: the top
  // per body: bytes of gathered weights from outside that stay resident throughout
  std::vector<double> resident_before;
  // The top, and bodies that gathers have entered. Other loops gather weights as their layers do.
  std::set<int> entered = {0};

  bool gathers(int k, int body) const {
    auto& v = plan.version(k);
    return v.gathers() && v.body == body && graph.is_weight(v.node);
  }
  // Returns true for a cast or a view of a weight. Returns false for a barrier, which marks a
  // weight that is rematerialized.
  bool is_view(int k, int body) const {
    auto& v = plan.version(k);
    return v.is<Compute>() && v.body == body && graph.is_weight(v.node) &&
           graph.ptr(v.node)->op != &prim::kBarrier;
  }
  // Returns the position of a version, or of the enclosing loop, among the versions of a body.
  int place(int k, int body) const {
    while (plan.version(k).body != body) k = loop_version[std::size_t(plan.version(k).body)];
    auto& all = plan.body(body).versions;
    return int(std::find(all.begin(), all.end(), k) - all.begin());
  }
  int common(int a, int b) const {  // innermost common body; outer bodies precede inner ones
    while (a != b) (a > b ? a : b) = plan.body(std::max(a, b)).parent;
    return a;
  }
  // Returns the body in `outer` that is `inner` or contains it. Returns `outer` if they are equal.
  int body_towards(int outer, int inner) const {
    while (inner != outer && plan.body(inner).parent != outer) inner = plan.body(inner).parent;
    return inner;
  }

  void find_places(GatheredWeight& g) const {
    for (int k : g.readers)
      g.body = g.body < 0 ? plan.version(k).body : common(g.body, plan.version(k).body);
    std::set<int> places;
    for (int k : g.readers) places.insert(place(k, g.body));
    for (auto at = places.begin(), next = std::next(at); next != places.end(); at = next++)
      if (*next - *at > g.idle_to - g.idle_from) {
        g.idle_from = *at;
        g.idle_to = *next;
      }
  }
  // Groups the readers of a weight that is gathered in `outer`: readers in this body, and readers
  // in each loop. Returns nothing if a loop or a result reads the gathered weight as such.
  std::vector<GatheredWeight> readers_by_loop(int gather, int outer) const {
    GatheredWeight all;
    all.versions = {gather};
    std::map<int, GatheredWeight> by_loop;  // by body
    for (std::size_t i = 0; i < all.versions.size(); ++i) {
      all.bytes = std::max(all.bytes, graph.bytes(plan.version(all.versions[i]).node,
                                                  plan.version(all.versions[i]).sharding));
      for (int k : readers[std::size_t(all.versions[i])]) {
        if (k < 0 || plan.version(k).is<RunLoop>()) return {};
        bool is_gathered = gathers(k, outer) || is_view(k, outer);
        auto& list =
            is_gathered ? all.versions : by_loop[body_towards(outer, plan.version(k).body)].readers;
        if (std::find(list.begin(), list.end(), k) == list.end()) list.push_back(k);
      }
    }
    std::vector<GatheredWeight> out;
    for (auto& [body, g] : by_loop) {
      g.versions = all.versions;
      g.bytes = all.bytes;
      find_places(g);
      out.push_back(std::move(g));
    }
    return out;
  }
  // Returns the gathers in the body that are large, one entry per weight.
  std::vector<std::vector<GatheredWeight>> large_gathers(int body) const {
    std::vector<std::vector<GatheredWeight>> out;
    for (int k : plan.body(body).versions)
      if (gathers(k, body) && !gathers(plan.version(k).in[0], body))
        if (auto by_loop = readers_by_loop(k, body);
            !by_loop.empty() && by_loop[0].bytes > kNegligibleBytes)
          out.push_back(std::move(by_loop));
    return out;
  }
  const Loop& loop(int body) const {
    return loop_of(graph.node(plan.loop(plan.body(body).loop).node));
  }
  // Returns true if another loop over the same axis reads the weight. One of the two loops then
  // rematerializes the iterations of the other one for their gradients.
  bool rematerializes(const GatheredWeight& g, const std::vector<GatheredWeight>& by_loop,
                      int outer) const {
    return std::any_of(by_loop.begin(), by_loop.end(), [&](auto& other) {
      return &other != &g && other.body != outer &&
             loop(body_towards(outer, other.body)).axis == loop(body_towards(outer, g.body)).axis;
    });
  }
  // Returns true if the loop accumulates a value with the axes of the weight, such as its gradient.
  bool trains(const GatheredWeight& g, int body) const {
    auto& weight = graph.node(plan.version(g.versions[0]).node);
    auto& all = loop(body).results;
    return std::any_of(all.begin(), all.end(), [&](auto& r) {
      return r.kind != ResultKind::stack && same_set(r.value[0]->axes, weight.axes);
    });
  }
  // Returns true if the gather may move into the loop: its devices run the same iterations, no flag
  // skips an iteration, and each iteration covers one position of the axis. A loop over chunks has
  // many iterations, which share the gathered weight.
  bool may_move_into(const GatheredWeight& g, int body) const {
    auto& shared_axes = plan.loop(plan.body(body).loop).shared_by;
    if (!loop(body).drop || graph.is_conditional(plan.loop(plan.body(body).loop).node))
      return false;
    return std::none_of(g.versions.begin(), g.versions.end(), [&](int k) {
      return std::any_of(shared_axes.begin(), shared_axes.end(),
                         [&](int m) { return plan.version(k).step().over.has(m); });
    });
  }

  // Repeats a gather for some of its readers, just before the first of them. For example, a weight
  // is gathered once and read by f and b; repeated for {b}: gather, f, gather again, b.
  void repeat(const GatheredWeight& g, const std::set<int>& for_readers, int body) {
    const auto copy_of = copy_versions(g, for_readers, body);
    for (auto& [k, copy] : copy_of) move_readers(k, copy, for_readers, copy_of);
    for (int k : for_readers) read_copies(plan.version(k), copy_of);
  }
  // Copies the versions of g that these readers need. Returns the copy of each.
  std::map<int, int> copy_versions(const GatheredWeight& g, const std::set<int>& for_readers,
                                   int body) {
    std::set<int> requested;
    for (auto k = g.versions.rbegin(); k != g.versions.rend(); ++k)
      for (int x : readers[std::size_t(*k)])
        if (requested.count(x) || for_readers.count(x)) requested.insert(*k);
    const int first = *std::min_element(for_readers.begin(), for_readers.end(), [&](int a, int b) {
      return place(a, body) < place(b, body);
    });
    auto& versions = plan.body(body).versions;
    auto before = versions.begin() + place(first, body);
    std::map<int, int> copy_of;
    for (int k : g.versions) {
      if (!requested.count(k)) continue;
      Version v = plan.version(k);
      read_copies(v, copy_of);
      v.cause = plan.version(first).node;
      v.body = body;
      copy_of[k] = int(plan.versions.size());
      plan.versions.push_back(std::move(v));
      readers.emplace_back();
      before = versions.insert(before, copy_of[k]) + 1;
    }
    return copy_of;
  }
  static void read_copies(Version& v, const std::map<int, int>& copy_of) {
    for (int& x : v.in)
      if (auto copy = copy_of.find(x); copy != copy_of.end()) x = copy->second;
  }
  // Updates `readers`: these readers, and copies of readers, read the copy of version k.
  void move_readers(int k, int copy, const std::set<int>& for_readers,
                    const std::map<int, int>& copy_of) {
    auto& old = readers[std::size_t(k)];
    for (int x : old)
      if (for_readers.count(x) || copy_of.count(x))
        readers[std::size_t(copy)].push_back(for_readers.count(x) ? x : copy_of.at(x));
    std::erase_if(old, [&](int x) { return for_readers.count(x) > 0; });
  }

  // Moves gathers into loops, as long as more than `limit` bytes would be resident otherwise.
  // Returns the bytes of weights that each body reads from outside.
  std::map<int, double> move_into_loops(std::vector<std::vector<GatheredWeight>>& weights,
                                        int outer, double limit) {
    std::set<int> trained;  // bodies that accumulate gradients of weights
    for (auto& by_loop : weights)
      for (auto& g : by_loop)
        if (int body = body_towards(outer, g.body);
            body != outer && g.is_idle() && trains(g, body) && !rematerializes(g, by_loop, outer))
          trained.insert(body);
    std::map<int, double> inside;
    for (auto& by_loop : weights)
      for (auto& g : by_loop) {
        if (g.body == outer) continue;
        int body = body_towards(outer, g.body);
        g.is_in_loop = trained.count(body) && may_move_into(g, body) &&
                       resident_before[std::size_t(outer)] + inside[body] + g.bytes > limit;
        if (g.is_in_loop)
          entered.insert(body);
        else
          inside[body] += g.bytes;
      }
    for (auto& by_loop : weights)
      if (std::any_of(by_loop.begin(), by_loop.end(), [](auto& g) { return g.is_in_loop; }))
        for (auto& g : by_loop)
          repeat(g, {g.readers.begin(), g.readers.end()},
                 g.is_in_loop ? body_towards(outer, g.body) : outer);
    return inside;
  }
  // Repeats gathers after the longest interval without a reader, except those with the shortest
  // intervals, which stay resident up to `limit` bytes. resident: bytes that are resident while
  // each version of the body is computed.
  void repeat_after_intervals(int outer, std::vector<double>& resident, double limit) {
    std::vector<GatheredWeight> idle, repeated;
    for (auto& by_loop : large_gathers(outer)) {
      GatheredWeight g;
      g.versions = by_loop[0].versions;
      g.bytes = by_loop[0].bytes;
      for (auto& part : by_loop)
        g.readers.insert(g.readers.end(), part.readers.begin(), part.readers.end());
      find_places(g);
      if (g.body == outer && g.is_idle()) idle.push_back(std::move(g));
    }
    std::stable_sort(idle.begin(), idle.end(), [](auto& x, auto& y) {
      return x.idle_to - x.idle_from < y.idle_to - y.idle_from;
    });
    for (auto& g : idle) {
      auto from = resident.begin() + g.idle_from, to = resident.begin() + g.idle_to;
      if (*std::max_element(from, to) + g.bytes > limit)
        repeated.push_back(std::move(g));
      else
        std::for_each(from, to, [&](double& b) { b += g.bytes; });
    }
    each_inner_body(outer, [&](int body, std::size_t at) {
      resident_before[std::size_t(body)] = resident[at];
    });
    for (auto& g : repeated) {
      std::set<int> for_readers;
      for (int k : g.readers)
        if (place(k, outer) >= g.idle_to) for_readers.insert(k);
      repeat(g, for_readers, outer);
    }
  }
  // Calls f(body, position of its loop) for the bodies of the loops in `outer`.
  template <class F> void each_inner_body(int outer, F f) const {
    for (int k : plan.body(outer).versions)
      for (int body : plan.bodies_of(plan.version(k))) f(body, std::size_t(place(k, outer)));
  }

  void run(int outer) {
    auto weights = large_gathers(outer);
    double limit = kBucket;  // at least one weight may be resident
    for (auto& by_loop : weights)
      for (auto& g : by_loop)
        if (g.body != outer || g.is_idle()) limit = std::max(limit, g.bytes);
    auto inside = move_into_loops(weights, outer, limit);
    std::vector<double> resident(plan.body(outer).versions.size(),
                                 resident_before[std::size_t(outer)]);
    each_inner_body(outer, [&](int body, std::size_t at) { resident[at] += inside[body]; });
    repeat_after_intervals(outer, resident, limit);
  }
};
void regather(Plan& plan, const GlobalGraph& graph) {
  Regather all{plan, graph, readers_of(plan), std::vector<int>(plan.bodies.size(), -1),
               std::vector<double>(plan.bodies.size())};
  for (int k = 0; k < int(plan.versions.size()); ++k)
    for (int body : plan.bodies_of(plan.version(k))) all.loop_version[std::size_t(body)] = k;
  for (int body = 0; body < int(plan.bodies.size()); ++body)  // outer bodies precede inner ones
    if (all.entered.count(body)) all.run(body);
  drop_dead_versions(plan);
}

}  // namespace

Planned rematerialize(Planned planned, const PartitionOptions& options, const Replan& replan) {
  const auto roots = planned.roots;
  planned = with_all_residuals(std::move(planned), options.regather, replan);
  if (options.regather) {
    regather(planned.plan, *planned.graph);
    return planned;
  }
  // Gathered weights stay resident only to reduce communication. If gathering them again in each
  // loop communicates less, that plan is used.
  auto other = with_all_residuals(replan(roots, true), true, replan);
  bool cheaper = is_cheaper(other.plan, *other.graph, planned.plan, *planned.graph, options.strict);
  return cheaper ? std::move(other) : std::move(planned);
}

}  // namespace haliax::partitioning
