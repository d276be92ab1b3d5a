// Batched matmuls whose result another batched matmul reads, matrix by matrix:
//
//     s_b = q_b k_b,  w_b = softmax(s_b),  y_b = w_b v_b         for all b
//
// In three steps over all b, s and w are written to memory and read back. In one loop over b, whose
// iterations run in parallel, each s_b stays in the cache of a core. Only values with other
// readers, such as w for a gradient, are stored in full. The choice of loops does not depend on the
// number of threads, because an iteration may round sums differently.
#include <algorithm>

#include "compile/lower/level_graph.h"
#include "compile/lower/rewrites.h"
#include "graph/axes.h"
#include "ops/collective.h"
#include "ops/block.h"
#include "transforms/rewrite.h"

namespace haliax {
namespace {

class BatchLoops {
 public:
  BatchLoops(const Nodes& roots, const Node* index, const BatchLimits& limits, bool has_collectives)
      : roots_(roots), index_(index), limits_(limits), level_(roots, index, has_collectives) {}
  Nodes run() {
    for (int k = 0; k < level_.size(); ++k) {
      auto& n = level_.node(k);
      if (level_.at(k).loop >= 0 || n.op->kind != Kind::contract || n.value ||
          double(n.bytes()) <= limits_.max_parallel_slot_bytes)
        continue;
      auto batch_axes = loop_axes(n);
      if (!batch_axes.empty()) join(k, batch_axes);
    }
    return loop_axes_.empty() ? roots_ : rewritten();
  }

 private:
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

  // ---- one loop ----
  // Adds to the loop of a matmul the values that an iteration computes from its part of the result,
  // and other readers of these values.
  void join(int matmul, const Axes& batch_axes) {
    // after: nodes that depend on the matmul. created: those that an iteration can compute. chain:
    // those between the matmul and a contraction that reduces them.
    Marks after(level_.size()), created(level_.size()), chain(level_.size());
    after.add(matmul);
    created.add(matmul);
    level_.forward([&](NodeGroup group) {
      if (!level_.reads(group, after)) return;
      after.add(group);
      auto known = [&](int x) { return !after[x] || created[x]; };
      auto& in = level_.at(group[0]).in;
      if (level_.is_free(group) && has_batch_axes(level_.node(group[0]), batch_axes) &&
          std::all_of(in.begin(), in.end(), known))
        created.add(group);
    });
    auto reduces_large = [&](int k, const auto& of) {
      auto& n = level_.node(k);
      return n.op->kind == Kind::contract && k != matmul && !is_large(n, level_.node(matmul)) &&
             std::any_of(level_.at(k).in.begin(), level_.at(k).in.end(), [&](int x) {
               return is_large(level_.node(x), level_.node(matmul)) && of(x);
             });
    };
    auto is_created = [&](int x) { return created[x]; };
    level_.backward([&](NodeGroup group) {
      if (created[group[0]] &&
          (reduces_large(group[0], is_created) || level_.is_read(group, chain)))
        chain.add(group);
    });
    if (!chain[matmul]) return;
    for (auto& inside : {with_others(chain, after, batch_axes, reduces_large), chain})
      if (level_.keeps_collective_order(inside)) {
        level_.form_loop(inside, int(loop_axes_.size()));
        return loop_axes_.push_back(batch_axes);
      }
  }
  // Adds contractions that reduce a large array that the chain reads, and elementwise nodes that
  // only the loop reads.
  template <class Reduces>
  Marks with_others(Marks out, const Marks& after, const Axes& batch_axes,
                    const Reduces& reduces_large) const {
    const auto before = level_.dependencies(out);
    Marks reductions(out.size()), downstream(out.size());
    auto chain_reads = [&](int x) { return !out[x] && level_.is_read({&x, 1}, out); };
    level_.forward([&](NodeGroup group) {  // downstream: depends on such contractions
      const int k = group[0];
      if (level_.reads(group, reductions) || level_.reads(group, downstream))
        downstream.add(group);
      else if (level_.is_free(group) && !after[k] && !before[k] &&
               has_batch_axes(level_.node(group[0]), batch_axes) &&
               reduces_large(group[0], chain_reads))
        reductions.add(group);
    });
    out.add(reductions);
    level_.backward([&](NodeGroup group) {
      const int k = group[0];
      auto& item = level_.at(group[0]);
      auto& n = *item.node;
      if (!level_.is_free(group) || out[k] || after[k] || item.is_root || n.in.empty() ||
          !has_batch_axes(n, batch_axes))
        return;
      if (n.op->kind != Kind::map && !keeps_names(n)) return;
      auto is_in_loop = [&](int r) { return out[r]; };
      if (!item.readers.empty() &&
          std::all_of(item.readers.begin(), item.readers.end(), is_in_loop))
        out.add(group);
    });
    return out;
  }

  // ---- the level with its loops ----
  Nodes rewritten() {
    Rewrite to;  // all nodes of the level -> their current form
    auto now = [&](const NodePtr& x) {
      auto found = x ? to.find(x.get()) : to.end();
      return found == to.end() ? x : found->second;
    };
    level_.forward([&](NodeGroup group) {
      if (!level_.is_free(group))
        return write_loops(group, loop_axes_[std::size_t(level_.at(group[0]).loop)], to);
      auto& n = level_.at(group[0]).node;
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
      auto& item = level_.at(k);
      auto& n = item.node;
      follow(n->origin);
      Nodes in;
      for (auto& x : n->in) in.push_back(part(x, index, in_iteration, to));
      in_iteration[n.get()] = prim::rebuilt(*n, std::move(in), without(n->axes, batch_axes));
      auto is_elsewhere = [&](int r) { return level_.at(r).loop != item.loop; };
      if (item.is_root || std::any_of(item.readers.begin(), item.readers.end(), is_elsewhere)) {
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
      for (auto& v : values) l.results.push_back({.kind = ResultKind::stack, .value = {v}});
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
  LevelGraph level_;
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
