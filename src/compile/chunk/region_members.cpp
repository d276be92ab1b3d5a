// Finds the nodes of a region.
#include "compile/chunk/region_members.h"

#include <algorithm>

#include "haliax/chunked.h"
#include "ops/attr.h"
#include "ops/blockwise.h"
#include "ops/prim.h"

namespace haliax {
namespace {

// Returns true for ops that may connect a `leave` to an `enter`: elementwise ops, reductions, wraps
// (except custom gradients), and views that keep the names of the axes. These are cheap to
// rematerialize in a loop; contractions are not.
bool wraps(const Node& n) { return n.op->kind == Kind::wrap && n.op != &kCustomVjp; }
bool bridges(const Node& n) {
  return n.op->kind == Kind::map || n.op->kind == Kind::reduce || keeps_names(n) || wraps(n);
}

}  // namespace

bool RegionMembers::enters(const Node& n) const { return n.op == &prim::kEnter && n.attr == key_; }
bool RegionMembers::is_input(const Node& n) const {
  if (enters(n)) return true;
  bool outside = around_ && !n.varies_with(around_);
  bool sliced = is_dynamic_slice(n) && SliceAttr::of(n).axis != tiled_axis(key_).name;
  return outside && (is_region_boundary(n) || sliced) && is_input(*n.in[0]);
}
bool RegionMembers::leaves(const Node& n) const { return n.op == &prim::kLeave && n.attr == key_; }
bool RegionMembers::has_axis(const Node& n, Name a) const {
  auto* mine = find(n, a);
  return mine && mine->size == axis_.size;
}

RegionMembers::RegionMembers(const Attr& key, const Nodes& roots, const Nodes& level,
                             const Node* around)
    : key_(key), call_(ChunkKey::of(key)), around_(around), roots_(roots), level_(level) {
  const Node* boundary = nullptr;
  for (auto& n : level) {
    if (enters(*n)) boundary = n.get();
    for (auto& x : n->in)
      if (x && is_input(*x)) boundary = x.get();
    if (n->op != &kLoop) continue;
    auto& l = loop_of(*n);
    for (auto& i : l.index) loop_indices_.insert(i.get());
    for (std::size_t k = 0; k < l.results.size(); ++k)
      if (l.results[k].carry) owner_[l.results[k].carry.get()] = {n, k};
  }
  if (!boundary) return;
  axis_ = *find(*boundary, tiled_axis(key).name);
  find_unread();
  find_bridges();
  find_roles();
  exclude_cheap_reductions();
  for (auto& n : level_)
    if (contains(n) && !is_never_computed(*n)) check(n);
}
bool RegionMembers::empty() const {
  return refusal_.empty() && std::none_of(members_.begin(), members_.end(),
                                          [](auto& m) { return m.second.role.inside; });
}
// Repeats until no further loop along the axis is found. The nodes in the body of such a loop are
// not members of the region.
void RegionMembers::find_roles() {
  std::size_t known;
  do {
    known = along_axis_.size();
    for (auto& [n, m] : members_) m.role = {};
    // Only carries require repetition: the level lists them before the values that they receive.
    for (bool more = true; more;) {
      more = false;
      for (auto& n : level_) more |= infer_role(n) && !owner_.empty();
    }
  } while (known != along_axis_.size());
}
// Marks the operands of an op with a block scan that the scan does not read, and that no other node
// reads.
void RegionMembers::find_unread() {
  std::unordered_set<const Node*> read;
  for (auto& r : roots_) read.insert(r.get());
  for (auto& n : level_) {
    auto scan = n->op->block_scan ? n->op->block_scan(n, {}) : std::nullopt;
    for (auto& x : n->in) {
      bool unread =
          scan && std::find(scan->reads.begin(), scan->reads.end(), x) == scan->reads.end();
      if (unread)
        member(*x).unread = true;
      else if (x)
        read.insert(x.get());
    }
  }
  for (auto* x : read)
    if (facts_of(*x).unread) member(*x).unread = false;
}

// Marks the nodes between a `leave` and an `enter` as bridges, which are computed on tiles as
// well. For example, the cotangent of a token may be computed from the loss of the same token. A
// bridge does not cross the boundaries of another call, which is tiled by itself.
void RegionMembers::find_bridges() {
  std::unordered_set<const Node*> from_leave, to_enter;
  auto may = [&](const NodePtr& n) {
    if (is_region_boundary(*n) && (n->attr == key_ || !ChunkKey::of(n->attr).same_call(call_)))
      return false;
    return bridges(*n) && has_axis(*n, axis_.name);
  };
  for (auto& n : level_) {
    if (leaves(*n) || (reads(*n, from_leave) && may(n))) from_leave.insert(n.get());
  }
  for (auto i = level_.rbegin(); i != level_.rend(); ++i)
    if (enters(**i) || (to_enter.count(i->get()) && may(*i)))
      for (auto& x : (*i)->in)
        if (x && has_axis(*x, axis_.name)) to_enter.insert(x.get());
  for (auto* n : from_leave)
    if (to_enter.count(n)) member(*n).bridge = true;
}

// A barrier needs only its value. RegionPasses::first_pass adds the node for which it waits, if
// barriers wait in this region.
Nodes RegionMembers::inputs_on_tile(const NodePtr& n) const {
  if (auto* t = scan_of(*n)) return t->reads;
  if (n->op == &prim::kBarrier) return {n->in[0]};
  return reads_of(*n);
}
bool RegionMembers::carries_state(const Node& n) const {
  if (auto* t = scan_of(n)) return t->running;
  return n.op == &kLoop && is_along_axis(n);
}
const BlockScan* RegionMembers::scan_of(const Node& n) const {
  auto& t = role_of(n).scan;
  return t ? &*t : nullptr;
}
// Returns true, and stores the block scan, if n needs the full axis and is computed by a scan over
// its tiles. Excludes nodes in the body of a loop: each iteration would need a state of its own.
bool RegionMembers::infer_scan(const NodePtr& n) {
  auto t = n->op->block_scan && !in_body(*n) ? n->op->block_scan(n, {}) : std::nullopt;
  if (!t) return false;
  bool on_tiles = std::all_of(t->reads.begin(), t->reads.end(), [&](auto& x) {
    return contains(x) && is_tiled(x) && !is_read_in_full(x, *n) &&
           (enters(*x) ? axis_.name : axis_in(*x)) == t->axis;
  });
  if (!on_tiles) return false;
  auto& role = member(*n).role;
  if (t->running) role.axis = t->axis;
  role.scan = std::move(*t);
  return true;
}

bool RegionMembers::is_read_in_full(const NodePtr& x, const Node& reader) const {
  return (leaves(*x) || facts_of(*x).bridge) && !facts_of(reader).bridge && !enters(reader);
}
// Returns the names of the tiled axis in the values that n reads. Sets `partial` if one of them is
// a partial sum.
Names RegionMembers::names_read_by(const NodePtr& n, bool& partial) const {
  Names names;
  auto from = [&](const NodePtr& x) {
    if (!x) return;
    auto& its = role_of(*x);
    partial |= its.partial;
    Name name;
    if (is_input(*x))
      name = axis_.name;
    else if (its.axis && !is_read_in_full(x, *n))
      name = its.axis;
    if (name && !has(names, name)) names.push_back(name);
  };
  if (enters(*n))
    names = {axis_.name};
  else if (n->op == &prim::kCarry) {
    auto of = owner_.find(n.get());
    if (of == owner_.end()) return {};  // carry of an enclosing loop
    auto& r = loop_of(*of->second.first).results[of->second.second];
    for (auto& v : r.value) from(v);
    from(r.start);
    // A carry that is computed from values outside of the region is in the region as well if its
    // loop is, and if the carry has the axis.
    if (names.empty() && contains(of->second.first)) names = {name_in(*of->second.first)};
    std::erase_if(names, [&](Name a) { return !has_axis(*n, a); });
    partial = false;
  } else if (is_loop_result(*n)) {
    from(result_of(*n).value[0]);
  } else {
    for (auto& x : inputs_on_tile(n)) from(x);
  }
  return names;
}
// Determines whether n is in the region, and the name of the tiled axis in n. Returns true if this
// changed the role of n.
//
// - A block scan on tiles, or a result of a loop along the axis, is inside.
// - A node that reads no value with the axis, and no partial sum, is outside.
// - A slice x[i] at the index i of a loop marks that loop as one along the axis. The slice is
//   outside.
// - A node that reads two names of the axis is refused. For example, x + y, where y is x with "pos"
//   renamed to "key".
// - Any other node is inside. It has the axis unless it reduces it.
bool RegionMembers::infer_role(const NodePtr& n) {
  if (!refusal_.empty() || contains(n) || in_body_along_axis(*n)) return false;
  if (infer_scan(n)) return member(*n).role.inside = true;
  if (n->op == &kResult && contains(n->in[0]) && is_along_axis(*n->in[0])) {
    auto& role = member(*n).role;
    if (result_of(*n).kind == ResultKind::stack) role.axis = loop_of(*n).axis.name;
    return role.inside = true;
  }
  bool partial = false;
  auto names = names_read_by(n, partial);
  if (names.empty() && !partial) return false;
  bool at_index = is_dynamic_slice(*n) && loop_indices_.count(n->in[1].get());
  if (at_index && Names{SliceAttr::of(*n).axis} == names && SliceAttr::of(*n).drop) {
    along_axis_.insert(n->in[1].get());
    return false;
  }
  auto& me = member(*n);
  me.role.inside = true;
  if (me.unread && !names.empty() && along(*n, 0, names[0]).way == Along::Way::full)
    return me.role.never_computed = true;
  if (n->op == &kLoop) return true;
  if (names.size() > 1) {
    refuse(*n, "pairs positions (" + std::string(names[0].text()) + " with " +
                   std::string(names[1].text()) +
                   "; outside of the function, rename the axis of the array to read in full)");
    return false;
  }
  if (is_transparent_view(*n))
    for (auto& a : names) a = name_in_result(*n, 0, a);
  // The result lacks an axis that n reduces, although it may have another axis of the same name.
  // For example, a scatter reduces the axis of its updates, and its table may have an axis of this
  // name.
  std::erase_if(names, [&](Name a) {
    bool reduced = false;
    for (std::size_t k = 0; k < n->in.size() && n->op->kind == Kind::step; ++k)
      reduced |= n->in[k] && is_tiled(n->in[k]) && along(*n, k, a).way == Along::Way::fold;
    return reduced || !has_axis(*n, a);
  });
  if (!names.empty())
    me.role.axis = names[0];
  else
    me.role.partial = in_body(*n) || (partial && !is_loop_result(*n));
  return true;
}
bool RegionMembers::in_body_along_axis(const Node& n) const { return varies_with(n, along_axis_); }
bool RegionMembers::in_body(const Node& n) const { return varies_with(n, loop_indices_); }

// Removes from the region each reduction that is computed elementwise from entered arrays, without
// an intermediate that is larger than these arrays, if another node of the region depends on the
// result. For example, the number of unmasked tokens is the sum of a mask, and each term of the
// loss is divided by it. On the full arrays, such a reduction reads its operands once; in the
// region, it would add a pass.
void RegionMembers::exclude_cheap_reductions() {
  // From an elementwise function of entered arrays to the bytes of the largest of these arrays.
  std::unordered_map<const Node*, std::int64_t> widest;
  std::unordered_set<const Node*> read_later;
  for (auto i = level_.rbegin(); i != level_.rend(); ++i) {
    bool requested = (contains(*i) && !leaves(**i)) || read_later.count(i->get());
    if (requested)
      for (auto& x : (*i)->in)
        if (x) read_later.insert(x.get());
  }
  Nodes out;
  for (auto& n : level_) {
    if (!contains(n)) continue;
    bool boundary = enters(*n),
         reduction = n->op->kind == Kind::reduce && !is_tiled(n) && !in_body(*n);
    if (!boundary && !reduction && n->op->kind != Kind::map && !keeps_names(*n)) continue;
    std::int64_t most = boundary ? n->bytes() : 0;
    bool elementwise = true;
    if (!boundary)
      for (auto& x : n->in) {
        if (!contains(x)) continue;
        auto w = widest.find(x.get());
        elementwise &= w != widest.end();
        if (elementwise) most = std::max(most, w->second);
      }
    if (!elementwise || n->bytes() > most) continue;
    if (!reduction)
      widest[n.get()] = most;
    else if (read_later.count(n.get()))
      out.push_back(n);
  }
  for (auto& n : out) member(*n).role = {};
}

Name RegionMembers::name_in(const Node& n) const {
  if (auto a = axis_in(n)) return a;
  if (auto* t = scan_of(n)) return t->axis;
  for (auto& x : n.in)
    if (x && is_tiled(x)) return is_input(*x) ? axis_.name : axis_in(*x);
  return axis_.name;
}
// Returns true if n gathers from, or scatters to, in[0] by index along the axis. On a tile, n
// processes only the indices that are inside of the tile.
bool RegionMembers::indexes_along(const Node& n, Name a) const {
  if (!n.op->on_block || n.in.empty() || !has_axis(*n.in[0], a)) return false;
  // The ids may have an axis with this name that is not the tiled one, for example the k first
  // positions of an order. has_axis compares the size as well.
  bool clashes =
      std::any_of(n.in.begin() + 1, n.in.end(), [&](auto& x) { return has_axis(*x, a); });
  return along(n, 0, a).way == Along::Way::pick || (has(indexed_axes(n), a) && !clashes);
}

// Returns the monoid that merges the results of the tiles. Returns none if they cannot be merged.
std::optional<Monoid> RegionMembers::reduction_monoid(const Node& n) const {
  if (is_loop_result(n)) {
    auto& r = result_of(n);
    bool sums =
        r.kind == ResultKind::stack || (r.kind == ResultKind::fold && r.monoid == Monoid::sum);
    return sums || is_along_axis(*n.in[0]) ? std::optional(Monoid::sum) : std::nullopt;
  }
  auto a = name_in(n);
  for (std::size_t k = 0; k < n.in.size(); ++k) {
    if (!n.in[k] || is_order_only(n, k) || !is_tiled(n.in[k])) continue;
    auto rule = along(n, k, a);
    if (k == 0 && indexes_along(n, a)) return Monoid::sum;  // each index is inside of one tile only
    if (rule.way == Along::Way::fold) return rule.monoid;
  }
  return {};
}

// Returns true for a step, such as a lookup, whose operands with this axis are all computed from
// positions alone and read position by position. For example, take(bias, "distance", q - k): the
// table lacks the axes of q and k, and the ids are positions.
bool RegionMembers::is_lookup_by_position(const Node& n, Name a) const {
  if (n.op->kind != Kind::step || indexes_along(n, a)) return false;
  bool reads_axis = false;
  for (std::size_t k = 0; k < n.in.size(); ++k) {
    if (!n.in[k] || !has(n.in[k]->axes, a)) continue;
    if (!is_generated(n.in[k]) || along(n, k, a).way != Along::Way::map) return false;
    reads_axis = true;
  }
  return reads_axis;
}
bool RegionMembers::is_expanded(const NodePtr& x, Name a) const {
  std::unordered_set<const Node*> seen;
  std::vector<std::pair<NodePtr, Name>> todo{{x, a}};
  std::int64_t bytes = 0;
  while (!todo.empty()) {
    auto [n, name] = todo.back();
    todo.pop_back();
    if (!has_axis(*n, name) || prim::is_number(n) || is_position(*n) ||
        !seen.insert(n.get()).second)
      continue;
    if (is_carry_of_level(*n)) continue;  // the loop of this carry is rebuilt on the tile
    bool scatters = indexes_along(*n, name) && prim::is_number(n->in[0]);
    // Sharding constraints count as well, since random draws may have one.
    bool is_view =
        is_transparent_view(*n) || is_region_boundary(*n) || n->op == &prim::kShardingConstraint;
    bool elementwise = !n->value && (n->op->kind == Kind::map || is_view || scatters ||
                                     is_lookup_by_position(*n, name));
    if (!elementwise) {
      bytes += n->bytes();
      if (bytes >= x->bytes()) return false;
      continue;
    }
    for (std::size_t k = 0; k < n->in.size(); ++k)
      todo.push_back({n->in[k], name_in_operand(*n, k, name)});
  }
  return seen.count(x.get()) > 0 && x->op->kind != Kind::leaf;
}

}  // namespace haliax
