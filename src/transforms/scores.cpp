// Recognizes attention scores and adds the boundaries of a region around them.
#include "transforms/scores.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/environment.h"
#include "graph/axes.h"
#include "graph/fail.h"
#include "haliax/jit.h"
#include "ops/attr.h"
#include "ops/blockwise.h"
#include "ops/prim.h"
#include "transforms/chunked.h"

namespace haliax {
namespace {

using Set = std::unordered_set<const Node*>;

// Hidden values of a layer have at most this many times more elements than its inputs and weights.
constexpr int kHiddenFactor = 8;
// Without an explicit budget, scores with more queries and more keys than kFewKeys stay
// materialized up to kManyKeysBudget bytes in their own dtype. For twelve heads of size 64, the
// gradient needs twice this budget, less than 16 MiB. Fewer keys are multiplied faster without
// tiles.
constexpr std::int64_t kFewKeys = 256, kManyKeysBudget = std::int64_t(7) << 20;

// Returns the bytes in f32, the minimum dtype in which values are computed from scores.
std::int64_t f32_bytes(const Node& scores) {
  return scores.size() * std::max(bytes_of(DType::f32), bytes_of(scores.dtype));
}
// Appends the source location, if there is one.
std::string text_of(const Node& n, std::string name) {
  auto where = where_of(n.origin);
  return where.empty() ? name : name + " (" + where + ")";
}
std::string text_of(const Node& n) { return text_of(n, std::string(prim::user_name(n))); }
Set computed_from(const Nodes& roots, const Nodes& of) {
  Set goals;
  for (auto& n : of) goals.insert(n.get());
  return dependents(roots, goals);
}
// Returns true if n is computed position by position along the axis, and all operands that have the
// axis use its name.
bool maps_along(const Node& n, Name a) {
  if (!has(n.axes, a) || n.op == &kCustomVjp || n.op->kind == Kind::loop ||
      n.op->kind == Kind::result)
    return false;
  for (std::size_t k = 0; k < n.in.size(); ++k) {
    auto& x = n.in[k];
    if (!x || is_order_only(n, k)) continue;
    for (auto& its : x->axes) {
      auto rule = along(n, k, its.name);
      const bool becomes_a = rule.point == a;
      if (becomes_a != (its.name == a)) return false;  // renamed
      if (becomes_a && rule.way != Along::Way::map) return false;
    }
  }
  return true;
}

// The operands of scores. Scores are a contraction of queries and keys, or a reduction of another
// elementwise function of both, such as sum((q - k)^2).
struct Sides {
  const Node *queries, *keys;
};
std::optional<Sides> sides_of(const Node& n) {
  if (n.op->kind == Kind::contract) return Sides{n.in[0].get(), n.in[1].get()};
  if (n.op->kind != Kind::reduce || !is_float(n.dtype)) return {};
  auto& axes = n.in[0]->axes;       // axes of the function
  std::vector<const Node*> arrays;  // its array arguments
  traverse(n.in, [&](NodeRef x, PendingNodes& todo) {
    bool full = x->axes.size() == axes.size();
    if (full && x->op->kind == Kind::map)
      append(todo, x->in);
    else if (is_float(x->dtype) && !x->axes.empty())
      arrays.push_back(x.get());
  });
  auto lacks = [](const Node& a, const Node& b) { return !without(b.axes, a.axes).empty(); };
  for (auto* a : arrays)
    for (auto* b : arrays)
      if (lacks(*a, *b) && lacks(*b, *a)) return Sides{a, b};
  return {};
}

// Returns true if the scores have an axis with many queries and one with many keys, and no axis is
// sharded. Tiles of uneven blocks would communicate more.
bool has_many_queries_and_keys(const Node& scores) {
  const auto sides = sides_of(scores);
  if (!sides) return false;
  auto longest = [&](const Node* side, const Node* other) {
    std::int64_t size = 0;
    for (auto& a : without(common(scores.axes, side->axes), other->axes))
      size = std::max(size, a.size);
    return size;
  };
  auto is_sharded = [&](auto& a) { return blocks_of(a.name, scores.origin.mapping.get()) > 1; };
  return std::min(longest(sides->queries, sides->keys), longest(sides->keys, sides->queries)) >
             kFewKeys &&
         std::none_of(scores.axes.begin(), scores.axes.end(), is_sharded);
}
// Returns true if the scores exceed the budget. Without a budget, the limit is 32 MiB in f32, or
// kManyKeysBudget if there are many keys.
bool exceeds(const Node& scores, std::optional<std::int64_t> budget) {
  if (f32_bytes(scores) > budget.value_or(ChunkOptions::default_memory)) return true;
  return !budget && scores.bytes() > kManyKeysBudget && has_many_queries_and_keys(scores);
}

// The nodes of one level, and the values that are computed from scores among them.
class ScoresOfLevel {
 public:
  ScoresOfLevel(const Nodes& roots, const Node* index, const Nodes& of)
      : all_(without_bodies(level_of(roots, index))) {
    for (auto& r : roots) roots_.insert(r.get());
    std::vector<Attr> keys;
    for (auto& n : all_)
      if (n->op == &prim::kEnter && std::find(keys.begin(), keys.end(), n->attr) == keys.end())
        keys.push_back(n->attr);
    for (auto& k : keys)
      for (auto& [n, name] : tiled_axis_names(all_, k)) in_region_.insert(n);
    if (!of.empty()) {
      allowed_ = computed_from(roots, of);
      for (auto& x : of) allowed_->erase(x.get());
    }
    for (auto& n : all_)
      for (auto& x : n->in)
        if (x) readers_[x.get()].push_back(n.get());
  }
  const Nodes& all() const { return all_; }
  bool is_large(const Node& n, std::optional<std::int64_t> budget) const {
    if (!exceeds(n, budget) || in_region_.count(&n) || !is_allowed(n)) return false;
    auto of = sides_of(n);
    if (!of || of->queries == of->keys) return false;
    return budget || f32_bytes(n) > of->queries->bytes() + of->keys->bytes();
  }
  // Returns the nodes of the region around the scores, along an axis of the queries. Empty if the
  // scores cannot be tiled this way; then `why` is set if they are weighed at all.
  //
  // A contraction whose other operand differs by key is ambiguous. For example, dot(s[q, k, h],
  // x[k, h, d], "h") multiplies the scores with values, or it mixes heads by a matrix per key. Both
  // are tried, in this order.
  Set region(const Node& scores, const Sides& of, Name queries, const Axes& keys,
             std::string& why) const {
    auto found = dependent_values(scores, queries, keys, KeyedContraction::weights_values);
    if (found.refused && found.is_ambiguous)
      found = dependent_values(scores, queries, keys, KeyedContraction::mixes_heads);
    if (found.refused) {
      if (reads_key_reduction(found.scores, queries, keys))
        why = reason(scores, found.axes, found.scores, *found.refused, queries, keys);
      return {};
    }
    const Set needed = needed_rows(found.scores, found.rows, found.outs);
    if (found.outs.empty() || !are_weights(scores, of, found.scores, needed, keys)) return {};
    auto inside = std::move(found.scores);
    inside.insert(needed.begin(), needed.end());
    inside.insert(found.outs.begin(), found.outs.end());
    add_operands(inside, queries, keys);
    return inside;
  }
  // The role of a contraction of scores with an operand that differs by key.
  enum class KeyedContraction { weights_values, mixes_heads };
  // The values that depend on scores. Any other value that reads scores is refused.
  struct DependentValues {
    Set scores;  // one value per query and key
    Set rows;    // one value per query, such as a logsumexp
    Set outs;    // weights times values, reduced over the keys
    Axes axes;   // axes that scores have and values lack, including heads to which others mix
    bool is_ambiguous = false;      // there is a contraction with an operand that differs by key
    const Node* refused = nullptr;  // the first refused value; null: none
  };
  DependentValues dependent_values(const Node& scores, Name queries, const Axes& keys,
                                   KeyedContraction keyed) const {
    DependentValues found{{&scores}, {}, {}, scores.axes};
    Set after{&scores};  // all nodes that depend on the scores
    auto refuse = [&](const Node& n) {
      found.refused = &n;
      return std::move(found);
    };
    for (auto& n : all_) {
      if (!reads(*n, after)) continue;
      after.insert(n.get());
      bool of_scores = reads(*n, found.scores);
      bool inside = std::all_of(n->in.begin(), n->in.end(), [&](auto& x) {
        return !x || !after.count(x.get()) || found.scores.count(x.get()) ||
               found.rows.count(x.get());
      });
      bool by_query = maps_along(*n, queries);
      if (of_scores && (!inside || !by_query)) return refuse(*n);
      if (inside && by_query && has_pairs(*n, queries, keys)) {
        const bool is_contraction = n->op->kind == Kind::contract,
                   mixes_heads = is_contraction && mixes(*n, found.scores, keys);
        found.is_ambiguous |= is_contraction && !mixes_heads;
        if (mixes_heads || (is_contraction && keyed == KeyedContraction::mixes_heads))
          found.axes = joined(found.axes, n->axes);
        found.scores.insert(n.get());
      } else if (of_scores && reduces_values(*n, found.axes))
        found.outs.insert(n.get());
      else if (inside && by_query && n->op->kind != Kind::contract)
        found.rows.insert(n.get());
      else if (of_scores)
        return refuse(*n);
    }
    for (auto* n : found.scores)
      if (roots_.count(n)) return refuse(*n);
    if (auto* n = find_equality(scores, found.scores)) return refuse(*n);
    return found;
  }
  // Returns the rows that the region must compute: those that read scores, and those that scores,
  // outs or needed rows read. Readers are visited before their operands.
  Set needed_rows(const Set& all_scores, const Set& rows, const Set& outs) const {
    Set needed;
    for (auto i = all_.rbegin(); i != all_.rend(); ++i) {
      auto* n = i->get();
      if (rows.count(n) && reads(*n, all_scores)) needed.insert(n);
      if (!needed.count(n) && !all_scores.count(n) && !outs.count(n)) continue;
      for (auto& x : n->in)
        if (x && rows.count(x.get())) needed.insert(x.get());
    }
    return needed;
  }
  // Returns true if a function of all scores of a query is needed, such as a softmax. Without one,
  // the scores may be the hidden values of a layer, unless no layer would have that many values.
  bool are_weights(const Node& scores, const Sides& of, const Set& all_scores, const Set& needed,
                   const Axes& keys) const {
    if (scores.bytes() > kHiddenFactor * (of.queries->bytes() + of.keys->bytes())) return true;
    return std::any_of(needed.begin(), needed.end(),
                       [&](auto* n) { return reduces_over_keys(*n, all_scores, keys); });
  }
  // Returns true if n, which reads scores with these axes, contracts the keys with the values, or
  // reduces weighted values over the keys.
  static bool reduces_values(const Node& n, const Axes& axes) {
    return n.op->kind == Kind::contract ||
           (n.op->kind == Kind::reduce && !without(n.axes, axes).empty());
  }
  // Returns true if n is a contraction of scores with an operand that is the same for all keys.
  static bool mixes(const Node& n, const Set& all_scores, const Axes& keys) {
    auto same = [&](auto& x) {
      return all_scores.count(x.get()) > 0 || common(x->axes, keys).empty();
    };
    return std::all_of(n.in.begin(), n.in.end(), same);
  }
  // Returns a node that compares scores for equality, directly or in its gradient; null if there is
  // none. A sum that is recomputed by a different kernel may differ in its last bits, and a
  // contraction does not.
  const Node* find_equality(const Node& scores, const Set& all_scores) const {
    if (scores.op->kind != Kind::reduce || is_extreme(scores)) return nullptr;
    for (auto& n : all_) {
      if (!reads(*n, all_scores)) continue;
      auto readers = readers_.find(n.get());
      auto stops = [](auto* reader) { return reader->op == &prim::kStop; };
      bool stopped = readers != readers_.end() &&
                     std::all_of(readers->second.begin(), readers->second.end(), stops);
      if (prim::tests_equality(*n) || (is_extreme(*n) && !stopped)) return n.get();
    }
    return nullptr;
  }
  static bool is_extreme(const Node& n) {
    return prim::reduces(n, Monoid::max) || prim::reduces(n, Monoid::min);
  }
  // Returns true if n is a reduction of scores over the keys.
  static bool reduces_over_keys(const Node& n, const Set& all_scores, const Axes& keys) {
    return n.op->kind == Kind::reduce && all_scores.count(n.in[0].get()) &&
           common(n.axes, keys).empty();
  }

 private:
  // Returns the reason why scores are not tiled: a value that is computed from them is a result, or
  // node n does not work along the queries.
  std::string reason(const Node& scores, const Axes& axes, const Set& all_scores, const Node& n,
                     Name queries, const Axes& keys) const {
    for (auto& x : all_)  // in a fixed order, so that the reason is deterministic
      if (all_scores.count(x.get()) && roots_.count(x.get())) return text_of(*x) + " is a result";
    if (auto* equals = find_equality(scores, all_scores))
      return text_of(*equals) +
             " compares scores for equality, but recomputed scores may round differently: "
             "compute them by a dot, or put stop_gradient around the comparison";
    const bool reduces = !has(n.axes, queries), over_keys = common(n.axes, keys).empty();
    const auto along = fmt::format("{}", fmt::join(names_of(keys), " and "));
    const auto text = text_of(n);
    if (reduces && over_keys && n.op->kind == Kind::reduce)
      return fmt::format("{} reduces over {} and {} at once", text, queries, along);
    if (reduces && !over_keys && reduces_values(n, axes) && !n.origin.backward)
      return fmt::format(
          "{} sums over {} values that are weighted along {}; "
          "weight them along {}, or use a chunked_reduce over {}",
          text, queries, along, queries, queries);
    return text + " requires more than one query at a time";
  }
  // Returns true if n has an element for each pair of query and key.
  static bool has_pairs(const Node& n, Name queries, const Axes& keys) {
    return has(n.axes, queries) && without(keys, n.axes).empty();
  }
  // Returns true if scores depend on a reduction of scores over the keys.
  bool reads_key_reduction(const Set& all_scores, Name queries, const Axes& keys) const {
    Set reductions;
    for (auto& n : all_) {
      bool reads_reduction = reads(*n, reductions);
      if (reads_reduction && has_pairs(*n, queries, keys)) return true;
      if (reads_reduction || reduces_over_keys(*n, all_scores, keys)) reductions.insert(n.get());
    }
    return false;
  }
  // Adds nodes that only the region reads, and that would be stored in full outside of it: nodes as
  // large as the scores (a second matmul, a looked-up bias, another softmax), scaled or cast
  // queries, and `rows`, which have one value per query and are computed from nodes of that size.
  void add_operands(Set& inside, Name queries, const Axes& keys) const {
    auto is_score = [&](const Node& n) { return has_pairs(n, queries, keys); };
    Set rows;
    for (auto& n : all_) {
      bool reads_scores =
          std::any_of(n->in.begin(), n->in.end(), [&](auto& x) { return x && is_score(*x); });
      bool row = !is_score(*n) && n->op->kind != Kind::contract && maps_along(*n, queries);
      if (row && (reads_scores || reads(*n, rows))) rows.insert(n.get());
    }
    for (auto i = all_.rbegin(); i != all_.rend(); ++i) {
      auto& n = **i;
      auto readers = readers_.find(&n);
      bool only_region_reads =
          readers != readers_.end() && std::all_of(readers->second.begin(), readers->second.end(),
                                                   [&](auto* r) { return inside.count(r) > 0; });
      if (!only_region_reads || inside.count(&n) || roots_.count(&n) || n.in.empty() ||
          !is_allowed(n))
        continue;
      bool is_operand = rows.count(&n) || (is_float(n.dtype) && (is_score(n) || is_scaled(n)));
      if (is_operand && maps_along(n, queries)) inside.insert(&n);
    }
  }
  // Returns true if n is one array times scalars, or a cast.
  static bool is_scaled(const Node& n) {
    if (n.op->kind != Kind::map) return false;
    int arrays = 0;
    for (std::size_t k = 0; k < n.in.size(); ++k)
      if (!n.in[k]->axes.empty()) arrays += linear_in(n, k) == Linear::no ? 2 : 1;
    return arrays == 1;
  }
  bool is_allowed(const Node& n) const { return !allowed_ || allowed_->count(&n) > 0; }

  Nodes all_;
  Set roots_, in_region_;       // in_region_: already inside boundaries
  std::optional<Set> allowed_;  // none: all nodes
  std::unordered_map<const Node*, std::vector<const Node*>> readers_;
};

struct ScoreBoundaries {
  std::optional<std::int64_t> budget;
  const Nodes& ancestors;  // empty: all scores are considered
  std::vector<std::string>* notes;

  // Adds boundaries around the first large scores that can be tiled, along the longest axis of the
  // queries that allows it. For example, scores (head, q, k) of queries (head, q, d) and keys
  // (head, k, d) are tiled along q. If that is refused, the operands are exchanged, and k is tried.
  // Null: no further scores can be tiled.
  std::optional<Nodes> with_boundaries_once(const Nodes& roots, const Node* index,
                                            int depth) const {
    ScoresOfLevel level(roots, index, index ? Nodes() : ancestors);
    for (auto& s : level.all()) {
      if (!level.is_large(*s, budget)) continue;
      std::string why;
      const auto sides = *sides_of(*s);
      for (auto& [as_queries, as_keys] : {sides, Sides{sides.keys, sides.queries}}) {
        auto keys = without(common(s->axes, as_keys->axes), as_queries->axes);
        auto queries = without(common(s->axes, as_queries->axes), as_keys->axes);
        if (keys.empty()) continue;
        std::stable_sort(queries.begin(), queries.end(),
                         [](auto& a, auto& b) { return a.size > b.size; });
        for (auto& a : queries) {
          auto inside = level.region(*s, sides, a.name, keys, why);
          if (inside.empty()) continue;
          auto contains = [&](NodeRef n) { return inside.count(n.get()) > 0; };
          return haliax::with_boundaries(roots, level.all(), index, contains,
                                         key_of(*s, a, depth).attr());
        }
      }
      const auto line =
          fmt::format("scores {} stay materialized: ", text_of(*s, fmt::format("{}", s->axes)));
      // once per scores: their gradient may have the same line
      auto is_reported = [&](auto& other) { return other.starts_with(line); };
      if (notes && !why.empty() && std::none_of(notes->begin(), notes->end(), is_reported))
        notes->push_back(line + why);
    }
    return {};
  }
  // Returns the key of the region. Consecutive regions of scores, which depend on one another, are
  // distinct regions.
  ChunkKey key_of(const Node& scores, const Axis& queries, int depth) const {
    ChunkKey k;
    k.axis = queries.name;
    k.size = queries.size;
    k.depth = depth;
    k.scores = true;
    k.tiled_axes = {queries.name};
    k.blocks = blocks_of(queries.name, scores.origin.mapping.get());
    // Scores within the default budget are only tiled by an explicit budget of 0 or less: in
    // thirds.
    const bool small = f32_bytes(scores) <= ChunkOptions::default_memory;
    if (budget && *budget <= 0 && small) k.chunks = {(queries.size + 2) / 3};
    if (budget && *budget < 0 && small)
      k.chunks.push_back(0);  // tiles the keys as well
    else if (budget && *budget > 0)
      k.memory = *budget;
    else if (!budget && has_many_queries_and_keys(scores))
      k.memory = kManyKeysBudget;
    for (auto& x : scores.in) k.after = std::max(k.after, preceding_calls({x}, k));
    return k;
  }
  Nodes operator()(Nodes roots, const Node* index, int depth) const {
    while (auto now = with_boundaries_once(roots, index, depth)) roots = std::move(*now);
    auto loops = loops_of_level(roots, index);
    // Nodes that a gradient is taken with respect to must keep their identity, so nothing below
    // them changes.
    if (!index && !ancestors.empty()) {
      auto above = computed_from(roots, ancestors);
      for (auto& n : level_of(roots, nullptr))
        if (n->op == &kLoop && !above.count(n.get())) loops.erase(&loop_of(*n));
    }
    return in_bodies(
        roots, index, [&](const Loop& l) { return loops.count(&l) > 0; },
        [&](const Nodes& values, const Node* i) { return (*this)(values, i, depth + 1); });
  }
};

}  // namespace

std::optional<std::int64_t> scores_budget(std::optional<std::int64_t> requested) {
  static const auto usual = env_integer("HALIAX_SCORES", -1, most_bytes, context().origin.at);
  return requested ? requested : usual;
}

Nodes with_score_boundaries(const Nodes& roots, std::optional<std::int64_t> budget, int depth,
                            const Nodes& of, std::vector<std::string>* notes) {
  auto all = all_nodes(roots);
  bool large = std::any_of(all.begin(), all.end(),
                           [&](auto& n) { return exceeds(*n, budget) && sides_of(*n); });
  // most graphs have no large scores
  return large ? ScoreBoundaries{budget, of, notes}(roots, nullptr, depth) : roots;
}

}  // namespace haliax
