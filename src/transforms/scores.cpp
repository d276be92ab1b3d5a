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

// a layer's hidden values take at most so much more than its inputs and weights
constexpr int kHidden = 8;
// Where nobody says a budget, scores of more queries and keys than this stay whole up to so many
// bytes, in their own dtype: the gradient of twelve heads of 64 takes twice as many, less than 16
// MiB. Fewer keys are multiplied faster whole.
constexpr std::int64_t kFewKeys = 256, kManyKeysBudget = std::int64_t(7) << 20;

// What is made of scores is made in f32, be they narrower.
std::int64_t f32_bytes(const Node& scores) {
  return scores.size() * std::max(bytes_of(DType::f32), bytes_of(scores.dtype));
}
// With its place, if it has one.
std::string text_of(const Node& n, std::string name) {
  auto where = where_of(n.origin);
  return where.empty() ? name : name + " (" + where + ")";
}
std::string text_of(const Node& n) { return text_of(n, std::string(prim::user_name(n))); }
Set made_of(const Nodes& roots, const Nodes& of) {
  Set goals;
  for (auto& n : of) goals.insert(n.get());
  return dependents(roots, goals);
}
// Made position by position along an axis, which all operands that have it call the same.
bool goes_along(const Node& n, Name a) {
  if (!has(n.axes, a) || n.op == &kCustomVjp || n.op->kind == Kind::loop ||
      n.op->kind == Kind::result)
    return false;
  for (std::size_t k = 0; k < n.in.size(); ++k) {
    auto& x = n.in[k];
    if (!x || is_order_only(n, k)) continue;
    for (auto& its : x->axes) {
      auto rule = along(n, k, its.name);
      bool same = rule.point == a;  // the axis, or one that becomes it
      if ((same || its.name == a) && !(same && its.name == a && rule.way == Along::Way::map))
        return false;
    }
  }
  return true;
}

// Scores are a product of queries and keys, or a fold of another function of both, point by point:
// sum((q - k)^2).
struct Sides {
  const Node *queries, *keys;
};
std::optional<Sides> sides_of(const Node& n) {
  if (n.op->kind == Kind::contract) return Sides{n.in[0].get(), n.in[1].get()};
  if (n.op->kind != Kind::reduce || !is_float(n.dtype)) return {};
  auto& points = n.in[0]->axes;     // of the function
  std::vector<const Node*> arrays;  // of which it is one
  traverse(n.in, [&](const NodePtr& x, Nodes& todo) {
    bool whole = x->axes.size() == points.size();
    if (whole && x->op->kind == Kind::map)
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

// Has it an axis of many queries, and one of many keys? What a mesh cuts has not: walking uneven
// blocks would send more.
bool has_many_keys(const Node& scores) {
  const auto of = sides_of(scores);
  if (!of) return false;
  auto longest = [&](const Node* its, const Node* other) {
    std::int64_t size = 0;
    for (auto& a : without(common(scores.axes, its->axes), other->axes))
      size = std::max(size, a.size);
    return size;
  };
  auto is_cut = [&](auto& a) { return blocks_of(a.name, scores.origin.mapping.get()) > 1; };
  return std::min(longest(of->queries, of->keys), longest(of->keys, of->queries)) > kFewKeys &&
         std::none_of(scores.axes.begin(), scores.axes.end(), is_cut);
}
// Do scores take more than the budget? Without one: than 32 MiB in f32, or than fewer if they have
// many keys.
bool exceeds(const Node& scores, std::optional<std::int64_t> budget) {
  if (f32_bytes(scores) > budget.value_or(kUsualBudget)) return true;
  return !budget && scores.bytes() > kManyKeysBudget && has_many_keys(scores);
}

// The nodes of one level, and what is made of some scores among them.
class ScoresOfLevel {
 public:
  ScoresOfLevel(const Nodes& roots, const Node* index, const Nodes& of)
      : all_(without_bodies(level_of(roots, index))) {
    for (auto& r : roots) given_.insert(r.get());
    std::vector<Attr> keys;
    for (auto& n : all_)
      if (n->op == &prim::kEnter && std::find(keys.begin(), keys.end(), n->attr) == keys.end())
        keys.push_back(n->attr);
    for (auto& k : keys)
      for (auto& [n, name] : tiled_axis_names(all_, k)) bordered_.insert(n);
    if (!of.empty()) {
      allowed_ = made_of(roots, of);
      for (auto& x : of) allowed_->erase(x.get());
    }
    for (auto& n : all_)
      for (auto& x : n->in)
        if (x) readers_[x.get()].push_back(n.get());
  }
  const Nodes& all() const { return all_; }
  bool is_large(const Node& n, std::optional<std::int64_t> budget) const {
    if (!exceeds(n, budget) || bordered_.count(&n) || !is_allowed(n)) return false;
    auto of = sides_of(n);
    if (!of || of->queries == of->keys) return false;
    return budget || f32_bytes(n) > of->queries->bytes() + of->keys->bytes();
  }
  // What lies between borders around the scores along an axis of the queries; empty: they cannot be
  // walked so, because of `why` if they are weighed at all. `by_key`: what they are multiplied by
  // mixes their heads, key by key, and is not their values.
  Set region(const Node& scores, const Sides& of, Name queries, const Axes& keys, std::string& why,
             bool by_key = false) const {
    auto is_score = [&](const Node& n) { return has_pairs(n, queries, keys); };
    // scores; all that depends on them; of a query each; sums over the keys
    Set made{&scores}, after{&scores}, rows, outs;
    // that scores have, not values: the heads that others are mixed to, too
    Axes axes = scores.axes;
    // what some are multiplied by differs by key: values, or heads are mixed
    bool differs = false;
    auto refuse = [&](const Node& n) {
      if (differs && !by_key) return region(scores, of, queries, keys, why, true);
      if (is_weighed(made, queries, keys)) why = reason(scores, axes, made, n, queries, keys);
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
      if (inside && point && is_score(*n)) {
        const bool product = n->op->kind == Kind::contract, same = product && mixes(*n, made, keys);
        differs |= product && !same;
        if (same || (product && by_key)) axes = joined(axes, n->axes);
        made.insert(n.get());
      } else if (of_scores && folds_values(*n, axes))
        outs.insert(n.get());
      else if (inside && point && n->op->kind != Kind::contract)
        rows.insert(n.get());
      else if (of_scores)
        return refuse(*n);
    }
    for (auto* n : made)
      if (given_.count(n)) return refuse(*n);
    if (auto* n = finds_equals(scores, made)) return refuse(*n);
    Set needed;  // rows that scores, or sums over the keys, are made of; or that scores give
    for (auto i = all_.rbegin(); i != all_.rend(); ++i) {
      auto* n = i->get();
      if (rows.count(n) && (needed.count(n) || reads(*n, made))) needed.insert(n);
      if (!needed.count(n) && !made.count(n) && !outs.count(n)) continue;
      for (auto& x : n->in)
        if (x && rows.count(x.get())) needed.insert(x.get());
    }
    // Without a function of all that a query scores, such as a softmax, they may be hidden values:
    // no layer has so many.
    bool many = scores.bytes() > kHidden * (of.queries->bytes() + of.keys->bytes());
    bool weighed = many || std::any_of(needed.begin(), needed.end(),
                                       [&](auto* n) { return weighs(*n, made, keys); });
    if (outs.empty() || !weighed) return {};
    made.insert(needed.begin(), needed.end());
    made.insert(outs.begin(), outs.end());
    take_in(made, queries, keys);
    return made;
  }
  // Of what is made of scores with these axes: is it weighed values, folded over the keys?
  static bool folds_values(const Node& n, const Axes& axes) {
    return n.op->kind == Kind::contract ||
           (n.op->kind == Kind::reduce && !without(n.axes, axes).empty());
  }
  // Is this product one of scores with what is the same for all keys?
  static bool mixes(const Node& n, const Set& made, const Axes& keys) {
    auto same = [&](auto& x) { return made.count(x.get()) > 0 || common(x->axes, keys).empty(); };
    return std::all_of(n.in.begin(), n.in.end(), same);
  }
  // Does something, or its gradient, ask which of the scores is equal to a number? A sum that is
  // made again in another step may differ in its last bits; a product does not. Null: nothing does.
  const Node* finds_equals(const Node& scores, const Set& made) const {
    if (scores.op->kind != Kind::reduce || is_extreme(scores)) return nullptr;
    for (auto& n : all_) {
      if (!reads(*n, made)) continue;
      auto readers = readers_.find(n.get());
      auto stops = [](auto* reader) { return reader->op == &prim::kStop; };
      bool stopped = readers != readers_.end() &&
                     std::all_of(readers->second.begin(), readers->second.end(), stops);
      if (n->op->code == Code::equal || n->op->code == Code::not_equal ||
          (is_extreme(*n) && !stopped))
        return n.get();
    }
    return nullptr;
  }
  static bool is_extreme(const Node& n) {
    return n.op->kind == Kind::reduce &&
           (n.op->code == Code::reduce_max || n.op->code == Code::reduce_min);
  }
  // Is it folded over the keys?
  static bool weighs(const Node& n, const Set& made, const Axes& keys) {
    return n.op->kind == Kind::reduce && made.count(n.in[0].get()) && common(n.axes, keys).empty();
  }

 private:
  // Why scores stay whole: what is made of them is a result, or this reads it otherwise than along
  // the queries.
  std::string reason(const Node& scores, const Axes& axes, const Set& made, const Node& n,
                     Name queries, const Axes& keys) const {
    for (auto& x : all_)  // the same one each time
      if (made.count(x.get()) && given_.count(x.get())) return text_of(*x) + " is a result";
    if (auto* equals = finds_equals(scores, made))
      return text_of(*equals) +
             " asks which of them is the same, and summed once more they may not be: make them by "
             "a dot, or "
             "put stop_gradient around it";
    const bool folds = !has(n.axes, queries), weighs = common(n.axes, keys).empty();
    const auto along = fmt::format("{}", fmt::join(names_of(keys), " and "));
    const auto text = text_of(n);
    if (folds && weighs && n.op->kind == Kind::reduce)
      return fmt::format("{} goes over {} and {} at once", text, queries, along);
    if (folds && !weighs && folds_values(n, axes) && !n.origin.backward)
      return fmt::format(
          "{} sums over {} what is weighed along {}; weigh it along {}, or write a chunked_reduce "
          "over {}",
          text, queries, along, queries, queries);
    return text + " needs more than a query at a time";
  }
  // Has it a value for each query and key?
  static bool has_pairs(const Node& n, Name queries, const Axes& keys) {
    return has(n.axes, queries) && without(keys, n.axes).empty();
  }
  // Do scores depend on a fold of theirs over the keys?
  bool is_weighed(const Set& made, Name queries, const Axes& keys) const {
    Set folds;
    for (auto& n : all_) {
      bool of_fold = reads(*n, folds);
      if (of_fold && has_pairs(*n, queries, keys)) return true;
      if (of_fold || weighs(*n, made, keys)) folds.insert(n.get());
    }
    return false;
  }
  // What only a region reads is made in it, too, if it would be as large as the scores (a second
  // product, a bias that is looked up, another softmax), or is of a query each and made of such;
  // and queries times a number, or in another dtype.
  void take_in(Set& made, Name queries, const Axes& keys) const {
    auto is_score = [&](const Node& n) { return has_pairs(n, queries, keys); };
    Set rows;
    for (auto& n : all_) {
      bool reads_scores =
          std::any_of(n->in.begin(), n->in.end(), [&](auto& x) { return x && is_score(*x); });
      bool row = !is_score(*n) && n->op->kind != Kind::contract && goes_along(*n, queries);
      if (row && (reads_scores || reads(*n, rows))) rows.insert(n.get());
    }
    for (auto i = all_.rbegin(); i != all_.rend(); ++i) {
      auto& n = **i;
      auto readers = readers_.find(&n);
      bool is_only_reader =
          readers != readers_.end() && std::all_of(readers->second.begin(), readers->second.end(),
                                                   [&](auto* r) { return made.count(r) > 0; });
      if (!is_only_reader || made.count(&n) || given_.count(&n) || n.in.empty() || !is_allowed(n))
        continue;
      bool wanted = rows.count(&n) || (is_float(n.dtype) && (is_score(n) || is_scaled(n)));
      if (wanted && goes_along(n, queries)) made.insert(&n);
    }
  }
  // One array times numbers, or in another dtype?
  static bool is_scaled(const Node& n) {
    if (n.op->kind != Kind::map) return false;
    int arrays = 0;
    for (std::size_t k = 0; k < n.in.size(); ++k)
      if (!n.in[k]->axes.empty()) arrays += linear_in(n, k) == Linear::no ? 2 : 1;
    return arrays == 1;
  }
  bool is_allowed(const Node& n) const { return !allowed_ || allowed_->count(&n) > 0; }

  Nodes all_;
  Set given_, bordered_;        // bordered_: lies between borders already
  std::optional<Set> allowed_;  // none: all are
  std::unordered_map<const Node*, std::vector<const Node*>> readers_;
};

struct Walker {
  std::optional<std::int64_t> budget;
  const Nodes& of;
  std::vector<std::string>* whole;

  std::optional<Nodes> with_boundaries_once(const Nodes& roots, const Node* index,
                                            int depth) const {
    ScoresOfLevel level(roots, index, index ? Nodes() : of);
    for (auto& s : level.all()) {
      if (!level.is_large(*s, budget)) continue;
      std::string why;
      const auto of = *sides_of(*s);
      for (auto& [its, others] : {of, Sides{of.keys, of.queries}}) {
        auto &mine = its->axes, &other = others->axes;
        auto keys = without(common(s->axes, other), mine);
        auto queries = without(common(s->axes, mine), other);
        std::stable_sort(queries.begin(), queries.end(),
                         [](auto& a, auto& b) { return a.size > b.size; });
        for (auto& a : keys.empty() ? Axes() : queries) {
          auto inside = level.region(*s, of, a.name, keys, why);
          if (inside.empty()) continue;
          auto contains = [&](const NodePtr& n) { return inside.count(n.get()) > 0; };
          return haliax::with_boundaries(roots, level.all(), index, contains,
                                         key_of(*s, a, depth).attr());
        }
      }
      const auto line =
          fmt::format("scores {} stay whole: ", text_of(*s, fmt::format("{}", s->axes)));
      // of scores, and not of their gradient once more
      auto is_reported = [&](auto& other) { return other.starts_with(line); };
      if (whole && !why.empty() && std::none_of(whole->begin(), whole->end(), is_reported))
        whole->push_back(line + why);
    }
    return {};
  }
  // Regions of scores below these, one after another, are each a region of its own.
  ChunkKey key_of(const Node& scores, const Axis& queries, int depth) const {
    ChunkKey k;
    k.axis = queries.name;
    k.size = queries.size;
    k.depth = depth;
    k.scores = true;
    k.tiled_axes = {queries.name};
    k.blocks = blocks_of(queries.name, scores.origin.mapping.get());
    const bool small = f32_bytes(scores) <= kUsualBudget;  // nobody would cut them: in thirds
    if (budget && *budget <= 0 && small) k.chunks = {(queries.size + 2) / 3};
    if (budget && *budget < 0 && small)
      k.chunks.push_back(0);  // of keys, too
    else if (budget && *budget > 0)
      k.memory = *budget;
    else if (!budget && has_many_keys(scores))
      k.memory = kManyKeysBudget;
    for (auto& x : scores.in) k.after = std::max(k.after, preceding_calls({x}, k));
    return k;
  }
  Nodes operator()(Nodes roots, const Node* index, int depth) const {
    while (auto now = with_boundaries_once(roots, index, depth)) roots = std::move(*now);
    auto loops = loops_of_level(roots, index);
    // What a gradient is taken by must stay the node that it is: nothing below it changes.
    if (!index && !of.empty()) {
      auto above = made_of(roots, of);
      for (auto& n : level_of(roots, nullptr))
        if (n->op == &kLoop && !above.count(n.get())) loops.erase(&loop_of(*n));
    }
    return in_bodies(
        roots, index, [&](const Loop& l) { return loops.count(&l) > 0; },
        [&](const Nodes& values, const Node* i) { return (*this)(values, i, depth + 1); });
  }
};

}  // namespace

Nodes with_score_boundaries(const Nodes& roots, std::optional<std::int64_t> budget, int depth,
                            const Nodes& of, std::vector<std::string>* whole) {
  static const auto usual = env_integer("HALIAX_SCORES", -1, most_bytes, context().origin.at);
  if (!budget) budget = usual;
  auto all = all_nodes(roots);
  bool large = std::any_of(all.begin(), all.end(),
                           [&](auto& n) { return exceeds(*n, budget) && sides_of(*n); });
  return large ? Walker{budget, of, whole}(roots, nullptr, depth) : roots;  // few graphs have any
}

}  // namespace haliax
