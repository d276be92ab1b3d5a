// Analysis of the values of a tile group: in skipped blocks, and while reductions are incomplete.
#include <algorithm>

#include "tiles.h"

namespace haliax::cuda {

using namespace program;

// ---- skipped blocks ----
SkippedBlock::SkippedBlock(const TileGroup& g) : code(g.code), states(g.code.size(), State::row) {
  for (std::size_t i = 0; i < code.size(); ++i) states[i] = simplify(g, i);
}
SkippedBlock::State SkippedBlock::simplify(const TileGroup& g, std::size_t i) {
  auto& in = code[i];
  if (int p = g.product_of[i]; p >= 0) {
    auto& product = g.products[std::size_t(p)];
    if (!product.has_flags) return State::inner;
    in.code = Code::constant;
    in.number = 0;
    in.integer = 0;
    return product.filled ? State::row : State::unknown;
  }
  if (!in.inner || is_reduction(in.code)) return State::row;
  if (in.code == Code::load || in.code == Code::iota) {
    auto& s = g.strides[i];
    const bool moves = std::any_of(s.begin() + std::ptrdiff_t(g.rows.size()), s.end(),
                                   [](auto x) { return x != 0; });
    return moves ? State::inner : State::row;
  }
  auto of = [&](int a) { return states[std::size_t(in.args[a])]; };
  if (in.code == Code::select && of(0) != State::unknown &&
      (of(1) == State::unknown) != (of(2) == State::unknown)) {
    const int other = in.args[of(1) == State::unknown ? 2 : 1];
    in.code = Code::cast;
    in.args[0] = other;
    in.args[1] = in.args[2] = -1;
    return of(0);
  }
  auto out = State::row;
  for (int a : operands(in))
    if (auto state = states[std::size_t(a)]; state != State::row && out != State::unknown)
      out = state;
  return out;
}
bool SkippedBlock::folds(const TileGroup& g, int fold) const {
  auto& in = g.code[std::size_t(fold)];
  return states[std::size_t(in.args[0])] == State::row && in.code != Code::reduce_prod;
}
NeededBlocks needed_blocks(const TileGroup& g, const SkippedBlock& skipped,
                           const std::vector<int>& folds, const std::vector<int>& products) {
  NeededBlocks w;
  auto has_flags = [&](int p) { return g.products[std::size_t(p)].has_flags; };
  for (int p : products) has_flags(p) ? void(w.flags.insert(p)) : void(w.always = true);
  for (int f : folds) {
    w.always |= !skipped.folds(g, f);
    for (int i : g.sources(f))
      if (int p = g.product_of[std::size_t(i)]; p >= 0 && has_flags(p)) w.flags.insert(p);
  }
  return w;
}

// ---- incomplete reductions ----
namespace {

// Returns the operand of a chain of casts that preserve the value, or the instruction itself.
int bare(const TileGroup& g, int i) {
  for (;;) {
    auto& in = g.code[std::size_t(i)];
    if (in.code != Code::cast || g.product_of[std::size_t(i)] >= 0) return i;
    const auto from = g.code[std::size_t(in.args[0])].dtype;
    if (from != in.dtype &&
        !(in.dtype == DType::f32 && (from == DType::bf16 || from == DType::f16)))
      return i;
    i = in.args[0];
  }
}
bool is_zero(const TileGroup& g, int i) {
  auto& in = g.code[std::size_t(bare(g, i))];
  return in.code == Code::constant && in.number == 0 && in.integer == 0;
}
struct Analysis {
  const TileGroup& g;
  const int top;
  const std::set<int>& pending;
  const bool may_round;  // accepts rounding before the unknown factor is applied

  const Instr& at(int i) const { return g.code[std::size_t(i)]; }
  bool waits(int i) const { return g.waits(i, pending); }
  // Returns the scaled form of an instruction, or nullopt if it has another form.
  std::optional<Scaled> of(int i) const {
    auto& in = at(i);
    if (!in.inner || g.product_of[std::size_t(i)] >= 0 ||
        !(in.dtype == DType::f32 || (may_round && is_float(in.dtype))))
      return {};
    const int x = in.args[0], y = in.args[1];
    switch (in.code) {
      case Code::exp:
        return of_exp(in);
      case Code::neg:
        return of(x);
      case Code::cast:
        return is_float(at(x).dtype) ? of(x) : std::nullopt;
      case Code::div:
        return waits(y) ? by_row(x, y, true) : of(x);
      case Code::mul:
        return !waits(y)     ? of(x)
               : !waits(x)   ? of(y)
               : at(y).inner ? by_row(y, x, false)
                             : by_row(x, y, false);
      case Code::select: {
        const int z = in.args[2];
        if (waits(x)) return {};
        return is_zero(g, z) ? of(y) : is_zero(g, y) ? of(z) : std::nullopt;
      }
      default:
        return {};
    }
  }
  // Returns the scaled form of value * row, or of value / row if `divided`.
  std::optional<Scaled> by_row(int value, int row, bool divided) const {
    if (at(row).inner) return {};
    auto out = of(value);
    if (out) out->factors.emplace_back(row, divided);
    return out;
  }
  // Returns the scaled form of exp(x - shift), where `top` is the maximum of x. Among the unknown
  // reductions, the shift must depend on `top` only.
  std::optional<Scaled> of_exp(const Instr& in) const {
    auto& sub = at(in.args[0]);
    if (in.dtype != DType::f32 || sub.code != Code::sub || sub.dtype != DType::f32) return {};
    const int x = sub.args[0], shift = sub.args[1];
    if (waits(x) || at(shift).inner || bare(g, x) != bare(g, at(top).args[0])) return {};
    for (int i : g.sources(shift))
      if (i != top && pending.count(i)) return {};
    return waits(shift) ? std::optional<Scaled>({.shift = bare(g, shift)}) : std::nullopt;
  }
};

}  // namespace

bool TileGroup::waits(int instr, const std::set<int>& folds) const {
  const auto all = sources(instr);
  return std::any_of(folds.begin(), folds.end(), [&](int f) { return all.count(f) > 0; });
}
std::optional<Scaled> scaled(const TileGroup& g, int value, int top, const std::set<int>& pending,
                             bool may_round) {
  return Analysis{g, top, pending, may_round}.of(value);
}
int without_factor(const TileGroup& g, int instr, const std::set<int>& pending) {
  auto& in = g.code[std::size_t(instr)];
  if (in.code != Code::mul && in.code != Code::div) return -1;
  for (int a : {1, 0}) {
    const int row = in.args[a];
    if (!g.code[std::size_t(row)].inner && g.waits(row, pending)) return in.args[1 - a];
  }
  return -1;
}
std::set<int> TileAction::pending() const {
  if (top < 0) return {};
  std::set<int> out{top};
  out.insert(early_reductions.begin(), early_reductions.end());
  return out;
}

}  // namespace haliax::cuda
