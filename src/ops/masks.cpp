#include "ops/masks.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "graph/walk.h"

namespace haliax::prim {

bool chooses(const Node& n) { return n.op->kind == Kind::map && n.op->code == Code::select; }

namespace {

bool is_point_wise(const Node& n) { return n.op->kind == Kind::map || (is_seen_through(n) && keeps_names(n)); }

// The least and the largest value in each block, as i64: without axes but blocks.
struct Bounds { NodePtr low, high; };

class OnBlocks {
 public:
  explicit OnBlocks(const std::vector<BlocksOf>& blocks) : blocks_(blocks) {}

  // upper: may it hold somewhere in the block? Else: does it hold throughout? Null: not known.
  NodePtr holds(const NodePtr& c, bool upper) const {
    if (is_number(c)) return c;
    auto over = upper ? Monoid::max : Monoid::min;
    if (!in_blocks(*c)) return reduce(over, c, {});
    if (is_seen_through(*c) && keeps_names(*c)) return holds(c->in[0], upper);
    switch (c->op->code) {
      case Code::bit_and:
      case Code::bit_or: {
        bool any_will_do = (c->op->code == Code::bit_and) == upper;   // one of two says enough
        auto x = holds(c->in[0], upper), y = holds(c->in[1], upper);
        if (x && y) return map(*c->op, {x, y}, DType::boolean);
        return any_will_do ? (x ? x : y) : nullptr;
      }
      case Code::logical_not:
      case Code::bit_not: {
        auto x = holds(c->in[0], !upper);
        return x ? logical_not(x) : nullptr;
      }
      case Code::less: return compared(*c, [&](const Bounds& x, const Bounds& y) {
        return upper ? less(x.low, y.high) : less(x.high, y.low);
      });
      case Code::less_equal: return compared(*c, [&](const Bounds& x, const Bounds& y) {
        return upper ? less_equal(x.low, y.high) : less_equal(x.high, y.low);
      });
      case Code::equal: return compared(*c, [&](const Bounds& x, const Bounds& y) { return upper ? meet(x, y) : same(x, y); });
      case Code::not_equal: return compared(*c, [&](const Bounds& x, const Bounds& y) {
        return logical_not(upper ? same(x, y) : meet(x, y));
      });
      default: break;
    }
    bool made = c->op->kind == Kind::map;          // to fold it were to make it twice
    return made ? nullptr : folded(c, over, identity(over, DType::boolean));
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
  const BlocksOf* in_blocks(const Node& n) const {
    auto b = std::find_if(blocks_.begin(), blocks_.end(), [&](auto& b) { return has(n.axes, b.axis.name); });
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
  std::optional<Bounds> range(const NodePtr& x) const {
    auto d = x->dtype;
    if (is_float(d) || d == DType::boolean || d == DType::u64) return {};
    auto wide = [](const NodePtr& n) { return cast(n, DType::i64); };
    auto* b = in_blocks(*x);
    if (!b)
      return Bounds{wide(reduce(Monoid::min, x, {})), wide(reduce(Monoid::max, x, {}))};
    if (x->op == &kIota) {
      auto first = mul(iota(b->blocks(), DType::i64), integer(b->block, DType::i64));
      auto last = min(add(first, integer(b->block - 1, DType::i64)), integer(b->axis.size - 1, DType::i64));
      return Bounds{first, last};
    }
    if (is_seen_through(*x) && keeps_names(*x)) return range(x->in[0]);
    if (auto made = combined(*x)) return inside(*made, d);
    if (x->op->kind == Kind::map || x->axes.size() > 1) return {};
    return Bounds{wide(folded(x, Monoid::min, identity(Monoid::min, d))), wide(folded(x, Monoid::max, identity(Monoid::max, d)))};
  }
  std::optional<Bounds> combined(const Node& x) const {
    if (x.op->kind != Kind::map || x.in.empty() || x.in.size() > 2) return {};
    auto a = range(x.in[0]);
    if (!a) return {};
    if (x.op->code == Code::cast) return a;
    if (x.op->code == Code::neg) return Bounds{neg(a->high), neg(a->low)};
    auto b = x.in.size() == 2 ? range(x.in[1]) : std::nullopt;
    if (!b) return {};
    switch (x.op->code) {
      case Code::add: return Bounds{add(a->low, b->low), add(a->high, b->high)};
      case Code::sub: return Bounds{sub(a->low, b->high), sub(a->high, b->low)};
      case Code::max: return Bounds{max(a->low, b->low), max(a->high, b->high)};
      case Code::min: return Bounds{min(a->low, b->low), min(a->high, b->high)};
      default: return {};
    }
  }
  // What leaves the dtype comes in again at its other end: then it may be anything.
  static std::optional<Bounds> inside(const Bounds& r, DType d) {
    if (d == DType::i64) return {};
    auto least = cast(extreme(d, false), DType::i64), most = cast(extreme(d, true), DType::i64);
    auto fits = both(less_equal(least, r.low), less_equal(r.high, most));
    return Bounds{select(fits, r.low, least), select(fits, r.high, most)};
  }

  const std::vector<BlocksOf>& blocks_;
};

class WhereFalse {
 public:
  WhereFalse(const Node* mask, Name axis) : mask_(mask), axis_(axis) {}
  // In turns of this index, in which the mask is false throughout: then sums and products along the axis are known, too.
  WhereFalse(const Node* mask, Name axis, const Node* index, Nodes& if_zero)
      : mask_(mask), axis_(axis), index_(index), if_zero_(&if_zero) {}
  NodePtr of(const NodePtr& n) {
    if (n.get() == mask_) return number(0, DType::boolean);
    const bool along = has(n->axes, axis_);
    if (!along && !(index_ && n->varies_with(index_))) return n;
    if (auto known = known_.find(n.get()); known != known_.end()) return known->second;
    return known_[n.get()] = along ? found(*n) : off_axis(n);
  }
  // The operand that is chosen there; none: that is not known.
  const NodePtr* chosen(const Node& n) {
    if (!chooses(n)) return nullptr;
    auto c = of(n.in[0]);
    return c && is_number(c) ? &n.in[is_number(c, 0) ? 2 : 1] : nullptr;
  }

 private:
  NodePtr found(const Node& n) {
    if (!is_point_wise(n)) return nullptr;
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
      if (!x) return nullptr;
      axes = joined(axes, x->axes);
    }
    return make(*n.op, std::move(in), axes, n.dtype, n.attr);
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
      bool known = std::find(in.begin(), in.end(), nullptr) == in.end();
      return known ? make(*n->op, std::move(in), n->axes, n->dtype, n->attr) : nullptr;
    }
    auto zero = [&](const NodePtr& x) {            // where x is
      if (!is_number(x, 0)) if_zero_->push_back(x);
      return number(0, n->dtype);
    };
    if (kind == Kind::reduce && has(n->in[0]->axes, axis_)) {
      auto x = of(n->in[0]);
      auto by = along(*n, 0, axis_);
      if (!x || by.way != Along::Way::fold) return nullptr;
      if (by.monoid == Monoid::sum) return zero(x);
      if (by.monoid != Monoid::max && by.monoid != Monoid::min) return nullptr;
      return reduce(by.monoid, fit(x, haliax::without(n->in[0]->axes, {*find(*n->in[0], axis_)})), n->axes);
    }
    if (kind == Kind::contract && has(n->in[0]->axes, axis_) && has(n->in[1]->axes, axis_)) {
      for (std::size_t side : {0u, 1u})
        if (auto x = of(n->in[side])) return zero(x);
      return nullptr;
    }
    for (auto& x : n->in)
      if (x && of(x) != x) return nullptr;
    return n;
  }
  const Node* mask_;
  Name axis_;
  const Node* index_ = nullptr;
  Nodes* if_zero_ = nullptr;
  std::unordered_map<const Node*, NodePtr> known_;
};

}  // namespace

Axis BlocksOf::blocks() const {
  // Of other sizes they are other axes: flags of two products may be joined.
  return Axis(fmt::format("(blocks of {} {})", block, axis.name.text()), (axis.size + block - 1) / block);
}
NodePtr may_hold(const NodePtr& mask, const std::vector<BlocksOf>& blocks) { return OnBlocks(blocks).holds(mask, true); }
NodePtr where_false(const NodePtr& x, const Node* mask, Name axis) { return WhereFalse(mask, axis).of(x); }

Nodes masks_of(const NodePtr& x, Name axis) {
  Nodes out;
  auto goes_on = [&](const Node& n) { return has(n.axes, axis) && is_point_wise(n); };
  walk({x}, goes_on, [&](const NodePtr& n, Nodes& todo) {
    if (chooses(*n) && has(n->in[0]->axes, axis)) out.push_back(n->in[0]);
    append(todo, n->in);
  });
  return out;
}

Reads read_where_false(const NodePtr& x, const Node* s, const Node* mask, Name axis, Nodes& if_zero) {
  WhereFalse false_there(mask, axis);
  std::unordered_map<const Node*, Reads> known;
  auto reads = [&](auto& self, const NodePtr& n) -> Reads {
    if (n.get() == s) return Reads::all;
    if (!has(n->axes, axis) || !is_point_wise(*n)) return Reads::nothing;
    if (auto k = known.find(n.get()); k != known.end()) return k->second;
    auto out = Reads::nothing;
    if (auto* one = false_there.chosen(*n)) return known[n.get()] = self(self, *one);
    for (std::size_t k = 0; k < n->in.size(); ++k) {
      auto mine = self(self, n->in[k]);
      for (std::size_t o = 0; mine == Reads::all && o < n->in.size(); ++o) {   // times what is 0 there
        if (o == k || zero_in(*n, o) != Linear::one || zero_in(*n, k) != Linear::one) continue;
        auto other = false_there.of(n->in[o]);
        if (!other) continue;
        mine = Reads::zero;
        if (!is_number(other, 0)) if_zero.push_back(other);
      }
      out = std::max(out, mine);
    }
    return known[n.get()] = out;
  };
  return reads(reads, x);
}

NodePtr if_nowhere(const NodePtr& x, const Node* mask, Name axis, const Node* index, Nodes& if_zero) {
  return WhereFalse(mask, axis, index, if_zero).of(x);
}

NodePtr unless_all(const NodePtr& flag, const Nodes& conditions) {
  auto out = flag;
  for (auto& c : conditions)
    if (!is_number(c, 1)) out = either(out, logical_not(reduce(Monoid::min, c, {})));
  return out;
}
NodePtr flags_joined(const NodePtr& flag, const NodePtr& more) { return flag ? both(flag, more) : more; }

NodePtr stays(const NodePtr& next, const NodePtr& before) {
  auto is = [](const NodePtr& x, double value) {
    return is_number(x, value) ? number(1, DType::boolean) : equal(x, number(value, x->dtype));
  };
  auto known = [&](auto& self, const NodePtr& n) -> NodePtr {   // null: not, from how it is made
    if (n == before) return number(1, DType::boolean);
    if (chooses(*n))
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
