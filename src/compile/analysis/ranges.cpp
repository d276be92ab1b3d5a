#include "compile/analysis/ranges.h"

#include <fmt/format.h>

#include <algorithm>

#include "compile/analysis/masks.h"
#include "ops/attr.h"

namespace haliax::analysis {
namespace {

using namespace prim;

// The largest factor of a range: 32-bit integers times this factor do not overflow.
constexpr std::int64_t kMaxFactor = std::int64_t(1) << 30;

class BlockRanges {
 public:
  explicit BlockRanges(const std::vector<AxisBlocks>& blocks) : blocks_(blocks) {}

  // Returns a flag per block that may err to one side only. With `somewhere`, a false flag proves
  // that the mask is false in the entire block. Without it, a true flag proves that the mask is
  // true in the entire block. Null: not known.
  NodePtr truth(const NodePtr& mask, bool somewhere) const {
    auto& m = *mask;
    if (is_number(mask)) return mask;
    const auto over = somewhere ? Monoid::max : Monoid::min;
    if (!tiled_axis(m)) return reduce(over, mask, {});
    if (keeps_names(m)) return truth(m.in[0], somewhere);
    if (auto same = equal_mask(m)) {
      auto x = truth(same->mask, somewhere != same->negated);
      return x && same->negated ? logical_not(x) : x;
    }
    switch (m.op->code) {
      case Code::bit_and:
      case Code::bit_or: {
        // One operand is sufficient for "a and b may be true" and for "a or b is true".
        const bool one_suffices = (m.op->code == Code::bit_and) == somewhere;
        auto x = truth(m.in[0], somewhere), y = truth(m.in[1], somewhere);
        if (x && y) return map(*m.op, {x, y}, DType::boolean);
        return one_suffices ? (x ? x : y) : nullptr;
      }
      case Code::logical_not:
      case Code::bit_not: {
        auto x = truth(m.in[0], !somewhere);
        return x ? logical_not(x) : nullptr;
      }
      case Code::less:
        return compared(m, [&](const IntegerRange& x, const IntegerRange& y) {
          return somewhere ? less(x.low, y.high) : less(x.high, y.low);
        });
      case Code::less_equal:
        return compared(m, [&](const IntegerRange& x, const IntegerRange& y) {
          return somewhere ? less_equal(x.low, y.high) : less_equal(x.high, y.low);
        });
      case Code::equal:
        return compared(m, [&](const IntegerRange& x, const IntegerRange& y) {
          return somewhere ? overlap(x, y) : are_one_value(x, y);
        });
      case Code::not_equal:
        return compared(m, [&](const IntegerRange& x, const IntegerRange& y) {
          return logical_not(somewhere ? are_one_value(x, y) : overlap(x, y));
        });
      default:
        break;
    }
    // To reduce a computed mask would compute it twice.
    const bool computed = m.op->kind == Kind::map;
    return computed ? nullptr : reduced(mask, over, identity(over, DType::boolean));
  }

  std::optional<IntegerRange> range(const NodePtr& x) const {
    const auto dtype = x->dtype;
    if (is_float(dtype) || dtype == DType::boolean || dtype == DType::u64) return {};
    auto wide = [](const NodePtr& n) { return cast(n, DType::i64); };
    auto* tiled = tiled_axis(*x);
    if (!tiled)
      return IntegerRange{wide(reduce(Monoid::min, x, {})), wide(reduce(Monoid::max, x, {}))};
    if (x->op == &kIota) {
      auto first = mul(iota(tiled->blocks(), DType::i64), integer(tiled->block, DType::i64));
      auto last = min(add(first, integer(tiled->block - 1, DType::i64)),
                      integer(tiled->axis.size - 1, DType::i64));
      return IntegerRange{first, last};
    }
    if (keeps_names(*x)) return range(x->in[0]);
    if (auto computed = range_of_op(*x)) return in_dtype(*computed, dtype);
    if (x->op->kind == Kind::map || x->axes.size() > 1) return {};
    return IntegerRange{wide(reduced(x, Monoid::min, identity(Monoid::min, dtype))),
                        wide(reduced(x, Monoid::max, identity(Monoid::max, dtype)))};
  }

 private:
  static NodePtr overlap(const IntegerRange& x, const IntegerRange& y) {
    return both(less_equal(x.low, y.high), less_equal(y.low, x.high));
  }
  static NodePtr are_one_value(const IntegerRange& x, const IntegerRange& y) {
    return both(both(equal(x.low, x.high), equal(y.low, y.high)), equal(x.low, y.low));
  }
  template <class F> NodePtr compared(const Node& c, const F& f) const {
    auto x = range(c.in[0]), y = range(c.in[1]);
    return x && y ? f(*x, *y) : nullptr;
  }
  // Returns the first axis in blocks that the node has, or null.
  const AxisBlocks* tiled_axis(const Node& n) const {
    auto b = std::find_if(blocks_.begin(), blocks_.end(),
                          [&](auto& b) { return has(n.axes, b.axis.name); });
    return b == blocks_.end() ? nullptr : &*b;
  }
  // Reduces x block by block. `padding` fills the last block.
  NodePtr reduced(NodePtr x, Monoid m, const NodePtr& padding) const {
    Axes all;
    for (auto& b : blocks_) {
      if (!has(x->axes, b.axis.name)) continue;
      auto blocks = b.blocks();
      const auto padded = blocks.size * b.block;
      if (padded != b.axis.size) x = pad(x, b.axis.name, 0, padded - b.axis.size, padding);
      x = unflatten(x, b.axis.name, {blocks, Axis(b.axis.name, b.block)});
      all.push_back(blocks);
    }
    return reduce(m, x, all);
  }
  std::optional<IntegerRange> range_of_op(const Node& x) const {
    if (x.op->kind != Kind::map || x.in.empty() || x.in.size() > 2) return {};
    auto a = range(x.in[0]);
    if (!a) return {};
    if (x.op->code == Code::cast) return a;
    if (x.op->code == Code::neg) return IntegerRange{neg(a->high), neg(a->low)};
    if (x.op->code == Code::abs)
      return IntegerRange{max(integer(0, DType::i64), max(a->low, neg(a->high))),
                          max(neg(a->low), a->high)};
    auto b = x.in.size() == 2 ? range(x.in[1]) : std::nullopt;
    if (!b) return {};
    switch (x.op->code) {
      case Code::add:
        return IntegerRange{add(a->low, b->low), add(a->high, b->high)};
      case Code::sub:
        return IntegerRange{sub(a->low, b->high), sub(a->high, b->low)};
      case Code::max:
        return IntegerRange{max(a->low, b->low), max(a->high, b->high)};
      case Code::min:
        return IntegerRange{min(a->low, b->low), min(a->high, b->high)};
      case Code::mul:
      case Code::floor_div:
        return scaled(x, *a, *b);
      default:
        return {};
    }
  }
  // The range of integers that are multiplied or divided by a positive constant.
  static std::optional<IntegerRange> scaled(const Node& x, const IntegerRange& a,
                                            const IntegerRange& b) {
    const bool multiplies = x.op->code == Code::mul;
    const bool swapped = multiplies && is_number(x.in[0]);
    auto& constant = x.in[swapped ? 0 : 1];
    const auto by = is_number(constant) ? integer_of(*stripped(constant)) : 0;
    if (by <= 0 || by > kMaxFactor || (multiplies && bytes_of(x.dtype) > 4)) return {};
    auto& range = swapped ? b : a;
    auto of = [&](const NodePtr& limit) {
      return map(*x.op, {limit, integer(by, DType::i64)}, DType::i64);
    };
    return IntegerRange{of(range.low), of(range.high)};
  }
  // If a limit exceeds the dtype, the value may wrap around to any value of the dtype.
  static std::optional<IntegerRange> in_dtype(const IntegerRange& r, DType d) {
    if (d == DType::i64) return {};
    auto lowest = cast(extreme(d, false), DType::i64), highest = cast(extreme(d, true), DType::i64);
    auto fits = both(less_equal(lowest, r.low), less_equal(r.high, highest));
    return IntegerRange{select(fits, r.low, lowest), select(fits, r.high, highest)};
  }

  const std::vector<AxisBlocks>& blocks_;
};

}  // namespace

Axis AxisBlocks::blocks() const {
  // The name contains the size of a block: blocks of different sizes are different axes.
  return Axis(fmt::format("(blocks of {} {})", block, axis.name.text()),
              (axis.size + block - 1) / block);
}
NodePtr may_be_true(const NodePtr& mask, const std::vector<AxisBlocks>& blocks) {
  return BlockRanges(blocks).truth(mask, true);
}
std::optional<IntegerRange> integer_range(const NodePtr& x, const std::vector<AxisBlocks>& blocks) {
  return BlockRanges(blocks).range(x);
}

}  // namespace haliax::analysis
