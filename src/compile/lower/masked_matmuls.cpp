// Blocks of products that a mask makes nothing of. A product of weights that are 0 wherever a mask
// is false leaves out the blocks in which it is false throughout, and so does one whose result is
// only read where a mask holds. Both are found in the graph: what an operand, or a reader, becomes
// where the mask is false (ops/masks.h). A weight is 0 there if, say, it is exp(-1e9 - max): that
// is looked up when the program runs, row by row, and where it is not so nothing is left out. So
// values are those of the whole, where these are finite: a NaN beside a weight of 0 is not looked
// for.
#include "compile/lower/masked_matmuls.h"

#include <algorithm>
#include <numeric>

#include "compile/analysis/flags.h"
#include "compile/analysis/masked_values.h"
#include "compile/analysis/masks.h"
#include "compile/analysis/ranges.h"
#include "graph/loop.h"

namespace haliax {

namespace {

// 0 with each of the three, where all of the result is made.
Linear zero_in_masked(const Node& n, std::size_t) {
  auto m = MaskedMatmulAttr::of(n);
  bool sums =
      std::any_of(m.sides.begin(), m.sides.end(), [&](auto& s) { return !find(n, s.axis); });
  return m.zero || sums ? Linear::one : Linear::no;
}

// A flag for each block of each of the axes, in their order.
std::string fault_of_masked(const Node& n) {
  if (n.in.size() != 3) return "it has no block flags";
  auto m = MaskedMatmulAttr::of(n);
  auto& flags = *n.in[2];
  bool fits =
      flags.dtype == DType::boolean && flags.axes.size() == m.sides.size() && !m.sides.empty();
  for (std::size_t k = 0; fits && k < m.sides.size(); ++k) {
    auto* axis = find(find(*n.in[0], m.sides[k].axis) ? *n.in[0] : *n.in[1], m.sides[k].axis);
    fits = axis && m.sides[k].size > 0 &&
           flags.axes[k].size == analysis::AxisBlocks{*axis, m.sides[k].size}.blocks().size;
  }
  return fits ? "" : "its flags " + to_string(flags.axes) + " do not match its blocks";
}

}  // namespace

MatmulAxes::MatmulAxes(const Axes& a, const Axes& b, const Axes& out) {
  for (auto& x : out) (has(a, x.name) ? has(b, x.name) ? batch : m : n).push_back(x);
  k = without(joined(a, b), out);
}

const Op kMaskedMatmul{.name = "dot",
                       .kind = Kind::contract,
                       .linear = Linear::no,
                       .zero_in = zero_in_masked,
                       .fault = fault_of_masked};

namespace {

// What is left out of a product: blocks in which none of these masks holds, if all of `if_zero` are
// 0.
struct LeftOut {
  struct Mask {
    NodePtr mask;
    Nodes if_zero;
  };
  std::vector<Mask> masks = {};
  bool zero = false;  // they are 0 in the result
};

constexpr double kLeastWork = 1 << 22;    // multiplications of a product of whole arrays
constexpr double kLeastVector = 1 << 17;  // of a vector and a matrix, which is read for each
constexpr std::int64_t kLeastBlocks = 4;  // of each of its axes
// Multiplications of a matrix that leaves blocks out itself: of smaller ones several may go in one
// call, which makes all.
constexpr std::int64_t kLeastMatrix = 1 << 19;
enum class Inside { no_turn, turn, loop_of_turn };  // over scores

class MaskedProducts {
 public:
  // `turn`: it has few queries, so that keys alone go in blocks.
  MaskedProducts(const Nodes& values, const Node* index, const program::Machine& machine, bool turn)
      : machine_(machine), turn_(turn) {
    auto all = level_of(values, index);
    std::unordered_set<const Node*> inner;
    for (auto& n : all)
      if (n->op == &kLoop)
        for (auto& i : loop_of(*n).index) inner.insert(i.get());
    for (auto& n : all)
      if (!index || n->varies_with(index))
        if (!varies_with(*n, inner)) nodes_.push_back(n);
    for (auto& v : values) given_.insert(v.get());
    for (auto& n : nodes_) {
      Nodes reads;
      add_reads(n, reads);
      for (auto& x : reads)
        if (x) readers_[x.get()].push_back(n.get());
    }
  }
  void rewrite(Rewrite& to) const {
    for (auto& n : nodes_)
      if (n->op->kind == Kind::contract && n->in.size() == 2 && (turn_ || is_worth_it(*n)))
        if (auto created = masked(*n)) to[n.get()] = created;
  }

 private:
  // Positions of the blocks that the machine's product leaves out; 0: none.
  std::int64_t shown_of(const Node& n) const {
    const auto dtype = n.in[0]->dtype;
    if (is_vectors(n)) return machine_.mask_block_vector;
    if (n.in[1]->dtype != dtype || (n.dtype != dtype && n.dtype != DType::f32)) return 0;
    return dtype == DType::f32    ? machine_.mask_block
           : dtype == DType::bf16 ? machine_.mask_block_bf16
                                  : 0;
  }
  static double points(const Axes& axes) {
    return std::accumulate(axes.begin(), axes.end(), 1.,
                           [](double n, auto& a) { return n * double(a.size); });
  }
  // Of whole arrays, vectors and matrices: of one query with all the keys so far, as a text is
  // written.
  bool is_vectors(const Node& n) const {
    auto reads = [](DType d) { return d == DType::f32 || d == DType::bf16; };
    const MatmulAxes p(n.in[0]->axes, n.in[1]->axes, n.axes);
    return !turn_ && std::min(points(p.m), points(p.n)) == 1 && reads(n.in[0]->dtype) &&
           reads(n.in[1]->dtype) && reads(n.dtype);
  }
  bool is_worth_it(const Node& n) const {
    const auto work = points(joined(n.in[0]->axes, n.in[1]->axes));
    return work >= (is_vectors(n) ? kLeastVector : kLeastWork) && shown_of(n) > 0;
  }
  // Does a product of a turn leave out blocks along `a` itself? It packs what it reads once; one
  // for each block packs again. Of bf16 it would hold all keys widened: too much for a core's cache
  // beside 64 rows of 1,024.
  bool goes_inside(const Node& n, const Axis& a) const {
    const MatmulAxes p(n.in[0]->axes, n.in[1]->axes, n.axes);
    const double rows = points(p.m), columns = points(p.n), summed = points(p.k);
    return n.in[0]->dtype == DType::f32 && shown_of(n) > 0 && is_side(n, a) &&
           std::min({rows, columns, summed}) >= 16 && rows * columns * summed >= kLeastMatrix;
  }
  // Of an axis: large enough for a product, small enough that few positions are made in vain. 0: it
  // is not worth while.
  std::int64_t block_of(const Node& n, std::int64_t size) const {
    if (!turn_) return size >= kLeastBlocks * shown_of(n) ? shown_of(n) : 0;
    return size >= 2048 ? 192 : size >= 192 ? 96 : 0;
  }

  NodePtr masked(const Node& n) const {
    for (std::size_t side : {0u, 1u})
      for (auto& a : n.in[side]->axes)
        if (auto created =
                block_of(n, a.size) ? with(n, a, of_operand(n.in[side], a.name)) : nullptr)
          return created;
    for (auto& a : n.axes)
      if (auto created = block_of(n, a.size) ? with(n, a, of_readers(n, a.name)) : nullptr)
        return created;
    return nullptr;
  }
  static LeftOut of_operand(const NodePtr& x, Name axis) {
    LeftOut out{.zero = true};
    for (auto& m : analysis::masks_of(x, axis)) {
      LeftOut::Mask mine{m, {}};
      auto there = analysis::value_where_false(x, m.get(), axis, mine.if_zero);
      if (!there) continue;
      if (!prim::is_number(there, 0)) mine.if_zero.push_back(there);
      out.masks.push_back(std::move(mine));
    }
    return out;
  }
  LeftOut of_readers(const Node& n, Name axis) const {
    Nodes ends;  // what others read of all that is made of it point by point
    std::vector<const Node*> todo{&n};
    std::unordered_set<const Node*> seen{&n};
    while (!todo.empty()) {
      auto* x = todo.back();
      todo.pop_back();
      bool read = given_.count(x) > 0;
      auto of = readers_.find(x);
      for (auto* r : of == readers_.end() ? std::vector<const Node*>() : of->second) {
        bool point = (r->op->kind == Kind::map || (is_transparent_view(*r) && keeps_names(*r))) &&
                     has(r->axes, axis);
        if (!point)
          read = true;
        else if (seen.insert(r).second)
          todo.push_back(r);
      }
      if (read) ends.push_back(std::const_pointer_cast<Node>(x->shared_from_this()));
    }
    LeftOut out;
    Nodes masks;
    for (auto& e : ends)
      for (auto& m : analysis::masks_of(e, axis))
        if (std::find(masks.begin(), masks.end(), m) == masks.end()) masks.push_back(m);
    for (auto& m : masks) {
      LeftOut::Mask mine{m, {}};
      auto most = analysis::MaskedReads::nothing;
      for (auto& e : ends)
        most = std::max(most, analysis::reads_where_false(e, &n, m.get(), axis, mine.if_zero));
      if (most == analysis::MaskedReads::all) continue;
      out.zero |= most == analysis::MaskedReads::zero;
      out.masks.push_back(std::move(mine));
    }
    return out;
  }
  // Is it the only axis of m, of n or of k of the product?
  static bool is_side(const Node& n, const Axis& a) {
    const MatmulAxes p(n.in[0]->axes, n.in[1]->axes, n.axes);
    for (auto* side : {&p.m, &p.n, &p.k})
      if (has(*side, a.name)) return points(*side) == double(a.size);
    return false;  // of a batch
  }
  // What the masks and the product go along beside `a`: the longest of it.
  std::optional<Axis> queries_of(const Node& n, const Axis& a, const LeftOut& what) const {
    std::optional<Axis> longest;
    for (auto& [mask, if_zero] : what.masks)
      for (auto& x : mask->axes) {
        bool has_it =
            x.name != a.name && (find(*n.in[0], x.name) || find(*n.in[1], x.name)) && is_side(n, x);
        if (has_it && block_of(n, x.size) && (!longest || x.size > longest->size)) longest = x;
      }
    return longest;
  }
  NodePtr with(const Node& n, const Axis& a, const LeftOut& what) const {
    const bool inside = !turn_ || goes_inside(n, a);
    std::vector<analysis::AxisBlocks> blocks{{a, inside ? shown_of(n) : block_of(n, a.size)}};
    if (!turn_ && !is_side(n, a)) return nullptr;
    if (!turn_ && !is_vectors(n)) {
      auto queries = queries_of(n, a, what);
      if (!queries) return nullptr;
      blocks.push_back({*queries, shown_of(n)});
    }
    NodePtr created;  // flags, of blocks
    for (auto& [mask, if_zero] : what.masks) {
      auto may = analysis::may_be_true(mask, blocks);
      if (!may || !has(may->axes, blocks[0].blocks().name)) continue;
      Nodes zero;
      for (auto& x : if_zero) zero.push_back(prim::equal(x, prim::number(0, x->dtype)));
      created = analysis::both_flags(created, analysis::flag_or_not_all(may, zero));
    }
    if (!created) return nullptr;
    OriginScope here(n.origin);
    bool sums = !inside && !find(n, a.name);
    // of blocks: rounded once
    auto dtype = sums && is_float(n.dtype) && bytes_of(n.dtype) < 4 ? DType::f32 : n.dtype;
    MaskedMatmulAttr attr{.zero = what.zero, .in_kernel = inside};
    Axes flags;
    for (auto& b : blocks) {
      attr.sides.push_back({b.axis.name, b.block});
      flags.push_back(b.blocks());
    }

    auto product = make(kMaskedMatmul, {n.in[0], n.in[1], prim::fit(created, flags)}, n.axes, dtype,
                        attr.attr());
    return prim::cast(product, n.dtype);
  }

  const program::Machine& machine_;
  bool turn_;
  Nodes nodes_;
  std::unordered_set<const Node*> given_;
  std::unordered_map<const Node*, std::vector<const Node*>> readers_;
};

Nodes in_level(const Nodes& values, const Node* index, const program::Machine& machine, bool turn) {
  Rewrite found, to;
  MaskedProducts(values, index, machine, turn).rewrite(found);
  for (auto& n : level_of(values, index))  // the older ones first: others are made of them
    if (auto y = found.find(n.get()); y != found.end())
      to[n.get()] = substitute({y->second}, to, index)[0];
  return to.empty() ? values : substitute(values, to, index);
}
Nodes in_levels(const Nodes& values, const Node* index, const program::Machine& machine,
                Inside inside) {
  std::unordered_set<const Node*> of_scores;  // indices
  auto mine = inside == Inside::loop_of_turn
                  ? values
                  : in_level(values, index, machine, inside == Inside::turn);
  for (auto& n : level_of(mine, index))
    if (n->op == &kLoop && loop_of(*n).of_scores)
      for (auto& i : loop_of(*n).index) of_scores.insert(i.get());
  return in_bodies(
      mine, index, [](const Loop&) { return true; },
      [&](const Nodes& inner, const Node* i) {
        const auto there = of_scores.count(i)          ? Inside::turn
                           : inside == Inside::no_turn ? inside
                                                       : Inside::loop_of_turn;
        return in_levels(inner, i, machine, there);
      });
}

}  // namespace

Nodes masked_matmuls(const Nodes& roots, const program::Machine& machine) {
  auto all = all_nodes(roots);
  if (std::none_of(all.begin(), all.end(), [](auto& n) { return analysis::reads_mask(*n); }))
    return roots;
  return in_levels(roots, nullptr, machine, Inside::no_turn);
}

}  // namespace haliax
