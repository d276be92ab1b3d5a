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
bool Region::comes_in(const Node& n) const {
  if (enters(n)) return true;
  bool outside = around_ && !n.varies_with(around_);
  bool sliced = is_dynamic_slice(n) && SliceAttr::of(n).axis != tiled_axis(key_).name;
  return outside && (is_region_boundary(n) || sliced) && comes_in(*n.in[0]);
}
bool Region::leaves(const Node& n) const { return n.op == &prim::kLeave && n.attr == key_; }
bool Region::has_axis(const Node& n, Name a) const {
  auto* mine = find(n, a);
  return mine && mine->size == axis_.size;
}

Region::Region(const Attr& key, const Nodes& roots, const Nodes& level, const Node* around)
    : key_(key), around_(around), waits_(ChunkForm(ChunkKey::of(key).form) == ChunkForm::recompute),
      roots_(roots), level_(level) {
  const Node* border = nullptr;
  for (auto& n : level) {
    if (enters(*n)) border = n.get();
    for (auto& x : n->in)
      if (x && comes_in(*x)) border = x.get();
    if (n->op != &kLoop) continue;
    auto& l = loop_of(*n);
    for (auto& i : l.index) inner_.insert(i.get());
    for (std::size_t k = 0; k < l.results.size(); ++k)
      if (l.results[k].carry) owner_[l.results[k].carry.get()] = {n, k};
  }
  if (!border) return;
  axis_ = *find(*border, tiled_axis(key).name);
  std::unordered_set<const Node*> read;
  for (auto& r : roots_) read.insert(r.get());
  for (auto& n : level_) {
    auto turns = n->op->block_scan ? n->op->block_scan(n, {}) : std::nullopt;
    for (auto& x : n->in) {
      bool past =
          turns && std::find(turns->reads.begin(), turns->reads.end(), x) == turns->reads.end();
      if (past)
        member(*x).passed = true;
      else if (x)
        read.insert(x.get());
    }
  }
  for (auto* x : read)
    if (known_of(*x).passed) member(*x).passed = false;
  find_bridges();
  // Repeats until no further loop along the axis is found. The nodes in the body of such a loop are
  // not members of the region.
  for (auto known = stepping_.size() + 1; known != stepping_.size();) {
    known = stepping_.size();
    for (auto& [n, m] : members_) m.role = {};
    // Only carries require repetition: the level lists them before the values that they
    // receive.
    for (bool more = true; more;) {
      more = false;
      for (auto& n : level_) more |= learn(n) && !owner_.empty();
    }
  }
  leave_to_the_outside();
  empty_ =
      std::none_of(members_.begin(), members_.end(), [](auto& m) { return m.second.role.inside; });
}

void Region::refuse(const Node& n, const std::string& why) const {
  throw Refusal(failure_at(
      n.origin, "chunked_reduce",
      std::string(prim::user_name(n)) + " " + why + " over the tiled axis " + to_string(axis_)));
}

// Marks the nodes between a `leave` and an `enter` as bridges, which are computed on chunks as
// well. For example, the cotangent of a token may be computed from the loss of the same token. A
// bridge does not cross the boundaries of another call, which is tiled by itself.
void Region::find_bridges() {
  std::unordered_set<const Node*> from_leave, to_enter;
  const auto call = ChunkKey::of(key_);
  auto may = [&](const NodePtr& n) {
    if (is_region_boundary(*n) && (n->attr == key_ || !ChunkKey::of(n->attr).same_call(call)))
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

// A barrier needs only its value. `before` adds the node for which it waits, if barriers wait in
// this region (waits_).
Nodes Region::needed_by(const NodePtr& n) const {
  if (auto* t = turns(*n)) return t->reads;
  if (n->op == &prim::kBarrier) return {n->in[0]};
  Nodes out;
  add_reads(n, out);
  return out;
}
bool Region::goes_on(const Node& n) const {
  if (auto* t = turns(n)) return t->running;
  return n.op == &kLoop && goes_along(n);
}
const BlockScan* Region::turns(const Node& n) const {
  auto& t = known_of(n).role.turns;
  return t ? &*t : nullptr;
}
// Returns true, and stores the block scan, if n needs the full axis and is computed by a scan over
// its chunks. Excludes nodes in the body of a loop: each iteration would need a state of its own.
bool Region::makes_by_turns(const NodePtr& n) {
  auto t = n->op->block_scan && !in_body(*n) ? n->op->block_scan(n, {}) : std::nullopt;
  if (!t) return false;
  bool goes = std::all_of(t->reads.begin(), t->reads.end(), [&](auto& x) {
    return contains(x) && walks(x) && !is_out(x, *n) &&
           (enters(*x) ? axis_.name : known_of(*x).role.axis) == t->axis;
  });
  if (!goes) return false;
  auto& role = member(*n).role;
  if (t->running) role.axis = t->axis;
  role.turns = std::move(*t);
  return true;
}

bool Region::is_out(const NodePtr& x, const Node& reader) const {
  return (leaves(*x) || known_of(*x).bridge) && !known_of(reader).bridge && !enters(reader);
}
// Determines whether n is in the region, and the name of the tiled axis in n. Returns true if this
// changed the role of n.
bool Region::learn(const NodePtr& n) {
  if (contains(n) || in_step(*n)) return false;
  if (makes_by_turns(n)) return member(*n).role.inside = true;
  Names names;
  bool partial = false;
  auto from = [&](const NodePtr& x) {
    if (!x) return;
    auto& its = known_of(*x).role;
    partial |= its.partial;
    Name name;
    if (comes_in(*x))
      name = axis_.name;
    else if (its.axis && !is_out(x, *n))
      name = its.axis;
    if (name && !has(names, name)) names.push_back(name);
  };
  if (enters(*n))
    names = {axis_.name};
  else if (n->op == &prim::kCarry) {
    auto of = owner_.find(n.get());
    if (of == owner_.end()) return false;  // carry of an enclosing loop
    auto& r = loop_of(*of->second.first).results[of->second.second];
    for (auto& v : r.value) from(v);
    from(r.start);
    // A carry that is computed from values outside of the region is in the region as well if its
    // loop is, and if the carry has the axis.
    if (names.empty() && contains(of->second.first)) names = {name_in(*of->second.first)};
    std::erase_if(names, [&](Name a) { return !has_axis(*n, a); });
    partial = false;
  } else if (n->op == &kResult && contains(n->in[0]) && goes_along(*n->in[0])) {
    auto& role = member(*n).role;
    if (result_of(*n).fold == Fold::stack) role.axis = loop_of(*n).axis.name;
    return role.inside = true;
  } else if (is_loop_result(*n)) {
    from(result_of(*n).value[0]);
  } else {
    for (auto& x : needed_by(n)) from(x);
  }
  if (names.empty() && !partial) return false;
  bool at_index = is_dynamic_slice(*n) && inner_.count(n->in[1].get());
  if (at_index && Names{SliceAttr::of(*n).axis} == names && SliceAttr::of(*n).drop) {
    stepping_.insert(n->in[1].get());
    return false;
  }
  auto& me = member(*n);
  me.role.inside = true;
  if (me.passed && !names.empty() && along(*n, 0, names[0]).way == Along::Way::full)
    return me.role.unmade = true;
  if (n->op == &kLoop) return true;
  if (names.size() > 1)
    refuse(*n, "pairs positions (" + std::string(names[0].text()) + " with " +
                   std::string(names[1].text()) +
                   "; outside of the function, rename the axis of the array to read in full)");
  if (is_transparent_view(*n))
    for (auto& a : names) a = name_in_result(*n, 0, a);
  // The result lacks an axis that n reduces, although it may have another axis of the same name.
  // For example, a scatter reduces the axis of its updates, and its table may have an axis of this
  // name.
  std::erase_if(names, [&](Name a) {
    bool folded = false;
    for (std::size_t k = 0; k < n->in.size() && n->op->kind == Kind::step; ++k)
      folded |= n->in[k] && walks(n->in[k]) && along(*n, k, a).way == Along::Way::fold;
    return folded || !has_axis(*n, a);
  });
  if (!names.empty())
    me.role.axis = names[0];
  else
    me.role.partial = in_body(*n) || (partial && !is_loop_result(*n));
  return true;
}
bool Region::in_step(const Node& n) const { return varies_with(n, stepping_); }
bool Region::in_body(const Node& n) const { return varies_with(n, inner_); }

// Removes from the region each reduction that is computed elementwise from entered arrays, without
// an intermediate that is larger than these arrays, if another node of the region depends on the
// result. For example, the number of unmasked tokens is the sum of a mask, and each term of the
// loss is divided by it. On the full arrays, such a reduction reads its operands once; in the
// region, it would add a pass.
void Region::leave_to_the_outside() {
  // From an elementwise function of entered arrays to the bytes of the largest of these arrays.
  std::unordered_map<const Node*, std::int64_t> widest;
  std::unordered_set<const Node*> awaited;
  for (auto i = level_.rbegin(); i != level_.rend(); ++i) {
    bool requested = (contains(*i) && !leaves(**i)) || awaited.count(i->get());
    if (requested)
      for (auto& x : (*i)->in)
        if (x) awaited.insert(x.get());
  }
  Nodes out;
  for (auto& n : level_) {
    if (!contains(n)) continue;
    bool border = enters(*n), fold = n->op->kind == Kind::reduce && !walks(n) && !in_body(*n);
    if (!border && !fold && n->op->kind != Kind::map && !keeps_names(*n)) continue;
    std::int64_t most = border ? n->bytes() : 0;
    bool plain = true;
    if (!border)
      for (auto& x : n->in) {
        if (!contains(x)) continue;
        auto w = widest.find(x.get());
        plain &= w != widest.end();
        if (plain) most = std::max(most, w->second);
      }
    if (!plain || n->bytes() > most) continue;
    if (!fold)
      widest[n.get()] = most;
    else if (awaited.count(n.get()))
      out.push_back(n);
  }
  for (auto& n : out) member(*n).role = {};
}

Name Region::name_in(const Node& n) const {
  if (auto a = known_of(n).role.axis) return a;
  if (auto* t = turns(n)) return t->axis;
  for (auto& x : n.in)
    if (x && walks(x)) return comes_in(*x) ? axis_.name : known_of(*x).role.axis;
  return axis_.name;
}
// Returns true if n gathers from, or scatters to, in[0] by index along the axis. On a chunk, n
// processes only the indices that are inside of the chunk.
bool Region::picks(const Node& n, Name a) const {
  if (!n.op->on_block || n.in.empty() || !has_axis(*n.in[0], a)) return false;
  // The ids may have an axis with this name that is not the tiled one, for example the k first
  // positions of an order. has_axis compares the size as well.
  bool clashes =
      std::any_of(n.in.begin() + 1, n.in.end(), [&](auto& x) { return has_axis(*x, a); });
  return along(n, 0, a).way == Along::Way::pick || (has(indexed_axes(n), a) && !clashes);
}

// Returns the monoid that merges the results of the chunks. Returns none if they cannot be merged.
std::optional<Monoid> Region::folds_by(const Node& n) const {
  if (is_loop_result(n)) {
    auto& r = result_of(n);
    bool sums = r.fold == Fold::stack || (r.fold == Fold::fold && r.monoid == Monoid::sum);
    return sums || goes_along(*n.in[0]) ? std::optional(Monoid::sum) : std::nullopt;
  }
  auto a = name_in(n);
  for (std::size_t k = 0; k < n.in.size(); ++k) {
    if (!n.in[k] || is_order_only(n, k) || !walks(n.in[k])) continue;
    auto rule = along(n, k, a);
    if (k == 0 && picks(n, a)) return Monoid::sum;  // each index is inside of one chunk only
    if (rule.way == Along::Way::fold) return rule.monoid;
  }
  return {};
}

void Region::check(const NodePtr& n) const {
  auto a = name_in(*n);
  auto& op = *n->op;
  if (&op == &kCustomVjp) refuse(*n, "cannot be split into chunks");
  if (turns(*n)) return;
  if (&op == &kLoop) {
    if (loop_of(*n).axis.name == a) check_steps(*n, a);
    return;
  }
  bool at_index = is_dynamic_slice(*n) && n->in[1]->op == &prim::kIndex;
  if (at_index && SliceAttr::of(*n).axis == a)
    refuse(*n, "carries values from position to position");
  for (std::size_t k = 0; k < n->in.size(); ++k) {
    if (!n->in[k] || is_order_only(*n, k) || !walks(n->in[k])) continue;
    using Way = Along::Way;
    if (k == 0 && picks(*n, a)) continue;
    auto way = along(*n, k, a).way;
    bool moves = way == Way::full && op.linear == Linear::moves;
    if (way == Way::shift || way == Way::regroup || moves) refuse(*n, "mixes positions");
    if (way == Way::full) refuse(*n, "requires all positions at once");
  }
  auto partial = [&](const NodePtr& x) { return x && known_of(*x).role.partial; };
  // In the body of a loop, `partial` nodes have the sum of one chunk, and the chunks are added
  // after the loop. Therefore the ops that follow such a sum must be linear.
  if (partial(n)) {
    bool sums = false;
    for (auto& x : n->in) sums |= x && walks(x);
    bool fold = sums && folds_by(*n) == Monoid::sum;
    bool moves = !sums && (op.linear == Linear::all || op.linear == Linear::moves);
    for (auto& x : n->in)
      moves &= !x || partial(x) || !is_float(x->dtype) || x->op->kind == Kind::leaf;
    if (!fold && !moves && n->op != &kResult) refuse(*n, "reads a total, in a loop,");
  }
  for (auto& x : n->in) {
    bool total = partial(x) && !partial(n) && n->op != &kResult;
    if (total) refuse(*n, "reads a total, in a loop,");
  }
}

// Raises a Refusal unless the loop along the axis can be computed chunk by chunk, with its state
// carried between chunks. At each position, the loop must read only this position of the nodes on
// chunks. For example, it may read x[i], but neither x[i - 1] nor all of x.
void Region::check_steps(const Node& n, Name a) const {
  auto& l = loop_of(n);
  auto* index = l.index[0].get();
  auto whole = [&](const NodePtr& x) { return x && contains(x) && on_chunk(x) && !is_out(x, n); };
  bool ok = goes_along(n) && l.drop && !in_body(n) && l.axis.size == axis_.size;
  for (auto& r : l.results) ok &= !whole(r.start) && !whole(r.value[0]);
  for (auto& m : level_) {
    if (!m->varies_with(index)) continue;
    bool own = is_slice_at(*m, index) && SliceAttr::of(*m).axis == a;
    for (auto& x : m->in) ok &= own || !whole(x);
  }
  if (!ok) refuse(n, "carries values from position to position");
}
int Region::sweep_towards(bool reverse, int at) {
  while (towards_.emplace(at, reverse).first->second != reverse) ++at;
  return at;
}
bool Region::goes_back(int sweep) const {
  auto i = towards_.find(sweep);
  return i == towards_.end() ? reverse_ : i->second;
}

// Returns the pass that computes x if a chunk of x is read (`chunk`), and otherwise the number of
// passes that must finish before the full x is available.
int Region::stage_of(const NodePtr& x, bool chunk) const {
  auto& known = known_of(*x).order;
  return chunk ? std::max(known.stage, 0) : known.ready;
}
// Returns the number of passes that must finish before n: the first pass that can compute it.
int Region::before(const NodePtr& n) const {
  int at = 0;
  for (auto& x : n->op == &kLoop && goes_along(*n) ? n->in : needed_by(n)) {
    bool same = contains(x) && on_chunk(x) && contains(n) && !is_out(x, *n);
    at = std::max(at, stage_of(x, same));
  }
  if (waits_ && n->op == &prim::kBarrier) at = std::max(at, stage_of(n->in[1], false));
  return at;
}

// Returns how n depends on exp(x - s), where s is the max of x over the axis, or 0 if the max is
// not finite. If n is linear in this exponential, n can be computed with the running max and scaled
// when the running max grows. The `top` of the result is null if n is not linear in it.
//
// For example, softmax(scores) @ v along the keys needs one pass: sum(e) and sum(e * v), where e is
// the exponential, are computed in the same pass as the max.
Region::Streamed Region::streamed(const NodePtr& n) const {
  auto stage = [&](const NodePtr& x) { return stage_of(x, contains(x) && on_chunk(x)); };
  auto* op = n->op;
  if (auto e = analysis::shifted_exp(*n)) {
    bool streams = contains(e->top) && !walks(e->top);
    return streams ? Streamed{e->top.get(), stage(e->x), e->guarded, false} : Streamed{};
  }
  auto kind = op->kind;
  if (kind != Kind::map && kind != Kind::reduce && kind != Kind::contract &&
      !is_transparent_view(*n))
    return {};
  Streamed out;
  int others = 0;
  for (std::size_t k = 0; k < n->in.size(); ++k) {
    auto& s = known_of(*n->in[k]).order.streamed;
    // A cast to a float dtype counts as linear: a rounded term is scaled like an exact one.
    auto how = op == &prim::kCast && is_float(n->dtype) ? Linear::all : linear_in(*n, k);
    if (s.top && (how == Linear::no || (out.top && (how != Linear::all || out.top != s.top))))
      return {};
    if (!s.top && how == Linear::all && !prim::is_number(n->in[k], 0)) return {};
    if (s.top)
      out = {s.top, std::max(out.before, s.before), out.guarded && s.guarded, out.hides || s.hides};
    else
      others = std::max(others, stage(n->in[k]));
  }
  if (!out.top) return {};
  out.before = std::max(out.before, others);
  out.hides |= analysis::selects_operand(*n) && !out.guarded;
  return out;
}

int Region::sweeps() {
  for (auto* m : {&folds_, &stacks_, &steps_}) m->clear();
  for (auto& [n, m] : members_) m.order = {};
  towards_.clear();
  std::unordered_map<const Node*, int> fold_stage;
  auto fold = [&](const NodePtr& n, int at) {
    folds_[at].push_back(n);
    fold_stage[n.get()] = at;
    member(*n).order.ready = at + 1;
  };
  int sweeps = 0;
  for (auto& n : level_) {
    int at = before(n);
    if (!contains(n) || known_of(*n).role.unmade) {
      if (at > 0) member(*n).order.ready = at;
      continue;
    }
    check(n);
    if (goes_on(*n)) {
      at = sweep_towards(turns(*n) ? *turns(*n)->reverse : loop_of(*n).reverse, at);
      steps_[at].push_back(n);
    }

    auto s = streamed(n);
    if (on_chunk(n)) {
      auto& order = member(*n).order;
      order.stage = at;
      order.ready = at + 1;
      order.streamed = s;
      if (leaves(*n)) {
        stacks_[at].push_back(n);
        sweeps = std::max(sweeps, at + 1);
      }

      continue;
    }
    if (!turns(*n) && !folds_by(*n)) refuse(*n, "is not a sum, product, max or min");
    // A gather at positions that a block scan finds is computed by the same scan, if its table is
    // ready then. An example is take(logits, argmax(logits)).
    if (n->in.size() == 2 && picks(*n, name_in(*n))) {
      auto& ids = analysis::same_values(n->in[1]);
      auto* found = turns(*ids);
      bool there = found && walks(n->in[0]) && name_in(*n) == found->axis;
      if (there && stage_of(n->in[0], true) <= fold_stage.at(ids.get())) {
        at = fold_stage.at(ids.get());
        member(*ids).order.picked.push_back(n);
      }
    }
    // A reduction is computed with the running max if it has all axes of the max (so that its rows
    // can be scaled), and if the max is the only reason to wait.
    if (s.top && s.before < at) {
      auto top = fold_stage.find(s.top);
      bool rows = std::all_of(s.top->axes.begin(), s.top->axes.end(),
                              [&](auto& a) { return find(*n, a.name); });
      if (top != fold_stage.end() && top->second == s.before && rows && is_float(n->dtype)) {
        at = s.before;
        member(*s.top).order.streams.push_back(n);
      }
    }
    fold(n, at);
    sweeps = std::max(sweeps, at + 1);
  }
  for (auto& r : roots_)
    if (contains(r) && walks(r) && !leaves(*r) && r->op != &prim::kEnter) {
      auto at = stage_of(r, true);
      auto& list = stacks_[at];
      if (!holds(list, r)) list.push_back(r);
      sweeps = std::max(sweeps, at + 1);
    }
  return sweeps;
}

// Selects the nodes that later passes read from a stacked result instead of rematerializing them:
// - nodes that carry a state from chunk to chunk (goes_on);
// - with `small`: reductions, contractions and other nodes that need work, if they have at most 1/8
//   of the bytes of the largest intermediate, such as the logsumexp of each row.
// A reader in the body of a loop counts as well. Other nodes are rematerialized, and the same rule
// applies to their operands.
void Region::keep_for_later(bool small) {
  auto most = largest_bytes();
  std::set<std::pair<const Node*, int>> seen;
  std::vector<std::pair<NodePtr, int>> todo;
  auto read_by = [&](const NodePtr& n, int at) {
    for (auto& x : needed_by(n))
      if (walks(x) || (x->op == &kLoop && contains(x))) todo.push_back({x, at});
  };
  for (auto& n : level_) {
    if (!contains(n)) continue;
    auto& order = known_of(*n).order;
    read_by(n, order.stage >= 0 ? order.stage : order.ready - 1);
  }
  while (!todo.empty()) {
    auto [n, at] = todo.back();
    todo.pop_back();
    auto stage = known_of(*n).order.stage;
    if (stage < 0 || stage >= at || in_body(*n) || enters(*n) || !seen.insert({n.get(), at}).second)
      continue;
    auto kind = n->op->kind;
    bool copies = n->op->in_range && !walks(n->in[0]);  // copies from a resident table
    bool work = kind == Kind::reduce || kind == Kind::contract || (kind == Kind::step && !copies) ||
                kind == Kind::result;
    bool stepped = goes_on(is_loop_result(*n) ? *n->in[0] : *n);
    auto& list = stacks_[stage];
    if (n->op == &kLoop || (!stepped && (!small || !work || n->bytes() * 8 > most))) {
      read_by(n, at);
    } else if (!holds(list, n)) {
      list.push_back(n);
    }
  }
}

Nodes Region::folds() const {
  Nodes out;
  for (auto& [sweep, folds] : folds_) append(out, folds);
  return out;
}
std::int64_t Region::wide_sums() {
  sweeps();
  std::int64_t bytes = 0;
  for (auto& n : folds())
    if (auto wide = widened(n); wide->dtype != n->dtype && folds_by(*n) == Monoid::sum)
      bytes += wide->bytes();
  return bytes;
}
Nodes Region::between() {
  sweeps();
  Nodes out;
  for (auto& n : level_) {
    if (!contains(n) || !on_chunk(n) || known_of(*n).order.stage < 1) continue;
    for (auto& x : needed_by(n)) {
      bool same = contains(x) && on_chunk(x) && !is_out(x, *n);
      if (!same && stage_of(x, false) > 0 && !holds(out, x)) out.push_back(x);
    }
  }
  return out;
}
std::int64_t Region::largest_bytes() const {
  std::unordered_set<const Node*> out;  // results are stored in any case
  for (auto& n : level_)
    if (leaves(*n)) {
      out.insert(n.get());
      out.insert(n->in[0].get());
    }

  for (auto& r : roots_) out.insert(r.get());
  std::int64_t most = 1;
  for (auto& n : level_)
    if (contains(n) && walks(n) && !enters(*n) && !out.count(n.get()))
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
