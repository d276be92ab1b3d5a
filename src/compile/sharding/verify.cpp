// The legality check of a plan.
#include <algorithm>
#include <set>

#include "compile/sharding/planner.h"

namespace haliax::partitioning {
namespace {

struct Check {
  const Plan& plan;
  const Whole& whole;
  const char* after;

  const Node& node(const Version& v) const { return whole.node(v.node); }
  void must(bool ok, const Version& v, const std::string& why) const {
    if (!ok) fail_at(node(v).origin, "verify", std::string(node(v).op->name) + " after " + after + ": " + why);
  }

  // Axes that the value has, each mesh axis once, those that a sum is pending over among them.
  void legal(const Version& v) const {
    std::set<int> used;
    auto use = [&](int x) {
      must(x >= 0 && x < int(whole.mesh.axes().size()), v, "the mesh has no axis number " + std::to_string(x));
      must(used.insert(x).second, v, "mesh axis " + whole.mesh.axes()[std::size_t(x)].first + " is used twice");
    };
    for (auto& [name, cut] : v.at.dims) {
      must(find_axis(node(v).axes, name), v,
           "axis " + std::string(name.text()) + ", which is cut, is not in " + to_string(node(v).axes));
      for (int x : cut) use(x);
    }
    for (auto& [x, m] : v.at.partial) use(x);
  }
  // What an op reads is there, in this body or in one around it.
  void reads(const Version& v) const {
    for (int k : v.in) {
      if (k < 0) continue;
      must(plan.version(k).live, v, "an operand is never made");
      int body = v.body;
      while (body >= 0 && body != plan.version(k).body) body = plan.body(body).parent;
      must(body >= 0, v, "an operand is made in another body");
    }
  }
  // An axis is cut only where the op's rule has it map, fold, shift or pick; what is pending rides only through what is linear.
  void follows_rule(const Version& v) const {
    using Way = Along::Way;
    auto& n = node(v);
    for (std::size_t k = 0; k < n.in.size(); ++k) {
      if (v.in[k] < 0 || only_waits(n, k)) continue;
      auto& x = plan.version(v.in[k]);
      for (auto& [name, cut] : x.at.dims) {
        auto rule = along(n, k, name);
        bool own = v.own_turns && k == 0;   // what a loop walks is cut as its turns are
        must(rule.way != Way::whole || own, v, "it needs all of axis " + std::string(name.text()) + ", which is cut");
        bool kept = std::any_of(v.at.dims.begin(), v.at.dims.end(), [&](auto& d) { return d.second.meets(cut); });
        bool folds = std::all_of(cut.begin(), cut.end(), [&](int m) { return v.at.pending(m); });
        must(own || kept || folds, v, "axis " + std::string(name.text()) + " is cut, folded, and not pending");
      }
      for (auto& [m, monoid] : x.at.partial) {
        auto how = linear_in(n, k);
        must(how != Linear::no || (rules::places(n) && k == 0), v, "a sum is pending in what it is not linear in");
        must(v.at.pending(m), v, "a pending sum is lost");
      }
    }
    for (auto& [name, cut] : v.at.dims)
      must(along(n, kResultSide, name).way != Way::whole, v,
           "it makes all of axis " + std::string(name.text()) + ", which is cut");
  }
  // What is sent arrives as it was meant to: a sum that ends was pending, what is gathered was cut.
  void hop(const Version& v) const {
    auto& x = plan.version(v.in[0]);
    must(v.at == v.hop.to, v, "it is not what it was sent as");
    for (int m : v.hop.over) {
      if (v.sums()) must(x.at.pending(m) && !v.at.pending(m), v, "it ends a sum that is not pending");
      if (v.gathers()) must(x.at.cut(v.hop.axis).has(m) && !v.at.cuts(m), v, "it gathers what is not cut");
    }
  }
  // Bodies leave a result, and read a carry, in one sharding; what it starts from lies as it comes out.
  void loop(const Version& v) const {
    auto& l = plan.loop(v.loop);
    for (std::size_t k = 0; k < l.at.size(); ++k) {
      for (auto* made : {&l.value[k], &l.carry[k]})
        for (int x : *made) must(plan.version(x).at == l.inside[k], v, "bodies make, or carry, a result in another sharding");
      if (l.start[k] >= 0) must(plan.version(l.start[k]).at == l.at[k], v, "a result starts from another sharding");
    }
  }
  void run() const {
    for (auto& v : plan.versions) {
      if (!v.live) continue;
      reads(v);
      if (v.kind == Version::Kind::loop) loop(v);
      else legal(v);
      if (v.kind == Version::Kind::compute) follows_rule(v);
      if (v.kind == Version::Kind::hop) hop(v);
    }
  }
};

}  // namespace

void verify(const Plan& plan, const Whole& whole, const char* after) { Check{plan, whole, after}.run(); }

}  // namespace haliax::partitioning
