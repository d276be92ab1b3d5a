// Regathering of weights that are gathered outside of the loops over layers, in models whose layers
// are unrolled. If both passes retained the gathered weights, all weights would be replicated in
// the middle of a training step.
//
// - A loop that computes gradients in each iteration, over microbatches, gathers its weights before
//   the loop only up to a limit. It gathers all other weights in each iteration.
// - Other weights are freed during the longest interval without a reader, which is usually between
//   the forward and the backward pass, and are gathered again. Weights with the shortest intervals
//   stay resident, up to the size of one bucket. The backward pass reads the last weights first.
//
// The pass does not distinguish forward from backward nodes, so gradients that are written by hand
// are handled equally. Afterwards, a gather may have copies: versions of one node in one sharding,
// which are read at different times.
#include <algorithm>
#include <set>

#include "ops/prim.h"
#include "compile/sharding/passes.h"

namespace haliax::partitioning {
namespace {

struct Gathered {
  // The gathers, one per mesh axis, and casts and views of the gathered weight, in order.
  std::vector<int> versions;
  std::vector<int> readers;  // versions that read them: in this body, or in one loop
  int body = -1;             // the innermost body that contains all readers
  // The two reads with the longest interval between them. -1: all reads are at one place.
  int last = -1, first = -1;
  double bytes = 0;
  bool is_in_loop = false;
  bool is_idle() const { return last >= 0; }
};

struct Regather {
  Plan& plan;
  const GlobalGraph& graph;
  std::vector<std::vector<int>> readers;
  std::vector<int> loop_version;  // per body: the version of its loop; -1: the top
  // per body: bytes of gathered weights from outside that stay resident throughout
  std::vector<double> resident_before;
  // The top, and bodies that gathers have entered. Other loops gather weights as their layers do.
  std::set<int> open = {0};

  bool gathers(int k, int r) const {
    auto& s = plan.version(k);
    return s.gathers() && s.body == r && graph.is_weight(s.node);
  }
  // Returns true for a cast or a view of a weight. Returns false for a barrier, which marks a
  // weight that is rematerialized.
  bool is_view(int k, int r) const {
    auto& s = plan.version(k);
    return s.is<Compute>() && s.body == r && graph.is_weight(s.node) &&
           graph.ptr(s.node)->op != &prim::kBarrier;
  }
  // Returns the position of a version, or of the enclosing loop, among the versions of a body.
  int place(int k, int r) const {
    while (plan.version(k).body != r) k = loop_version[std::size_t(plan.version(k).body)];
    auto& all = plan.body(r).versions;
    return int(std::find(all.begin(), all.end(), k) - all.begin());
  }
  int common(int a, int b) const {  // innermost common body; outer bodies precede inner ones
    while (a != b) (a > b ? a : b) = plan.body(std::max(a, b)).parent;
    return a;
  }
  // Returns the body in r that is `inner` or contains it. Returns r if `inner` is r.
  int body_towards(int r, int inner) const {
    while (inner != r && plan.body(inner).parent != r) inner = plan.body(inner).parent;
    return inner;
  }

  void find_places(Gathered& g) const {
    for (int k : g.readers)
      g.body = g.body < 0 ? plan.version(k).body : common(g.body, plan.version(k).body);
    std::set<int> places;
    for (int k : g.readers) places.insert(place(k, g.body));
    for (auto at = places.begin(), next = std::next(at); next != places.end(); at = next++)
      if (*next - *at > g.first - g.last) {
        g.last = *at;
        g.first = *next;
      }
  }
  // Groups the readers of a weight that is gathered in r: readers in this body, and readers in each
  // loop. Returns nothing if a loop or a result reads the gathered weight as such.
  std::vector<Gathered> found(int gather, int r) const {
    Gathered all;
    all.versions = {gather};
    std::map<int, Gathered> parts;  // by body
    for (std::size_t i = 0; i < all.versions.size(); ++i) {
      all.bytes = std::max(all.bytes, graph.bytes(plan.version(all.versions[i]).node,
                                                  plan.version(all.versions[i]).at));
      for (int k : readers[std::size_t(all.versions[i])]) {
        if (k < 0 || plan.version(k).is<RunLoop>()) return {};
        bool is_gathered = gathers(k, r) || is_view(k, r);
        auto& list =
            is_gathered ? all.versions : parts[body_towards(r, plan.version(k).body)].readers;
        if (std::find(list.begin(), list.end(), k) == list.end()) list.push_back(k);
      }
    }
    std::vector<Gathered> out;
    for (auto& [body, g] : parts) {
      g.versions = all.versions;
      g.bytes = all.bytes;
      find_places(g);
      out.push_back(std::move(g));
    }
    return out;
  }
  // Returns the gathers in r that are large, one entry per weight.
  std::vector<std::vector<Gathered>> large(int r) const {
    std::vector<std::vector<Gathered>> out;
    for (int k : plan.body(r).versions)
      if (gathers(k, r) && !gathers(plan.version(k).in[0], r))
        if (auto parts = found(k, r); !parts.empty() && parts[0].bytes > kNegligibleBytes)
          out.push_back(std::move(parts));
    return out;
  }
  const Loop& loop(int body) const {
    return loop_of(graph.node(plan.loop(plan.body(body).loop).node));
  }
  // Returns true if another loop over the same axis reads the weight. One of the two loops then
  // rematerializes the iterations of the other one for their gradients.
  bool rematerializes(const Gathered& g, const std::vector<Gathered>& parts, int r) const {
    return std::any_of(parts.begin(), parts.end(), [&](auto& other) {
      return &other != &g && other.body != r &&
             loop(body_towards(r, other.body)).axis == loop(body_towards(r, g.body)).axis;
    });
  }
  // Returns true if the loop accumulates a value with the axes of the weight, such as its gradient.
  bool trains(const Gathered& g, int body) const {
    auto& weight = graph.node(plan.version(g.versions[0]).node);
    auto& all = loop(body).results;
    return std::any_of(all.begin(), all.end(), [&](auto& r) {
      return r.fold != Fold::stack && same_set(r.value[0]->axes, weight.axes);
    });
  }
  // Returns true if the gather may move into the loop: its devices run the same iterations, no flag
  // skips an iteration, and each iteration covers one position of the axis. A loop over chunks has
  // many iterations, which share the gathered weight.
  bool may_move_into(const Gathered& g, int r) const {
    auto& shared_axes = plan.loop(plan.body(r).loop).shared_by;
    if (!loop(r).drop || graph.is_conditional(plan.loop(plan.body(r).loop).node)) return false;
    return std::none_of(g.versions.begin(), g.versions.end(), [&](int k) {
      return std::any_of(shared_axes.begin(), shared_axes.end(),
                         [&](int m) { return plan.version(k).step().over.has(m); });
    });
  }

  // Repeats a gather for some of its readers, just before the first of them.
  void repeat(const Gathered& g, const std::set<int>& by, int r) {
    std::set<int> requested;
    for (auto k = g.versions.rbegin(); k != g.versions.rend(); ++k)
      for (int x : readers[std::size_t(*k)])
        if (requested.count(x) || by.count(x)) requested.insert(*k);
    int first = *std::min_element(by.begin(), by.end(),
                                  [&](int a, int b) { return place(a, r) < place(b, r); });
    auto& versions = plan.body(r).versions;
    auto before = versions.begin() + place(first, r);
    std::map<int, int> copy_of;
    for (int k : g.versions) {
      if (!requested.count(k)) continue;
      Version s = plan.version(k);
      for (int& x : s.in)
        if (copy_of.count(x)) x = copy_of[x];
      s.cause = plan.version(first).node;
      s.body = r;
      copy_of[k] = int(plan.versions.size());
      plan.versions.push_back(std::move(s));
      readers.emplace_back();
      before = versions.insert(before, copy_of[k]) + 1;
    }
    for (auto& [k, t] : copy_of) {
      auto& old = readers[std::size_t(k)];
      for (int x : old)
        if (by.count(x) || copy_of.count(x))
          readers[std::size_t(t)].push_back(by.count(x) ? x : copy_of[x]);
      std::erase_if(old, [&](int x) { return by.count(x) > 0; });
    }
    for (int k : by)
      for (int& x : plan.version(k).in)
        if (copy_of.count(x)) x = copy_of[x];
  }

  // Moves gathers into loops, as long as more than `limit` bytes would be resident otherwise.
  // Returns the bytes of weights that each body reads from outside.
  std::map<int, double> move_into_loops(std::vector<std::vector<Gathered>>& weights, int r,
                                        double limit) {
    std::set<int> trained;  // bodies that accumulate gradients of weights
    for (auto& parts : weights)
      for (auto& g : parts)
        if (int body = body_towards(r, g.body);
            body != r && g.is_idle() && trains(g, body) && !rematerializes(g, parts, r))
          trained.insert(body);
    std::map<int, double> inside;
    for (auto& parts : weights)
      for (auto& g : parts) {
        if (g.body == r) continue;
        int body = body_towards(r, g.body);
        g.is_in_loop = trained.count(body) && may_move_into(g, body) &&
                       resident_before[std::size_t(r)] + inside[body] + g.bytes > limit;
        if (g.is_in_loop)
          open.insert(body);
        else
          inside[body] += g.bytes;
      }
    for (auto& parts : weights)
      if (std::any_of(parts.begin(), parts.end(), [](auto& g) { return g.is_in_loop; }))
        for (auto& g : parts)
          repeat(g, {g.readers.begin(), g.readers.end()},
                 g.is_in_loop ? body_towards(r, g.body) : r);
    return inside;
  }
  // Repeats gathers after the longest interval without a reader, except those with the shortest
  // intervals, which stay resident up to `limit` bytes. resident: bytes that are resident while
  // each version of the body is computed.
  void repeat_after_intervals(int r, std::vector<double>& resident, double limit) {
    std::vector<Gathered> idle, repeated;
    for (auto& parts : large(r)) {
      Gathered g;
      g.versions = parts[0].versions;
      g.bytes = parts[0].bytes;
      for (auto& part : parts)
        g.readers.insert(g.readers.end(), part.readers.begin(), part.readers.end());
      find_places(g);
      if (g.body == r && g.is_idle()) idle.push_back(std::move(g));
    }
    std::stable_sort(idle.begin(), idle.end(),
                     [](auto& x, auto& y) { return x.first - x.last < y.first - y.last; });
    for (auto& g : idle) {
      auto from = resident.begin() + g.last, to = resident.begin() + g.first;
      if (*std::max_element(from, to) + g.bytes > limit)
        repeated.push_back(std::move(g));
      else
        std::for_each(from, to, [&](double& b) { b += g.bytes; });
    }
    each_inner_body(
        r, [&](int body, std::size_t at) { resident_before[std::size_t(body)] = resident[at]; });
    for (auto& g : repeated) {
      std::set<int> by;
      for (int k : g.readers)
        if (place(k, r) >= g.first) by.insert(k);
      repeat(g, by, r);
    }
  }
  // Calls f(body, position of its loop) for the bodies of the loops in r.
  template <class F> void each_inner_body(int r, F f) const {
    for (int k : plan.body(r).versions)
      for (int body : plan.bodies_of(plan.version(k))) f(body, std::size_t(place(k, r)));
  }

  void run(int r) {
    auto weights = large(r);
    double limit = kBucket;  // at least one weight may be resident
    for (auto& parts : weights)
      for (auto& g : parts)
        if (g.body != r || g.is_idle()) limit = std::max(limit, g.bytes);
    auto inside = move_into_loops(weights, r, limit);
    std::vector<double> resident(plan.body(r).versions.size(), resident_before[std::size_t(r)]);
    each_inner_body(r, [&](int body, std::size_t at) { resident[at] += inside[body]; });
    repeat_after_intervals(r, resident, limit);
  }
};

}  // namespace

void regather(Plan& plan, const GlobalGraph& graph) {
  Regather all{plan, graph, readers_of(plan), std::vector<int>(plan.bodies.size(), -1),
               std::vector<double>(plan.bodies.size())};
  for (int k = 0; k < int(plan.versions.size()); ++k)
    for (int body : plan.bodies_of(plan.version(k))) all.loop_version[std::size_t(body)] = k;
  for (int r = 0; r < int(plan.bodies.size()); ++r)  // outer bodies precede inner ones
    if (all.open.count(r)) all.run(r);
  drop_dead_versions(plan);
}

}  // namespace haliax::partitioning
