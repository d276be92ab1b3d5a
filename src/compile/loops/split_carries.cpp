// Carries the parts of a concatenation in place of the concatenation, so that no iteration joins
// the parts and slices them again. An example is the state of a simulation that stacks the
// derivatives of its variables.
#include <algorithm>
#include <set>

#include "compile/loops/loops.h"
#include "ops/attr.h"
#include "ops/block.h"
#include "ops/prim.h"

namespace haliax {
namespace {

constexpr std::size_t kMaxParts = 8;
constexpr std::int64_t kMinTrips = 4;  // fewer do not pay for the concatenation at the end

bool is_map(const Node& n) { return n.op->kind == Kind::map; }
// Returns true for an op that concatenates its operands at fixed positions.
bool is_concatenation(const Node& n) {
  return n.op->segments && n.op->kind == Kind::step && n.op->segments(n).size() == n.in.size();
}
// Returns the block that a node reads of its operand, if it is a slice at fixed positions.
std::optional<Block> block_read(const Node& n) {
  if (!n.op->segments || n.op->kind != Kind::view || n.in.size() != 1) return {};
  const Name axis = AlongAttr::of(n).axis;
  const auto segments = n.op->segments(n);
  if (segments.size() != 1 || segments[0].step != 1) return {};
  return Block{axis, prim::integer(segments[0].from, DType::i32), segments[0].size,
               !has(n.axes, axis)};
}

struct Parts {
  Name axis;
  std::set<std::int64_t> starts;
  std::int64_t size = 0;
  // A part of one position lacks the axis.
  std::vector<Block> blocks() const {
    std::vector<Block> out;
    for (auto start = starts.begin(); start != starts.end(); ++start) {
      const auto end = std::next(start) == starts.end() ? size : *std::next(start);
      out.push_back({axis, prim::integer(*start, DType::i32), end - *start, end - *start == 1});
    }
    return out;
  }
};

// Finds the parts of an elementwise function of concatenations along one axis.
std::optional<Parts> parts_of(const NodePtr& value) {
  std::optional<Parts> parts;
  std::unordered_set<const Node*> seen;
  Nodes open{value};
  while (!open.empty()) {
    const NodePtr n = open.back();
    open.pop_back();
    if (!seen.insert(n.get()).second) continue;
    if (is_map(*n)) {
      open.insert(open.end(), n->in.begin(), n->in.end());
    } else if (is_concatenation(*n)) {
      const Name axis = AlongAttr::of(*n).axis;
      if (!parts) parts = Parts{axis, {0}, find_axis(n->axes, axis)->size};
      if (parts->axis != axis || !has(value->axes, axis)) continue;
      for (auto& s : n->op->segments(*n))
        for (auto end : {s.to, s.to + s.size})
          if (end < parts->size) parts->starts.insert(end);
    }
  }
  const bool fits = parts && parts->starts.size() > 1 && parts->starts.size() <= kMaxParts;
  return fits ? parts : std::nullopt;
}

Axes axes_of_part(Axes axes, const Block& b) {
  if (b.drop) std::erase_if(axes, [&](auto& a) { return a.name == b.axis; });
  for (auto& a : axes)
    if (a.name == b.axis) a.size = b.size;
  return axes;
}
// Returns the concatenation of the parts. A part of one position lacks the axis (Block::drop), and
// receives it here with size 1.
NodePtr concatenated(Nodes parts, const std::vector<Block>& blocks, const Axes& full) {
  for (std::size_t k = 0; k < parts.size(); ++k) {
    Block block = blocks[k];
    block.drop = false;
    parts[k] = prim::fit(parts[k], axes_of_part(full, block));
  }
  return prim::concat(parts, *find_axis(full, blocks[0].axis));
}

// Replaces slices of concatenations by slices of their operands.
Nodes without_joins(const Nodes& values) {
  Rewrite to;
  for (auto& n : all_nodes(values)) {
    if (!block_read(*n)) continue;
    if (auto part = prim::slice_of_segment(*n, substitute(n->in[0], to))) {
      to[n.get()] = part;
      to.held.push_back(n);
    }
  }
  return substitute(values, to);
}

// A carry of a loop, rewritten as one carry per part.
struct SplitCarry {
  std::vector<LoopResult> results;  // all results, with those of the parts in place of the carry
  std::vector<Block> blocks;        // the parts
};

// Splits the carry of a result: the body reads blocks of it, and computes each part from parts.
// Returns nothing if the result is not a carry of this kind, if the loop is short or has several
// bodies, or if a part requires all parts together.
std::optional<SplitCarry> split(const Loop& l, std::size_t number) {
  const LoopResult& old = l.results[number];
  if (old.kind != ResultKind::carry || l.index.size() != 1 || trips(l, 0) < kMinTrips) return {};
  const auto parts = parts_of(old.value[0]);
  if (!parts) return {};
  const auto blocks = parts->blocks();
  Nodes carries;
  for (auto& b : blocks)
    carries.push_back(prim::carry(l.index[0], axes_of_part(old.carry->axes, b), old.carry->dtype));
  const NodePtr joined_carries = concatenated(carries, blocks, old.carry->axes);

  Rewrite to{{old.carry.get(), joined_carries}};
  prim::Blocks on_block([](const NodePtr& n) { return is_map(*n); });
  Nodes values;
  for (auto& r : l.results) values.push_back(r.value[0]);
  for (auto& n : level_of(values, l.index[0].get())) {
    const auto block = block_read(*n);
    if (!block || block->axis != parts->axis || !is_map(*n->in[0])) continue;
    to[n.get()] = on_block(substitute(n->in[0], to), {*block});
    to.held.push_back(n);
  }
  Nodes next;  // the values of the parts, then all others
  for (auto& b : blocks) next.push_back(on_block(substitute(values[number], to), {b}));
  values.erase(values.begin() + std::ptrdiff_t(number));
  for (auto& v : substitute(values, to)) next.push_back(v);
  next = without_joins(next);
  const Nodes of_parts(next.begin(), next.begin() + std::ptrdiff_t(blocks.size()));
  // A value that needs all parts together would write them next to each other again.
  const auto all = all_nodes(of_parts);
  if (std::find(all.begin(), all.end(), joined_carries) != all.end()) return {};
  SplitCarry out{l.results, blocks};
  out.results.erase(out.results.begin() + std::ptrdiff_t(number));
  for (std::size_t k = 0; k < out.results.size(); ++k)
    out.results[k].value = {next[blocks.size() + k]};
  for (std::size_t p = 0; p < blocks.size(); ++p) {
    LoopResult part = old;
    part.value = {of_parts[p]};
    part.start = prim::block_of(old.start, {blocks[p]});
    part.carry = carries[p];
    out.results.insert(out.results.begin() + std::ptrdiff_t(number + p), std::move(part));
  }
  return out;
}

// Splits one carry of a loop. Returns false if no carry can be split.
bool split_one(const NodePtr& n, Rewrite& to) {
  Loop l = loop_of(*n);
  for (std::size_t k = 0; k < l.results.size(); ++k) {
    auto parts = split(l, k);
    if (!parts) continue;
    const Axes full = l.results[k].carry->axes;
    const std::size_t results = l.results.size(), count = parts->blocks.size();
    l.results = std::move(parts->results);
    const auto loop = make_loop(std::move(l));
    for (std::size_t j = 0; j < results; ++j)
      if (j != k) to[loop_result(n, j).get()] = loop_result(loop, j < k ? j : j + count - 1);
    Nodes last;
    for (std::size_t p = 0; p < count; ++p) last.push_back(loop_result(loop, k + p));
    to[loop_result(n, k).get()] = concatenated(std::move(last), parts->blocks, full);
    return true;
  }
  return false;
}

}  // namespace

Nodes split_carries(Nodes roots) {
  return rewrite_one_by_one(std::move(roots), [](const Nodes& roots, Rewrite& to) {
    for (auto& n : all_nodes(roots))
      if (n->op == &kLoop && split_one(n, to)) break;
  });
}

}  // namespace haliax
