// Batched matmuls whose result another batched matmul reads, matrix by matrix:
//
//     s_b = q_b k_b,  w_b = softmax(s_b),  y_b = w_b v_b         for all b
//
// In three steps over all b, s and w are written to memory and read back. In one loop over b, whose
// iterations run in parallel, each s_b stays in the cache of a core. Only values with other
// readers, such as w for a gradient, are stored in full. The choice of loops does not depend on the
// number of threads, because an iteration may round sums differently.
#include <algorithm>
#include <limits>
#include <span>

#include "compile/lower/fuse.h"
#include "compile/lower/lower.h"
#include "graph/axes.h"
#include "ops/collective.h"
#include "ops/block.h"
#include "transforms/rewrite.h"

namespace haliax {
namespace {

using Marks = std::vector<char>;  // one mark per node of the level

class BatchLoops {
 public:
  BatchLoops(const Nodes& roots, const Node* index, const BatchLimits& limits, bool has_collectives)
      : roots_(roots), index_(index), limits_(limits), has_collectives_(has_collectives) {
    std::unordered_map<const Node*, int> known;
    for (auto& n : without_bodies(level_of(roots, index))) {
      LevelNode item{.node = n, .first_collective = has_collectives ? first_collective(*n) : 0};
      for (auto& x : n->in)
        if (auto found = x ? known.find(x.get()) : known.end(); found != known.end())
          item.in.push_back(found->second);
      const int me = int(all_.size());
      for (int x : item.in) all_[std::size_t(x)].readers.push_back(me);
      known[n.get()] = me;
      order_.push_back(me);
      all_.push_back(std::move(item));
    }
    for (auto& r : roots)
      if (auto found = known.find(r.get()); found != known.end()) at(found->second).is_root = true;
  }
  Nodes run() {
    for (int k = 0; k < int(all_.size()); ++k) {
      auto& n = node(k);
      if (at(k).loop >= 0 || n.op->kind != Kind::contract || n.value ||
          double(n.bytes()) <= limits_.max_parallel_slot_bytes)
        continue;
      auto batch_axes = loop_axes(n);
      if (!batch_axes.empty()) join(k, batch_axes);
    }
    return loop_axes_.empty() ? roots_ : rewritten();
  }

 private:
  struct LevelNode {
    NodePtr node;
    std::vector<int> in = {}, readers = {};
    int loop = -1;             // index of the loop that computes it; -1: none
    bool is_root = false;      // a result of the level
    int first_collective = 0;  // plan number of its first collective; 0: none
  };
  LevelNode& at(int k) { return all_[std::size_t(k)]; }
  const LevelNode& at(int k) const { return all_[std::size_t(k)]; }
  const Node& node(int k) const { return *at(k).node; }

  // Returns the first batch axes, up to the axis at which one iteration's part of the matmul fits
  // next to a value computed from it. Returns no axes if a part over all batch axes exceeds twice
  // the limit, because iterations are slower then, or if the iterations are few or small.
  Axes loop_axes(const Node& n) const {
    Axes out;
    double bytes = double(n.bytes()), multiplications = double(n.size());
    std::int64_t iterations = 1;
    for (auto& a : n.in[0]->axes)
      if (!has(n.axes, a.name)) multiplications *= double(a.size);
    for (auto& a : n.axes) {
      if (bytes <= limits_.max_parallel_slot_bytes / 2) break;
      if (a.size == 1 || !has(n.in[0]->axes, a.name) || !has(n.in[1]->axes, a.name)) continue;
      out.push_back(a);
      bytes /= double(a.size);
      iterations *= a.size;
    }
    const bool large = multiplications >= limits_.min_multiplications * double(iterations);
    return bytes <= 2 * limits_.max_parallel_slot_bytes && iterations >= limits_.min_iterations &&
                   large
               ? out
               : Axes();
  }
  static bool has_batch_axes(const Node& n, const Axes& batch_axes) {
    const auto kind = n.op->kind;
    const bool is_view = keeps_names(n) || n.op == &prim::kShardingConstraint;
    return !n.value &&
           (kind == Kind::map || kind == Kind::reduce || kind == Kind::contract || is_view) &&
           without(batch_axes, n.axes).empty();
  }
  // Returns true if a value is worth caching: it is at least half as large as the matmul result.
  static bool is_large(const Node& n, const Node& matmul) { return 2 * n.size() >= matmul.size(); }

  // ---- dependencies; the nodes of a loop count as one group ----
  using NodeGroup = std::span<const int>;  // nodes that one loop computes, or one node
  template <class F> void forward(const F& f) const {
    for (std::size_t i = 0, end = 0; i < order_.size(); i = end) f(from(i, end));
  }
  template <class F> void backward(const F& f) const {
    std::vector<NodeGroup> all;
    forward([&](NodeGroup t) { all.push_back(t); });
    for (auto t = all.rbegin(); t != all.rend(); ++t) f(*t);
  }
  NodeGroup from(std::size_t i, std::size_t& end) const {
    const int loop = at(order_[i]).loop;
    end = i + 1;
    while (loop >= 0 && end < order_.size() && at(order_[end]).loop == loop) ++end;
    return {order_.data() + i, end - i};
  }
  static bool any_marked(const std::vector<int>& some, const Marks& m) {
    return std::any_of(some.begin(), some.end(), [&](int k) { return m[std::size_t(k)] != 0; });
  }
  bool reads(NodeGroup t, const Marks& m) const {
    return std::any_of(t.begin(), t.end(), [&](int k) { return any_marked(at(k).in, m); });
  }
  bool is_read(NodeGroup t, const Marks& by) const {
    return std::any_of(t.begin(), t.end(), [&](int k) { return any_marked(at(k).readers, by); });
  }
  static void mark(NodeGroup t, Marks& m) {
    for (int k : t) m[std::size_t(k)] = true;
  }
  bool is_free(NodeGroup t) const { return at(t[0]).loop < 0; }

  // ---- one loop ----
  // Adds to the loop of a matmul the values that an iteration computes from its part of the result,
  // and other readers of these values.
  void join(int matmul, const Axes& batch_axes) {
    const std::size_t count = all_.size();
    Marks after(count), created(count), chain(count);
    after[std::size_t(matmul)] = created[std::size_t(matmul)] = true;
    forward([&](NodeGroup t) {
      if (!reads(t, after)) return;
      mark(t, after);
      auto known = [&](int x) { return !after[std::size_t(x)] || created[std::size_t(x)]; };
      auto& in = at(t[0]).in;
      if (is_free(t) && has_batch_axes(node(t[0]), batch_axes) &&
          std::all_of(in.begin(), in.end(), known))
        mark(t, created);
    });
    auto reduces_large = [&](int k, const auto& of) {
      auto& n = node(k);
      return n.op->kind == Kind::contract && k != matmul && !is_large(n, node(matmul)) &&
             std::any_of(at(k).in.begin(), at(k).in.end(),
                         [&](int x) { return is_large(node(x), node(matmul)) && of(x); });
    };
    auto is_created = [&](int x) { return created[std::size_t(x)] != 0; };
    backward([&](NodeGroup t) {
      if (created[std::size_t(t[0])] && (reduces_large(t[0], is_created) || is_read(t, chain)))
        mark(t, chain);
    });
    if (!chain[std::size_t(matmul)]) return;
    for (auto& inside : {with_others(chain, after, batch_axes, reduces_large), chain})
      if (keeps_collective_order(inside)) return form_loop(inside, batch_axes);
  }
  // Adds contractions that reduce a large array that the chain reads, and elementwise nodes that
  // only the loop reads.
  template <class Reduces>
  Marks with_others(Marks out, const Marks& after, const Axes& batch_axes,
                    const Reduces& reduces_large) const {
    Marks before(out.size()), reductions(out.size()), downstream(out.size());
    backward([&](NodeGroup t) {  // nodes that the chain depends on
      if (!out[std::size_t(t[0])] && (is_read(t, out) || is_read(t, before))) mark(t, before);
    });
    auto chain_reads = [&](int x) {
      return !out[std::size_t(x)] && any_marked(at(x).readers, out);
    };
    forward([&](NodeGroup t) {  // downstream: depends on such contractions
      const auto k = std::size_t(t[0]);
      if (reads(t, reductions) || reads(t, downstream))
        mark(t, downstream);
      else if (is_free(t) && !after[k] && !before[k] && has_batch_axes(node(t[0]), batch_axes) &&
               reduces_large(t[0], chain_reads))
        mark(t, reductions);
    });
    for (std::size_t k = 0; k < out.size(); ++k) out[k] |= reductions[k];
    backward([&](NodeGroup t) {
      const auto k = std::size_t(t[0]);
      auto& item = at(t[0]);
      auto& n = *item.node;
      if (!is_free(t) || out[k] || after[k] || item.is_root || n.in.empty() ||
          !has_batch_axes(n, batch_axes))
        return;
      if (n.op->kind != Kind::map && !keeps_names(n)) return;
      auto is_in_loop = [&](int r) { return out[std::size_t(r)] != 0; };
      if (!item.readers.empty() &&
          std::all_of(item.readers.begin(), item.readers.end(), is_in_loop))
        mark(t, out);
    });
    return out;
  }
  // Returns true if a loop preserves the order of collectives, which must be equal on all devices.
  // The loop runs after all of its operands. All collectives that the loop depends on must
  // therefore have smaller numbers than all collectives that depend on the loop. Another device
  // with smaller shards may have no loop here.
  bool keeps_collective_order(const Marks& inside) const {
    if (!has_collectives_) return true;
    // Per node: the last collective that it depends on, and the first collective that depends on
    // it.
    std::vector<int> last(all_.size()), first(all_.size(), std::numeric_limits<int>::max());
    auto of_inside = [&](int k) { return inside[std::size_t(k)] != 0; };
    forward([&](NodeGroup t) {
      int number = 0;
      for (int k : t)
        for (int x : at(k).in)
          number = std::max({number, last[std::size_t(x)], at(x).first_collective});
      for (int k : t) last[std::size_t(k)] = number;
    });
    backward([&](NodeGroup t) {
      int number = std::numeric_limits<int>::max();
      for (int k : t)
        for (int r : at(k).readers)
          number = std::min({number, first[std::size_t(r)],
                             at(r).first_collective ? at(r).first_collective : number});
      for (int k : t) first[std::size_t(k)] = number;
    });
    int before = 0, after = std::numeric_limits<int>::max();
    for (int k : order_)
      if (of_inside(k)) {
        before = std::max(before, last[std::size_t(k)]);
        after = std::min(after, first[std::size_t(k)]);
      }

    return before < after;
  }
  // Forms a loop: its nodes become adjacent in the order, and nodes that depend on them follow.
  void form_loop(const Marks& inside, const Axes& batch_axes) {
    Marks dependents(all_.size());
    forward([&](NodeGroup t) {
      if (!inside[std::size_t(t[0])] && (reads(t, inside) || reads(t, dependents)))
        mark(t, dependents);
    });
    auto is_in = [&](int k) { return inside[std::size_t(k)] != 0; };
    auto first = std::find_if(order_.begin(), order_.end(), is_in);
    auto end = std::find_if(order_.rbegin(), order_.rend(), is_in).base();
    std::stable_partition(first, end, [&](int k) { return !dependents[std::size_t(k)]; });
    auto loop = std::stable_partition(
        first, end, [&](int k) { return !is_in(k) && !dependents[std::size_t(k)]; });
    for (; loop != end && is_in(*loop); ++loop) at(*loop).loop = int(loop_axes_.size());
    loop_axes_.push_back(batch_axes);
  }

  // ---- the level with its loops ----
  Nodes rewritten() {
    Rewrite to;  // all nodes of the level -> their current form
    auto now = [&](const NodePtr& x) {
      auto found = x ? to.find(x.get()) : to.end();
      return found == to.end() ? x : found->second;
    };
    forward([&](NodeGroup t) {
      if (!is_free(t)) return write_loops(t, loop_axes_[std::size_t(at(t[0]).loop)], to);
      auto& n = at(t[0]).node;
      bool changed = std::any_of(n->in.begin(), n->in.end(), [&](auto& x) { return now(x) != x; });
      auto created = changed ? substitute(Nodes{n}, to, index_)[0] : n;
      to[n.get()] = created;
    });
    Nodes out;
    for (auto& r : roots_) out.push_back(now(r));
    return out;
  }
  void write_loops(NodeGroup inside, const Axes& batch_axes, Rewrite& to) const {
    Nodes index, full, values;
    for (std::size_t k = 0; k < batch_axes.size(); ++k)
      index.push_back(prim::index(batch_axes[k], 0, 1, int(k), LoopOrigin::batch));
    Rewrite in_iteration;
    OriginScope follow;
    for (int k : inside) {
      auto& n = at(k).node;
      follow(n->origin);
      Nodes in;
      for (auto& x : n->in) in.push_back(part(x, index, in_iteration, to));
      in_iteration[n.get()] = prim::rebuilt(*n, std::move(in), without(n->axes, batch_axes));
      auto is_elsewhere = [&](int r) { return at(r).loop != at(k).loop; };
      if (at(k).is_root || std::any_of(at(k).readers.begin(), at(k).readers.end(), is_elsewhere)) {
        full.push_back(n);
        values.push_back(in_iteration[n.get()]);
      }
    }
    follow(full[0]->origin);
    for (std::size_t k = batch_axes.size(); k-- > 0;) {
      Loop l;
      l.axis = batch_axes[k];
      l.index = {index[k]};
      l.drop = true;
      l.save = Save::nothing;
      for (auto& v : values) l.results.push_back({Fold::stack, Monoid::sum, {v}});
      auto loop = make_loop(std::move(l));
      for (std::size_t r = 0; r < values.size(); ++r) values[r] = loop_result(loop, r);
    }
    for (std::size_t r = 0; r < full.size(); ++r)
      to[full[r].get()] = prim::fit(values[r], full[r]->axes);
  }
  // Returns the value that an iteration reads: recomputed in the iteration if it only depends on
  // scalars and positions, otherwise its slice of an array.
  static NodePtr part(const NodePtr& x, const Nodes& index, Rewrite& in_iteration,
                      const Rewrite& to) {
    if (!x) return x;
    if (auto known = in_iteration.find(x.get()); known != in_iteration.end()) return known->second;
    auto is_recomputed = [](const NodePtr& n) {
      return n->op->kind == Kind::map && is_generated(n);
    };
    if (is_recomputed(x)) {
      std::vector<Block> blocks;
      for (auto& i : index) blocks.push_back({IndexAttr::of(*i).axis.name, i, 1, true});
      return in_iteration[x.get()] = prim::Blocks(is_recomputed)(x, blocks);
    }
    auto found = to.find(x.get());
    auto mine = found == to.end() ? x : found->second;
    // Reads the array in its original axis order.
    if (keeps_names(*mine) && same_set(mine->axes, mine->in[0]->axes)) mine = mine->in[0];
    for (auto& i : index) mine = prim::slice_at(mine, i, true);
    return in_iteration[x.get()] = mine;
  }

  const Nodes& roots_;
  const Node* index_;
  const BatchLimits& limits_;
  const bool has_collectives_;
  std::vector<LevelNode> all_;
  std::vector<int> order_;       // operands first; the nodes of a loop are adjacent
  std::vector<Axes> loop_axes_;  // batch axes of each loop
};

Nodes rewrite_batch_levels(Nodes roots, const Node* index, const BatchLimits& limits,
                           bool has_collectives) {
  roots = BatchLoops(roots, index, limits, has_collectives).run();
  auto is_not_tiled = [](const Loop& l) {
    return origin_of(l) == LoopOrigin::user || origin_of(l) == LoopOrigin::ring;
  };
  return in_bodies(roots, index, is_not_tiled, [&](const Nodes& values, const Node* i) {
    return rewrite_batch_levels(values, i, limits, has_collectives);
  });
}

}  // namespace

Nodes batch_loops(const Nodes& roots, const BatchLimits& limits) {
  auto all = all_nodes(roots);
  auto has = [&](const auto& requested) { return std::any_of(all.begin(), all.end(), requested); };
  if (!has([&](auto& n) {
        return n->op->kind == Kind::contract && double(n->bytes()) > limits.max_parallel_slot_bytes;
      }))
    return roots;
  return rewrite_batch_levels(roots, nullptr, limits,
                              has([](auto& n) { return n->op == &kCollective; }));
}

}  // namespace haliax
