// Removes inner tiles (rows, heads or examples) from the value of an iteration, as if the iteration
// computed all of them at once. Masks of the entire iteration can then be found in the value. For
// example, the value of an iteration over keys that stacks tiles of 64 of 1,024 queries,
// mask(q0 + iota(64), k), becomes mask(iota(1024), k).
#include <algorithm>

#include "compile/loops/early_exit.h"
#include "ops/attr.h"
#include "ops/block.h"

namespace haliax {
namespace {

class Untiled {
 public:
  explicit Untiled(const Node* index) : index_(index) {}
  NodePtr of(const NodePtr& n) {
    if (prim::is_number(n)) return prim::stripped(n);
    if (auto known = known_.find(n.get()); known != known_.end()) return known->second;
    return known_[n.get()] = rebuilt(n);
  }

 private:
  struct TiledAxis {
    Axis axis;  // with its full size
    const Node* index;
  };
  // Returns the axis with its tiles, if the node computes it tile by tile. Null otherwise.
  const TiledAxis* find_tiled(const Node& n, Name axis) const {
    auto t = std::find_if(tiled_axes_.begin(), tiled_axes_.end(),
                          [&](auto& t) { return t.axis.name == axis; });
    return t != tiled_axes_.end() && n.varies_with(t->index) ? &*t : nullptr;
  }
  bool varies(const Node& n) const {
    return n.varies_with(index_) || std::any_of(tiled_axes_.begin(), tiled_axes_.end(),
                                                [&](auto& t) { return n.varies_with(t.index); });
  }
  NodePtr rebuilt(const NodePtr& n) {
    if (!varies(*n) || n.get() == index_) return n;
    if (is_loop_result(*n)) return of_loop(*n);
    if (auto part = slice_of(*n)) return of_slice(*n, *part);
    // A barrier on the index makes a value vary with the index, so that the body computes it. A
    // barrier on the index of tiles ends with the tiles.
    if (n->op == &prim::kBarrier) {
      auto x = of(n->in[0]);
      return x && n->in[1].get() == index_ ? prim::barrier(x, n->in[1]) : x;
    }
    if (auto positions = of_positions(*n)) return positions;
    const auto kind = n->op->kind;
    bool supported =
        kind == Kind::map || kind == Kind::reduce || kind == Kind::contract || keeps_names(*n);
    if (!supported) return nullptr;
    Nodes in;
    auto axes = n->axes;
    for (auto& a : axes)
      if (auto* tiled = find_tiled(*n, a.name)) a = tiled->axis;
    for (auto& operand : n->in) {
      auto x = of(operand);
      if (!x || !fits(*x, axes) || (!in.empty() && !fits(*x, in[0]->axes))) return nullptr;
      in.push_back(std::move(x));
    }
    return prim::rebuilt(*n, std::move(in), axes);
  }
  // Replaces the positions of a tile, which count from the start of the tile, by the positions of
  // the full axis.
  NodePtr of_positions(const Node& n) {
    if (!prim::combines(n, Monoid::sum)) return nullptr;
    for (std::size_t k : {0u, 1u}) {
      auto &x = n.in[k], &start = n.in[1 - k];
      auto* tiled = x->op == &prim::kIota ? find_tiled(n, x->axes[0].name) : nullptr;
      if (tiled && counts_by(*start, tiled->index))
        return prim::add(prim::iota(tiled->axis, x->dtype), at_first(start, tiled->index));
    }
    return nullptr;
  }
  // Returns true if the node is the index, possibly cast, plus terms that do not vary with it.
  static bool counts_by(const Node& n, const Node* index) {
    if (&n == index) return true;
    if (n.op == &prim::kCast) return counts_by(*n.in[0], index);
    if (!prim::combines(n, Monoid::sum)) return false;
    const bool first = n.in[0]->varies_with(index), second = n.in[1]->varies_with(index);
    return first != second && counts_by(*n.in[first ? 0 : 1], index);
  }
  static NodePtr at_first(const NodePtr& start, const Node* index) {
    Rewrite to{{index, prim::integer(0, index->dtype)}};
    return substitute(Nodes{start}, to, index)[0];
  }
  // A tile of an axis becomes the full axis; other slices stay.
  NodePtr of_slice(const Node& n, const SliceAttr& part) {
    auto* tiled = find_tiled(n, part.axis);
    if (tiled && is_slice_at(n, tiled->index)) return part.drop ? nullptr : of(n.in[0]);
    const bool stays = !tiled && (n.in.size() == 1 || is_slice_at(n, index_));
    auto x = stays ? of(n.in[0]) : nullptr;
    return x ? sliced(x, part, n.in.size() > 1 ? n.in[1] : nullptr) : nullptr;
  }
  // Moves slices from masks to the positions that they compare, which shows the positions of the
  // slice.
  static NodePtr sliced(const NodePtr& x, const SliceAttr& part, const NodePtr& from) {
    if (part.drop || part.step != 1 || !find(*x, part.axis)) return prim::slice(x, part, from);
    auto start = prim::integer(part.start, DType::i64);
    if (from) start = part.start == 0 ? from : prim::add(from, prim::cast(start, from->dtype));
    auto is_mask = [](const NodePtr& n) { return n->op->kind == Kind::map && !is_float(n->dtype); };
    return prim::Blocks(is_mask)(x, {{part.axis, start, part.size}});
  }
  // A loop over tiles that stacks or sums its values computes the value of all tiles.
  NodePtr of_loop(const Node& result) {
    auto& l = loop_of(result);
    auto& r = result_of(result);
    if (origin_of(l) != LoopOrigin::region || l.drop || r.carry || r.start) return nullptr;
    auto* index = l.index[0].get();
    for (auto& t : tiled_axes_)
      if (t.axis.name == l.axis.name && (t.index != index || t.axis != l.axis)) return nullptr;
    tiled_axes_.push_back({l.axis, index});
    return of(r.value[0]);
  }
  static bool fits(const Node& x, const Axes& axes) {
    return std::all_of(x.axes.begin(), x.axes.end(), [&](auto& a) {
      auto* b = find_axis(axes, a.name);
      return !b || b->size == a.size;
    });
  }
  const Node* index_;
  std::vector<TiledAxis> tiled_axes_;
  std::unordered_map<const Node*, NodePtr> known_;
};

}  // namespace

NodePtr untiled(const NodePtr& value, const Node* index) { return Untiled(index).of(value); }

}  // namespace haliax
