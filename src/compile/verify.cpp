// Legality checks of graphs.
#include "compile/verify.h"

#include <fmt/format.h>

#include <algorithm>

#include "compile/memory/memory.h"
#include "graph/axes.h"
#include "ops/attr.h"
#include "ops/collective.h"
#include "ops/prim.h"
#include "transforms/chunked.h"

namespace haliax {
namespace {

bool same_set(const NodePtr& a, const NodePtr& b) {
  return same_set(a->axes, b->axes) && a->dtype == b->dtype;
}

// Checks a node by itself: its axes and dtype follow from its op and its operands.
struct NodeCheck {
  const Node& n;
  const char* after;

  // Raises with `why`, in which {} are placeholders for the arguments. The text is only formatted
  // if the check fails.
  template <class... A> void must(bool ok, const char* why, const A&... a) const {
    if (ok) return;
    fail_at(n.origin, "verify",
            fmt::format("{} after {}: {}", n.op->name, after,
                        fmt::format(fmt::runtime(why), text(a)...)));
  }
  static const std::string& text(const std::string& s) { return s; }
  static std::string text(Name name) { return std::string(name.text()); }
  static std::string text(DType d) { return std::string(name_of(d)); }
  static std::string text(const Axes& axes) { return to_string(axes); }
  static std::string text(const Axis& axis) { return to_string(axis); }
  static std::string text(std::int64_t number) { return std::to_string(number); }
  static bool holds(const Axes& axes, const Axis& a) {
    return std::find(axes.begin(), axes.end(), a) != axes.end();
  }

  void run() const {
    for (auto& a : n.axes) {
      auto same = [&](auto& b) { return a.name == b.name; };
      must(std::count_if(n.axes.begin(), n.axes.end(), same) == 1, "axis {} occurs twice in {}",
           a.name, n.axes);
    }
    switch (n.op->kind) {
      case Kind::map:
        axes();
        return map();
      case Kind::reduce:
        axes();
        return reduce();
      case Kind::contract:
        axes();
        return contract();
      case Kind::view:
      case Kind::step:
        axes();
        return moves();
      case Kind::wrap:
        if (n.op == &kCustomVjp) return custom();
        return must(n.axes == n.in[0]->axes && n.dtype == n.in[0]->dtype,
                    "its axes or dtype differ from its operand");
      case Kind::loop:
        return loop();
      case Kind::result:
        return result();
      case Kind::leaf:
        return leaf();
    }
  }
  void leaf() const {
    if (n.op == &prim::kNumber || n.op == &prim::kIndex)
      must(n.axes.empty(), "it is a scalar, but has {}", n.axes);
    if (n.op == &prim::kIndex) result_is(prim::position_dtype(IndexAttr::of(n).axis.size));
    bool counts = n.axes.size() == 1 && n.dtype != DType::boolean;
    if (n.op == &prim::kIota) must(counts, "positions of one axis are {} {}", n.dtype, n.axes);
  }
  void result_is(DType d) const { must(n.dtype == d, "the result is {}", n.dtype); }
  // Checks the rule of the op for each axis of an operand: it is an axis of the result in the same
  // size, or it is reduced, and so on. Other axes of the result are broadcast, or need all of an
  // axis.
  void axes() const {
    using Way = Along::Way;
    if (n.op == &kCollective) return;  // CollectiveSpec defines its results
    struct Point {
      Name name;
      std::int64_t size;
      bool in_result, created;
    };
    std::vector<Point> points;
    auto parts = is_parted() ? RegroupAttr::of(n).parts : Names();
    for (auto& a : n.axes) {
      auto rule = along(n, kResultSide, a.name);
      bool created = rule.way == Way::full || n.op->kind == Kind::map || keeps_names(n) ||
                     haliax::has(parts, a.name);
      if (rule.point && !(n.op->segments && rule.way != Way::map))
        points.push_back({rule.point, a.size, true, created});
    }
    for (std::size_t k = 0; k < n.in.size(); ++k)
      for (auto& x = *n.in[k]; auto& a : x.axes) {
        auto rule = along(n, k, a.name);
        if (!rule.point) continue;
        auto p = std::find_if(points.begin(), points.end(),
                              [&](auto& p) { return p.name == rule.point; });
        if (p == points.end()) p = points.insert(p, {rule.point, a.size, false, true});
        bool fits = rule.way == Way::shift || rule.way == Way::regroup || p->size == a.size;
        must(p->in_result ? fits : rule.way != Way::map, "it maps axis {} of {}, but produces {}",
             a.name, x.axes, n.axes);
        must(fits, "axis {} has two sizes", a.name);
        // On a mesh, CollectiveKind::exchange may replace the op.
        bool only_moves = n.op->linear == Linear::moves, shifts = rule.way == Way::shift;
        must(only_moves || rule.way != Way::regroup,
             "it regroups axis {}, but does more than move values", a.name);
        must(only_moves || !shifts, "it shifts axis {}, but does more than move values", a.name);
        must(n.op->segments || !shifts, "it shifts axis {}, but has no segments", a.name);
        must(rule.way != Way::fold || !p->in_result, "it reduces axis {} of {}, but produces {}",
             a.name, x.axes, n.axes);
        p->created = true;
      }
    for (auto& p : points) must(p.created, "no operand has axis {}", p.name);
  }
  bool is_parted() const {  // one operand axis becomes several result axes
    return !n.in.empty() && std::any_of(n.in[0]->axes.begin(), n.in[0]->axes.end(), [&](auto& a) {
      auto rule = along(n, 0, a.name);
      return rule.way == Along::Way::regroup && !rule.point;
    });
  }
  void map() const {
    auto c = n.op->code;
    const auto count = program::operands_of(c);
    must(n.in.size() == std::size_t(count), "it has {} operands, expected {}",
         std::int64_t(n.in.size()), std::int64_t(count));
    must(c != Code::logical_not || n.in[0]->dtype == DType::boolean,
         "its operand is {}, expected bool", n.in[0]->dtype);
    if (is_comparison(c)) must(n.in[0]->dtype == n.in[1]->dtype, "operands have different dtypes");
    if (yields_bool(c)) return must(n.dtype == DType::boolean, "a comparison is {}", n.dtype);
    bool is_function =
        (c >= Code::exp && c <= Code::digamma) || c == Code::atan2 || c == Code::nextafter;
    must(!is_function || is_float(n.dtype), "a floating-point function of {}", n.dtype);
    must(c != Code::neg || n.dtype != DType::boolean, "the negative of {}", n.dtype);
    must(!is_threefry(c) || n.dtype == DType::u32, "random bits of dtype {}", n.dtype);
    must(!is_bitwise(c) || !is_float(n.dtype), "bits of {}", n.dtype);
    if (c == Code::select)
      return must(n.in[0]->dtype == DType::boolean && n.in[1]->dtype == n.dtype &&
                      n.in[2]->dtype == n.dtype,
                  "operands have different dtypes");
    if (c == Code::bitcast)
      return must(bytes_of(n.in[0]->dtype) == bytes_of(n.dtype),
                  "a bitcast from {} to {} changes the size", n.in[0]->dtype, n.dtype);
    if (c == Code::cast) return;
    for (auto& x : n.in)
      must(x->dtype == n.dtype, "an operand is {}, but the result is {}", x->dtype, n.dtype);
  }
  void reduce() const {
    must(n.in.size() == 1, "it has {} operands, expected 1", std::int64_t(n.in.size()));
    auto folded = names_of(without(n.in[0]->axes, n.axes));
    auto counted = ReduceAttr::of(n).over;  // reduced axes in this order
    bool counts = std::is_permutation(folded.begin(), folded.end(), counted.begin(), counted.end());
    must(counts || !finds_position(n.op->code),
         "it counts positions along other axes than it reduces");
    result_is(!finds_position(n.op->code)
                  ? n.in[0]->dtype
                  : prim::position_dtype(axis_size(without(n.in[0]->axes, n.axes))));
  }
  void contract() const {  // operands may be of smaller or larger dtypes than the result
    must(n.in.size() == 2 || n.op->fault, "it has {} operands, expected 2",
         std::int64_t(n.in.size()));
    for (std::size_t k : {0u, 1u})  // a third operand is the block mask
      must(is_float(n.in[k]->dtype) == is_float(n.dtype), "an operand is {}, but the result is {}",
           n.in[k]->dtype, n.dtype);
    faultless();
  }
  void faultless() const {
    auto wrong = n.op->fault ? n.op->fault(n) : std::string();
    must(wrong.empty(), "{}", wrong);
  }
  void moves() const {
    if (n.op->segments) {
      auto axis = AlongAttr::of(n).axis;
      if (along(n, kResultSide, axis).way == Along::Way::shift) shifts(axis);
    }
    faultless();
  }
  // Checks the segments of a shift: they are in order, inside of the operand and of the result.
  void shifts(Name axis) const {
    std::int64_t done = 0;
    for (auto& x : n.in) must(find(*x, axis), "part {} does not fit {}", x->axes, n.axes);
    for (auto& s : n.op->segments(n)) {
      auto last = s.from + (s.size - 1) * s.step;
      must(s.size < 2 || s.step != 0, "it reads position {} of {} repeatedly", s.from,
           n.in[s.operand]->axes);
      bool inside = std::min(s.from, last) >= 0 &&
                    std::max(s.from, last) < find(*n.in[s.operand], axis)->size;
      // In a loop without iterations.
      bool never = is_dynamic_slice(n) && find(*n.in[0], axis)->size == 0;
      must(n.size() == 0 || s.size == 0 || inside || never, "it reaches outside of {}",
           n.in[s.operand]->axes);
      must(s.size >= 0 && s.to >= done, "it writes position {} of {} twice", s.to, n.axes);
      done = s.to + s.size;
    }
    auto size = find(n, axis)->size;
    must(done <= size, "its parts have {} positions, but it has {}", done, n.axes);
  }
  void loop() const {
    auto& l = loop_of(n);
    must(!l.index.empty(), "it has no body");
    std::int64_t covered = 0;
    for (std::size_t b = 0; b < l.index.size(); ++b) {
      must(prim::index_start(*l.index[b]) == covered, "a body does not start after {} positions",
           covered);
      auto chunk = prim::index_chunk(*l.index[b]);
      must(!l.drop || chunk == 1, "its iterations have one position each, but its chunk is {}",
           chunk);
      covered += trips(l, b) * prim::index_chunk(*l.index[b]);
    }
    must(covered == l.axis.size, "its bodies iterate over {} positions of {}", covered, l.axis);
    std::unordered_set<const Node*> carries;
    for (auto& r : l.results) {
      must(!r.carry || carries.insert(r.carry.get()).second, "two results have one carry");
      must(r.carry || r.kind != ResultKind::carry, "a carried result has no carry");
      must(r.value.size() == l.index.size(), "a result has no value in one of its bodies");
      for (std::size_t b = 0; b < r.value.size(); ++b) body(l, r, b);
      bool same = r.carry && without_barriers(r.value[0]) == r.carry;
      if (r.is_condition) must(same && r.carry->axes.empty(), "the condition is not a flag");
      must(!r.is_condition || covered == 1, "a conditional has {} iterations", covered);
      if (r.carry)
        must(r.start && same_set(r.start, r.carry),
             "the start of a carry has other axes or another dtype");
      else if (r.start)
        must(same_set(r.start, r.value[0]), "the start of a fold has other axes or another dtype");
    }
  }
  // Returns the value inside of barriers. A barrier only orders collectives that other devices run
  // as well.
  static NodePtr without_barriers(NodePtr value) {
    while (value->op == &prim::kBarrier) value = value->in[0];
    return value;
  }
  void body(const Loop& l, const LoopResult& r, std::size_t b) const {
    auto& v = r.value[b];
    must(v->dtype == r.value[0]->dtype, "bodies return values of different dtypes");
    if (r.carry)
      return must(same_set(v, r.carry), "an iteration returns {} for the carry {}", v->axes,
                  r.carry->axes);
    if (r.kind == ResultKind::fold)
      return must(same_set(v, r.value[0]), "bodies reduce different axes");
    auto* along = find(*v, l.axis.name);
    if (l.drop) return must(!along, "a value of one position has the loop axis");
    must(along && along->size == prim::index_chunk(*l.index[b]),
         "a stacked value is not a chunk of {}", l.axis);
    auto rest = [&](Axes axes) {
      std::erase_if(axes, [&](auto& a) { return a.name == l.axis.name; });
      return axes;
    };
    must(same_set(rest(v->axes), rest(r.value[0]->axes)), "bodies stack different axes");
  }
  void custom() const {
    auto& c = custom_vjp_of(n);
    must(c.results > 0 && c.results <= n.in.size(), "it has {} results, but {} operands",
         std::int64_t(c.results), std::int64_t(n.in.size()));
    auto wrong = c.fault(n.in);
    must(wrong.empty(), "{}", wrong);
  }
  void result() const {
    auto k = result_number(n);
    auto& from = n.in[0];
    std::size_t count = from->op == &kLoop         ? loop_of(n).results.size()
                        : from->op == &kCollective ? collective_spec_of(*from).out.size()
                                                   : custom_vjp_of(*from).results;
    must(k < count, "its {} has no result {}", std::string(from->op->name), std::int64_t(k));
    auto expected = from->op == &kLoop         ? loop_result(from, k)
                    : from->op == &kCollective ? collective_result(from, k)
                                               : from->in[k];
    result_is(expected->dtype);
    must(same_set(n.axes, expected->axes), "it is {}, but its {} produces {}", n.axes,
         std::string(from->op->name), expected->axes);
  }
};

Nodes created_in(const std::vector<IterationPart>& parts) {
  Nodes out;
  for (auto& p : parts) {
    for (auto& flag : {p.flag, p.deferred})
      if (flag) out.push_back(flag);
    for (auto& [k, value] : p.values) out.push_back(value);
  }
  return out;
}
// Checks the parts of iterations: each result is computed in one part, a sum in one or more, and
// each flag is a bool scalar.
void check_parts(const Node& loop, const std::vector<std::vector<IterationPart>>& bodies,
                 const char* after) {
  NodeCheck check{loop, after};
  auto& l = loop_of(loop);
  check.must(bodies.size() == l.index.size(), "parts of iterations have {} bodies, but it has {}",
             std::int64_t(bodies.size()), std::int64_t(l.index.size()));
  for (std::size_t b = 0; b < bodies.size(); ++b) {
    std::vector<int> created(l.results.size());
    for (auto& p : bodies[b]) {
      for (auto& flag : {p.flag, p.deferred})
        check.must(!flag || (flag->axes.empty() && flag->dtype == DType::boolean),
                   "the exit condition of a part of an iteration is not a flag");
      check.must(!p.deferred || (p.flag && l.any_order), "ordered iterations are traversed twice");
      for (auto& [k, value] : p.values) {
        auto& r = l.results[k];
        bool sums = r.kind == ResultKind::fold && r.monoid == Monoid::sum;
        check.must(same_set(value, r.value[b]), "a part of an iteration produces {} for a result",
                   value->axes);
        check.must(created[k]++ == 0 || sums,
                   "two parts of an iteration produce a result that is not a sum");
      }
    }
    for (auto count : created)
      check.must(count > 0, "no part of an iteration produces one of its results");
  }
}

// Checks that a value that varies with a loop is only read in its bodies.
struct ScopeCheck {
  const char* after;
  const IterationParts& iteration_parts;
  std::vector<const Node*> known = {};  // indices and carries of the enclosing loops

  // Visited loops. Bodies refer to values outside of them, including other loops.
  std::unordered_set<const Node*> entered = {};

  void values(const Nodes& roots, const Node* index) {
    for (auto& n : topological(roots)) {
      if (n->free.empty() && index) continue;  // a node of the top level
      if (n->op == &prim::kCarry)
        read(n);  // it refers to the first index of its loop, in all bodies
      else
        for (auto& x : n->in)
          if (x && x->op == &prim::kIndex) read(x);
      if (n->op == &kLoop && entered.insert(n.get()).second) bodies(*n);
    }
    for (auto& r : roots)
      if (r->op == &prim::kIndex) read(r);
  }
  void read(const NodePtr& placeholder) const {
    bool inside = std::find(known.begin(), known.end(), placeholder.get()) != known.end();
    NodeCheck{*placeholder, after}.must(inside, "it is read outside of its loop");
  }
  void bodies(const Node& n) {
    auto& l = loop_of(n);
    auto parts = iteration_parts.find(&n);
    auto outer = known.size();
    for (auto& r : l.results)
      if (r.carry) known.push_back(r.carry.get());
    for (std::size_t b = 0; b < l.index.size(); ++b) {
      known.push_back(l.index[b].get());
      auto created = values_of(l, b);
      if (parts != iteration_parts.end())
        for (auto& value : created_in(parts->second[b])) created.push_back(value);
      values(created, l.index[b].get());
      known.pop_back();
    }
    known.resize(outer);
  }
};

// Checks regions: a value that enters a region leaves it before it is a result, unless its tiled
// axis is reduced. A value leaves inner regions first. A value that enters in an iteration may
// leave after the loop, as a sum over iterations does whose operand entered before the loop.
void check_boundaries(const Nodes& all, const Nodes& roots, const char* after) {
  // Regions that contain each node.
  std::unordered_map<const Node*, std::vector<const Attr*>> inside;
  auto contains = [](auto& regions, const Attr& r) {
    return std::any_of(regions.begin(), regions.end(), [&](auto* other) { return *other == r; });
  };
  for (auto& n : all) {
    PendingNodes reads;
    if (is_loop_result(*n)) {  // the loop node has no axes
      append(reads, result_of(*n).value);
      if (auto& start = result_of(*n).start) reads.push_back(&start);
    } else {
      add_reads(n, reads);
    }
    std::vector<const Attr*> mine;
    for (auto* x : reads)
      for (auto* r : inside[x->get()])
        if (!contains(mine, *r)) mine.push_back(r);
    if (n->op == &prim::kEnter && !contains(mine, n->attr)) mine.push_back(&n->attr);
    for (auto* r : n->op == &prim::kLeave ? mine : std::vector<const Attr*>()) {
      auto outer = ChunkKey::of(n->attr), other = ChunkKey::of(*r);
      bool crossed = other.depth == outer.depth && other.inside > outer.inside && !other.scores &&
                     !outer.scores;
      NodeCheck{*n, after}.must(!crossed, "it leaves a region before a nested region");
    }
    std::erase_if(mine, [&](auto* r) {
      auto key = ChunkKey::of(*r);
      auto* tiled = find(*n, key.axis);
      return !tiled || tiled->size != key.size || (n->op == &prim::kLeave && *r == n->attr);
    });
    inside[n.get()] = std::move(mine);
  }
  for (auto& r : roots)
    NodeCheck{*r, after}.must(inside[r.get()].empty(), "it is in a region that it never leaves");
}

}  // namespace

void verify(const Nodes& roots, const char* after, const IterationParts& iteration_parts,
            const Layouts& layouts) {
  auto all = all_nodes(roots);
  Nodes parts;
  for (auto& n : all) {
    auto found = iteration_parts.find(n.get());
    if (found == iteration_parts.end()) continue;
    check_parts(*n, found->second, after);
    for (auto& body : found->second)
      for (auto& created : created_in(body)) parts.push_back(created);
  }
  for (auto& n : all) {
    auto order = layouts.find(n.get());
    bool fits = order == layouts.end() ||
                (same_set(order->second, n->axes) && order->second.size() == n->axes.size());
    NodeCheck{*n, after}.must(fits, "its layout is {}, but its axes are {}",
                              fits ? n->axes : order->second, n->axes);
  }
  if (!parts.empty()) {
    parts.insert(parts.end(), roots.begin(), roots.end());
    all = all_nodes(parts);
  }
  bool regions = false;
  for (auto& n : all) {
    NodeCheck check{*n, after};
    check.run();
    if (!is_region_boundary(*n)) continue;
    regions = true;
    auto key = ChunkKey::of(n->attr);
    auto* tiled = find(*n, key.axis);
    check.must(tiled && tiled->size == key.size,
               "a region boundary is around {}, which lacks the tiled axis", n->axes);
  }
  if (regions) check_boundaries(all, roots, after);
  ScopeCheck{after, iteration_parts}.values(roots, nullptr);
}

}  // namespace haliax
