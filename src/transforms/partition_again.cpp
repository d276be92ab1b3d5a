// Weights that are gathered outside of the loops over layers: a model whose layers are written out. If both passes kept them, all
// would be whole in the middle of a step.
// - A loop that takes gradients in each turn, over microbatches, gathers its weights before it only as long as they are few; the
//   others in each turn.
// - Of what both passes read, as much waits for the backward pass as one call may hold; the others are gathered again. What was
//   read last is read again first.
#include <algorithm>
#include <set>

#include "ops/prim.h"
#include "transforms/partition_plan.h"

namespace haliax::partitioning {
namespace {

struct Gathered {
  std::vector<int> made;      // the gathers, one for each mesh axis, and what the weight is seen as, in order
  std::vector<int> readers;   // steps that read them
  int home = -1;              // the innermost region that holds all readers
  int last = -1, again = -1;  // places in it, of the last reader of the forward pass and of the first of the backward pass
  int back = -1;              // that one
  double bytes = 0;
  bool waits() const { return last >= 0 && again > last; }
};

struct Again {
  Plan& plan;
  const Whole& whole;
  std::vector<std::vector<int>> readers;
  std::vector<int> around;   // of a region: the step that is its loop; -1: the top
  std::vector<double> held;  // of a region: bytes of gathered weights from outside, all the time

  const Step& step(int k) const { return plan.steps[std::size_t(k)]; }
  const Region& region(int r) const { return plan.regions[std::size_t(r)]; }
  bool later(int k) const { return whole.nodes[std::size_t(step(k).node)]->origin.backward; }
  bool gathers(int k, int r) const {
    auto& s = step(k);
    return s.live && s.region == r && s.kind == Step::Kind::hop && s.hop.kind == Hop::Kind::all_gather && whole.weight(s.node);
  }
  bool sees(int k, int r) const {  // a weight as something else; not once more, for a layer that is made again
    auto& s = step(k);
    return s.kind == Step::Kind::compute && s.region == r && whole.weight(s.node) &&
           whole.nodes[std::size_t(s.node)]->op != &prim::kBarrier;
  }
  // Of a step, or of the loop around it, among the steps of a region.
  int place(int k, int r) const {
    while (step(k).region != r) k = around[std::size_t(step(k).region)];
    auto& all = region(r).steps;
    return int(std::find(all.begin(), all.end(), k) - all.begin());
  }
  int common(int a, int b) const {  // regions; outer ones come first
    while (a != b) (a > b ? a : b) = region(std::max(a, b)).parent;
    return a;
  }
  int towards(int r, int home) const {  // the body in r that home is, or lies in
    while (region(home).parent != r) home = region(home).parent;
    return home;
  }
  Gathered found(int gather, int r) const {
    Gathered g;
    g.made = {gather};
    for (std::size_t i = 0; i < g.made.size(); ++i) {
      g.bytes = std::max(g.bytes, whole.bytes(step(g.made[i]).node, step(g.made[i]).at));
      for (int k : readers[std::size_t(g.made[i])]) {
        if (k < 0 || step(k).kind == Step::Kind::loop) return {};  // read as a whole
        auto& list = gathers(k, r) || sees(k, r) ? g.made : g.readers;
        if (std::find(list.begin(), list.end(), k) == list.end()) list.push_back(k);
      }
    }
    for (int k : g.readers) g.home = g.home < 0 ? step(k).region : common(g.home, step(k).region);
    for (int k : g.readers) {
      int at = place(k, g.home);
      if (!later(k))
        g.last = std::max(g.last, at);
      else if (g.back < 0 || at < g.again)
        g.again = at, g.back = k;
    }
    return g;
  }
  // Whether the devices that gather together are in the same turn, one position of what is walked: chunks, of which there are many,
  // share what was gathered.
  bool may_enter(const Gathered& g, int r) const {
    auto& l = plan.loops[std::size_t(region(r).loop)];
    return loop_of(*whole.nodes[std::size_t(l.node)]).drop && std::none_of(g.made.begin(), g.made.end(), [&](int k) {
             return std::any_of(l.turns.begin(), l.turns.end(), [&](int m) { return step(k).hop.over.has(m); });
           });
  }
  void enter(const Gathered& g, int r) {
    auto &from = plan.regions[std::size_t(step(g.made[0]).region)].steps, &to = plan.regions[std::size_t(r)].steps;
    int first = int(to.size());
    for (int k : g.readers) first = std::min(first, place(k, r));
    for (int k : g.made) {
      plan.bytes += step(k).hop.bytes * (region(r).turns - region(step(k).region).turns);
      plan.steps[std::size_t(k)].region = r;
      from.erase(std::find(from.begin(), from.end(), k));
      to.insert(to.begin() + first++, k);
    }
  }
  void repeat(const Gathered& g) {
    auto is_later = [&](int k) { return std::find(g.readers.begin(), g.readers.end(), k) != g.readers.end() && later(k); };
    std::set<int> wanted;
    for (auto k = g.made.rbegin(); k != g.made.rend(); ++k)
      for (int r : readers[std::size_t(*k)])
        if (wanted.count(r) || is_later(r)) wanted.insert(*k);
    std::map<int, int> twin;
    auto& steps = plan.regions[std::size_t(g.home)].steps;
    auto before = steps.begin() + g.again;
    for (int k : g.made) {
      if (!wanted.count(k)) continue;
      Step s = step(k);
      for (int& x : s.in)
        if (twin.count(x)) x = twin[x];
      s.cause = step(g.back).node;
      plan.bytes += s.hop.bytes * region(g.home).turns;
      twin[k] = int(plan.steps.size());
      plan.steps.push_back(std::move(s));
      before = steps.insert(before, twin[k]) + 1;
    }
    for (int k : g.readers)
      if (later(k))
        for (int& x : plan.steps[std::size_t(k)].in)
          if (twin.count(x)) x = twin[x];
  }
  void run(int r) {
    std::vector<Gathered> waiting, deeper;
    std::set<int> trained;  // bodies that take gradients of weights
    double may_wait = kBucket;
    for (int k : region(r).steps) {
      if (!gathers(k, r) || gathers(step(k).in[0], r)) continue;
      auto g = found(k, r);
      if (g.home < 0 || (g.home == r && !g.waits())) continue;
      if (g.home != r && g.waits()) trained.insert(towards(r, g.home));
      if (g.bytes <= kSmall) continue;
      may_wait = std::max(may_wait, g.bytes);
      (g.home == r ? waiting : deeper).push_back(std::move(g));
    }
    std::vector<double> kept(region(r).steps.size(), held[std::size_t(r)]);  // while each step runs
    std::map<int, int> at;                                                   // of the loops
    for (int k : region(r).steps)
      if (step(k).kind == Step::Kind::loop)
        for (int body : plan.loops[std::size_t(step(k).loop)].regions) at[body] = place(k, r);
    std::vector<std::pair<const Gathered*, int>> entering;
    for (auto& g : deeper) {
      int body = towards(r, g.home);
      auto& now = kept[std::size_t(at[body])];
      if (trained.count(body) && may_enter(g, body) && now + g.bytes > may_wait)
        entering.push_back({&g, body});
      else
        now += g.bytes;
    }
    std::stable_sort(waiting.begin(), waiting.end(), [](auto& x, auto& y) { return x.again - x.last < y.again - y.last; });
    std::vector<Gathered> repeated;
    for (auto& g : waiting) {
      auto from = kept.begin() + g.last, to = kept.begin() + g.again;
      if (*std::max_element(from, to) + g.bytes > may_wait)
        repeated.push_back(std::move(g));
      else
        std::for_each(from, to, [&](double& b) { b += g.bytes; });
    }
    for (auto& [body, place] : at) held[std::size_t(body)] = kept[std::size_t(place)];
    // Places change from here on: what is put in later goes in first.
    std::stable_sort(repeated.begin(), repeated.end(), [](auto& x, auto& y) { return x.again > y.again; });
    for (auto& g : repeated) repeat(g);
    for (auto& [g, body] : entering) enter(*g, body);
  }
};

}  // namespace

void gather_again(Plan& plan, const Whole& whole) {
  Again a{plan, whole, readers_of(plan), std::vector<int>(plan.regions.size(), -1), std::vector<double>(plan.regions.size())};
  for (int k = 0; k < int(plan.steps.size()); ++k)
    if (a.step(k).kind == Step::Kind::loop)
      for (int body : plan.loops[std::size_t(a.step(k).loop)].regions) a.around[std::size_t(body)] = k;
  for (int r = 0; r < int(plan.regions.size()); ++r) a.run(r);  // outer ones come first
}

}  // namespace haliax::partitioning
