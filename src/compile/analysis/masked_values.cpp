// Ranges and constancy of values on blocks, given that a mask is false.
#include "ops/masks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "graph/traversal.h"
#include "ops/attr.h"
#include "ops/shifted_exp.h"

namespace haliax::prim {

bool selects_operand(const Node& n) {
  return n.op->kind == Kind::map && n.op->code == Code::select;
}

namespace {

bool is_mask_cast(const Node& n) {  // 1 where a mask holds, 0 elsewhere
  return n.op->kind == Kind::map && n.op->code == Code::cast && n.in[0]->dtype == DType::boolean &&
         n.dtype != DType::boolean;
}
bool is_point_wise(const Node& n) {
  return n.op->kind == Kind::map || (is_transparent_view(n) && keeps_names(n));
}

// The least and the largest value in each block, as i64: without axes but blocks.
struct Bounds {
  NodePtr low, high;
};

// A mask that was made numbers of and compared with one (`tril(ones({Q, K}), Q, K) == 0`): which,
// or what it is not.
struct SameMask {
  NodePtr mask;
  bool negated = false;
};
// of two numbers; as doubles have them
std::optional<bool> outcome(Code how, const NodePtr& a, const NodePtr& b) {
  if (!is_number(a) || !is_number(b)) return {};
  const double x = real_of(*stripped(a)), y = real_of(*stripped(b));
  if (!is_float(a->dtype) && std::max(std::abs(x), std::abs(y)) > double(std::int64_t(1) << 53))
    return {};
  switch (how) {
    case Code::less:
      return x < y;
    case Code::less_equal:
      return x <= y;
    case Code::equal:
      return x == y;
    case Code::not_equal:
      return x != y;
    default:
      return {};
  }
}
std::optional<bool> decided(const Node& n, const Nodes& in) {  // n of these operands
  if (n.dtype != DType::boolean || n.op->kind != Kind::map || in.empty() || !in[0]) return {};
  if (in.size() == 2) return in[1] ? outcome(n.op->code, in[0], in[1]) : std::nullopt;
  bool negates = n.op->code == Code::logical_not ||
                 (n.op->code == Code::bit_not && in[0]->dtype == DType::boolean);
  return negates && is_number(in[0]) ? std::optional(is_number(in[0], 0)) : std::nullopt;
}
std::optional<SameMask> as_mask(const Node& c) {
  if (c.op->kind != Kind::map || c.in.size() != 2) return {};
  for (std::size_t side : {0u, 1u}) {
    auto& x = same_values(c.in[side]);
    const bool is_cast = is_mask_cast(*x);
    if (!is_cast && !selects_operand(*x)) continue;
    auto with = [&](const NodePtr& value) {
      return side == 0 ? outcome(c.op->code, value, c.in[1]) : outcome(c.op->code, c.in[0], value);
    };
    auto there = with(is_cast ? number(1, x->dtype) : x->in[1]);
    auto elsewhere = with(is_cast ? number(0, x->dtype) : x->in[2]);
    if (there && elsewhere && *there != *elsewhere) return SameMask{x->in[0], *elsewhere};
  }
  return {};
}

// times what has 32 bits: no overflow
constexpr std::int64_t kMostFactor = std::int64_t(1) << 30;

class OnBlocks {
 public:
  explicit OnBlocks(const std::vector<AxisBlocks>& blocks) : blocks_(blocks) {}

  // upper: may it hold somewhere in the block? Else: does it hold throughout? Null: not known.
  NodePtr holds(const NodePtr& c, bool upper) const {
    if (is_number(c)) return c;
    auto over = upper ? Monoid::max : Monoid::min;
    if (!in_blocks(*c)) return reduce(over, c, {});
    if (is_transparent_view(*c) && keeps_names(*c)) return holds(c->in[0], upper);
    if (auto same = as_mask(*c)) {
      auto x = holds(same->mask, upper != same->negated);
      return x && same->negated ? logical_not(x) : x;
    }
    switch (c->op->code) {
      case Code::bit_and:
      case Code::bit_or: {
        bool any_will_do = (c->op->code == Code::bit_and) == upper;  // one of two says enough
        auto x = holds(c->in[0], upper), y = holds(c->in[1], upper);
        if (x && y) return map(*c->op, {x, y}, DType::boolean);
        return any_will_do ? (x ? x : y) : nullptr;
      }
      case Code::logical_not:
      case Code::bit_not: {
        auto x = holds(c->in[0], !upper);
        return x ? logical_not(x) : nullptr;
      }
      case Code::less:
        return compared(*c, [&](const Bounds& x, const Bounds& y) {
          return upper ? less(x.low, y.high) : less(x.high, y.low);
        });
      case Code::less_equal:
        return compared(*c, [&](const Bounds& x, const Bounds& y) {
          return upper ? less_equal(x.low, y.high) : less_equal(x.high, y.low);
        });
      case Code::equal:
        return compared(
            *c, [&](const Bounds& x, const Bounds& y) { return upper ? meet(x, y) : same(x, y); });
      case Code::not_equal:
        return compared(*c, [&](const Bounds& x, const Bounds& y) {
          return logical_not(upper ? same(x, y) : meet(x, y));
        });
      default:
        break;
    }
    bool created = c->op->kind == Kind::map;  // to fold it were to make it twice
    return created ? nullptr : folded(c, over, identity(over, DType::boolean));
  }

  // Of integers.
  std::optional<Bounds> range(const NodePtr& x) const {
    auto d = x->dtype;
    if (is_float(d) || d == DType::boolean || d == DType::u64) return {};
    auto wide = [](const NodePtr& n) { return cast(n, DType::i64); };
    auto* b = in_blocks(*x);
    if (!b) return Bounds{wide(reduce(Monoid::min, x, {})), wide(reduce(Monoid::max, x, {}))};
    if (x->op == &kIota) {
      auto first = mul(iota(b->blocks(), DType::i64), integer(b->block, DType::i64));
      auto last =
          min(add(first, integer(b->block - 1, DType::i64)), integer(b->axis.size - 1, DType::i64));
      return Bounds{first, last};
    }
    if (is_transparent_view(*x) && keeps_names(*x)) return range(x->in[0]);
    if (auto created = combined(*x)) return inside(*created, d);
    if (x->op->kind == Kind::map || x->axes.size() > 1) return {};
    return Bounds{wide(folded(x, Monoid::min, identity(Monoid::min, d))),
                  wide(folded(x, Monoid::max, identity(Monoid::max, d)))};
  }

 private:
  static NodePtr meet(const Bounds& x, const Bounds& y) {
    return both(less_equal(x.low, y.high), less_equal(y.low, x.high));
  }
  static NodePtr same(const Bounds& x, const Bounds& y) {
    return both(both(equal(x.low, x.high), equal(y.low, y.high)), equal(x.low, y.low));
  }
  template <class F> NodePtr compared(const Node& c, const F& f) const {
    auto x = range(c.in[0]), y = range(c.in[1]);
    return x && y ? f(*x, *y) : nullptr;
  }
  // The first of its axes that goes in blocks; null: none does.
  const AxisBlocks* in_blocks(const Node& n) const {
    auto b = std::find_if(blocks_.begin(), blocks_.end(),
                          [&](auto& b) { return has(n.axes, b.axis.name); });
    return b == blocks_.end() ? nullptr : &*b;
  }
  // (..., axes) -> (blocks of each), folded block by block.
  NodePtr folded(NodePtr x, Monoid m, const NodePtr& nothing) const {
    Axes all;
    for (auto& b : blocks_) {
      if (!has(x->axes, b.axis.name)) continue;
      auto blocks = b.blocks();
      auto whole = blocks.size * b.block;
      if (whole != b.axis.size) x = pad(x, b.axis.name, 0, whole - b.axis.size, nothing);
      x = unflatten(x, b.axis.name, {blocks, Axis(b.axis.name, b.block)});
      all.push_back(blocks);
    }
    return reduce(m, x, all);
  }
  std::optional<Bounds> combined(const Node& x) const {
    if (x.op->kind != Kind::map || x.in.empty() || x.in.size() > 2) return {};
    auto a = range(x.in[0]);
    if (!a) return {};
    if (x.op->code == Code::cast) return a;
    if (x.op->code == Code::neg) return Bounds{neg(a->high), neg(a->low)};
    if (x.op->code == Code::abs)
      return Bounds{max(integer(0, DType::i64), max(a->low, neg(a->high))),
                    max(neg(a->low), a->high)};
    auto b = x.in.size() == 2 ? range(x.in[1]) : std::nullopt;
    if (!b) return {};
    switch (x.op->code) {
      case Code::add:
        return Bounds{add(a->low, b->low), add(a->high, b->high)};
      case Code::sub:
        return Bounds{sub(a->low, b->high), sub(a->high, b->low)};
      case Code::max:
        return Bounds{max(a->low, b->low), max(a->high, b->high)};
      case Code::min:
        return Bounds{min(a->low, b->low), min(a->high, b->high)};
      case Code::mul:
      case Code::floor_div: {  // by a number
        const bool times = x.op->code == Code::mul, swapped = times && is_number(x.in[0]);
        auto by = whole_number(x.in[swapped ? 0 : 1]);
        if (!by || *by <= 0 || *by > kMostFactor || (times && bytes_of(x.dtype) > 4)) return {};
        auto created = [&](const NodePtr& end) {
          return map(*x.op, {end, integer(*by, DType::i64)}, DType::i64);
        };
        return swapped ? Bounds{created(b->low), created(b->high)}
                       : Bounds{created(a->low), created(a->high)};
      }
      default:
        return {};
    }
  }
  static std::optional<std::int64_t> whole_number(const NodePtr& x) {
    return is_number(x) ? std::optional(integer_of(*stripped(x))) : std::nullopt;
  }
  // What leaves the dtype comes in again at its other end: then it may be anything.
  static std::optional<Bounds> inside(const Bounds& r, DType d) {
    if (d == DType::i64) return {};
    auto least = cast(extreme(d, false), DType::i64), most = cast(extreme(d, true), DType::i64);
    auto fits = both(less_equal(least, r.low), less_equal(r.high, most));
    return Bounds{select(fits, r.low, least), select(fits, r.high, most)};
  }

  const std::vector<AxisBlocks>& blocks_;
};

// Neither less nor more than these, along an axis that they lack. masked: a mask is part of what
// they are made of.
struct Between {
  NodePtr low, high;
  bool masked = false;
};
constexpr std::int64_t kMostSummed = 1 << 16;  // in f32, within a part in 100

class WhereFalse {
 public:
  // What it finds holds if all of `if_zero` are 0. In turns of an index, in which the mask is false
  // throughout, sums and products along the axis are known, too.
  WhereFalse(const Node* mask, Name axis, Nodes& if_zero, const Node* index = nullptr)
      : mask_(mask), axis_(axis), index_(index), if_zero_(if_zero) {}
  NodePtr of(const NodePtr& n) {
    if (n.get() == mask_) return number(0, DType::boolean);
    const bool along = has(n->axes, axis_);
    if (!along && !(index_ && n->varies_with(index_))) return n;
    if (auto known = known_.find(n.get()); known != known_.end()) return known->second;
    return known_[n.get()] = along ? found(n) : off_axis(n);
  }
  // The operand that is chosen there; none: that is not known.
  const NodePtr* chosen(const Node& n) {
    if (!selects_operand(n)) return nullptr;
    auto c = of(n.in[0]);
    return c && is_number(c) ? &n.in[is_number(c, 0) ? 2 : 1] : nullptr;
  }

 private:
  void expect_zero(const NodePtr& x) {
    if (!is_number(x, 0) && std::find(if_zero_.begin(), if_zero_.end(), x) == if_zero_.end())
      if_zero_.push_back(x);
  }
  NodePtr zero(const Node& n, const NodePtr& x) {  // the result, where x is
    expect_zero(x);
    return number(0, n.dtype);
  }
  NodePtr found(const NodePtr& node) {
    auto& n = *node;
    if (index_ && n.op->kind == Kind::contract) return of_masked_product(n);
    if (!is_point_wise(n)) return nullptr;
    if (is_mask(node)) return number(1, DType::boolean);  // what the mask is not
    if (n.op->kind != Kind::map) return of(n.in[0]);
    if (auto* one = chosen(n)) return of(*one);
    Nodes in;
    Axes axes;
    bool zeros = !n.in.empty();
    for (std::size_t k = 0; k < n.in.size(); ++k) {
      auto x = of(n.in[k]);
      bool zero = x && is_number(x, 0);
      auto how = zero_in(n, k);
      if (zero && how != Linear::no && how != Linear::all) return number(0, n.dtype);
      zeros &= zero && how == Linear::all;
      in.push_back(x);
    }
    if (zeros) return number(0, n.dtype);
    for (auto& x : in) {
      if (!x) return hidden(node);
      axes = joined(axes, x->axes);
    }
    if (auto known = decided(n, in)) return number(*known, DType::boolean);
    if (vanishes_below(n) && !is_number(in[0]))
      if (auto nothing = hidden(node)) return nothing;
    return make(*n.op, std::move(in), axes, n.dtype, n.attr);
  }
  // It keeps the axis, all along which an operand is known.
  NodePtr of_masked_product(const Node& n) {
    NodePtr known;
    for (auto& operand : n.in) {
      auto x = has(operand->axes, axis_) ? of(operand) : nullptr;
      if (x && (!known || is_number(x, 0))) known = x;
    }
    return known ? zero(n, known) : nullptr;
  }
  // exp and sigmoid are 0 where their operand is low.
  static bool vanishes_below(const Node& n) {
    return (n.op->code == Code::exp || n.op->code == Code::sigmoid) && is_float(n.dtype);
  }
  // 0, of an operand that is so low, as scores to which -1e9 is added.
  NodePtr hidden(const NodePtr& n) {
    if (!vanishes_below(*n)) return nullptr;
    auto x = between(n->in[0]);
    if (!x || !x->masked) return nullptr;
    // Of what is below the logarithm of half the least number there is. It is compared, as exp may
    // be inf where it is not so.
    const double vanishes = n->dtype == DType::f64 ? -746 : -104;
    expect_zero(logical_not(less_equal(x->high, number(vanishes, n->dtype))));
    return number(0, n->dtype);
  }
  bool is_mask(const NodePtr& n) const {  // or what it is not
    return n.get() == mask_ || (mask_->op->code == Code::logical_not && mask_->in[0] == n);
  }
  bool depends(const NodePtr& n) {
    if (is_mask(n)) return true;
    if (!has(n->axes, axis_) || !is_point_wise(*n)) return false;
    if (auto known = depends_.find(n.get()); known != depends_.end()) return known->second;
    bool reads = std::any_of(n->in.begin(), n->in.end(), [&](auto& x) { return depends(x); });
    return depends_[n.get()] = reads;
  }
  // Where the mask is false.
  std::optional<Between> between(const NodePtr& n) {
    if (auto known = between_.find(n.get()); known != between_.end()) return known->second;
    auto found = ends_of(n);
    return between_[n.get()] = found;
  }
  std::optional<Between> ends_of(const NodePtr& n) {
    if (auto known = of(n)) return Between{known, known, depends(n)};
    if (n->op->kind == Kind::contract) return of_product(*n);
    if (!is_float(n->dtype)) return of_integers(n);
    if (!is_point_wise(*n) || !has(n->axes, axis_)) return {};
    if (n->op->kind != Kind::map) return between(n->in[0]);
    std::vector<Between> in;
    for (std::size_t k = selects_operand(*n) ? 1 : 0; k < n->in.size(); ++k) {
      auto x = between(n->in[k]);
      if (!x) return {};
      in.push_back(*x);
    }
    auto out = ends_of(*n, in);
    if (out) out->masked = std::any_of(in.begin(), in.end(), [](auto& x) { return x.masked; });
    return out;
  }
  std::optional<Between> of_integers(const NodePtr& n) {  // which may wrap around
    auto& axis = *find(*n, axis_);
    const std::vector<AxisBlocks> whole{{axis, axis.size}};
    auto ends = OnBlocks(whole).range(n);
    if (!ends) return {};
    // of the one block
    auto end = [&](const NodePtr& x) { return cast(reduce(Monoid::max, x, {}), n->dtype); };
    return Between{end(ends->low), end(ends->high), depends(n)};
  }
  // Each op is made of both ends in its own dtype: they round alike, and rounding never makes the
  // less the more.
  static std::optional<Between> ends_of(const Node& n, const std::vector<Between>& in) {
    auto created = [&](Nodes of) { return map(*n.op, std::move(of), n.dtype); };
    switch (n.op->code) {
      case Code::select:
        return Between{min(in[0].low, in[1].low), max(in[0].high, in[1].high)};
      case Code::cast:
      case Code::tanh:
      case Code::sigmoid:
      case Code::exp:
        return Between{created({in[0].low}), created({in[0].high})};
      case Code::abs:
        return Between{number(0, n.dtype), max(neg(in[0].low), in[0].high)};
      case Code::neg:
        return Between{created({in[0].high}), created({in[0].low})};
      case Code::add:
      case Code::max:
      case Code::min:
        return Between{created({in[0].low, in[1].low}), created({in[0].high, in[1].high})};
      case Code::sub:
        return Between{created({in[0].low, in[1].high}), created({in[0].high, in[1].low})};
      case Code::mul:
      case Code::div:
        for (std::size_t k : {0u, 1u}) {  // by one that is the same all along the axis
          if (in[k].low != in[k].high || (k == 0 && n.op->code == Code::div)) continue;
          auto by = [&](const NodePtr& x) {
            return k == 1 ? created({x, in[1].low}) : created({in[0].low, x});
          };
          auto a = by(in[1 - k].low), b = by(in[1 - k].high);
          return Between{min(a, b), max(a, b)};
        }
        return {};
      default:
        return {};
    }
  }
  // Of a product one of whose operands has the axis: no more than the lengths of their vectors give
  // (Cauchy, Schwarz).
  std::optional<Between> of_product(const Node& n) {
    if (n.in.size() != 2 || !is_float(n.dtype) ||
        has(n.in[0]->axes, axis_) == has(n.in[1]->axes, axis_))
      return {};
    const auto summed = haliax::without(joined(n.in[0]->axes, n.in[1]->axes), n.axes);
    bool of_both = haliax::without(summed, common(n.in[0]->axes, n.in[1]->axes)).empty();
    if (!of_both || axis_size(summed) > kMostSummed) return {};
    NodePtr squares;
    for (auto x : n.in) {
      for (auto part = slice_of(*x); part && part->axis == axis_ && !part->drop;
           part = slice_of(*x))
        x = x->in[0];  // once for all turns
      auto wide = bytes_of(x->dtype) < 4 ? cast(x, DType::f32) : x;
      auto own = reduce(Monoid::sum, square(wide), haliax::without(x->axes, summed));
      if (auto* a = find(*own, axis_))
        own = reduce(Monoid::max, own, haliax::without(own->axes, {*a}));
      squares = squares ? mul(squares, own) : own;
    }
    auto length = cast(scale(sqrt(squares), 1.02), n.dtype);
    return Between{neg(length), length};
  }
  // Of a value without the axis, made of what may have it.
  NodePtr off_axis(const NodePtr& n) {
    const auto kind = n->op->kind;
    if (kind != Kind::map && is_point_wise(*n)) {
      auto x = of(n->in[0]);
      return x == n->in[0] ? n : x;
    }
    if (kind == Kind::map) {
      Nodes in;
      for (auto& x : n->in) in.push_back(of(x));
      if (in == n->in) return n;
      if (auto same = no_more(*n, in)) return same;
      bool known = std::find(in.begin(), in.end(), nullptr) == in.end();
      return known ? make(*n->op, std::move(in), n->axes, n->dtype, n->attr) : nullptr;
    }
    if (kind == Kind::reduce && has(n->in[0]->axes, axis_)) {
      auto x = of(n->in[0]);
      auto by = along(*n, 0, axis_);
      if (!x || by.way != Along::Way::fold) return nullptr;
      if (by.monoid == Monoid::sum) return zero(*n, x);
      if (by.monoid != Monoid::max && by.monoid != Monoid::min) return nullptr;
      return reduce(by.monoid, fit(x, haliax::without(n->in[0]->axes, {*find(*n->in[0], axis_)})),
                    n->axes);
    }
    if (kind == Kind::contract && has(n->in[0]->axes, axis_) && has(n->in[1]->axes, axis_)) {
      for (std::size_t side : {0u, 1u})
        if (auto x = of(n->in[side])) return zero(*n, x);
      return nullptr;
    }
    for (auto& x : n->in)
      if (x && of(x) != x) return nullptr;
    return n;
  }
  // The larger of a known value and a maximum along the axis: the known one, if what is masked is
  // no more.
  NodePtr no_more(const Node& n, const Nodes& in) {
    if (n.op->code != Code::max) return nullptr;
    for (std::size_t k : {0u, 1u}) {
      auto& most = same_values(n.in[k]);
      if (in[k] || !in[1 - k] || most->op != &kMax || !has(most->in[0]->axes, axis_)) continue;
      auto x = between(most->in[0]);
      if (!x || !x->masked) continue;
      auto high = reduce(Monoid::max, x->high, common(x->high->axes, most->axes));
      expect_zero(logical_not(less_equal(high, in[1 - k])));
      return fit(in[1 - k], n.axes);
    }
    return nullptr;
  }
  const Node* mask_;
  Name axis_;
  const Node* index_;
  Nodes& if_zero_;
  std::unordered_map<const Node*, NodePtr> known_;
  std::unordered_map<const Node*, std::optional<Between>> between_;
  std::unordered_map<const Node*, bool> depends_;
};

}  // namespace

Axis AxisBlocks::blocks() const {
  // Of other sizes they are other axes: flags of two products may be joined.
  return Axis(fmt::format("(blocks of {} {})", block, axis.name.text()),
              (axis.size + block - 1) / block);
}
NodePtr may_be_true(const NodePtr& mask, const std::vector<AxisBlocks>& blocks) {
  return OnBlocks(blocks).holds(mask, true);
}
NodePtr value_where_false(const NodePtr& x, const Node* mask, Name axis, Nodes& if_zero) {
  return WhereFalse(mask, axis, if_zero).of(x);
}

bool reads_mask(const Node& n) { return selects_operand(n) || is_mask_cast(n); }
Nodes masks_of(const NodePtr& x, Name axis) {
  Nodes out;
  auto goes_on = [&](const Node& n) { return has(n.axes, axis) && is_point_wise(n); };
  traverse({x}, goes_on, [&](const NodePtr& n, Nodes& todo) {
    if (reads_mask(*n) && has(n->in[0]->axes, axis)) {
      auto& m = n->in[0];
      out.push_back(m);
      // `where(hidden, -1e9, scores)`
      out.push_back(m->op->code == Code::logical_not ? m->in[0] : logical_not(m));
    }
    append(todo, n->in);
  });
  return out;
}

MaskedReads reads_where_false(const NodePtr& x, const Node* s, const Node* mask, Name axis,
                              Nodes& if_zero) {
  WhereFalse false_there(mask, axis, if_zero);
  std::unordered_map<const Node*, MaskedReads> known;
  auto reads = [&](auto& self, const NodePtr& n) -> MaskedReads {
    if (n.get() == s) return MaskedReads::all;
    if (!has(n->axes, axis) || !is_point_wise(*n)) return MaskedReads::nothing;
    if (auto k = known.find(n.get()); k != known.end()) return k->second;
    auto out = MaskedReads::nothing;
    if (auto* one = false_there.chosen(*n)) return known[n.get()] = self(self, *one);
    for (std::size_t k = 0; k < n->in.size(); ++k) {
      auto mine = self(self, n->in[k]);
      // times what is 0 there
      for (std::size_t o = 0; mine == MaskedReads::all && o < n->in.size(); ++o) {
        if (o == k || zero_in(*n, o) != Linear::one || zero_in(*n, k) != Linear::one ||
            !has(n->in[o]->axes, axis))
          continue;
        auto other = false_there.of(n->in[o]);
        if (!other) continue;
        mine = MaskedReads::zero;
        if (!is_number(other, 0)) if_zero.push_back(other);
      }
      out = std::max(out, mine);
    }
    // what s is makes no difference
    if (out == MaskedReads::all && false_there.of(n)) out = MaskedReads::zero;
    return known[n.get()] = out;
  };
  return reads(reads, x);
}

NodePtr value_if_never_true(const NodePtr& x, const Node* mask, Name axis, const Node* index,
                            Nodes& if_zero) {
  return WhereFalse(mask, axis, if_zero, index).of(x);
}

NodePtr flag_or_not_all(const NodePtr& flag, const Nodes& conditions) {
  auto out = flag;
  for (auto& c : conditions)
    if (!is_number(c, 1)) out = either(out, logical_not(reduce(Monoid::min, c, {})));
  return out;
}
NodePtr both_flags(const NodePtr& flag, const NodePtr& more) {
  return flag ? both(flag, more) : more;
}

NodePtr unchanged_flag(const NodePtr& next, const NodePtr& before) {
  auto is = [](const NodePtr& x, double value) {
    return is_number(x, value) ? number(1, DType::boolean) : equal(x, number(value, x->dtype));
  };
  auto known = [&](auto& self, const NodePtr& n) -> NodePtr {  // null: not, from how it is made
    if (n == before) return number(1, DType::boolean);
    if (selects_operand(*n))
      if (auto other = self(self, n->in[2])) return both(other, logical_not(n->in[0]));
    if (n->op->kind != Kind::map || n->in.size() != 2 || n->dtype != before->dtype) return nullptr;
    for (std::size_t k : {0u, 1u}) {
      auto& other = n->in[1 - k];
      auto mine = self(self, n->in[k]);
      if (mine && n->op->code == Code::add) return both(mine, is(other, 0));
      if (mine && n->op->code == Code::mul) return both(mine, is(other, 1));
      if (mine && n->op->code == Code::max) return both(mine, less_equal(other, before));
    }
    return nullptr;
  };
  auto how = known(known, next);
  return how ? how : equal(next, before);
}

}  // namespace haliax::prim
