// Finds the blocks of contractions that masks make unnecessary. There are two cases:
//
// - An operand is 0 where a mask is false, such as the weights in `dot(weights, values)`.
// - The readers of the result use it only where a mask is true, such as the scores in
//   `where(mask, scores, -1e9)`.
//
// In both cases, blocks in which the mask is false everywhere are skipped. The analysis computes
// the value of the operand, or of the reader, where the mask is false (analysis/masked_values.h).
//
// Some values are only known at run time: a weight exp(-1e9 - max) is 0 unless max is about -1e9,
// as in a row without visible keys. The program then checks all rows, and skips blocks only if
// the values are 0 in each of them. Results therefore equal those of the full contraction, provided
// that the other operand is finite: the full contraction multiplies NaN or infinity by 0, which
// yields NaN.
#include "compile/lower/masked_matmuls.h"

#include <algorithm>

#include "compile/analysis/flags.h"
#include "compile/analysis/masked_values.h"
#include "compile/analysis/masks.h"
#include "compile/analysis/ranges.h"
#include "graph/loop.h"

namespace haliax {
namespace {

// The result is 0 if any one of the three operands is 0, provided that all of it is defined: it is
// not if skipped blocks are unread.
Linear zero_in_masked(const Node& n, std::size_t) {
  auto m = MaskedMatmulAttr::of(n);
  bool sums =
      std::any_of(m.blocked.begin(), m.blocked.end(), [&](auto& s) { return !find(n, s.axis); });
  return m.zero || sums ? Linear::one : Linear::no;
}

// Returns a message unless in[2] has one bool flag per block, with the axes of the blocks in the
// order of `blocked`. Empty: valid.
std::string fault_of_masked(const Node& n) {
  if (n.in.size() != 3) return "it has no block flags";
  auto m = MaskedMatmulAttr::of(n);
  auto& flags = *n.in[2];
  bool fits =
      flags.dtype == DType::boolean && flags.axes.size() == m.blocked.size() && !m.blocked.empty();
  for (std::size_t k = 0; fits && k < m.blocked.size(); ++k) {
    auto* axis = find(find(*n.in[0], m.blocked[k].axis) ? *n.in[0] : *n.in[1], m.blocked[k].axis);
    fits = axis && m.blocked[k].size > 0 &&
           flags.axes[k].size == analysis::AxisBlocks{*axis, m.blocked[k].size}.blocks().size;
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

// The blocks that a contraction skips: blocks in which one of the masks is false everywhere, if all
// values in `must_be_zero` of this mask are 0 at run time.
struct SkippedBlocks {
  struct Mask {
    NodePtr mask;
    Nodes must_be_zero;
  };
  std::vector<Mask> masks = {};
  bool zero = false;  // skipped blocks are 0 in the result
};

// Outside of loops over scores: the fewest multiplications for which blocks are skipped.
constexpr double kMinWork = 1 << 22;        // matrix times matrix
constexpr double kMinVectorWork = 1 << 17;  // vector times matrix; each one reads a matrix element
constexpr std::int64_t kMinBlocks = 4;      // blocks per axis
// The fewest multiplications per matrix for which a kernel skips blocks in an iteration. A backend
// may compute several smaller matrices in one batched call, which computes all blocks.
constexpr std::int64_t kMinMatrixWork = 1 << 19;
constexpr double kMinMatrixSide = 16;  // rows, columns and summed positions of such a matrix
// In an iteration: positions per block, of an axis with at least kLongAxis positions, and of a
// shorter axis with at least two blocks.
constexpr std::int64_t kLongAxis = 2048, kLongBlock = 192, kShortBlock = 96;
// The position of a level relative to a loop over scores: outside of one, its body, or the body of
// another loop inside of its body.
enum class LevelKind { outside, in_iteration, in_nested_loop };

class BlockSkipping {
 public:
  // values, level: the results and the nodes of a level. `in_iteration`: the level is the body of a
  // loop over scores. It has few queries, so only keys are split into blocks.
  BlockSkipping(const Nodes& values, const Nodes& level, const program::Machine& machine,
                bool in_iteration)
      : machine_(machine), in_iteration_(in_iteration), nodes_(without_bodies(level)) {
    for (auto& v : values) roots_.insert(v.get());
    for (auto& n : nodes_)
      for (auto& x : reads_of(*n)) readers_[x.get()].push_back(n.get());
  }
  void rewrite(Rewrite& to) const {
    for (auto& n : nodes_)
      if (n->op->kind == Kind::contract && n->op != &kMaskedMatmul &&
          (in_iteration_ || is_large_enough(*n)))
        if (auto created = masked(*n)) to[n.get()] = created;
  }

 private:
  // Returns the size, in positions, of the blocks that a kernel of the machine skips. 0: the kernel
  // skips no blocks.
  std::int64_t kernel_block(const Node& n) const {
    const auto dtype = n.in[0]->dtype;
    if (is_vectors(n)) return machine_.mask_block_vector;
    if (n.in[1]->dtype != dtype || (n.dtype != dtype && n.dtype != DType::f32)) return 0;
    return dtype == DType::f32    ? machine_.mask_block
           : dtype == DType::bf16 ? machine_.mask_block_bf16
                                  : 0;
  }
  // Returns true for a product of a vector and a matrix, possibly batched, outside of loops over
  // scores. An example is the attention of one query to all previous keys during generation.
  bool is_vectors(const Node& n) const {
    auto reads = [](DType d) { return d == DType::f32 || d == DType::bf16; };
    const MatmulAxes p(n.in[0]->axes, n.in[1]->axes, n.axes);
    return !in_iteration_ && std::min(axis_size(p.m), axis_size(p.n)) == 1 &&
           reads(n.in[0]->dtype) && reads(n.in[1]->dtype) && reads(n.dtype);
  }
  bool is_large_enough(const Node& n) const {
    const auto work = double(axis_size(joined(n.in[0]->axes, n.in[1]->axes)));
    return work >= (is_vectors(n) ? kMinVectorWork : kMinWork) && kernel_block(n) > 0;
  }
  // Returns true if a matmul in an iteration skips blocks along `a` in its kernel, rather than in a
  // loop over blocks. One matmul packs its operands once; a matmul per block packs them again. bf16
  // uses the loop: the kernel would store all keys as f32, and they would exceed the cache of a
  // core together with 64 rows of 1,024 scores.
  bool skips_in_kernel(const Node& n, const Axis& a) const {
    const MatmulAxes p(n.in[0]->axes, n.in[1]->axes, n.axes);
    const auto rows = double(axis_size(p.m)), columns = double(axis_size(p.n)),
               summed = double(axis_size(p.k));
    return n.in[0]->dtype == DType::f32 && kernel_block(n) > 0 && is_side(n, a) &&
           std::min({rows, columns, summed}) >= kMinMatrixSide &&
           rows * columns * summed >= kMinMatrixWork;
  }
  // Returns the block size for an axis of this size. In an iteration, a block is large enough for
  // an efficient matmul, and small enough that few masked positions are computed. 0: the axis is
  // not split.
  std::int64_t block_size(const Node& n, std::int64_t size) const {
    if (!in_iteration_) return size >= kMinBlocks * kernel_block(n) ? kernel_block(n) : 0;
    return size >= kLongAxis ? kLongBlock : size >= 2 * kShortBlock ? kShortBlock : 0;
  }

  // Returns the contraction without masked blocks, along the first axis for which there are masks.
  // Null: there is none. Masks that make an operand 0 have priority over masks of readers.
  NodePtr masked(const Node& n) const {
    for (std::size_t k : {0u, 1u})
      for (auto& a : n.in[k]->axes) {
        if (block_size(n, a.size) == 0) continue;
        if (auto created = with_flags(n, a, of_operand(n.in[k], a.name))) return created;
      }
    for (auto& a : n.axes) {
      if (block_size(n, a.size) == 0) continue;
      if (auto created = with_flags(n, a, of_readers(n, a.name))) return created;
    }
    return nullptr;
  }
  // Returns the blocks in which operand x is 0.
  static SkippedBlocks of_operand(const NodePtr& x, Name axis) {
    SkippedBlocks out{.zero = true};
    for (auto& m : analysis::masks_of(x, axis)) {
      SkippedBlocks::Mask skipped_mask{m, {}};
      auto replacement = analysis::value_where_false(x, m.get(), axis, skipped_mask.must_be_zero);
      if (!replacement) continue;
      if (!prim::is_number(replacement, 0)) skipped_mask.must_be_zero.push_back(replacement);
      out.masks.push_back(std::move(skipped_mask));
    }
    return out;
  }
  // Returns the blocks that the readers of n do not use, or multiply by 0.
  SkippedBlocks of_readers(const Node& n, Name axis) const {
    // The values computed elementwise from n (and n itself) that other ops or results read.
    Nodes ends;
    std::vector<const Node*> todo{&n};
    std::unordered_set<const Node*> seen{&n};
    while (!todo.empty()) {
      auto* x = todo.back();
      todo.pop_back();
      bool read = roots_.count(x) > 0;
      auto of = readers_.find(x);
      for (auto* r : of == readers_.end() ? std::vector<const Node*>() : of->second) {
        bool elementwise = (r->op->kind == Kind::map || keeps_names(*r)) && has(r->axes, axis);
        if (!elementwise)
          read = true;
        else if (seen.insert(r).second)
          todo.push_back(r);
      }
      if (read) ends.push_back(std::const_pointer_cast<Node>(x->shared_from_this()));
    }
    SkippedBlocks out;
    Nodes masks;
    for (auto& e : ends)
      for (auto& m : analysis::masks_of(e, axis))
        if (!holds(masks, m)) masks.push_back(m);
    for (auto& m : masks) {
      SkippedBlocks::Mask skipped_mask{m, {}};
      auto most = analysis::MaskedReads::nothing;
      for (auto& e : ends)
        most = std::max(
            most, analysis::reads_where_false(e, &n, m.get(), axis, skipped_mask.must_be_zero));
      if (most == analysis::MaskedReads::all) continue;
      out.zero |= most == analysis::MaskedReads::zero;
      out.masks.push_back(std::move(skipped_mask));
    }
    return out;
  }
  // Returns true if `a` is the only axis of m, n or k with more than one position.
  static bool is_side(const Node& n, const Axis& a) {
    const MatmulAxes p(n.in[0]->axes, n.in[1]->axes, n.axes);
    for (auto* side : {&p.m, &p.n, &p.k})
      if (has(*side, a.name)) return axis_size(*side) == a.size;
    return false;  // a batch axis
  }
  // Returns the longest axis other than `a` that a mask and the contraction share, and that may be
  // split into blocks. It is the query axis if `a` is the key axis.
  std::optional<Axis> queries_of(const Node& n, const Axis& a, const SkippedBlocks& skipped) const {
    std::optional<Axis> longest;
    for (auto& [mask, must_be_zero] : skipped.masks)
      for (auto& x : mask->axes) {
        bool has_it =
            x.name != a.name && (find(*n.in[0], x.name) || find(*n.in[1], x.name)) && is_side(n, x);
        if (has_it && block_size(n, x.size) && (!longest || x.size > longest->size)) longest = x;
      }
    return longest;
  }
  // Returns the contraction that skips these blocks along `a`. Null: there are no cheap flags, or
  // an axis is unsuitable.
  NodePtr with_flags(const Node& n, const Axis& a, const SkippedBlocks& skipped) const {
    const bool in_kernel = !in_iteration_ || skips_in_kernel(n, a);
    std::vector<analysis::AxisBlocks> blocks{
        {a, in_kernel ? kernel_block(n) : block_size(n, a.size)}};
    if (!in_iteration_ && !is_side(n, a)) return nullptr;
    if (!in_iteration_ && !is_vectors(n)) {
      auto queries = queries_of(n, a, skipped);
      if (!queries) return nullptr;
      blocks.push_back({*queries, kernel_block(n)});
    }
    NodePtr created;  // a flag per block
    for (auto& [mask, must_be_zero] : skipped.masks) {
      auto may = analysis::may_be_true(mask, blocks);
      if (!may || !has(may->axes, blocks[0].blocks().name)) continue;
      Nodes zero;
      for (auto& x : must_be_zero) zero.push_back(prim::equal(x, prim::number(0, x->dtype)));
      created = analysis::both_flags(created, analysis::flag_or_not_all(may, zero));
    }
    if (!created) return nullptr;
    OriginScope here(n.origin);
    bool sums = !in_kernel && !find(n, a.name);
    // A sum over blocks accumulates in f32, and is rounded once at the end.
    auto dtype = sums && is_float(n.dtype) && bytes_of(n.dtype) < 4 ? DType::f32 : n.dtype;
    MaskedMatmulAttr attr{.zero = skipped.zero, .in_kernel = in_kernel};
    Axes flags;
    for (auto& b : blocks) {
      attr.blocked.push_back({b.axis.name, b.block});
      flags.push_back(b.blocks());
    }
    auto matmul = make(kMaskedMatmul, {n.in[0], n.in[1], prim::fit(created, flags)}, n.axes, dtype,
                       attr.attr());
    return prim::cast(matmul, n.dtype);
  }

  const program::Machine& machine_;
  bool in_iteration_;
  Nodes nodes_;
  std::unordered_set<const Node*> roots_;
  std::unordered_map<const Node*, std::vector<const Node*>> readers_;
};

Nodes rewrite_level(const Nodes& values, const Nodes& level, const Node* index,
                    const program::Machine& machine, bool in_iteration) {
  Rewrite found, to;
  BlockSkipping(values, level, machine, in_iteration).rewrite(found);
  if (found.empty()) return values;
  for (auto& n : level)  // operands first: replacements may read replacements
    if (auto y = found.find(n.get()); y != found.end())
      to[n.get()] = substitute({y->second}, to, index)[0];
  return substitute(values, to, index);
}
Nodes rewrite_levels(const Nodes& values, const Node* index, const program::Machine& machine,
                     LevelKind kind) {
  std::unordered_set<const Node*> of_scores;  // loop indices
  const auto level = level_of(values, index);
  auto rewritten =
      kind == LevelKind::in_nested_loop
          ? values
          : rewrite_level(values, level, index, machine, kind == LevelKind::in_iteration);
  for (auto& n : level)  // rewritten loops keep their indices
    if (n->op == &kLoop && loop_of(*n).of_scores)
      for (auto& i : loop_of(*n).index) of_scores.insert(i.get());
  return in_bodies(
      rewritten, index, [](const Loop&) { return true; },
      [&](const Nodes& inner, const Node* i) {
        const auto inner_kind = of_scores.count(i)           ? LevelKind::in_iteration
                                : kind == LevelKind::outside ? kind
                                                             : LevelKind::in_nested_loop;
        return rewrite_levels(inner, i, machine, inner_kind);
      });
}

}  // namespace

Nodes masked_matmuls(const Nodes& roots, const program::Machine& machine) {
  auto all = all_nodes(roots);
  if (std::none_of(all.begin(), all.end(), [](auto& n) { return analysis::reads_mask(*n); }))
    return roots;
  return rewrite_levels(roots, nullptr, machine, LevelKind::outside);
}

}  // namespace haliax
