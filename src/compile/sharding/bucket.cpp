// Bucketing: collectives of one kind that are needed at the same time share one collective call.
// Afterwards, the versions of a bucket are adjacent in their body, after all versions that any of
// them reads.
#include <algorithm>
#include <compare>
#include <map>
#include <set>

#include "compile/sharding/passes.h"

namespace haliax::partitioning {
namespace {

// Returns the versions of the same body that each version reads. A loop reads all outside versions
// that its bodies read.
std::vector<std::vector<int>> reads_of(const Plan& plan) {
  std::vector<std::vector<int>> out(plan.versions.size());
  for (auto outer = plan.bodies.size(); outer-- > 0;)  // inner bodies follow outer ones
    for (int k : plan.bodies[outer].versions) {
      auto& v = plan.version(k);
      auto& mine = out[std::size_t(k)] = v.in;
      for (int body : plan.bodies_of(v))
        for (int s : plan.body(body).versions)
          mine.insert(mine.end(), out[std::size_t(s)].begin(), out[std::size_t(s)].end());
      if (v.is<RunLoop>())
        for (auto& created : plan.loop(v.loop()).value)
          mine.insert(mine.end(), created.begin(), created.end());
      auto& inner = plan.bodies_of(v);
      std::erase_if(mine, [&](int x) {
        return x < 0 || std::count(inner.begin(), inner.end(), plan.version(x).body) > 0;
      });
      std::sort(mine.begin(), mine.end());
      mine.erase(std::unique(mine.begin(), mine.end()), mine.end());
    }
  return out;
}

struct Bucketing {
  Plan& plan;
  const GlobalGraph& graph;
  // With overlap, small reductions get buckets of their own, so that they do not delay large ones.
  bool overlap;
  std::vector<std::vector<int>> reads = reads_of(plan);
  // Per version: it communicates, or a version in its bodies does.
  std::vector<char> collectives = std::vector<char>(plan.versions.size());
  int buckets = 0;
  // per version: the number of collectives before and after it in its body
  std::map<int, int> calls_before = {}, calls_after = {};
  struct OpenBucket {
    int number = 0;
    double bytes = 0;
  };
  struct SumKey {
    ReshardStep::Kind kind;
    std::string devices;
    DType dtype;
    Monoid monoid;
    int calls_after;
    bool is_separate;  // a small sum that does not wait for large ones
    auto operator<=>(const SumKey&) const = default;
  };
  std::map<SumKey, OpenBucket> sums = {};
  std::map<std::string, OpenBucket> gathers = {};  // by devices; bytes of the small ones

  void run() {
    for (auto outer = plan.bodies.size(); outer-- > 0;) {
      for (int k : plan.bodies[outer].versions) {
        collectives[std::size_t(k)] = plan.version(k).communicates();
        for (int body : plan.bodies_of(plan.version(k)))
          for (int s : plan.body(body).versions)
            collectives[std::size_t(k)] |= collectives[std::size_t(s)] && plan.version(s).live;
      }
      in_body(int(outer));
    }
  }
  void in_body(int body) {
    std::vector<int> versions;
    for (int k : plan.body(body).versions)
      if (plan.version(k).live) versions.push_back(k);
    count_calls(body, versions);
    // Reductions are delayed as far as possible, in the order in which their operands become ready.
    // All gradients and the loss thus share a bucket at the end, unless a bucket is full.
    auto ready = ready_at(versions);
    std::vector<int> by_time;
    for (int k : versions)
      if (plan.version(k).is<Reshard>() && plan.version(k).communicates() &&
          plan.version(k).ring() < 0)
        by_time.push_back(k);
    std::stable_sort(by_time.begin(), by_time.end(),
                     [&](int a, int b) { return ready[a] < ready[b]; });
    merge_ring_steps(versions, [](auto& v) { return v.template is<RingReceive>(); });
    merge_ring_steps(versions, [](auto& v) { return v.template is<RingReturn>(); });
    sums.clear();
    gathers.clear();
    for (int k : by_time) {
      if (plan.version(k).sums())
        merge_sum(k);
      else if (plan.version(k).gathers() && calls_before[k] == 0)
        merge_gather(plan.version(k));
    }
    order(body, versions, ready);
  }
  void count_calls(int body, const std::vector<int>& versions) {
    auto here = [&](int x) { return plan.version(x).body == body && plan.version(x).live; };
    for (int k : versions)
      for (int x : reads[std::size_t(k)])
        if (here(x))
          calls_before[k] =
              std::max(calls_before[k], calls_before[x] + collectives[std::size_t(x)]);
    for (auto k = versions.rbegin(); k != versions.rend(); ++k)
      for (int x : reads[std::size_t(*k)])
        if (here(x))
          calls_after[x] = std::max(calls_after[x], calls_after[*k] + collectives[std::size_t(*k)]);
  }
  // The blocks of a ring step share a bucket.
  template <class Is> void merge_ring_steps(const std::vector<int>& versions, Is is_step) {
    buckets += std::any_of(versions.begin(), versions.end(),
                           [&](int k) { return is_step(plan.version(k)); });
    for (int k : versions)
      if (is_step(plan.version(k))) plan.version(k).bucket = buckets;
  }
  static std::string devices_of(const Version& v) {
    return {v.step().over.begin(), v.step().over.end()};
  }
  void merge_sum(int k) {
    auto& v = plan.version(k);
    auto& from = plan.version(v.in[0]).sharding;
    auto monoid = Monoid::sum;
    for (auto& [m, how] : from.partial)
      if (v.step().over.has(m)) monoid = how;
    auto bytes = graph.bytes(v.node, from);
    bool separate = overlap && bytes <= kNegligibleBytes;
    auto& open = sums[{.kind = v.step().kind,
                       .devices = devices_of(v),
                       .dtype = graph.ptr(v.node)->dtype,
                       .monoid = monoid,
                       .calls_after = calls_after[k],
                       .is_separate = separate}];
    if (open.bytes == 0 || open.bytes + bytes > kBucket) open = {++buckets, 0};
    v.bucket = open.number;
    open.bytes += bytes;
  }
  // Large gathers are not merged, because all gathered arrays would then be live at once. Small
  // gathers join the first one.
  void merge_gather(Version& v) {
    auto bytes = graph.bytes(v.node, v.sharding);
    auto& first = gathers[devices_of(v)];
    if (first.number == 0) {
      v.bucket = first.number = ++buckets;
    } else if (bytes <= kNegligibleBytes && first.bytes + bytes <= kBucket) {
      v.bucket = first.number;
      first.bytes += bytes;
    }
  }
  // Returns the first position at which each version may run: for a reduction, and for the cheap
  // versions from which it is computed, the position of the last other version that they need.
  // Other versions retain their positions. `order` delays reductions to the last of their bucket.
  std::map<int, int> ready_at(const std::vector<int>& versions) {
    std::map<int, int> at;
    for (std::size_t i = 0; i < versions.size(); ++i) at[versions[i]] = int(i);
    std::set<int> known;
    std::function<int(int)> soonest = [&](int k) {
      auto& v = plan.version(k);
      auto kind = graph.ptr(v.node)->op->kind;
      bool light = v.is<Generate>() || v.is<ResultOfLoop>() ||
                   (v.is<Compute>() && (kind == Kind::map || kind == Kind::view));
      if ((!v.sums() && !light) || !known.insert(k).second) return at[k];
      int last = -1;
      for (int x : v.in)
        if (x >= 0 && at.count(x)) last = std::max(last, soonest(x));
      return at[k] = std::max(last, 0);
    };
    for (int k : versions)
      if (plan.version(k).sums()) soonest(k);
    return at;
  }
  // Reorders the versions of a body so that each collective follows all versions that it reads.
  void order(int body, const std::vector<int>& versions, std::map<int, int>& ready_at) {
    std::map<int, std::vector<int>> members;  // by bucket; negative: a version without a bucket
    auto unit = [&](int k) { return plan.version(k).bucket > 0 ? plan.version(k).bucket : -1 - k; };
    std::map<int, int> place;
    for (int k : versions) {
      auto u = unit(k);
      members[u].push_back(k);
      bool gathers = plan.version(k).step().kind == ReshardStep::Kind::all_gather;
      auto known = place.try_emplace(u, ready_at[k]);
      if (!known.second && !gathers)
        known.first->second = std::max(known.first->second, ready_at[k]);
    }
    std::map<int, std::set<int>> users, waits;
    for (auto& [u, all] : members)
      for (int k : all)
        for (int x : reads[std::size_t(k)])
          if (plan.version(x).body == body && plan.version(x).live && unit(x) != u) {
            users[unit(x)].insert(u);
            waits[u].insert(unit(x));
          }

    std::set<std::pair<int, int>> ready;
    std::map<int, std::size_t> left;
    for (auto& [u, at] : place) {
      left[u] = waits[u].size();
      if (left[u] == 0) ready.insert({at, u});
    }
    std::vector<int> out;
    while (!ready.empty()) {
      auto u = ready.begin()->second;
      ready.erase(ready.begin());
      out.insert(out.end(), members[u].begin(), members[u].end());
      for (int v : users[u])
        if (--left[v] == 0) ready.insert({place[v], v});
    }
    if (out.size() != versions.size())
      throw Error("[partition] collectives depend on each other in a cycle");
    plan.body(body).versions = std::move(out);
  }
};

}  // namespace

void bucket(Plan& plan, const GlobalGraph& graph, bool overlap) {
  Bucketing{plan, graph, overlap}.run();
}

}  // namespace haliax::partitioning
