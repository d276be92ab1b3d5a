// Batched products whose result another batched product reads, matrix by matrix:
//
//     s_b = q_b k_b,  w_b = softmax(s_b),  y_b = w_b v_b         for all b
//
// In three walks over all b, s and w go out to memory and come back. In one loop over b, whose turns run side by side, each s_b
// stays in a core's cache, and only what is read elsewhere, as w by a gradient, is written whole. The order of sums is as before.
#include <algorithm>

#include "base/thread_pool.h"
#include "compile/lower/lower.h"
#include "graph/axes.h"
#include "ops/prim.h"
#include "transforms/rewrite.h"

namespace haliax {
namespace {

using Set = std::unordered_set<const Node*>;

constexpr int kDepth = 1 << 21;                  // of these loops: below all others

class BatchesOfLevel {
 public:
  BatchesOfLevel(const Nodes& roots, const Node* index, double lane, int workers)
      : roots_(roots), index_(index), lane_(lane), workers_(workers), all_(without_bodies(level_of(roots, index))) {
    for (auto& n : all_)
      for (auto& x : n->in)
        if (x) readers_[x.get()].push_back(n.get());
    for (auto& r : roots) given_.insert(r.get());
  }
  // With the first such loop that there is; none: there is none.
  std::optional<Nodes> with_loop() const {
    for (auto& n : all_) {
      if (n->op->kind != Kind::contract || n->value || double(n->bytes()) <= lane_) continue;
      auto walked = walked_axes(*n);
      if (walked.empty()) continue;
      auto inside = chain_of(*n, walked);
      if (!inside.empty()) return in_turns(inside, walked);
    }
    return {};
  }

 private:
  // Of the batch, the first axes: as many as it takes until a turn's part of the product fits, with another one made of it.
  // Empty: even all leave more than twice what fits, where turns are slower; or turns are so few that threads would wait.
  Axes walked_axes(const Node& n) const {
    Axes out;
    double bytes = double(n.bytes());
    std::int64_t turns = 1;
    for (auto& a : n.axes) {
      if (bytes <= lane_ / 2) break;
      if (a.size == 1 || !has(n.in[0]->axes, a.name) || !has(n.in[1]->axes, a.name)) continue;
      out.push_back(a), bytes /= double(a.size), turns *= a.size;
    }
    const auto rounds = (turns + workers_ - 1) / workers_;
    return bytes <= 2 * lane_ && 5 * turns >= 4 * rounds * workers_ ? out : Axes();
  }
  static bool goes_along(const Node& n, const Axes& walked) {
    const auto kind = n.op->kind;
    const bool shows = kind == Kind::wrap && n.in.size() == 1;
    return !n.value && (kind == Kind::map || kind == Kind::reduce || kind == Kind::contract || keeps_names(n) || shows) &&
           without(walked, n.axes).empty();
  }
  bool is_large(const Node& n, const Node& product) const { return 2 * n.size() >= product.size(); }

  // What lies between the product and those that fold what is made of it. Empty: there are none.
  Set chain_of(const Node& product, const Axes& walked) const {
    Set after{&product}, made{&product}, out;
    for (auto& n : all_) {
      if (!reads(*n, after)) continue;
      after.insert(n.get());
      auto known = [&](auto& x) { return !x || !after.count(x.get()) || made.count(x.get()); };
      if (goes_along(*n, walked) && std::all_of(n->in.begin(), n->in.end(), known)) made.insert(n.get());
    }
    auto folds_large = [&](const Node& n, const auto& is_read) {
      return n.op->kind == Kind::contract && &n != &product && !is_large(n, product) &&
             std::any_of(n.in.begin(), n.in.end(), [&](auto& x) { return is_large(*x, product) && is_read(x.get()); });
    };
    for (auto i = all_.rbegin(); i != all_.rend(); ++i) {
      auto* n = i->get();
      if (made.count(n) && (folds_large(*n, [&](auto* x) { return made.count(x) > 0; }) || is_read_in(*n, out))) out.insert(n);
    }
    if (!out.count(&product)) return {};
    take_in(out, after, walked, folds_large);
    return out;
  }
  // What folds a large array that the chain reads, too; and what is made point by point for the chain alone.
  template <class Folds> void take_in(Set& out, const Set& after, const Axes& walked, const Folds& folds_large) const {
    Set before;                                  // what the chain is made of
    for (auto i = all_.rbegin(); i != all_.rend(); ++i)
      if (!out.count(i->get()) && (is_read_in(**i, out) || is_read_in(**i, before))) before.insert(i->get());
    auto is_read = [&](const Node* x) { return !out.count(x) && is_read_in(*x, out); };
    Set folds, later;                            // later: made of those
    for (auto& n : all_) {
      if (reads(*n, folds) || reads(*n, later)) later.insert(n.get());
      else if (!after.count(n.get()) && !before.count(n.get()) && goes_along(*n, walked) && folds_large(*n, is_read))
        folds.insert(n.get());
    }
    out.insert(folds.begin(), folds.end());
    for (auto i = all_.rbegin(); i != all_.rend(); ++i) {
      auto& n = **i;
      if (out.count(&n) || after.count(&n) || given_.count(&n) || n.in.empty() || !goes_along(n, walked)) continue;
      if (n.op->kind != Kind::map && !keeps_names(n)) continue;
      auto r = readers_.find(&n);
      if (r != readers_.end() && std::all_of(r->second.begin(), r->second.end(), [&](auto* x) { return out.count(x) > 0; }))
        out.insert(&n);
    }
  }
  bool is_read_in(const Node& n, const Set& some) const {
    auto r = readers_.find(&n);
    return r != readers_.end() && std::any_of(r->second.begin(), r->second.end(), [&](auto* x) { return some.count(x) > 0; });
  }
  bool is_read_outside(const Node& n, const Set& some) const {
    auto r = readers_.find(&n);
    return given_.count(&n) ||
           (r != readers_.end() && std::any_of(r->second.begin(), r->second.end(), [&](auto* x) { return !some.count(x); }));
  }

  Nodes in_turns(const Set& inside, const Axes& walked) const {
    Nodes index, whole, values;
    for (std::size_t k = 0; k < walked.size(); ++k) index.push_back(prim::index(walked[k], 0, 1, kDepth + int(k)));
    Rewrite of_turn;
    At follow;
    for (auto& n : all_) {
      if (!inside.count(n.get())) continue;
      follow(n->origin);
      Nodes in;
      for (auto& x : n->in) in.push_back(part(x, index, of_turn));
      of_turn[n.get()] = prim::remade(*n, std::move(in), without(n->axes, walked));
      if (is_read_outside(*n, inside)) whole.push_back(n), values.push_back(of_turn[n.get()]);
    }
    follow(whole[0]->origin);
    for (std::size_t k = walked.size(); k-- > 0;) {
      Loop l;
      l.axis = walked[k], l.index = {index[k]}, l.drop = true, l.save = Save::nothing;
      for (auto& v : values) l.results.push_back({Fold::stack, Monoid::sum, {v}});
      auto loop = make_loop(std::move(l));
      for (std::size_t r = 0; r < values.size(); ++r) values[r] = loop_result(loop, r);
    }
    Rewrite to;
    for (std::size_t r = 0; r < whole.size(); ++r) to[whole[r].get()] = prim::fit(values[r], whole[r]->axes);
    return substitute(roots_, to, index_);
  }
  // What a turn reads: made in it, if it is of numbers and positions alone; or its part of an array.
  static NodePtr part(const NodePtr& x, const Nodes& index, Rewrite& of_turn) {
    if (!x) return x;
    if (auto known = of_turn.find(x.get()); known != of_turn.end()) return known->second;
    if (is_generated(x) && x->op->kind == Kind::map) {
      Nodes in;
      Axes axes = x->axes;
      for (auto& y : x->in) in.push_back(part(y, index, of_turn));
      for (auto& i : index) std::erase_if(axes, [&](auto& a) { return a.name == IndexAttr::of(*i).axis.name; });
      return of_turn[x.get()] = prim::remade(*x, std::move(in), axes);
    }
    bool reordered = keeps_names(*x) && same_set(x->axes, x->in[0]->axes);
    auto mine = reordered ? x->in[0] : x;        // what another loop has made, whose order is better
    for (auto& i : index) mine = prim::slice_at(mine, i, true);
    return of_turn[x.get()] = mine;
  }

  const Nodes& roots_;
  const Node* index_;
  double lane_;
  int workers_;
  Nodes all_;
  Set given_;
  std::unordered_map<const Node*, std::vector<const Node*>> readers_;
};

Nodes in_levels(Nodes roots, const Node* index, double lane, int workers) {
  while (auto now = BatchesOfLevel(roots, index, lane, workers).with_loop()) roots = std::move(*now);
  auto others = [](const Loop& l) { return !l.of_chunks && IndexAttr::of(*l.index[0]).depth < kDepth; };
  return in_bodies(roots, index, others, [&](const Nodes& values, const Node* i) { return in_levels(values, i, lane, workers); });
}

}  // namespace

Nodes batch_turns(const Nodes& roots, double lane, int workers) {
  auto all = everything(roots);
  auto is_large = [&](auto& n) { return n->op->kind == Kind::contract && double(n->bytes()) > lane; };
  if (std::none_of(all.begin(), all.end(), is_large)) return roots;
  return in_levels(roots, nullptr, lane, workers == 0 ? threads() : workers);
}

}  // namespace haliax
