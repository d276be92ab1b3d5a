// Legality checks of a plan and of the graph that one device emits from it.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/verify_error.h"
#include "compile/sharding/passes.h"
#include "compile/sharding/rules.h"
#include "graph/axes.h"
#include "graph/fail.h"
#include "ops/attr.h"
#include "ops/collective.h"
#include "ops/prim.h"

namespace haliax::partitioning {
namespace {

// The plan to check, and its errors.
struct PlanCheck {
  const Plan& plan;
  const GlobalGraph& graph;
  std::string after;  // the pass, for messages

  const Node& node(const Version& v) const { return graph.node(v.node); }
  // Raises an error unless `ok`. The arguments are formatted only in case of an error.
  template <class... A> void must(bool ok, const Version& v, const char* why, const A&... a) const {
    if (ok) return;
    auto& n = node(v);
    fail_at(n.origin, "verify",
            fmt::format("{} after {}: {}", n.op->name, after,
                        fmt::format(fmt::runtime(why), text(a)...)));
  }
  template <class A> static const A& text(const A& a) { return a; }
  std::string text(const MeshAxes& c) const {
    return c.empty() ? "unsharded" : to_string(graph.mesh, c);
  }
  std::string text(const Sharding& s) const {
    static const char* const monoids[] = {"", ", of products", ", of maxima", ", of minima"};
    auto out = haliax::to_string(s);
    for (auto& p : s.partial) out += monoids[int(p.second)];
    return out;
  }
};

// Checks that versions follow their operands, and that each bucket is one collective.
struct OrderCheck : PlanCheck {
  std::vector<bool> done = std::vector<bool>(plan.versions.size());
  std::map<int, const Version*> calls = {};  // first version of each bucket

  bool encloses(int outer, int body) const {
    while (body > outer) body = plan.body(body).parent;
    return body == outer;
  }
  // Checks that all operands are computed earlier, in this body or in an enclosing one.
  void check_operands(const Version& v) const {
    for (int k : v.in) {
      if (k < 0) continue;
      must(plan.version(k).live, v, "an operand is never computed");
      must(encloses(plan.version(k).body, v.body), v,
           "an operand is computed in another loop body");
      must(done[std::size_t(k)], v, "an operand is computed later");
    }
  }
  // Checks that the versions of a bucket use one kind of collective over the same devices and one
  // monoid, and that they are adjacent. The collective runs at the first of them, so a version in
  // between could depend on the first one and be an operand of the next one. before: bucket of the
  // version before.
  void check_bucket(const Version& v, int before) {
    if (v.bucket < 0) return;
    auto [known, is_new] = calls.try_emplace(v.bucket, &v);
    must(is_new || v.bucket == before, v,
         "the collectives that are merged with it are not next to it");
    for (int k : v.in)
      must(k < 0 || plan.version(k).bucket != v.bucket, v,
           "it is merged into one collective with its operand");
    auto& first = *known->second;
    bool same = v.kind.index() == first.kind.index() && v.step().kind == first.step().kind &&
                v.step().over == first.step().over && v.body == first.body;
    must(same && reduced_monoids(v) == reduced_monoids(first), v,
         "it is merged into one collective with a different collective");
  }
  std::set<Monoid> reduced_monoids(const Version& v) const {  // monoids of the sums that complete
    std::set<Monoid> out;
    if (v.sums())
      for (auto& [m, how] : plan.version(v.in[0]).sharding.partial)
        if (v.step().over.has(m)) out.insert(how);
    return out;
  }
  // Checks the versions of a body, and of the loops in it, in execution order.
  void check_body(int body) {
    int bucket = -1;
    for (int k : plan.body(body).versions) {
      auto& v = plan.version(k);
      must(!done[std::size_t(k)], v, "it is computed twice");
      if (v.live) {
        check_operands(v);
        check_bucket(v, bucket);
        bucket = v.bucket;
        for (int inner : plan.bodies_of(v)) check_body(inner);
      }
      done[std::size_t(k)] = true;
    }
  }
  void run() {
    check_body(0);
    for (std::size_t k = 0; k < done.size(); ++k) {
      auto& v = plan.versions[k];
      bool listed = done[k] || plan.body(v.body).versions.empty();
      must(listed || !v.live, v, "it is not computed in any body");
    }
  }
};

// Checks that the sharding of each version follows from its operands, and those of the results.
struct ShardingCheck : PlanCheck {
  // Checks that the value has the sharded axes, and that each mesh axis is used once: for sharding,
  // for a partial sum, or for sharing iterations of an enclosing loop.
  void check_axes(const Version& v) const {
    std::set<int> used;
    auto use = [&](int x) {
      must(x >= 0 && x < int(graph.mesh.axes().size()), v, "the mesh has no axis with index {}", x);
      must(used.insert(x).second, v, "mesh axis {} is used twice",
           graph.mesh.axes()[std::size_t(x)].first);
    };
    for (auto* body = &plan.body(v.body); body->parent >= 0; body = &plan.body(body->parent))
      if (auto& l = plan.loop(body->loop);
          graph.changes_in(node(v), loop_of(graph.node(l.node)), body->number))
        for (int x : l.shared_by)
          // a mesh axis of size 1 shares nothing
          if (graph.mesh.axes()[std::size_t(x)].second > 1) use(x);
    for (auto& [name, mesh_axes] : v.sharding.dims) {
      must(find_axis(node(v).axes, name), v, "sharded axis {} is not in {}", name, node(v).axes);
      for (int x : mesh_axes) use(x);
    }
    for (auto& [x, m] : v.sharding.partial) use(x);
  }
  // mesh axes that share the iterations of this index
  MeshAxes iterations_of(const Version& v, const Node& index) const {
    for (auto* body = &plan.body(v.body); body->parent >= 0; body = &plan.body(body->parent))
      if (auto& l = plan.loop(body->loop);
          loop_of(graph.node(l.node)).index[body->number].get() == &index)
        return l.shared_by;
    return {};
  }
  // Returns the sharding of the iteration space of an op. It follows from the result, and from the
  // operands along axes that the result lacks; `created` receives the partial sums over these axes.
  // All operands must agree, and axes that the op requires in full must be unsharded.
  Sharding implied_work(const Version& v, Sharding& created) const {
    using Way = Along::Way;
    auto& n = node(v);
    Sharding work;
    Names known;
    for (auto& a : n.axes) {
      auto rule = along(n, kResultSide, a.name);
      bool maps = rule.way == Way::map;
      must(maps || v.sharding.mesh_axes(a.name).empty(), v,
           "it computes the full axis {}, which is sharded", a.name);
      if (maps) {
        known.push_back(rule.point);
        work.set(rule.point, v.sharding.mesh_axes(a.name));
      }
    }
    for (std::size_t k = 0; k < n.in.size(); ++k) {
      if (v.in[k] < 0 || is_order_only(n, k)) continue;
      for (auto& a : n.in[k]->axes) {
        auto actual = plan.version(v.in[k]).sharding.mesh_axes(a.name);
        auto rule = along(n, k, a.name);
        if (rule.way == Way::regroup) continue;
        bool needs_full = rule.way == Way::full || rule.way == Way::shift;
        if (!needs_full && !has(known, rule.point)) {
          known.push_back(rule.point);
          work.set(rule.point, actual);
          for (int m : actual) created.add_partial(m, rule.monoid);
        }
        // An axis that a loop slices is sharded like the iterations.
        auto should = !needs_full                                  ? work.mesh_axes(rule.point)
                      : v.as<Compute>().local_iterations && k == 0 ? iterations_of(v, *n.in[1])
                                                                   : MeshAxes();
        must(actual == should, v, "axis {} of operand {} is {}, expected {}", a.name, k, actual,
             should);
      }
    }
    return work;
  }
  // Checks that the blocks of a flat axis are blocks of its parts. For example, given [flat: x+y]
  // and parts (a=2, b=6) on x=2, y=2, the parts must be [a: x, b: y].
  void check_regroup(const Version& v) const {
    auto& n = node(v);
    auto r = RegroupAttr::of(n);
    bool flattens = rules::flattens(n);
    auto &x = plan.version(v.in[0]).sharding, &with_parts = flattens ? x : v.sharding;
    auto& flat = flattens ? v.sharding : x;
    Axes parts;
    for (auto p : r.parts) parts.push_back(*find_axis(flattens ? n.in[0]->axes : n.axes, p));
    auto expected = rules::split_over_parts(flat.mesh_axes(r.flat), parts, graph.mesh);
    for (std::size_t p = 0; p < parts.size(); ++p)
      must(expected && with_parts.mesh_axes(parts[p].name) == (*expected)[p], v,
           "axis {} is not sharded in blocks of {}", r.flat, parts[p].name);
  }
  // Checks that the result is partial over the axes that are reduced and over the partial operands.
  // A partial sum commutes with a multiplication if one operand is partial, and with additions and
  // moves if all operands are.
  void check_op(const Version& v) const {
    auto& n = node(v);
    Sharding created;
    const auto work = implied_work(v, created);
    if (rules::regroups(n)) check_regroup(v);
    const bool writes = rules::writes_into(n);
    auto pending = [&](std::size_t k) -> auto& { return plan.version(v.in[k]).sharding.partial; };
    auto counts = [&](std::size_t k) {
      return v.in[k] >= 0 && !is_order_only(n, k) && !(writes && k == 0);
    };
    must(!writes || pending(0) == v.sharding.partial, v,
         "its target has other partial sums than its result");
    for (std::size_t k = 0; k < n.in.size(); ++k) {
      if (!counts(k)) continue;
      for (auto& p : pending(k)) {
        auto how = linear_in(n, k);
        bool commutes = how == Linear::moves || (how != Linear::no && p.second == Monoid::sum),
             all = how != Linear::one;
        must(commutes && !work.uses(p.first), v,
             "it is not linear in an operand with a partial sum");
        for (std::size_t j = 0; j < n.in.size(); ++j) {
          if (j == k || !counts(j) || (all && linear_in(n, j) == Linear::no)) continue;
          bool too = std::count(pending(j).begin(), pending(j).end(), p) > 0;
          must(too == all, v, "operand {} has a partial sum, and {} operand {}", k,
               too ? "also" : "not", j);
        }
        created.add_partial(p.first, p.second);
      }
    }
    must(created.partial == v.sharding.partial, v, "its operands imply {}, but its plan is {}",
         created, v.sharding);
  }
  // Checks that moved positions come from operands with the recorded sharding and fill the result
  // in order. The sharding along all other axes must not change.
  void check_move(const Version& v) const {
    std::int64_t done = 0;
    for (auto& p : v.boxes()) {
      auto& x = plan.version(v.in[std::size_t(p.array)]).sharding;
      must(p.sharding == x && x.partial == v.sharding.partial, v, "it is {}, but its operand is {}",
           v.sharding, x);
      // an empty array is not communicated
      bool exchanged = v.communicates() || node(v).size() == 0;
      // received from other devices
      bool received = v.is<Shift>() && exchanged && !x.mesh_axes(p.axis).empty();
      for (auto& a : p.axes)
        must(received || a.name == p.axis || x.mesh_axes(a.name) == v.sharding.mesh_axes(a.name), v,
             "axis {} has another sharding", a.name);
      for (auto& [layout, sharding] :
           {std::pair(&p.source_layout, &x), std::pair(&p.result_layout, &v.sharding)})
        for (std::size_t k = 0; k < layout->parts.size(); ++k)
          must(layout->mesh_axes[k] == sharding->mesh_axes(layout->parts[k].name), v,
               "part {} has another sharding", layout->parts[k].name);
      auto last = p.from + (p.size - 1) * p.step, size = find_axis(p.axes, p.axis)->size;
      must(p.size == 0 || (std::min(p.from, last) >= 0 && std::max(p.from, last) < size), v,
           "it reaches outside of {}", p.axes);
      must(p.to == done, v, "position {} follows position {}", p.to, done);
      done += p.size;
    }
    must(v.is<Regroup>() || done == find_axis(node(v).axes, v.step().axis)->size, v,
         "{} positions are copied", done);
  }
  // Checks a reshard step: a sum that completes was partial, an axis that is gathered was sharded,
  // and the sharding of all other axes does not change.
  void check_reshard(const Version& v) const {
    using Kind = ReshardStep::Kind;
    auto& from = plan.version(v.in[0]).sharding;
    auto& h = v.step();
    must(v.sharding == h.to, v, "its sharding is not the target of its reshard step");
    for (auto& a : node(v).axes) {
      auto was = from.mesh_axes(a.name), is = v.sharding.mesh_axes(a.name);
      bool finer = is.starts_with(was) && nested(a, is, was.size(), graph.mesh);
      bool joins = was == is + h.over && nested(a, was, is.size(), graph.mesh),
           mine = a.name == h.axis;
      bool communicates_axis =
          mine && (h.kind == Kind::all_gather ? joins : finer && is == was + h.over);
      bool sent = communicates_axis || h.kind == Kind::exchange || (h.kind == Kind::slice && finer);
      must(sent || (is == was && !mine), v, "axis {} is {}, and becomes {}", a.name, was, is);
    }
    for (int m : h.over)
      must(!v.sums() || from.is_partial(m), v, "it reduces a sum that is not partial");
    std::set<Monoid> kinds;
    auto left = v.sharding;
    for (auto& p : from.partial) {
      bool ends = v.sums() && h.over.has(p.first);
      if (ends) kinds.insert(p.second);
      must(ends != (std::count(v.sharding.partial.begin(), v.sharding.partial.end(), p) > 0), v,
           "a value that is {} becomes {}", from, v.sharding);
      left.resolve(p.first);
    }
    must(kinds.size() < 2, v, "it reduces partial sums of two kinds");
    must(h.kind == Kind::make_partial || left.partial.empty(), v,
         "it becomes {}, but was not a partial sum", v.sharding);
  }
  // Checks a ring move: a received block was sharded along the mesh axis of the ring, and a value
  // that is sent back was a partial sum over it.
  void check_ring(const Version& v) const {
    auto& from = plan.version(v.in[0]).sharding;
    auto& over = plan.loop(plan.body(v.body).loop).ring_axes;
    auto expected = v.sharding;
    if (v.is<RingReceive>())
      expected.set(v.step().axis, over);
    else if (!over.empty())
      expected.add_partial(over[0], Monoid::sum);
    bool unsharded = v.sharding.mesh_axes(v.step().axis).empty();
    must(!over.empty() && v.step().over == over && unsharded && from == expected, v,
         "the ring result is {}, but its operand is {}", v.sharding, from);
  }
  // Checks the shardings of the results.
  void check_results(const std::vector<Sharding>& requested) const {
    for (std::size_t k = 0; k < std::min(requested.size(), plan.roots.size()); ++k) {
      auto& v = plan.version(plan.roots[k]);
      auto should = requested[k].on(node(v).axes);
      must(v.sharding == should, v, "as a result it is {}, expected {}", v.sharding, should);
    }
    auto count = plan.roots.size();
    if (count != requested.size())
      throw Error(fmt::format("[verify] a plan after {}: it has {} results, expected {}", after,
                              count, requested.size()));
  }
  void run() const {
    for (auto& v : plan.versions) {
      if (!v.live) continue;
      if (!v.is<RunLoop>()) check_axes(v);
      if (v.is<Compute>()) check_op(v);
      if (v.is<Reshard>()) check_reshard(v);
      if (v.in_ring_loop()) check_ring(v);
      if (v.moves()) check_move(v);
      bool freely = !v.is<Generate>() || (graph.at(v.node).generated && v.sharding.partial.empty());
      must(freely, v, "it is not computed from scalars and positions alone");
    }
  }
};

// Checks loops: the shardings of their results and carries, and the communication in their bodies.
struct LoopCheck : PlanCheck {
  std::vector<std::vector<int>> readers = readers_of(plan);

  // Checks communication inside loops. Along the mesh axis of a ring loop, only blocks of the ring
  // may be communicated. Inside an iteration that a flag may skip, devices that run different
  // iterations must not communicate.
  void check_communication(const Version& v) const {
    if (!v.communicates()) return;
    const auto over =
        v.moves() ? exchange_over(v.boxes(), node(v).axes, v.sharding) : v.step().over;
    for (auto* body = &plan.body(v.body); body->parent >= 0; body = &plan.body(body->parent)) {
      auto& l = plan.loop(body->loop);
      must(v.in_ring_loop() || !l.ring_axes.overlaps(over), v,
           "it is communicated over {} in a ring loop over the same mesh axis", over);
      if (!graph.is_conditional(l.node)) continue;
      for (auto* around = &plan.body(body->parent); around->parent >= 0;
           around = &plan.body(around->parent)) {
        auto& other = plan.loop(around->loop);
        bool same_iteration =
            !graph.changes_in(graph.node(l.node), loop_of(graph.node(other.node)), around->number);
        must(same_iteration || !other.shared_by.overlaps(over), v,
             "it is communicated over {}, but not all of its devices run this iteration", over);
      }
    }
  }
  // Checks that a carry is only added to if devices share the iterations, since each device holds a
  // part of the sum.
  void check_parts_add_up(const Version& v, int carry, int value) const {
    for (int at = carry; at != value;) {
      auto& by = readers[std::size_t(at)];
      at = by.size() == 1 ? by[0] : -1;
      auto* op = at < 0 ? nullptr : node(plan.version(at)).op;
      bool adds = op && (op->linear == Linear::all || op->linear == Linear::moves);
      must(adds, v, "devices share its iterations, but a carry is not only added to");
    }
  }
  // Checks that all bodies agree on the sharding of a result and of its carry. The final result has
  // the sharding of its start, with the iterations of all devices concatenated, or as a partial
  // sum.
  void loop(const Version& v) const {
    auto& l = plan.loop(v.loop());
    auto& of = loop_of(node(v));
    for (std::size_t k = 0; k < l.after_loop.size(); ++k) {
      for (auto* created : {&l.value[k], &l.carry[k]})
        for (int x : *created)
          must(plan.version(x).sharding == l.inside[k], v,
               "a loop body returns or carries a result with another sharding");
      auto& r = of.results[k];
      for (std::size_t b = 0; b < l.carry[k].size() && !l.shared_by.empty(); ++b)
        check_parts_add_up(v, l.carry[k][b], l.value[k][b]);
      auto sharding = l.inside[k];
      bool stacks = r.kind == ResultKind::stack && !r.carry;
      must(!stacks || sharding.mesh_axes(of.axis.name).empty(), v,
           "it stacks values that are sharded along {}", of.axis);
      if (stacks)
        sharding.set(of.axis.name, l.shared_by + l.ring_axes);
      else
        for (int x : l.shared_by) sharding.add_partial(x, r.carry ? Monoid::sum : r.monoid);
      must(sharding == l.after_loop[k], v, "a result is {}, but its iterations produce {}",
           l.after_loop[k], sharding);
      if (l.start[k] >= 0)
        must(plan.version(l.start[k]).sharding == l.after_loop[k], v,
             "the start of a result has another sharding");
    }
  }
  void run() const {
    for (auto& v : plan.versions) {
      if (!v.live) continue;
      if (v.is<RunLoop>()) loop(v);
      check_communication(v);
      if (v.is<ResultOfLoop>())
        must(v.sharding == plan.loop(v.loop()).after_loop[v.as<ResultOfLoop>().result], v,
             "its loop result has another sharding");
    }
  }
};

// Checks that the node of a version is the block of this device. Slices and concatenations must
// contain the positions that the plan specifies.
struct DeviceCheck : PlanCheck {
  int device;
  const std::vector<NodePtr>& created;  // by version; null: none, or handled by a ring

  // A range of positions of a node along an axis. of: null if other devices send them.
  struct PositionRun {
    const Node* of;
    std::int64_t from, size, step;
  };
  using PositionRuns = std::vector<PositionRun>;

  const NodePtr& created_for(const Version& v) const {
    return created[std::size_t(&v - plan.versions.data())];
  }
  const NodePtr& operand(const Version& v, std::size_t k) const {
    return created[std::size_t(v.in[k])];
  }
  std::int64_t start(const Version& v, Name a) const {
    return block_of(*find_axis(node(v).axes, a), v.sharding.mesh_axes(a), graph.mesh, device).first;
  }
  // Traces the positions back to arrays that are neither slices nor concatenations.
  void positions_below(const PositionRun& r, Name axis, PositionRuns& out) const {
    if (r.size == 0) return;
    auto& n = *r.of;
    auto same = [&](std::size_t k) {
      positions_below({n.in[k].get(), r.from, r.size, r.step}, axis, out);
    };
    if (is_transparent_view(n) && keeps_names(n))
      // All positions are equal.
      return find(*n.in[0], axis) ? same(0) : out.push_back({n.in[0].get(), 0, r.size, 0});
    if (!n.op->segments) return out.push_back(r);
    auto rule = along(n, kResultSide, axis);
    if (rule.way == Along::Way::map && n.in.size() == 1) return same(0);
    if (rule.way != Along::Way::shift || r.step != 1) return out.push_back(r);
    PositionRuns parts;
    std::int64_t zeros = r.size;  // `place` pads with zeros
    for (auto& s : n.op->segments(n)) {
      auto begin = std::max(r.from, s.to), end = std::min(r.from + r.size, s.to + s.size);
      if (begin >= end) continue;
      parts.push_back(
          {n.in[s.operand].get(), s.from + (begin - s.to) * s.step, end - begin, s.step});
      zeros -= end - begin;
    }
    if (zeros > 0) return out.push_back(r);
    for (auto& p : parts) positions_below(p, axis, out);
  }
  // Returns the positions that the plan specifies.
  PositionRuns planned(const Version& v, Name axis) const {
    PositionRuns out;
    auto have = [&](int k) -> auto& { return plan.version(v.in[std::size_t(k)]); };
    const auto first = start(v, axis), size = find(*created_for(v), axis)->size;
    if (v.is<Reshard>()) return {{operand(v, 0).get(), first - start(have(0), axis), size, 1}};
    for (auto& p : v.boxes()) {
      auto begin = std::max(first, p.to), end = std::min(first + size, p.to + p.size);
      if (begin >= end) continue;
      bool received = v.communicates() && !p.sharding.mesh_axes(p.axis).empty();
      out.push_back({received ? nullptr : created[std::size_t(v.in[std::size_t(p.array)])].get(),
                     p.from + p.step * (begin - p.to) - start(have(p.array), axis), end - begin,
                     p.step});
    }
    return out;
  }
  void check_move(const Version& v, Name axis) const {
    auto& mine = created_for(v);
    PositionRuns is, should;
    positions_below({mine.get(), 0, find(*mine, axis)->size, 1}, axis, is);
    for (auto& r : planned(v, axis)) r.of ? positions_below(r, axis, should) : should.push_back(r);
    std::int64_t at = 0;
    for (std::size_t a = 0, b = 0; a < is.size() && b < should.size();) {
      auto &x = is[a], &y = should[b];
      auto n = std::min(x.size, y.size);
      bool equal = !y.of || (x.of == y.of && x.from == y.from && (n == 1 || x.step == y.step));
      must(equal, v, "position {} of {} is position {} of its operand, expected {}", at, axis,
           x.from, y.from);
      for (auto* r : {&x, &y}) {
        r->from += n * r->step;
        r->size -= n;
      }
      at += n;
      a += x.size == 0;
      b += y.size == 0;
    }
    must(at == find(*mine, axis)->size, v, "position {} of {} has no operand", at, axis);
  }
  // Returns the position in the unsharded axis of a position in the block.
  std::int64_t in_full_axis(const AxisLayout& layout, std::int64_t start, std::int64_t at) const {
    if (layout.parts.empty()) return start + at;
    std::int64_t out = 0, unit = 1;
    for (std::size_t k = layout.parts.size(); k-- > 0; unit *= layout.parts[k].size) {
      auto [first, size] = block_of(layout.parts[k], layout.mesh_axes[k], graph.mesh, device);
      out += (first + at % size) * unit;
      at /= size;
    }
    return out;
  }
  // Checks a regroup without communication: it retains the positions of its block.
  void check_regroup(const Version& v) const {
    auto& p = v.boxes()[0];
    auto* n = created_for(v).get();
    auto* had = operand(v, 0).get();
    while (!find(*n, p.axis)) {   // before it is split into parts
      if (n->in.empty()) return;  // constants have no source
      n = n->in[0].get();
    }
    PositionRuns retained, given;
    positions_below({n, 0, find(*n, p.axis)->size, 1}, p.axis, retained);
    if (had && find(*had, p.axis))
      positions_below({had, 0, find(*had, p.axis)->size, 1}, p.axis, given);
    for (auto& r : retained) {
      // Flattened on this device.
      bool flattened = given.empty() && had && !r.of->in.empty() && r.of->in[0].get() == had;
      if (flattened) given = {{r.of, 0, find(*r.of, p.axis)->size, 1}};
    }
    const Axis axis = *find_axis(p.axes, p.axis);
    auto first = [&](const Sharding& s) {
      return block_of(axis, s.mesh_axes(p.axis), graph.mesh, device).first;
    };
    using OfNode = std::pair<const Node*, std::int64_t>;
    std::multimap<OfNode, std::int64_t> of_all;  // source element -> position in the unsharded axis
    auto each = [](const PositionRuns& runs, auto f) {
      std::int64_t at = 0;
      for (auto& r : runs)
        for (std::int64_t k = 0; k < r.size; ++k) f(at++, OfNode(r.of, r.from + k * r.step));
    };
    each(given, [&](auto at, auto x) {
      of_all.emplace(x, in_full_axis(p.source_layout, first(p.sharding), at));
    });
    each(retained, [&](auto at, auto x) {
      auto [is, end] = of_all.equal_range(x);
      auto should = in_full_axis(p.result_layout, first(v.sharding), at);
      bool known =
          is == end || std::any_of(is, end, [&](auto& entry) { return entry.second == should; });
      must(known, v, "position {} of {} is position {} of the unsharded axis, expected {}", at,
           axis.name, known ? 0 : is->second, should);
    });
  }
  // Checks that an op has the operands, axes and attributes of the plan. Skips ops that select from
  // blocks and slices of iterations, which have offsets of their own.
  void check_op(const Version& v, const NodePtr& mine) const {
    auto& n = node(v);
    if (!v.is<Compute>() || n.op->on_block || v.as<Compute>().local_iterations) return;
    Nodes in;
    for (int k : v.in) {
      if (k >= 0 && plan.version(k).ring() >= 0) return;
      in.push_back(k < 0 ? nullptr : created[std::size_t(k)]);
    }
    auto should = prim::rebuilt(n, in, local_axes(n.axes, v.sharding, graph.mesh, device));
    // The origins may differ in their mapping.
    auto same = [&](auto field) { return (*mine).*field == (*should).*field; };
    bool equal = same(&Node::op) && same(&Node::in) && same(&Node::axes) && same(&Node::dtype) &&
                 same(&Node::attr);
    must(equal, v, "it is not {} of its operands", n.op->name);
  }
  // Checks that a collective has the operand, the mesh axes and the monoid of the plan.
  void check_collective(const Version& v, const NodePtr& mine) const {
    if (!v.is<Reshard>() || !v.communicates()) return;
    bool call = mine->op == &kResult && mine->in[0]->op == &kCollective;
    must(call, v, "it is in no collective");
    auto& w = collective_spec_of(*mine->in[0]);
    MeshAxes over;
    for (int x : w.collective.over) over.push_back(x);
    must(over == v.step().over && w.collective.ranks == ranks(graph.mesh, over), v,
         "its collective has other devices");
    must(w.collective.kind == v.step().collective(), v, "its collective has another kind");
    for (auto& [x, monoid] : plan.version(v.in[0]).sharding.partial)
      must(!v.sums() || !v.step().over.has(x) || w.collective.monoid == monoid, v,
           "its collective reduces by another monoid");
    if (w.collective.kind == program::CollectiveKind::exchange)
      return;  // one entry per array; the checks of steps cover it
    auto k = result_number(*mine);
    must(w.along[k] == v.step().axis, v, "its collective has another axis");
    auto* sent = mine->in[0]->in[k].get();
    while (sent->op == &prim::kBarrier && sent != operand(v, 0).get()) sent = sent->in[0].get();
    must(sent == operand(v, 0).get(), v, "its collective has another array");
  }
  // Checks that the first device along each new partial mesh axis holds the value, and that all
  // others hold the identity.
  void check_make_partial(const Version& v, const NodePtr& mine) const {
    if (!v.is<Reshard>() || v.step().kind != ReshardStep::Kind::make_partial) return;
    auto& x = operand(v, 0);
    bool first = true;
    for (auto& [m, how] : v.sharding.partial)
      first &=
          plan.version(v.in[0]).sharding.is_partial(m) || coordinate(graph.mesh, device, m) == 0;
    bool right = (mine == x) == first || prim::is_number(x);
    must(right, v,
         first ? "it is on the first device, but has no value"
               : "it is not on the first device, but has a value");
  }
  void run() const {
    for (std::size_t k = 0; k < created.size(); ++k) {
      auto& v = plan.versions[k];
      if (!created[k] || v.is<RunLoop>()) continue;
      auto axes = local_axes(node(v).axes, v.sharding, graph.mesh, device);
      must(same_set(created[k]->axes, axes), v, "it is {}, but its block is {}", created[k]->axes,
           axes);
      must(created[k]->dtype == node(v).dtype, v, "it is {}", name_of(created[k]->dtype));
      check_op(v, created[k]);
      check_collective(v, created[k]);
      check_make_partial(v, created[k]);
      if (v.is<Reshard>() && v.step().kind == ReshardStep::Kind::slice)
        for (auto& a : axes)
          if (v.sharding.mesh_axes(a.name) != plan.version(v.in[0]).sharding.mesh_axes(a.name) &&
              a.size > 0)
            check_move(v, a.name);
      if (v.is<Shift>() && axis_size(axes) > 0) check_move(v, v.step().axis);
      if (v.is<Regroup>() && !v.communicates() && axis_size(axes) > 0) check_regroup(v);
    }
  }
};

}  // namespace

void verify(const Plan& plan, const GlobalGraph& graph, const char* after,
            const std::vector<Sharding>* requested) {
  const PlanCheck check{plan, graph, after};
  OrderCheck{check}.run();
  ShardingCheck{check}.run();
  LoopCheck{check}.run();
  if (requested) ShardingCheck{check}.check_results(*requested);
}
void verify_device(const Plan& plan, const GlobalGraph& graph, int device,
                   const std::vector<NodePtr>& created, const char* after) try {
  DeviceCheck{{plan, graph, fmt::format("{} on device {}", after, device)}, device, created}.run();
} catch (const Error& e) {
  throw VerifyError(e.what());
}

}  // namespace haliax::partitioning
