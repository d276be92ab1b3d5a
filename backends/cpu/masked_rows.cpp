// Fused steps on rows whose tail is hidden by a positional mask.
#include "masked_rows.h"

#include <algorithm>
#include <cstdlib>

#include "program/fused.h"

namespace haliax::cpu {
namespace {

using program::Code;
using program::Fused;
using program::Instr;

// The values of an instruction at the hidden elements of one row.
// - unknown   they may differ
// - same      they are all equal
// - not_true  they are all false
enum class Hidden { unknown, same, not_true };

class Analysis {
 public:
  Analysis(const Fused& fused, int dim) : fused_(fused), dim_(dim), hidden_(fused.code.size()) {}

  std::optional<MaskedRows> run() {
    for (std::size_t i = 0; i < fused_.code.size(); ++i) {
      auto& in = fused_.code[i];
      if (is_store(in.code)) {
        if (in.inner && !is_filled(in)) return {};
      } else if (is_reduction(in.code)) {
        if (!is_folded(in)) return {};
        hidden_[i] = Hidden::same;
      } else {
        hidden_[i] = of(in);
        if (auto mask = mask_of(in)) {
          out_.masks.push_back(*mask);
          hidden_[i] = Hidden::not_true;
        }
      }
    }
    if (out_.masks.empty()) return {};
    return out_;
  }

 private:
  const Instr& arg(const Instr& in, int k) const { return fused_.code[std::size_t(in.args[k])]; }
  Hidden hidden(const Instr& in, int k) const { return hidden_[std::size_t(in.args[k])]; }
  bool walks(const Instr& in) const {
    if (in.code == Code::iota) return in.dim == dim_ && in.stride != 0;
    return in.inner && std::size_t(dim_) < in.view.strides.size() &&
           in.view.strides[std::size_t(dim_)] != 0;
  }
  bool is_filled(const Instr& in) const {
    return in.code == Code::store && walks(in) && hidden(in, 0) == Hidden::same;
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
  Hidden of(const Instr& in) const {
    const auto args = program::operands(in);
    if (args.empty())
      return in.code != Code::constant && walks(in) ? Hidden::unknown : Hidden::same;
    auto is_not = [&](int k) { return hidden(in, k) == Hidden::not_true; };
    if (in.code == Code::bit_and && (is_not(0) || is_not(1))) return Hidden::not_true;
    if (in.code == Code::bit_or && is_not(0) && is_not(1)) return Hidden::not_true;
    if (in.code == Code::select && is_not(0)) return hidden(in, 2);
    const bool differs = std::any_of(args.begin(), args.end(), [&](int a) {
      return hidden_[std::size_t(a)] == Hidden::unknown;
    });
    return differs ? Hidden::unknown : Hidden::same;
  }

  // Returns sign * value as a sum of signed positions and a constant, or nullopt if the value has
  // another form. For example, given i + 3 - j, returns {constant = 3, {i, 1}, {j, -1}}.
  std::optional<RowMask> sum_of(int i, int sign) const {
    auto& in = fused_.code[std::size_t(i)];
    if (in.dtype != DType::i32 && in.dtype != DType::i64) return {};
    if (in.code == Code::constant && in.integer > -far_position && in.integer < far_position)
      return RowMask{false, sign * in.integer, {}};
    if (in.code == Code::iota) return RowMask{false, 0, {{i, sign}}};
    if (in.code == Code::cast) return sum_of(in.args[0], sign);
    if (in.code != Code::add && in.code != Code::sub) return {};
    return joined(sum_of(in.args[0], sign),
                  sum_of(in.args[1], in.code == Code::add ? sign : -sign));
  }
  static std::optional<RowMask> joined(std::optional<RowMask> a, const std::optional<RowMask>& b) {
    if (!a || !b) return {};
    a->constant += b->constant;
    a->positions.insert(a->positions.end(), b->positions.begin(), b->positions.end());
    return a;
  }
  std::optional<RowMask> mask_of(const Instr& in) const {
    if (in.code != Code::less && in.code != Code::less_equal) return {};
    auto high = sum_of(in.args[1], 1), low = sum_of(in.args[0], -1);
    for (auto* side : {&high, &low})
      if (*side && ((*side)->positions.size() > 8 || std::abs((*side)->constant) >= far_position))
        return {};
    auto mask = joined(high, low);
    if (!mask) return {};
    std::int64_t step = 0;  // change from one element of a row to the next
    for (auto [i, sign] : mask->positions)
      if (auto& at = fused_.code[std::size_t(i)]; at.dim == dim_) step += sign * at.stride;
    if (step >= 0) return {};
    mask->or_equal = in.code == Code::less_equal;
    return mask;
  }

  const Fused& fused_;
  int dim_;
  std::vector<Hidden> hidden_;
  MaskedRows out_;
};

}  // namespace

std::optional<MaskedRows> masked_rows(const Fused& fused, int dim) {
  return Analysis(fused, dim).run();
}

}  // namespace haliax::cpu
