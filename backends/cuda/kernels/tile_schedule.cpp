// Assigns the parts of a tile group to as few passes as the dependencies allow.
#include <algorithm>

#include "tile_finder.h"

namespace haliax::cuda {

using namespace program;

namespace {

// Orders the parts, and groups them into the actions of the group.
class TileSchedule {
 public:
  TileSchedule(const TileBody& body, FoundTiles& found)
      : body_(body), g_(found.group), nodes_(found.nodes) {}
  // Groups the nodes into actions. Steps and reads of flags run as soon as they are ready. If none
  // is, one pass computes all that is ready. Incomplete early results get a pass of their own.
  // Returns false if there is no such order. For example, in the forward attention of tiles.h one
  // pass computes the maximum m, the early reduction l and the early matmul o.
  bool run() {
    for (auto& n : nodes_) find_accesses(n);
    for (auto& n : nodes_)
      if (!reads_unchanged_values(n)) return false;
    std::vector<bool> done(nodes_.size());
    auto is_ready = [&](std::size_t k, const std::vector<bool>& done) {
      for (std::size_t j = 0; j < k; ++j)
        if (!done[j] && waits_for(nodes_[k], nodes_[j])) return false;
      return !done[k];
    };
    std::vector<int> started_by(nodes_.size(), -1);  // index of the action that starts it
    for (bool more = true; more;) {
      more = false;
      for (std::size_t k = 0; k < nodes_.size(); ++k) {
        auto& n = nodes_[k];
        if (n.is_tile() || n.store >= 0 || !is_ready(k, done)) continue;
        g_.actions.push_back({n.step, n.flags});
        done[k] = more = true;
      }
      if (more) continue;
      TileAction pass;
      auto done_after = done;
      for (std::size_t k = 0; k < nodes_.size(); ++k)
        if (started_by[k] >= 0 && is_ready(k, done) &&
            (pass.remainder_of < 0 || pass.remainder_of == started_by[k]))
          pass.remainder_of = started_by[k];
      for (std::size_t k = 0; k < nodes_.size(); ++k)
        if (nodes_[k].is_tile() && started_by[k] == pass.remainder_of && is_ready(k, done)) {
          done_after[k] = more = true;
          if (nodes_[k].fold >= 0)
            pass.folds.push_back(nodes_[k].fold);
          else
            pass.products.push_back(nodes_[k].product);
        }
      if (pass.remainder_of < 0) add_early(pass, done, done_after, started_by);
      // not in a pass that completes early results, since a kernel may skip that pass
      for (std::size_t k = 0; k < nodes_.size() && pass.remainder_of < 0; ++k)
        if (nodes_[k].store >= 0 && is_ready(k, done_after)) {
          pass.stores.push_back(nodes_[k].store);
          done_after[k] = more = true;
        }

      done = done_after;
      if (more) g_.actions.push_back(std::move(pass));
    }
    return std::all_of(done.begin(), done.end(), [](bool b) { return b; });
  }

 private:
  void touch(std::set<int>& to, const View& v) const {
    if (v.slot >= 0 && !g_.unused.count(v.slot)) to.insert(body_.root(v.slot));
    for (auto& t : v.terms)
      if (t.slot >= 0) to.insert(body_.root(t.slot));
  }
  std::set<int> read_by(int instr) const {
    std::set<int> out;
    const int p = g_.product_of[std::size_t(instr)];
    if (p >= 0) {
      touch(out, g_.products[std::size_t(p)].x.view);
      touch(out, g_.products[std::size_t(p)].y.view);
    } else if (g_.code[std::size_t(instr)].code == Code::load)
      touch(out, g_.code[std::size_t(instr)].view);
    return out;
  }
  void find_accesses(TileNode& n) {
    if (n.step)
      return each_view_within(*n.step, [&](const View& v, bool writes) {
        touch(n.reads, v);
        if (writes) touch(n.writes, v);
      });
    if (n.flags >= 0) return touch(n.reads, g_.products[std::size_t(n.flags)].flag);
    int value = n.fold;
    if (n.store >= 0) {
      value = n.store;
      touch(n.writes, g_.code[std::size_t(n.store)].view);
      n.reads = n.writes;
    }

    if (n.product >= 0) {
      auto& p = g_.products[std::size_t(n.product)];
      value = p.value;
      touch(n.writes, p.out.view);
      touch(n.reads, p.x.view);
      touch(n.reads, p.y.view);
      touch(n.reads, p.out.view);
    }
    for (int i : g_.sources(value)) {
      if (i != value && is_reduction(g_.code[std::size_t(i)].code)) n.folds.insert(i);
      n.reads.merge(read_by(i));
    }
    if (n.product >= 0 && is_reduction(g_.code[std::size_t(value)].code)) n.folds.insert(value);
  }
  bool meet(const std::set<int>& x, const std::set<int>& y) const {
    return std::any_of(x.begin(), x.end(), [&](int i) {
      return std::any_of(y.begin(), y.end(), [&](int j) { return body_.overlap(i, j); });
    });
  }
  bool waits_for(const TileNode& later, const TileNode& n) const {
    if (n.fold >= 0 && later.folds.count(n.fold)) return true;
    if (n.flags >= 0 && later.is_tile()) {  // the flags of its matmuls are read first
      const int value =
          later.product >= 0 ? g_.products[std::size_t(later.product)].value : later.fold;
      if (n.flags == later.product) return true;
      for (int i : g_.sources(value))
        if (g_.product_of[std::size_t(i)] == n.flags) return true;
    }
    return meet(n.writes, later.reads) || meet(n.writes, later.writes) ||
           meet(n.reads, later.writes);
  }
  // Returns true if all instructions read the same values at this node as at their own steps.
  bool reads_unchanged_values(const TileNode& n) const {
    if (n.step || n.flags >= 0) return true;
    const int value = n.product >= 0 ? g_.products[std::size_t(n.product)].value
                      : n.fold >= 0  ? n.fold
                                     : n.store;
    for (int i : g_.sources(value))
      for (auto& other : nodes_)
        if (other.at > g_.home[std::size_t(i)] && other.at < n.at && meet(other.writes, read_by(i)))
          return false;
    return true;
  }
  // Adds early reductions and matmuls to a pass that computes a maximum. They may depend on the
  // maximum and on early reductions of the pass. For example, in the forward attention the pass
  // computes m = max(s), and l = sum(exp(s - m)) and o += exp(s - m) v start early.
  //
  // - done: completed before the pass.
  // - done_after: in: also completed by the pass itself. Out: also the early results that need no
  //   later pass.
  // - started_by: the action that starts a node. A later pass completes it if this one does not
  //   process all of its blocks.
  void add_early(TileAction& pass, const std::vector<bool>& done, std::vector<bool>& done_after,
                 std::vector<int>& started_by) {
    const SkippedBlock skipped(g_);
    const auto requested = needed_blocks(g_, skipped, pass.folds, pass.products);
    const auto computed = done_after;
    for (int max_fold : pass.folds) {
      auto& max = g_.code[std::size_t(max_fold)];
      if (pass.top >= 0 || max.code != Code::reduce_max || max.dtype != DType::f32) continue;
      if (!g_.code[std::size_t(max.args[0])].inner) continue;
      int shift = -1;  // all early results of a pass share it
      std::set<int> pending{max_fold};
      for (std::size_t k = 0; k < nodes_.size(); ++k) {
        auto& n = nodes_[k];
        if (computed[k] || done[k] || started_by[k] >= 0 || !n.is_tile()) continue;
        // other matmuls do not accumulate per row, and cannot be rescaled
        if (n.product >= 0 && product(n).kind != TileProduct::Kind::over_columns) continue;
        const int value = n.fold >= 0 ? g_.code[std::size_t(n.fold)].args[0] : product(n).value;
        const auto form = scaled(g_, value, max_fold, pending, n.product >= 0);
        if (!form || (shift >= 0 && shift != form->shift) ||
            !may_begin(k, done, computed, started_by))
          continue;
        if (n.fold >= 0 && !is_sum(n.fold, requested, skipped)) continue;
        bool completes = true;  // cleared if n requires blocks that the pass skips
        if (!needs_each_block(n, requested, completes)) continue;
        pass.top = max_fold;
        shift = form->shift;
        started_by[k] = int(g_.actions.size());
        if (n.fold >= 0) {
          pending.insert(n.fold);
          pass.early_reductions.push_back(n.fold);
        } else
          pass.early_products.push_back(n.product);
        if (completes) done_after[k] = true;
      }
    }
  }
  const TileProduct& product(const TileNode& n) const {
    return g_.products[std::size_t(n.product)];
  }
  bool is_sum(int fold, const NeededBlocks& requested, const SkippedBlock& skipped) const {
    auto& in = g_.code[std::size_t(fold)];
    return in.code == Code::reduce_sum && in.dtype == DType::f32 &&
           (requested.always || skipped.folds(g_, fold));
  }
  // Returns true if the node depends only on nodes that are done, reductions of this pass and
  // flags. Flags may be read later, because needs_each_block ensures that they skip no block of
  // this pass. computed: complete by the end of the pass, without its early results.
  bool may_begin(std::size_t k, const std::vector<bool>& done, const std::vector<bool>& computed,
                 const std::vector<int>& started_by) const {
    auto& n = nodes_[k];
    for (std::size_t j = 0; j < k; ++j) {
      auto& before = nodes_[j];
      const bool here = computed[j] || started_by[j] == int(g_.actions.size());
      if (done[j]) continue;
      if (before.fold >= 0 && n.folds.count(before.fold) && !here) return false;
      if (meet(before.writes, n.reads) || meet(before.writes, n.writes) ||
          meet(before.reads, n.writes))
        return false;
    }
    return true;
  }
  // Returns true if the node requires each block of the pass. Clears `needs_no_other` if it
  // requires other blocks as well.
  bool needs_each_block(const TileNode& n, const NeededBlocks& requested,
                        bool& needs_no_other) const {
    const int value = n.fold >= 0 ? n.fold : product(n).value;
    std::set<int> flags;
    if (n.product >= 0) {
      if (product(n).has_flags)
        flags.insert(n.product);
      else if (!requested.always)
        return false;  // requires all blocks, but the pass skips some
    }
    for (int i : g_.sources(value))
      if (int p = g_.product_of[std::size_t(i)]; p >= 0 && g_.products[std::size_t(p)].has_flags)
        flags.insert(p);
    for (int p : flags) {
      if (requested.always) return false;
      needs_no_other &= requested.flags.count(p) > 0;
      for (int w : requested.flags)
        if (!follows(g_.products[std::size_t(w)], g_.products[std::size_t(p)])) return false;
    }
    return true;
  }
  // Returns true if b computes each block that a computes: equal flags, or (flags of a) | x.
  bool follows(const TileProduct& a, const TileProduct& b) const {
    auto same = [&](const View& v, std::int64_t step, const TileProduct& p) {
      return bare(rooted(v)) == bare(rooted(p.flag)) && step == p.flag_step;
    };
    if (same(a.flag, a.flag_step, b)) return true;
    auto writes = [&](int k, const TileProduct& p) {
      bool out = false;
      each_view_within(body_.steps[std::size_t(k)], [&](const View& v, bool w) {
        out |= w && body_.overlap(body_.root(v.slot), body_.root(p.flag.slot));
      });
      return out;
    };
    int writer = b.at - 1;  // last step that writes b's flags; it may overwrite a's
    while (writer > a.at && !writes(writer, b)) --writer;
    for (int k = a.at + 1; k < writer; ++k)
      if (writes(k, a)) return false;
    auto& f = body_.steps[std::size_t(writer)].fused;
    auto is_flag = [&](const Instr& i, Code c, const TileProduct& p) {
      const auto strides = strides_of(f.dims, i.view.strides);
      return i.code == c && strides.size() == 1 && same(i.view, strides[0], p);
    };
    auto combines_a = [&](int value) {
      auto& in = f.code[std::size_t(value)];
      return in.code == Code::bit_or && (is_flag(f.code[std::size_t(in.args[0])], Code::load, a) ||
                                         is_flag(f.code[std::size_t(in.args[1])], Code::load, a));
    };
    return writer > a.at && body_.steps[std::size_t(writer)].kind == Kind::fused &&
           std::any_of(f.code.begin(), f.code.end(), [&](auto& i) {
             return is_flag(i, Code::store, b) && combines_a(i.args[0]);
           });
  }
  View rooted(View v) const {
    v.slot = body_.root(v.slot);
    return v;
  }

  const TileBody& body_;
  TileGroup& g_;
  std::vector<TileNode>& nodes_;
};

}  // namespace

bool schedule_parts(const TileBody& body, FoundTiles& found) {
  return TileSchedule(body, found).run();
}

}  // namespace haliax::cuda
