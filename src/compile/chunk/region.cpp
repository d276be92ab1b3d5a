// Finds the nodes of a region, and the pass in which each is computed.
#include "compile/chunk/region.h"

#include <algorithm>
#include <set>

#include "compile/analysis/masks.h"
#include "compile/analysis/softmax.h"
#include "haliax/chunked.h"
#include "ops/attr.h"
#include "ops/blockwise.h"
#include "ops/prim.h"

namespace haliax {
namespace {

// Return true for ops that may connect a `leave` to an `enter`: elementwise ops, reductions, wraps
// (except custom gradients), and views that keep the names of the axes. These are cheap to
// rematerialize in a loop; contractions are not.
bool wraps(const Node& n) { return n.op->kind == Kind::wrap && n.op != &kCustomVjp; }
bool bridges(const Node& n) {
  return n.op->kind == Kind::map || n.op->kind == Kind::reduce || keeps_names(n) || wraps(n);
}

}  // namespace

bool Region::enters(const Node& n) const { return n.op == &prim::kEnter && n.attr == key_; }
bool Region::is_input(const Node& n) const {
  if (enters(n)) return true;
  bool outside = around_ && !n.varies_with(around_);
  bool sliced = is_dynamic_slice(n) && SliceAttr::of(n).axis != tiled_axis(key_).name;
  return outside && (is_region_boundary(n) || sliced) && is_input(*n.in[0]);
}
bool Region::leaves(const Node& n) const { return n.op == &prim::kLeave && n.attr == key_; }
bool Region::has_axis(const Node& n, Name a) const {
  auto* mine = find(n, a);
  return mine && mine->size == axis_.size;
}

Region::Region(const Attr& key, const Nodes& roots, const Nodes& level, const Node* around)
    : key_(key), call_(ChunkKey::of(key)), around_(around),
      barriers_split_passes_(ChunkForm(call_.form) == ChunkForm::recompute), roots_(roots),
      level_(level) {
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
  // Repeats until no further loop along the axis is found. The nodes in the body of such a loop are
  // not members of the region.
  for (auto known = along_axis_.size() + 1; known != along_axis_.size();) {
    known = along_axis_.size();
    for (auto& [n, m] : members_) m.role = {};
    // Only carries require repetition: the level lists them before the values that they
    // receive.
    for (bool more = true; more;) {
      more = false;
      for (auto& n : level_) more |= infer_role(n) && !owner_.empty();
    }
  }
  exclude_cheap_reductions();
  empty_ = refusal_.empty() && std::none_of(members_.begin(), members_.end(),
                                            [](auto& m) { return m.second.role.inside; });
  if (refusal_.empty()) assign_passes();
}
// Marks the operands of an op with a block scan that the scan does not read, and that no other node
// reads.
void Region::find_unread() {
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

void Region::refuse(const Node& n, const std::string& why) {
  if (!refusal_.empty()) return;
  refusal_ = failure_at(
      n.origin, "chunked_reduce",
      std::string(prim::user_name(n)) + " " + why + " over the tiled axis " + to_string(axis_));
}

// Marks the nodes between a `leave` and an `enter` as bridges, which are computed on tiles as
// well. For example, the cotangent of a token may be computed from the loss of the same token. A
// bridge does not cross the boundaries of another call, which is tiled by itself.
void Region::find_bridges() {
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

// A barrier needs only its value. `first_pass` adds the node for which it waits, if barriers wait
// in this region (barriers_split_passes_).
Nodes Region::inputs_on_tile(const NodePtr& n) const {
  if (auto* t = scan_of(*n)) return t->reads;
  if (n->op == &prim::kBarrier) return {n->in[0]};
  return reads_of(*n);
}
bool Region::carries_state(const Node& n) const {
  if (auto* t = scan_of(n)) return t->running;
  return n.op == &kLoop && is_along_axis(n);
}
const BlockScan* Region::scan_of(const Node& n) const {
  auto& t = facts_of(n).role.scan;
  return t ? &*t : nullptr;
}
// Returns true, and stores the block scan, if n needs the full axis and is computed by a scan over
// its tiles. Excludes nodes in the body of a loop: each iteration would need a state of its own.
bool Region::infer_scan(const NodePtr& n) {
  auto t = n->op->block_scan && !in_body(*n) ? n->op->block_scan(n, {}) : std::nullopt;
  if (!t) return false;
  bool on_tiles = std::all_of(t->reads.begin(), t->reads.end(), [&](auto& x) {
    return contains(x) && is_tiled(x) && !is_read_in_full(x, *n) &&
           (enters(*x) ? axis_.name : facts_of(*x).role.axis) == t->axis;
  });
  if (!on_tiles) return false;
  auto& role = member(*n).role;
  if (t->running) role.axis = t->axis;
  role.scan = std::move(*t);
  return true;
}

bool Region::is_read_in_full(const NodePtr& x, const Node& reader) const {
  return (leaves(*x) || facts_of(*x).bridge) && !facts_of(reader).bridge && !enters(reader);
}
// Returns the names of the tiled axis in the values that n reads. Sets `partial` if one of them is
// a partial sum.
Names Region::names_read_by(const NodePtr& n, bool& partial) const {
  Names names;
  auto from = [&](const NodePtr& x) {
    if (!x) return;
    auto& its = facts_of(*x).role;
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
// - A slice x[i] at the index i of a loop marks that loop as one along the axis. The slice itself
// is
//   outside.
// - A node that reads two names of the axis is refused. For example, x + y, where y is x with "pos"
//   renamed to "key".
// - Any other node is inside. It has the axis unless it reduces it.
bool Region::infer_role(const NodePtr& n) {
  if (!refusal_.empty() || contains(n) || in_body_along_axis(*n)) return false;
  if (infer_scan(n)) return member(*n).role.inside = true;
  if (n->op == &kResult && contains(n->in[0]) && is_along_axis(*n->in[0])) {
    auto& role = member(*n).role;
    if (result_of(*n).fold == Fold::stack) role.axis = loop_of(*n).axis.name;
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
bool Region::in_body_along_axis(const Node& n) const { return varies_with(n, along_axis_); }
bool Region::in_body(const Node& n) const { return varies_with(n, loop_indices_); }

// Removes from the region each reduction that is computed elementwise from entered arrays, without
// an intermediate that is larger than these arrays, if another node of the region depends on the
// result. For example, the number of unmasked tokens is the sum of a mask, and each term of the
// loss is divided by it. On the full arrays, such a reduction reads its operands once; in the
// region, it would add a pass.
void Region::exclude_cheap_reductions() {
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

Name Region::name_in(const Node& n) const {
  if (auto a = facts_of(n).role.axis) return a;
  if (auto* t = scan_of(n)) return t->axis;
  for (auto& x : n.in)
    if (x && is_tiled(x)) return is_input(*x) ? axis_.name : facts_of(*x).role.axis;
  return axis_.name;
}
// Returns true if n gathers from, or scatters to, in[0] by index along the axis. On a tile, n
// processes only the indices that are inside of the tile.
bool Region::indexes_along(const Node& n, Name a) const {
  if (!n.op->on_block || n.in.empty() || !has_axis(*n.in[0], a)) return false;
  // The ids may have an axis with this name that is not the tiled one, for example the k first
  // positions of an order. has_axis compares the size as well.
  bool clashes =
      std::any_of(n.in.begin() + 1, n.in.end(), [&](auto& x) { return has_axis(*x, a); });
  return along(n, 0, a).way == Along::Way::pick || (has(indexed_axes(n), a) && !clashes);
}

// Returns the monoid that merges the results of the tiles. Returns none if they cannot be merged.
std::optional<Monoid> Region::reduction_monoid(const Node& n) const {
  if (is_loop_result(n)) {
    auto& r = result_of(n);
    bool sums = r.fold == Fold::stack || (r.fold == Fold::fold && r.monoid == Monoid::sum);
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

// Refuses the node if it cannot be computed tile by tile.
void Region::check(const NodePtr& n) {
  auto a = name_in(*n);
  auto& op = *n->op;
  if (&op == &kCustomVjp) return refuse(*n, "cannot be split into chunks");
  if (scan_of(*n)) return;
  if (&op == &kLoop) {
    if (loop_of(*n).axis.name == a) check_loop_along_axis(*n, a);
    return;
  }
  bool at_index = is_dynamic_slice(*n) && n->in[1]->op == &prim::kIndex;
  if (at_index && SliceAttr::of(*n).axis == a)
    refuse(*n, "carries values from position to position");
  for (std::size_t k = 0; k < n->in.size(); ++k) {
    if (!n->in[k] || is_order_only(*n, k) || !is_tiled(n->in[k])) continue;
    using Way = Along::Way;
    if (k == 0 && indexes_along(*n, a)) continue;
    auto way = along(*n, k, a).way;
    bool moves = way == Way::full && op.linear == Linear::moves;
    if (way == Way::shift || way == Way::regroup || moves) refuse(*n, "mixes positions");
    if (way == Way::full) refuse(*n, "requires all positions at once");
  }
  auto partial = [&](const NodePtr& x) { return x && facts_of(*x).role.partial; };
  // In the body of a loop, `partial` nodes have the sum of one tile, and the tiles are added
  // after the loop. Therefore the ops that follow such a sum must be linear.
  if (partial(n)) {
    bool sums = false;
    for (auto& x : n->in) sums |= x && is_tiled(x);
    bool reduces = sums && reduction_monoid(*n) == Monoid::sum;
    bool moves = !sums && (op.linear == Linear::all || op.linear == Linear::moves);
    for (auto& x : n->in)
      moves &= !x || partial(x) || !is_float(x->dtype) || x->op->kind == Kind::leaf;
    if (!reduces && !moves && n->op != &kResult) refuse(*n, "reads a total, in a loop,");
  }
  for (auto& x : n->in) {
    bool total = partial(x) && !partial(n) && n->op != &kResult;
    if (total) refuse(*n, "reads a total, in a loop,");
  }
  if (!on_tile(n) && !reduction_monoid(*n)) refuse(*n, "is not a sum, product, max or min");
}

// Refuses a loop along the axis unless it can be computed tile by tile, with its state carried
// between tiles. At each position, the loop must read only this position of the nodes on
// tiles. For example, it may read x[i], but neither x[i - 1] nor all of x.
void Region::check_loop_along_axis(const Node& n, Name a) {
  auto& l = loop_of(n);
  auto* index = l.index[0].get();
  auto on_other_tiles = [&](const NodePtr& x) {
    return x && contains(x) && on_tile(x) && !is_read_in_full(x, n);
  };
  bool ok = is_along_axis(n) && l.drop && !in_body(n) && l.axis.size == axis_.size;
  for (auto& r : l.results) ok &= !on_other_tiles(r.start) && !on_other_tiles(r.value[0]);
  for (auto& m : level_) {
    if (!m->varies_with(index)) continue;
    bool own = is_slice_at(*m, index) && SliceAttr::of(*m).axis == a;
    for (auto& x : m->in) ok &= own || !on_other_tiles(x);
  }
  if (!ok) refuse(n, "carries values from position to position");
}
int Region::pass_in_direction(bool reverse, int at) {
  while (directions_.emplace(at, reverse).first->second != reverse) ++at;
  return at;
}
bool Region::is_reversed(int pass) const {
  auto i = directions_.find(pass);
  return i == directions_.end() ? call_.reverse : i->second;
}

// Returns the pass that computes x if a tile of x is read (`tile`), and otherwise the number of
// passes that must finish before the full x is available.
int Region::pass_of(const NodePtr& x, bool tile) const {
  auto& order = facts_of(*x).order;
  return tile ? std::max(order.pass, 0) : order.ready;
}
// Returns the number of passes that must finish before n: the first pass that can compute it.
int Region::first_pass(const NodePtr& n) const {
  int at = 0;
  for (auto& x : n->op == &kLoop && is_along_axis(*n) ? n->in : inputs_on_tile(n)) {
    bool same = contains(x) && on_tile(x) && contains(n) && !is_read_in_full(x, *n);
    at = std::max(at, pass_of(x, same));
  }
  if (barriers_split_passes_ && n->op == &prim::kBarrier)
    at = std::max(at, pass_of(n->in[1], false));
  return at;
}

// Returns how n depends on exp(x - s), where s is the max of x over the axis, or 0 if the max is
// not finite. If n is linear in this exponential, n can be computed with the running max and scaled
// when the running max grows. The `top` of the result is null if n is not linear in it.
//
// For example, softmax(scores) @ v along the keys needs one pass: sum(e) and sum(e * v), where e is
// the exponential, are computed in the same pass as the max.
Region::Streamed Region::streamed(const NodePtr& n) const {
  auto pass = [&](const NodePtr& x) { return pass_of(x, contains(x) && on_tile(x)); };
  auto* op = n->op;
  if (auto e = analysis::shifted_exp(*n)) {
    bool is_reduced_here = contains(e->top) && !is_tiled(e->top);
    return is_reduced_here ? Streamed{e->top.get(), pass(e->x), e->guarded, false} : Streamed{};
  }
  auto kind = op->kind;
  if (kind != Kind::map && kind != Kind::reduce && kind != Kind::contract &&
      !is_transparent_view(*n))
    return {};
  Streamed out;
  int others = 0;  // passes before the other operands are ready
  for (std::size_t k = 0; k < n->in.size(); ++k) {
    auto& s = facts_of(*n->in[k]).order.streamed;
    // A cast to a float dtype counts as linear: a rounded term is scaled like an exact one.
    auto how = op == &prim::kCast && is_float(n->dtype) ? Linear::all : linear_in(*n, k);
    if (!s.top) {
      // exp(x - s) + c is not linear in the exponential, unless c is 0
      if (how == Linear::all && !prim::is_number(n->in[k], 0)) return {};
      others = std::max(others, pass(n->in[k]));
      continue;
    }
    // A second such operand must have the same max, in an op that is linear in both together, such
    // as e + e * v. Not linear: e * e.
    const bool fits = out.top ? how == Linear::all && out.top == s.top : how != Linear::no;
    if (!fits) return {};
    out = {s.top, std::max(out.ready, s.ready), out.guarded && s.guarded,
           out.drops_nan || s.drops_nan};
  }
  if (!out.top) return {};
  out.ready = std::max(out.ready, others);
  out.drops_nan |= analysis::selects_operand(*n) && !out.guarded;
  return out;
}

void Region::assign_passes() {
  std::unordered_map<const Node*, int> pass_of_reduction;
  auto add_reduction = [&](const NodePtr& n, int at) {
    reductions_[at].push_back(n);
    pass_of_reduction[n.get()] = at;
    member(*n).order.ready = at + 1;
  };
  for (auto& n : level_) {
    int at = first_pass(n);
    if (!contains(n) || facts_of(*n).role.never_computed) {
      if (at > 0) member(*n).order.ready = at;
      continue;
    }
    check(n);
    if (!refusal_.empty()) return;
    if (carries_state(*n)) {
      at = pass_in_direction(scan_of(*n) ? *scan_of(*n)->reverse : loop_of(*n).reverse, at);
      stateful_[at].push_back(n);
    }

    auto s = streamed(n);
    if (on_tile(n)) {
      auto& order = member(*n).order;
      order.pass = at;
      order.ready = at + 1;
      order.streamed = s;
      if (leaves(*n)) {
        stacked_[at].push_back(n);
        passes_ = std::max(passes_, at + 1);
      }

      continue;
    }
    // A gather at positions that a block scan finds is computed by the same scan, if its table is
    // ready then. An example is take(logits, argmax(logits)).
    if (n->in.size() == 2 && indexes_along(*n, name_in(*n))) {
      auto& ids = analysis::same_values(n->in[1]);
      auto* found = scan_of(*ids);
      bool scans_table = found && is_tiled(n->in[0]) && name_in(*n) == found->axis;
      if (scans_table && pass_of(n->in[0], true) <= pass_of_reduction.at(ids.get())) {
        at = pass_of_reduction.at(ids.get());
        member(*ids).order.gathers.push_back(n);
      }
    }
    // A reduction is computed with the running max if it has all axes of the max (so that its rows
    // can be scaled), and if the max is the only reason to wait.
    if (s.top && s.ready < at) {
      auto top = pass_of_reduction.find(s.top);
      bool rows = std::all_of(s.top->axes.begin(), s.top->axes.end(),
                              [&](auto& a) { return find(*n, a.name); });
      if (top != pass_of_reduction.end() && top->second == s.ready && rows && is_float(n->dtype)) {
        at = s.ready;
        member(*s.top).order.rescaled.push_back(n);
      }
    }
    add_reduction(n, at);
    passes_ = std::max(passes_, at + 1);
  }
  for (auto& r : roots_)
    if (contains(r) && is_tiled(r) && !leaves(*r) && r->op != &prim::kEnter) {
      auto at = pass_of(r, true);
      auto& list = stacked_[at];
      if (!holds(list, r)) list.push_back(r);
      passes_ = std::max(passes_, at + 1);
    }
}

// Selects the nodes that later passes read from a stacked result instead of rematerializing them:
//
// - nodes that carry a state from tile to tile (carries_state);
// - small results of expensive nodes (reductions, contractions, steps), such as the logsumexp of
//   each row: at most 1/8 of the bytes of the largest intermediate. None if the call saves nothing
//   (ChunkKeep).
//
// A reader in the body of a loop counts as well. Other nodes are rematerialized, and the same rule
// applies to their operands.
void Region::save_for_later_passes() {
  const bool small = ChunkKeep(call_.keep) != ChunkKeep::nothing;
  auto most = largest_bytes();
  std::set<std::pair<const Node*, int>> seen;
  std::vector<std::pair<NodePtr, int>> todo;
  auto read_by = [&](const NodePtr& n, int at) {
    for (auto& x : inputs_on_tile(n))
      if (is_tiled(x) || (x->op == &kLoop && contains(x))) todo.push_back({x, at});
  };
  for (auto& n : level_) {
    if (!contains(n)) continue;
    auto& order = facts_of(*n).order;
    read_by(n, order.pass >= 0 ? order.pass : order.ready - 1);
  }
  while (!todo.empty()) {
    auto [n, at] = todo.back();
    todo.pop_back();
    auto pass = facts_of(*n).order.pass;
    if (pass < 0 || pass >= at || in_body(*n) || enters(*n) || !seen.insert({n.get(), at}).second)
      continue;
    auto kind = n->op->kind;
    bool copies = n->op->in_range && !is_tiled(n->in[0]);  // copies from a resident table
    bool work = kind == Kind::reduce || kind == Kind::contract || (kind == Kind::step && !copies) ||
                kind == Kind::result;
    bool stateful = carries_state(is_loop_result(*n) ? *n->in[0] : *n);
    auto& list = stacked_[pass];
    if (n->op == &kLoop || (!stateful && (!small || !work || n->bytes() * 8 > most))) {
      read_by(n, at);
    } else if (!holds(list, n)) {
      list.push_back(n);
    }
  }
}

Nodes Region::reductions() const {
  Nodes out;
  for (auto& [pass, reductions] : reductions_) append(out, reductions);
  return out;
}
std::int64_t Region::wide_accumulator_bytes() const {
  std::int64_t bytes = 0;
  for (auto& n : reductions())
    if (auto wide = widened(n); wide->dtype != n->dtype && reduction_monoid(*n) == Monoid::sum)
      bytes += wide->bytes();
  return bytes;
}
Nodes Region::values_between_passes() const {
  Nodes out;
  for (auto& n : level_) {
    if (!contains(n) || !on_tile(n) || facts_of(*n).order.pass < 1) continue;
    for (auto& x : inputs_on_tile(n)) {
      bool same = contains(x) && on_tile(x) && !is_read_in_full(x, *n);
      if (!same && pass_of(x, false) > 0 && !holds(out, x)) out.push_back(x);
    }
  }
  return out;
}
std::int64_t Region::largest_bytes() const {
  std::unordered_set<const Node*> results;  // stored in full, tiled or not
  for (auto& n : level_)
    if (leaves(*n)) {
      results.insert(n.get());
      results.insert(n->in[0].get());
    }

  for (auto& r : roots_) results.insert(r.get());
  std::int64_t most = 1;
  for (auto& n : level_)
    if (contains(n) && is_tiled(n) && !enters(*n) && !results.count(n.get()))
      most = std::max(most, n->bytes());
  return most;
}

Regions::Regions(const ChunkKey& call, const Nodes& roots, const Nodes& level) {
  for (auto& n : level) {
    if (n->op != &prim::kEnter) continue;
    auto k = ChunkKey::of(n->attr);
    bool known =
        std::any_of(keys.begin(), keys.end(), [&](auto& other) { return other.axis == k.axis; });
    if (k.same_call(call) && !known) keys.push_back(k);
  }
  auto place = [&](auto& k) {
    return std::find(call.tiled_axes.begin(), call.tiled_axes.end(), k.axis);
  };
  std::stable_sort(keys.begin(), keys.end(), [&](auto& a, auto& b) { return place(a) < place(b); });
  for (auto& k : keys) of.emplace_back(k.attr(), roots, level);
}
bool Regions::contain(const NodePtr& n) const {
  return std::any_of(of.begin(), of.end(), [&](auto& r) { return r.contains(n); });
}

}  // namespace haliax
