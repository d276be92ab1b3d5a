// Variants of a fused step for iterations in which its masks hold everywhere.
#include "unmasked.h"

#include <algorithm>

#include "base/scalar.h"

namespace haliax::cpu {

using program::Code;
using program::Instr;

namespace {

constexpr std::int64_t least_points = 4096;  // elements of the smallest step with two plans
bool compares(Code c) { return c == Code::less || c == Code::less_equal; }
bool counts(DType d) { return !is_float(d) && d != DType::boolean && d != DType::u64; }

}  // namespace

// Returns true if the value is an integer that is computed from positions and constants only.
bool Unmasked::is_position(const Instr& in) const {
  auto created = [&](int k) { return known_[static_cast<std::size_t>(in.args[k])]; };
  if (!counts(in.dtype)) return false;
  switch (in.code) {
    case Code::constant:
    case Code::iota:
      return true;
    case Code::cast:
      return created(0);
    case Code::add:
    case Code::sub:
      return created(0) && created(1);
    default:
      return false;
  }
}

Unmasked::Unmasked(const program::Fused& fused) : fused_(fused), code_(fused.code) {
  if (product(fused.dims) < least_points) return;
  bool turns = false;
  std::size_t used = 0;
  positions_.resize(code_.size());
  known_.resize(code_.size());
  compared_.resize(code_.size());
  for (std::size_t i = 0; i < code_.size(); ++i) {
    auto& in = code_[i];
    known_[i] = is_position(in);
    if (known_[i] && in.code == Code::iota) {
      const auto n = in.dim < 0 ? 1 : fused.dims[static_cast<std::size_t>(in.dim)];
      positions_[i] = {Place(in.view), in.integer + in.view.offset, in.stride * (n - 1)};
      turns |= !in.view.terms.empty();
    }
    compared_[i] = compares(in.code) && known_[static_cast<std::size_t>(in.args[0])] &&
                   known_[static_cast<std::size_t>(in.args[1])];
    if (compared_[i]) used = i + 1;
  }
  code_.resize(used);
  bounds_.resize(used);
  if (turns && used > 0) drop_masks();
}

void Unmasked::drop_masks() {
  std::vector<bool> holds(fused_.code.size());
  std::vector<int> same(fused_.code.size());  // instruction with the same value, itself by default
  for (std::size_t i = 0; i < fused_.code.size(); ++i) {
    auto& in = fused_.code[i];
    same[i] = static_cast<int>(i);
    for (int& a : in.args)
      if (a >= 0) a = same[static_cast<std::size_t>(a)];
    auto held = [&](int k) { return holds[static_cast<std::size_t>(in.args[k])]; };
    auto becomes = [&](int k) {
      const int by = in.args[k];
      auto& other = fused_.code[static_cast<std::size_t>(by)];
      if (other.dtype == in.dtype && other.inner == in.inner) {
        same[i] = by;
        holds[i] = held(k);
        exists_ |= in.code == Code::select;
      }
    };
    holds[i] = compared_[i];
    const bool masks =
        in.dtype == DType::boolean && (in.code == Code::bit_and || in.code == Code::bit_or);
    if (masks && held(0) && held(1))
      holds[i] = true;
    else if (masks && in.code == Code::bit_or)
      holds[i] = held(0) || held(1);
    else if (masks && held(0))
      becomes(1);
    else if (masks && held(1))
      becomes(0);
    else if (in.code == Code::select && held(0))
      becomes(1);
  }
}

std::optional<Unmasked::Bounds> Unmasked::bounds(std::size_t i, const Frame& frame) const {
  auto& in = code_[i];
  auto arg = [&](int k) { return bounds_[static_cast<std::size_t>(in.args[k])]; };
  std::optional<Bounds> out;
  if (in.code == Code::constant) {
    out = {in.integer, in.integer};
  } else if (in.code == Code::iota) {
    const auto first = positions_[i].start + positions_[i].place.loop_offset(frame),
               last = first + positions_[i].reach;
    out = {std::min(first, last), std::max(first, last)};
  } else if (in.code == Code::cast) {
    out = arg(0);
  } else if (arg(0) && arg(1)) {
    const bool adds = in.code == Code::add;
    out = {arg(0)->low + (adds ? arg(1)->low : -arg(1)->high),
           arg(0)->high + (adds ? arg(1)->high : -arg(1)->low)};
  }
  constexpr std::int64_t far = std::int64_t(1) << 40;  // bound for i64, to avoid overflow
  const bool wide = in.dtype == DType::i64;
  const auto least = wide ? -far : scalar::lowest(in.dtype).integer,
             most = wide ? far : scalar::highest(in.dtype).integer;
  // the value may overflow and wrap around
  if (out && (out->low < least || out->high > most)) out.reset();
  return out;
}

bool Unmasked::holds(const Frame& frame) {
  for (std::size_t i = 0; i < code_.size(); ++i) {
    if (known_[i]) bounds_[i] = bounds(i, frame);
    if (!compared_[i]) continue;
    auto &x = bounds_[static_cast<std::size_t>(code_[i].args[0])],
         &y = bounds_[static_cast<std::size_t>(code_[i].args[1])];
    if (!x || !y || !(code_[i].code == Code::less ? x->high < y->low : x->high <= y->low))
      return false;
  }
  return true;
}

}  // namespace haliax::cpu
