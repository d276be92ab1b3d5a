// Assigns the nodes of a region to passes.
#include "compile/chunk/region_passes.h"

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

// A result is small if it has at most this fraction of the bytes of the largest intermediate.
constexpr std::int64_t kSmallResult = 8;  // 1 / 8

}  // namespace

RegionPasses::RegionPasses(std::shared_ptr<const RegionMembers> members)
    : members_(std::move(members)) {
  for (auto& n : members_->level()) assign(n);
  for (auto& r : members_->roots())
    if (members_->contains(r) && members_->is_tiled(r) && !members_->leaves(*r) &&
        r->op != &prim::kEnter)
      stack(r, tile_pass(r));
}
// Returns the first pass, at or after pass `at`, that may iterate in this direction. Fixes its
// direction.
int RegionPasses::pass_in_direction(bool reverse, int at) {
  while (directions_.emplace(at, reverse).first->second != reverse) ++at;
  return at;
}
bool RegionPasses::is_reversed(int pass) const {
  auto i = directions_.find(pass);
  return i == directions_.end() ? members_->call().reverse : i->second;
}

// Returns the number of passes that must finish before n: the first pass that can compute it.
int RegionPasses::first_pass(const NodePtr& n) const {
  int at = 0;
  for (auto& x :
       n->op == &kLoop && members_->is_along_axis(*n) ? n->in : members_->inputs_on_tile(n)) {
    bool same = members_->contains(x) && members_->on_tile(x) && members_->contains(n) &&
                !members_->is_read_in_full(x, *n);
    at = std::max(at, (same ? tile_pass(x) : passes_before(x)));
  }
  if (members_->barriers_split_passes() && n->op == &prim::kBarrier)
    at = std::max(at, passes_before(n->in[1]));
  return at;
}

// Returns how n depends on exp(x - s), where s is the max of x over the axis, or 0 if the max is
// not finite. If n is linear in this exponential, n can be computed with the running max and scaled
// when the running max grows. The `top` of the result is null if n is not linear in it.
//
// For example, softmax(scores) @ v along the keys needs one pass: sum(e) and sum(e * v), where e is
// the exponential, are computed in the same pass as the max.
RegionPasses::Streamed RegionPasses::streamed(const NodePtr& n) const {
  auto pass = [&](const NodePtr& x) {
    bool on_tile = members_->contains(x) && members_->on_tile(x);
    return on_tile ? tile_pass(x) : passes_before(x);
  };
  auto* op = n->op;
  if (auto e = analysis::shifted_exp(*n)) {
    bool is_reduced_here = members_->contains(e->top) && !members_->is_tiled(e->top);
    return is_reduced_here ? Streamed{e->top.get(), pass(e->x), e->guarded, false} : Streamed{};
  }
  auto kind = op->kind;
  if (kind != Kind::map && kind != Kind::reduce && kind != Kind::contract &&
      !is_transparent_view(*n))
    return {};
  Streamed out;
  int others = 0;  // passes before the other operands are ready
  for (std::size_t k = 0; k < n->in.size(); ++k) {
    auto& s = order_of(*n->in[k]).streamed;
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

void RegionPasses::assign(const NodePtr& n) {
  int at = first_pass(n);
  if (!members_->contains(n) || members_->is_never_computed(*n)) {
    if (at > 0) orders_[n.get()].ready = at;
    return;
  }
  if (members_->carries_state(*n)) {
    auto* scan = members_->scan_of(*n);
    at = pass_in_direction(scan ? *scan->reverse : loop_of(*n).reverse, at);
    stateful_[at].push_back(n);
  }
  if (!members_->on_tile(n)) return assign_reduction(n, at);
  auto s = streamed(n);
  auto& order = orders_[n.get()];
  order.pass = at;
  order.ready = at + 1;
  order.streamed = s;
  if (members_->leaves(*n)) stack(n, at);
}
void RegionPasses::assign_reduction(const NodePtr& n, int at) {
  // A gather at positions that a block scan finds is computed by the same scan, if its table is
  // ready then. An example is take(logits, argmax(logits)).
  if (n->in.size() == 2 && members_->indexes_along(*n, members_->name_in(*n))) {
    auto& ids = analysis::same_values(n->in[1]);
    auto* found = members_->scan_of(*ids);
    bool scans_table =
        found && members_->is_tiled(n->in[0]) && members_->name_in(*n) == found->axis;
    if (scans_table && tile_pass(n->in[0]) <= pass_of_reduction_.at(ids.get())) {
      at = pass_of_reduction_.at(ids.get());
      orders_[ids.get()].gathers.push_back(n);
    }
  }
  // A reduction is computed with the running max if it has all axes of the max (so that its rows
  // can be scaled), and if the max is the only reason to wait.
  if (auto s = streamed(n); s.top && s.ready < at) {
    auto top = pass_of_reduction_.find(s.top);
    bool rows = std::all_of(s.top->axes.begin(), s.top->axes.end(),
                            [&](auto& a) { return find(*n, a.name); });
    if (top != pass_of_reduction_.end() && top->second == s.ready && rows && is_float(n->dtype)) {
      at = s.ready;
      orders_[s.top].rescaled.push_back(n);
    }
  }
  reductions_[at].push_back(n);
  pass_of_reduction_[n.get()] = at;
  orders_[n.get()].ready = at + 1;
  count_ = std::max(count_, at + 1);
}
void RegionPasses::stack(const NodePtr& n, int at) {
  auto& list = stacked_[at];
  if (!holds(list, n)) list.push_back(n);
  count_ = std::max(count_, at + 1);
}

// Adds the nodes that later passes read from a stacked result instead of rematerializing them:
//
// - nodes that carry a state from tile to tile (carries_state);
// - small results of expensive nodes (reductions, contractions, steps), such as the logsumexp of
//   each row: at most 1/8 of the bytes of the largest intermediate. None if the call saves nothing
//   (ChunkKeep).
//
// A reader in the body of a loop counts as well. Other nodes are rematerialized, and the same rule
// applies to their operands.
RegionPasses::NodesByPass RegionPasses::stacked() const {
  auto out = stacked_;
  const bool small = ChunkKeep(members_->call().keep) != ChunkKeep::nothing;
  auto most = largest_bytes();
  std::set<std::pair<const Node*, int>> seen;
  std::vector<std::pair<NodePtr, int>> todo;
  auto read_by = [&](const NodePtr& n, int at) {
    for (auto& x : members_->inputs_on_tile(n))
      if (members_->is_tiled(x) || (x->op == &kLoop && members_->contains(x)))
        todo.push_back({x, at});
  };
  for (auto& n : members_->level()) {
    if (!members_->contains(n)) continue;
    auto& order = order_of(*n);
    read_by(n, order.pass >= 0 ? order.pass : order.ready - 1);
  }
  while (!todo.empty()) {
    auto [n, at] = todo.back();
    todo.pop_back();
    auto pass = order_of(*n).pass;
    if (pass < 0 || pass >= at || members_->in_body(*n) || members_->enters(*n) ||
        !seen.insert({n.get(), at}).second)
      continue;
    auto kind = n->op->kind;
    bool copies = n->op->in_range && !members_->is_tiled(n->in[0]);  // copies from a resident table
    bool work = kind == Kind::reduce || kind == Kind::contract || (kind == Kind::step && !copies) ||
                kind == Kind::result;
    bool stateful = members_->carries_state(is_loop_result(*n) ? *n->in[0] : *n);
    auto& list = out[pass];
    if (n->op == &kLoop || (!stateful && (!small || !work || n->bytes() * kSmallResult > most))) {
      read_by(n, at);
    } else if (!holds(list, n)) {
      list.push_back(n);
    }
  }
  return out;
}
Nodes RegionPasses::all_reductions() const {
  Nodes out;
  for (auto& [pass, reductions] : reductions_) append(out, reductions);
  return out;
}
Nodes RegionPasses::values_between_passes() const {
  Nodes out;
  for (auto& n : members_->level()) {
    if (!members_->contains(n) || !members_->on_tile(n) || order_of(*n).pass < 1) continue;
    for (auto& x : members_->inputs_on_tile(n)) {
      bool same =
          members_->contains(x) && members_->on_tile(x) && !members_->is_read_in_full(x, *n);
      if (!same && passes_before(x) > 0 && !holds(out, x)) out.push_back(x);
    }
  }
  return out;
}
// Returns the bytes of the largest value that tiling avoids materializing, at least 1.
std::int64_t RegionPasses::largest_bytes() const {
  std::unordered_set<const Node*> results;  // stored in full, tiled or not
  for (auto& n : members_->level())
    if (members_->leaves(*n)) {
      results.insert(n.get());
      results.insert(n->in[0].get());
    }

  for (auto& r : members_->roots()) results.insert(r.get());
  std::int64_t most = 1;
  for (auto& n : members_->level())
    if (members_->contains(n) && members_->is_tiled(n) && !members_->enters(*n) &&
        !results.count(n.get()))
      most = std::max(most, n->bytes());
  return most;
}

}  // namespace haliax
