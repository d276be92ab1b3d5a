// Weights that are gathered outside of the loops over layers: a model whose layers are written out.
// If both passes kept them, all would be whole in the middle of a training step.
// - A loop that takes gradients in each turn, over microbatches, gathers its weights before it only
// as long as they are few; the
//   others in each turn.
// - Others are let go where nobody reads them for longest, which is from pass to pass, and gathered
// again: all but those that
//   wait shortest, which are as much as one call may hold. What was read last is read again first.
// Which pass a node belongs to is not asked: a gradient written by hand is as good.
// Afterwards a gather may have twins: versions of one node in one sharding, each read at its own
// time.
#include <algorithm>
#include <set>

#include "ops/prim.h"
#include "compile/sharding/planner.h"

namespace haliax::partitioning {
namespace {

struct Gathered {
  // the gathers, one for each mesh axis, and what the weight is seen as, in order
  std::vector<int> made;
  std::vector<int> readers;  // versions that read them: here, or in one loop
  int body = -1;             // the innermost body that holds all readers
  // the reads in it between which it waits for longest; -1: it is read at one place
  int last = -1, first = -1;
  double bytes = 0;
  bool enters = false;
  bool waits() const { return last >= 0; }
};

struct Regather {
  Plan& plan;
  const GlobalGraph& whole;
  std::vector<std::vector<int>> readers;
  std::vector<int> around;   // of a body: the version that is its loop; -1: the top
  std::vector<double> held;  // of a body: bytes of gathered weights from outside, all the time
  // the top, and bodies that gathers have entered: other loops gather as their layers do
  std::set<int> open = {0};

  bool gathers(int k, int r) const {
    auto& s = plan.version(k);
    return s.gathers() && s.body == r && whole.is_weight(s.node);
  }
  // Is it a weight that was cast or seen otherwise? A barrier is none: it stands for a weight that
  // is rematerialised.
  bool sees(int k, int r) const {
    auto& s = plan.version(k);
    return s.kind == Version::Kind::compute && s.body == r && whole.is_weight(s.node) &&
           whole.ptr(s.node)->op != &prim::kBarrier;
  }
  // Of a version, or of the loop around it, among the versions of a body.
  int place(int k, int r) const {
    while (plan.version(k).body != r) k = around[std::size_t(plan.version(k).body)];
    auto& all = plan.body(r).versions;
    return int(std::find(all.begin(), all.end(), k) - all.begin());
  }
  int common(int a, int b) const {  // bodies; outer ones come first
    while (a != b) (a > b ? a : b) = plan.body(std::max(a, b)).parent;
    return a;
  }
  // the body in r that `inner` is, or lies in; r itself: none
  int towards(int r, int inner) const {
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
  // A weight that is gathered in r, for those who read it here, and for each loop. None: it is read
  // as a whole.
  std::vector<Gathered> found(int gather, int r) const {
    Gathered all;
    all.made = {gather};
    std::map<int, Gathered> parts;  // by body
    for (std::size_t i = 0; i < all.made.size(); ++i) {
      all.bytes = std::max(
          all.bytes, whole.bytes(plan.version(all.made[i]).node, plan.version(all.made[i]).at));
      for (int k : readers[std::size_t(all.made[i])]) {
        if (k < 0 || plan.version(k).kind == Version::Kind::loop) return {};
        bool made = gathers(k, r) || sees(k, r);
        auto& list = made ? all.made : parts[towards(r, plan.version(k).body)].readers;
        if (std::find(list.begin(), list.end(), k) == list.end()) list.push_back(k);
      }
    }
    std::vector<Gathered> out;
    for (auto& [body, g] : parts) {
      g.made = all.made;
      g.bytes = all.bytes;
      find_places(g);
      out.push_back(std::move(g));
    }
    return out;
  }
  // Those gathers of r, one for each weight, that are large.
  std::vector<std::vector<Gathered>> large(int r) const {
    std::vector<std::vector<Gathered>> out;
    for (int k : plan.body(r).versions)
      if (gathers(k, r) && !gathers(plan.version(k).in[0], r))
        if (auto parts = found(k, r); !parts.empty() && parts[0].bytes > kNegligibleBytes)
          out.push_back(std::move(parts));
    return out;
  }
  const Loop& loop(int body) const {
    return loop_of(whole.node(plan.loop(plan.body(body).loop).node));
  }
  // A loop over an axis that another loop walks too rematerialises the turns of that one, for their
  // gradients.
  bool rematerializes(const Gathered& g, const std::vector<Gathered>& parts, int r) const {
    return std::any_of(parts.begin(), parts.end(), [&](auto& other) {
      return &other != &g && other.body != r &&
             loop(towards(r, other.body)).axis == loop(towards(r, g.body)).axis;
    });
  }
  // Does the loop add up, turn by turn, what has the axes of the weight, as its gradient has?
  bool trains(const Gathered& g, int body) const {
    auto& weight = whole.node(plan.version(g.made[0]).node);
    auto& all = loop(body).results;
    return std::any_of(all.begin(), all.end(), [&](auto& r) {
      return r.fold != Fold::stack && same_set(r.value[0]->axes, weight.axes);
    });
  }
  // Whether the devices that gather together are in the same turn, which no flag leaves out, one
  // position of what is walked: chunks, of which there are many, share what was gathered.
  bool may_enter(const Gathered& g, int r) const {
    auto& shared_axes = plan.loop(plan.body(r).loop).shared_by;
    if (!loop(r).drop || whole.is_guarded(plan.loop(plan.body(r).loop).node)) return false;
    return std::none_of(g.made.begin(), g.made.end(), [&](int k) {
      return std::any_of(shared_axes.begin(), shared_axes.end(),
                         [&](int m) { return plan.version(k).reshard_step.over.has(m); });
    });
  }

  // Gathered once more, for some of its readers, just before the first of them.
  void repeat(const Gathered& g, const std::set<int>& by, int r) {
    std::set<int> wanted;
    for (auto k = g.made.rbegin(); k != g.made.rend(); ++k)
      for (int x : readers[std::size_t(*k)])
        if (wanted.count(x) || by.count(x)) wanted.insert(*k);
    int first = *std::min_element(by.begin(), by.end(),
                                  [&](int a, int b) { return place(a, r) < place(b, r); });
    auto& versions = plan.body(r).versions;
    auto before = versions.begin() + place(first, r);
    std::map<int, int> twin;
    for (int k : g.made) {
      if (!wanted.count(k)) continue;
      Version s = plan.version(k);
      for (int& x : s.in)
        if (twin.count(x)) x = twin[x];
      s.cause = plan.version(first).node;
      s.body = r;
      twin[k] = int(plan.versions.size());
      plan.versions.push_back(std::move(s));
      readers.emplace_back();
      before = versions.insert(before, twin[k]) + 1;
    }
    for (auto& [k, t] : twin) {
      auto& old = readers[std::size_t(k)];
      for (int x : old)
        if (by.count(x) || twin.count(x))
          readers[std::size_t(t)].push_back(by.count(x) ? x : twin[x]);
      std::erase_if(old, [&](int x) { return by.count(x) > 0; });
    }
    for (int k : by)
      for (int& x : plan.version(k).in)
        if (twin.count(x)) x = twin[x];
  }

  void run(int r) {
    // Into the loops.
    auto weights = large(r);
    std::set<int> trained;  // bodies that take gradients of weights
    double may_wait = kBucket;
    for (auto& parts : weights)
      for (auto& g : parts) {
        int body = towards(r, g.body);
        if (body != r && g.waits() && trains(g, body) && !rematerializes(g, parts, r))
          trained.insert(body);
        if (body != r || g.waits()) may_wait = std::max(may_wait, g.bytes);
      }
    std::map<int, double> inside;  // of what is read in a body
    for (auto& parts : weights)
      for (auto& g : parts) {
        if (g.body == r) continue;
        int body = towards(r, g.body);
        g.enters = trained.count(body) && may_enter(g, body) &&
                   held[std::size_t(r)] + inside[body] + g.bytes > may_wait;
        if (g.enters)
          open.insert(body);
        else
          inside[body] += g.bytes;
      }
    for (auto& parts : weights)
      if (std::any_of(parts.begin(), parts.end(), [](auto& g) { return g.enters; }))
        for (auto& g : parts)
          repeat(g, {g.readers.begin(), g.readers.end()}, g.enters ? towards(r, g.body) : r);
    // From pass to pass.
    // while each version is made
    std::vector<double> kept(plan.body(r).versions.size(), held[std::size_t(r)]);
    for (int k : plan.body(r).versions)
      for (int body : plan.bodies_of(plan.version(k)))
        kept[std::size_t(place(k, r))] += inside[body];
    std::vector<Gathered> waiting, repeated;
    for (auto& parts : large(r)) {
      Gathered g;
      g.made = parts[0].made;
      g.bytes = parts[0].bytes;
      for (auto& part : parts)
        g.readers.insert(g.readers.end(), part.readers.begin(), part.readers.end());
      find_places(g);
      if (g.body == r && g.waits()) waiting.push_back(std::move(g));
    }
    std::stable_sort(waiting.begin(), waiting.end(),
                     [](auto& x, auto& y) { return x.first - x.last < y.first - y.last; });
    for (auto& g : waiting) {
      auto from = kept.begin() + g.last, to = kept.begin() + g.first;
      if (*std::max_element(from, to) + g.bytes > may_wait)
        repeated.push_back(std::move(g));
      else
        std::for_each(from, to, [&](double& b) { b += g.bytes; });
    }
    for (int k : plan.body(r).versions)
      for (int body : plan.bodies_of(plan.version(k)))
        held[std::size_t(body)] = kept[std::size_t(place(k, r))];
    for (auto& g : repeated) {
      std::set<int> by;
      for (int k : g.readers)
        if (place(k, r) >= g.first) by.insert(k);
      repeat(g, by, r);
    }
  }
};

}  // namespace

void regather(Plan& plan, const GlobalGraph& whole) {
  Regather all{plan, whole, readers_of(plan), std::vector<int>(plan.bodies.size(), -1),
               std::vector<double>(plan.bodies.size())};
  for (int k = 0; k < int(plan.versions.size()); ++k)
    for (int body : plan.bodies_of(plan.version(k))) all.around[std::size_t(body)] = k;
  for (int r = 0; r < int(plan.bodies.size()); ++r)  // outer ones come first
    if (all.open.count(r)) all.run(r);
  drop_dead_versions(plan);
}

}  // namespace haliax::partitioning
