#include "transforms/scores.h"

#include <algorithm>

#include "base/environment.h"
#include "graph/axes.h"
#include "graph/fail.h"
#include "haliax/jit.h"
#include "ops/attr.h"
#include "ops/by_blocks.h"
#include "ops/prim.h"
#include "transforms/chunked.h"

namespace haliax {
namespace {

using Set = std::unordered_set<const Node*>;

// What is made of scores is made in f32, be they narrower.
std::int64_t f32_bytes(const Node& scores) {
  return scores.size() * std::max(bytes_of(DType::f32), bytes_of(scores.dtype));
}
bool reads(const Node& n, const Set& some) {
  return std::any_of(n.in.begin(), n.in.end(), [&](auto& x) { return x && some.count(x.get()) > 0; });
}
Set made_of(const Nodes& roots, const Nodes& of) {
  Set goals;
  for (auto& n : of) goals.insert(n.get());
  return dependents(roots, goals);
}
// Made position by position along an axis, which all operands that have it call the same.
bool goes_along(const Node& n, Name a) {
  if (!has(n.axes, a) || n.op == &kCustomVjp || n.op->kind == Kind::loop || n.op->kind == Kind::result) return false;
  for (std::size_t k = 0; k < n.in.size(); ++k) {
    auto& x = n.in[k];
    if (!x || only_waits(n, k)) continue;
    for (auto& its : x->axes) {
      auto rule = along(n, k, its.name);
      bool same = rule.point == a;               // the axis, or one that becomes it
      if ((same || its.name == a) && !(same && its.name == a && rule.way == Along::Way::map)) return false;
    }
  }
  return true;
}

// The nodes of one level, and what is made of some scores among them.
class ScoresOfLevel {
 public:
  ScoresOfLevel(const Nodes& roots, const Node* index, const Nodes& of) : all_(without_bodies(level_of(roots, index))) {
    for (auto& r : roots) given_.insert(r.get());
    bordered_ = between_borders(all_);           // already
    if (!of.empty()) allowed_ = made_of(roots, of);
  }
  const Nodes& all() const { return all_; }
  bool gives(const Node* n) const { return given_.count(n) > 0; }
  bool is_large(const Node& n, std::optional<std::int64_t> budget) const {
    if (n.op->kind != Kind::contract || bordered_.count(&n) || n.in[0] == n.in[1]) return false;
    if (!allowed_.empty() && !allowed_.count(&n)) return false;
    return f32_bytes(n) > budget.value_or(std::max(kUsualBudget, n.in[0]->bytes() + n.in[1]->bytes()));
  }
  // What lies between borders around the scores along an axis of the queries; empty: they cannot be walked so, because of `why`
  // if they are weighed at all.
  Set region(const Node& scores, std::size_t side, Name queries, const Axes& keys, const Node*& why) const {
    auto is_score = [&](const Node& n) {
      return has(n.axes, queries) && std::all_of(keys.begin(), keys.end(), [&](auto& k) { return has(n.axes, k.name); });
    };
    Set made{&scores}, after{&scores}, rows, outs;   // scores; all that depends on them; of a query each; sums over the keys
    auto refuse = [&](const Node& n) {
      if (std::any_of(all_.begin(), all_.end(), [&](auto& r) { return weighs(*r, made, keys); })) why = &n;
      return Set();
    };
    for (auto& n : all_) {
      if (!reads(*n, after)) continue;
      after.insert(n.get());
      bool of_scores = reads(*n, made);
      bool inside = std::all_of(n->in.begin(), n->in.end(), [&](auto& x) {
        return !x || !after.count(x.get()) || made.count(x.get()) || rows.count(x.get());
      });
      bool point = goes_along(*n, queries);
      if (of_scores && (!inside || !point)) return refuse(*n);
      if (inside && point && is_score(*n) && n->op->kind != Kind::contract) made.insert(n.get());
      else if (of_scores && n->op->kind == Kind::contract) outs.insert(n.get());
      else if (inside && point && n->op->kind != Kind::contract) rows.insert(n.get());
      else if (of_scores) return refuse(*n);
    }
    for (auto* n : made)
      if (given_.count(n)) return refuse(*n);
    Set needed;                                  // rows that scores, or sums over the keys, are made of; or that scores give
    for (auto i = all_.rbegin(); i != all_.rend(); ++i) {
      auto* n = i->get();
      if (rows.count(n) && (needed.count(n) || reads(*n, made))) needed.insert(n);
      if (!needed.count(n) && !made.count(n) && !outs.count(n)) continue;
      for (auto& x : n->in)
        if (x && rows.count(x.get())) needed.insert(x.get());
    }
    // A function of all that a query scores, such as a softmax: without one it is a layer's hidden values.
    bool weighed = std::any_of(needed.begin(), needed.end(), [&](auto* n) { return weighs(*n, made, keys); });
    if (outs.empty() || !weighed) return {};
    made.insert(needed.begin(), needed.end()), made.insert(outs.begin(), outs.end());
    for (auto* x = scores.in[side].get(); x && is_scaled(*x, queries, made);) {
      made.insert(x);
      auto whole = [](auto& y) { return !y->axes.empty(); };
      x = std::find_if(x->in.begin(), x->in.end(), whole)->get();
    }
    return made;
  }
  // Is it folded over the keys?
  static bool weighs(const Node& n, const Set& made, const Axes& keys) {
    return n.op->kind == Kind::reduce && made.count(n.in[0].get()) && common(n.axes, keys).empty();
  }
  // Queries times a number, or in another dtype, for these scores alone: they are made so chunk by chunk.
  bool is_scaled(const Node& n, Name queries, const Set& made) const {
    if (n.op->kind != Kind::map || given_.count(&n) || (!allowed_.empty() && !allowed_.count(&n))) return false;
    int arrays = 0;
    for (std::size_t k = 0; k < n.in.size(); ++k)
      if (!n.in[k]->axes.empty()) arrays += linear_in(n, k) == Linear::no ? 2 : 1;
    bool alone = std::all_of(all_.begin(), all_.end(), [&](auto& r) { return made.count(r.get()) || !reads(*r, {&n}); });
    return arrays == 1 && alone && goes_along(n, queries);
  }

 private:
  Nodes all_;
  Set given_, bordered_, allowed_;
};

struct Walker {
  std::optional<std::int64_t> budget;
  const Nodes& of;
  std::vector<std::string>* whole;

  std::optional<Nodes> bordered_once(const Nodes& roots, const Node* index, int depth) const {
    ScoresOfLevel level(roots, index, index ? Nodes() : of);
    for (auto& s : level.all()) {
      if (!level.is_large(*s, budget)) continue;
      const Node* why = nullptr;
      for (std::size_t side : {0u, 1u}) {
        auto &mine = s->in[side]->axes, &other = s->in[1 - side]->axes;
        auto keys = without(common(s->axes, other), mine);
        auto queries = without(common(s->axes, mine), other);
        std::stable_sort(queries.begin(), queries.end(), [](auto& a, auto& b) { return a.size > b.size; });
        for (auto& a : keys.empty() ? Axes() : queries) {
          auto inside = level.region(*s, side, a.name, keys, why);
          if (inside.empty()) continue;
          auto contains = [&](const NodePtr& n) { return inside.count(n.get()) > 0; };
          return haliax::bordered(roots, level.all(), index, contains, key_of(*s, a, depth).attr());
        }
      }
      if (why && whole) tell(*s, *why, level.gives(why));
    }
    return {};
  }
  void tell(const Node& scores, const Node& why, bool is_result) const {
    auto at = [](const Node& n) {
      auto where = where_of(n.origin);
      return where.empty() ? where : " (" + where + ")";
    };
    auto line = fmt::format("scores {}{} stay whole: {}{} {}", scores.axes, at(scores), prim::user_name(why), at(why),
                            is_result ? "is a result" : "needs more than a query at a time");
    if (std::find(whole->begin(), whole->end(), line) == whole->end()) whole->push_back(std::move(line));
  }
  // Regions of scores below these, one after another, are each a region of its own.
  ChunkKey key_of(const Node& scores, const Axis& queries, int depth) const {
    ChunkKey k;
    k.axis = queries.name, k.size = queries.size, k.depth = depth, k.inside = kOfScores, k.walked = {queries.name};
    k.blocks = blocks_of(queries.name, scores.origin.mapping.get());
    if (budget && *budget <= 0) k.chunks = {(queries.size + 2) / 3};
    if (budget && *budget < 0) k.chunks.push_back(0);      // keys in thirds, too
    else if (budget) k.memory = *budget;
    for (auto& x : scores.in) k.after = std::max(k.after, calls_below({x}, k));
    return k;
  }
  Nodes operator()(Nodes roots, const Node* index, int depth) const {
    while (auto now = bordered_once(roots, index, depth)) roots = std::move(*now);
    // What a gradient is taken by must stay the node that it is: nothing below it changes.
    std::unordered_set<const Loop*> kept;
    if (!index && !of.empty()) {
      auto above = made_of(roots, of);
      for (auto& n : level_of(roots, nullptr))
        if (n->op == &kLoop && !above.count(n.get())) kept.insert(&loop_of(*n));
    }
    return in_bodies(roots, index, [&](const Loop& l) { return !kept.count(&l); },
                     [&](const Nodes& values, const Node* i) { return (*this)(values, i, depth + 1); });
  }
};

}  // namespace

Nodes with_score_borders(const Nodes& roots, std::optional<std::int64_t> budget, int depth, const Nodes& of,
                         std::vector<std::string>* whole) {
  static const auto usual = number_asked("HALIAX_SCORES", -1, most_bytes, context().origin.at);
  if (!budget) budget = usual;
  auto all = everything(roots);
  bool large = std::any_of(all.begin(), all.end(), [&](auto& n) {
    return n->op->kind == Kind::contract && f32_bytes(*n) > budget.value_or(kUsualBudget);
  });
  return large ? Walker{budget, of, whole}(roots, nullptr, depth) : roots;   // few graphs have any
}

}  // namespace haliax
