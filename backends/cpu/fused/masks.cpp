// Plan: finds masks of positions among the instructions of a fused step.
#include "masks.h"

#include <algorithm>
#include <cstdlib>

#include "base/scalar.h"
#include "program/fused.h"

namespace haliax::cpu {
namespace {

using program::Code;
using program::Fused;
using program::Instr;

constexpr std::int64_t least_points = 4096;  // elements of the smallest step with two plans
constexpr int most_terms = 16;               // constants and positions of a mask

// Reads a comparison of sums of positions and constants.
struct MaskReader {
  const Fused& fused;
  PositionMask mask = {};
  int terms = 0;

  // Adds sign * value to the mask. Returns false if the value has another form.
  bool add(int value, int sign) {
    auto& in = fused.code[std::size_t(value)];
    if (!is_signed(in.dtype)) return false;
    mask.limit = std::min(mask.limit, scalar::highest(in.dtype).integer);
    switch (in.code) {
      case Code::constant:
        if (in.integer <= -mask.limit || in.integer >= mask.limit) return false;
        mask.constant += sign * in.integer;
        mask.magnitude += std::abs(in.integer);
        return ++terms <= most_terms;
      case Code::iota:
        mask.positions.emplace_back(value, sign);
        return ++terms <= most_terms;
      case Code::cast:
        return add(in.args[0], sign);
      case Code::add:
      case Code::sub:
        return add(in.args[0], sign) && add(in.args[1], in.code == Code::add ? sign : -sign);
      default:
        return false;
    }
  }
};
std::optional<PositionMask> position_mask(const Fused& fused, const Instr& in) {
  if (in.code != Code::less && in.code != Code::less_equal) return {};
  MaskReader reader{fused};
  reader.mask.or_equal = in.code == Code::less_equal;
  if (!reader.add(in.args[1], 1) || !reader.add(in.args[0], -1)) return {};
  if (reader.mask.magnitude >= reader.mask.limit) return {};
  return std::move(reader.mask);
}

// The values of an instruction at the hidden elements of one row.
// - unknown   they may differ
// - same      they are all equal
// - all_false  they are all false
enum class Hidden { unknown, same, all_false };

class RowAnalysis {
 public:
  RowAnalysis(const Fused& fused, int dim) : fused_(fused), dim_(dim), hidden_(fused.code.size()) {}

  std::optional<MaskedRows> run() {
    for (std::size_t i = 0; i < fused_.code.size(); ++i) {
      auto& in = fused_.code[i];
      if (is_store(in.code)) {
        if (in.inner && !is_filled(in)) return {};
      } else if (is_reduction(in.code)) {
        if (!is_folded(in)) return {};
        hidden_[i] = Hidden::same;
      } else if (auto mask = position_mask(fused_, in); mask && hides_end(*mask)) {
        out_.masks.push_back(*mask);
        hidden_[i] = Hidden::all_false;
      } else {
        hidden_[i] = hidden_of(in);
      }
    }
    if (out_.masks.empty()) return {};
    return out_;
  }

 private:
  const Instr& arg(const Instr& in, int k) const { return fused_.code[std::size_t(in.args[k])]; }
  Hidden hidden(const Instr& in, int k) const { return hidden_[std::size_t(in.args[k])]; }
  // Returns true if the mask holds only at the first elements of each row.
  bool hides_end(const PositionMask& mask) const {
    std::int64_t step = 0;  // change from one element of a row to the next
    for (auto [i, sign] : mask.positions)
      if (auto& at = fused_.code[std::size_t(i)]; at.dim == dim_) step += sign * at.stride;
    return step < 0;
  }
  bool varies(const Instr& in) const {
    const auto strides = program::access_strides(fused_, in);
    return !strides.empty() && strides[std::size_t(dim_)] != 0;
  }
  bool is_filled(const Instr& in) const {
    return in.code == Code::store && varies(in) && hidden(in, 0) == Hidden::same;
  }
  // Returns true if a reduction over the visible elements and one hidden element has the result of
  // the full row. That holds for a maximum and a minimum. It holds for a sum if hidden elements are
  // 0, so `zero` records the operand for the check at run time.
  bool is_folded(const Instr& in) {
    if (!arg(in, 0).inner || hidden(in, 0) != Hidden::same) return false;
    if (in.code == Code::reduce_max || in.code == Code::reduce_min) return true;
    if (in.code != Code::reduce_sum || !is_float(arg(in, 0).dtype)) return false;
    out_.zero.push_back(in.args[0]);
    return true;
  }
  // Derives the state of a result from the states of the operands. A multiplication of an unknown
  // value by 0 stays unknown, since the value may be NaN.
  Hidden hidden_of(const Instr& in) const {
    if (varies(in)) return Hidden::unknown;
    auto is_false = [&](int k) { return hidden(in, k) == Hidden::all_false; };
    if (in.code == Code::bit_and && (is_false(0) || is_false(1))) return Hidden::all_false;
    if (in.code == Code::bit_or && is_false(0) && is_false(1)) return Hidden::all_false;
    if (in.code == Code::select && is_false(0)) return hidden(in, 2);
    const auto args = program::operands(in);
    const bool differs = std::any_of(args.begin(), args.end(), [&](int a) {
      return hidden_[std::size_t(a)] == Hidden::unknown;
    });
    return differs ? Hidden::unknown : Hidden::same;
  }

  const Fused& fused_;
  int dim_;
  std::vector<Hidden> hidden_;
  MaskedRows out_;
};

}  // namespace

std::optional<MaskedRows> masked_rows(const Fused& fused, int dim) {
  return RowAnalysis(fused, dim).run();
}

Unmasked::Unmasked(const Fused& fused) : fused_(fused) {
  if (program::points(fused.dims) < least_points) return;
  bool moves = false;  // a position depends on a loop index
  std::vector<bool> holds;
  for (auto& in : fused.code) {
    auto mask = position_mask(fused, in);
    holds.push_back(mask.has_value());
    if (!mask) continue;
    std::vector<Range> ranges;
    for (auto [i, sign] : mask->positions) {
      auto& at = fused.code[std::size_t(i)];
      const auto n = at.dim < 0 ? 1 : fused.dims[std::size_t(at.dim)];
      ranges.push_back({.place = Place(at.view),
                        .start = at.integer + at.view.offset,
                        .reach = at.stride * (n - 1),
                        .sign = sign});
      moves |= !at.view.terms.empty();
    }
    masks_.emplace_back(std::move(*mask), std::move(ranges));
  }
  if (moves) drop_masks(std::move(holds));
}

// Replaces selects and conjunctions. holds: the instructions that are true everywhere.
void Unmasked::drop_masks(std::vector<bool> holds) {
  std::vector<int> same;  // instruction with the same value, itself by default
  for (std::size_t i = 0; i < fused_.code.size(); ++i) {
    auto& in = fused_.code[i];
    same.push_back(int(i));
    for (int& a : in.args)
      if (a >= 0) a = same[std::size_t(a)];
    auto held = [&](int k) { return bool(holds[std::size_t(in.args[k])]); };
    auto becomes = [&](int k) {
      auto& other = fused_.code[std::size_t(in.args[k])];
      if (other.dtype != in.dtype || other.inner != in.inner) return;
      same[i] = in.args[k];
      holds[i] = held(k);
      exists_ |= in.code == Code::select;
    };
    const bool masks = in.dtype == DType::boolean;
    if (masks && in.code == Code::bit_or)
      holds[i] = held(0) || held(1);
    else if (masks && in.code == Code::bit_and && (held(0) || held(1)))
      becomes(held(0) ? 1 : 0);
    else if (in.code == Code::select && held(0))
      becomes(1);
  }
}

bool Unmasked::holds(const Frame& frame) const {
  return std::all_of(masks_.begin(), masks_.end(), [&](auto& m) {
    auto& [mask, ranges] = m;
    std::int64_t least = mask.constant, magnitude = mask.magnitude;
    for (auto& r : ranges) {
      const auto first = r.start + r.place.loop_offset(frame), last = first + r.reach;
      least += std::min(r.sign * first, r.sign * last);
      magnitude += std::max(std::abs(first), std::abs(last));
    }
    return magnitude < mask.limit && (mask.or_equal ? least >= 0 : least > 0);
  });
}

}  // namespace haliax::cpu
