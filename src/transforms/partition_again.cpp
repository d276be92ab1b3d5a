// A weight that both passes read, gathered outside of loops: the backward pass gathers it again, or all weights of a model whose
// layers are written out would be whole in the middle of a step. What was read last is read again first: of that as much is kept as
// one call may hold.
#include <algorithm>
#include <set>

#include "transforms/partition_plan.h"

namespace haliax::partitioning {
namespace {

struct Gathered {
  std::vector<int> made;      // the gathers, one for each mesh axis, and what the weight is seen as, in order
  std::vector<int> backward;  // steps that read them
  int last = -1, again = -1;  // places of the last reader of the forward pass, and of the first of the backward pass
  double bytes = 0;
  bool waits() const { return last >= 0 && again > last; }
};

struct Again {
  Plan& plan;
  const Whole& whole;
  std::vector<std::vector<int>> readers;
  std::vector<int> place = {};                 // of a step, or of the outermost loop around it, among the steps of the top

  const Step& step(int k) const { return plan.steps[std::size_t(k)]; }
  double bytes(const Step& s) const {
    auto& n = *whole.nodes[std::size_t(s.node)];
    return local_size(n.axes, s.at, whole.mesh) * bytes_of(n.dtype);
  }
  bool gathers(int k) const {
    auto& s = step(k);
    return s.live && s.region == 0 && s.kind == Step::Kind::hop && s.hop.kind == Hop::Kind::all_gather && whole.weight(s.node);
  }

  void find_places(int region, int outer) {
    int at = 0;
    for (int k : plan.regions[std::size_t(region)].steps) {
      place[std::size_t(k)] = outer < 0 ? at++ : outer;
      if (step(k).kind == Step::Kind::loop)
        for (int body : plan.loops[std::size_t(step(k).loop)].regions) find_places(body, place[std::size_t(k)]);
    }
  }
  Gathered found(int gather) const {
    Gathered g;
    g.made = {gather};
    for (std::size_t i = 0; i < g.made.size(); ++i) {
      g.bytes = std::max(g.bytes, bytes(step(g.made[i])));
      for (int k : readers[std::size_t(g.made[i])]) {
        if (k < 0 || step(k).kind == Step::Kind::loop) return {};  // read as a whole
        auto& s = step(k);
        if (gathers(k) || (s.kind == Step::Kind::compute && s.region == 0 && whole.weight(s.node))) {
          if (std::find(g.made.begin(), g.made.end(), k) == g.made.end()) g.made.push_back(k);
          continue;
        }
        int at = place[std::size_t(k)];
        if (!whole.nodes[std::size_t(s.node)]->origin.backward)
          g.last = std::max(g.last, at);
        else
          g.again = g.again < 0 ? at : std::min(g.again, at), g.backward.push_back(k);
      }
    }
    return g;
  }
  void repeat(const Gathered& g) {
    std::set<int> wanted;
    for (auto k = g.made.rbegin(); k != g.made.rend(); ++k)
      for (int r : readers[std::size_t(*k)])
        if (wanted.count(r) || std::find(g.backward.begin(), g.backward.end(), r) != g.backward.end()) wanted.insert(*k);
    std::map<int, int> twin;
    auto& steps = plan.regions[0].steps;
    auto before = std::find_if(steps.begin(), steps.end(), [&](int k) { return place[std::size_t(k)] == g.again; });
    for (int k : g.made) {
      if (!wanted.count(k)) continue;
      Step s = step(k);
      for (int& x : s.in)
        if (twin.count(x)) x = twin[x];
      s.cause = step(g.backward[0]).node;
      plan.bytes += s.hop.bytes;
      twin[k] = int(plan.steps.size());
      plan.steps.push_back(std::move(s));
      place.push_back(-1);
      before = steps.insert(before, twin[k]) + 1;
    }
    for (int k : g.backward)
      for (int& x : plan.steps[std::size_t(k)].in)
        if (twin.count(x)) x = twin[x];
  }
};

}  // namespace

void gather_again(Plan& plan, const Whole& whole) {
  Again a{plan, whole, readers_of(plan)};
  a.place.assign(plan.steps.size(), -1);
  a.find_places(0, -1);
  std::vector<Gathered> waiting;
  double may_wait = kBucket;
  for (int k = 0; k < int(plan.steps.size()); ++k) {
    if (!a.gathers(k) || a.gathers(a.step(k).in[0])) continue;
    auto g = a.found(k);
    if (!g.waits() || g.bytes <= kSmall) continue;
    may_wait = std::max(may_wait, g.bytes);
    waiting.push_back(std::move(g));
  }
  std::stable_sort(waiting.begin(), waiting.end(), [](auto& x, auto& y) { return x.again - x.last < y.again - y.last; });
  std::vector<double> kept(plan.regions[0].steps.size());  // while each step runs
  for (auto& g : waiting) {
    auto from = kept.begin() + g.last, to = kept.begin() + g.again;
    if (*std::max_element(from, to) + g.bytes > may_wait)
      a.repeat(g);
    else
      std::for_each(from, to, [&](double& b) { b += g.bytes; });
  }
}

}  // namespace haliax::partitioning
