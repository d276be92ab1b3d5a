#include "masked_rows.h"

#include <algorithm>
#include <cstdlib>

namespace haliax::cpu {
namespace {

using program::Code;
using program::Fused;
using program::Instr;

// What an instruction is behind all that the masks show of a row.
struct Hidden {
  enum { unknown, same, not_true, zero } is = unknown;   // same: at all points; zero: if all of `of` are
  std::vector<int> of = {};
};

class Analysis {
 public:
  Analysis(const Fused& fused, int dim) : fused_(fused), dim_(dim), hidden_(fused.code.size()) {}

  std::optional<MaskedRows> run() {
    for (std::size_t i = 0; i < fused_.code.size(); ++i) {
      auto& in = fused_.code[i];
      if (in.code >= Code::store) {
        if (in.inner && !is_filled(in)) return {};
      } else if (in.code >= Code::reduce_sum && in.code <= Code::reduce_argmin) {
        if (!is_folded(in)) return {};
        hidden_[i].is = Hidden::same;
      } else {
        hidden_[i] = of(in);
        if (auto mask = mask_of(in)) out_.masks.push_back(*mask), hidden_[i].is = Hidden::not_true;
      }
    }
    if (out_.masks.empty()) return {};
    return out_;
  }

 private:
  const Instr& arg(const Instr& in, int k) const { return fused_.code[std::size_t(in.args[k])]; }
  const Hidden& hidden(const Instr& in, int k) const { return hidden_[std::size_t(in.args[k])]; }
  bool walks(const Instr& in) const {
    if (in.code == Code::iota) return in.dim == dim_ && in.stride != 0;
    return in.inner && std::size_t(dim_) < in.view.strides.size() && in.view.strides[std::size_t(dim_)] != 0;
  }
  void require(const std::vector<int>& of) {
    for (int v : of)
      if (std::find(out_.zero.begin(), out_.zero.end(), v) == out_.zero.end()) out_.zero.push_back(v);
  }
  bool is_filled(const Instr& in) const { return in.code == Code::store && walks(in) && hidden(in, 0).is == Hidden::same; }
  // The greatest is that of one of the hidden points as well as of all; of a sum nothing is missing if they are 0.
  bool is_folded(const Instr& in) {
    auto& x = hidden(in, 0);
    if (!arg(in, 0).inner) return false;
    if (in.code == Code::reduce_max || in.code == Code::reduce_min) return x.is == Hidden::same;
    if (in.code != Code::reduce_sum || x.is == Hidden::unknown || !is_float(in.dtype)) return false;
    require(x.is == Hidden::zero ? x.of : std::vector{in.args[0]});
    return true;
  }
  Hidden of(const Instr& in) const {
    int n = 0;
    while (n < 4 && in.args[n] >= 0) ++n;
    if (n == 0) return {in.code != Code::constant && walks(in) ? Hidden::unknown : Hidden::same};
    auto is = [&](int k, auto what) { return hidden(in, k).is == what; };
    if (in.code == Code::bit_and && (is(0, Hidden::not_true) || is(1, Hidden::not_true))) return {Hidden::not_true};
    if (in.code == Code::bit_or && is(0, Hidden::not_true) && is(1, Hidden::not_true)) return {Hidden::not_true};
    if (in.code == Code::select && is(0, Hidden::not_true)) return hidden(in, 2);
    bool all = true;
    for (int k = 0; k < n; ++k) all &= is(k, Hidden::same) || is(k, Hidden::not_true);
    if (all) return {Hidden::same};
    const bool product = in.code == Code::mul, passes = product || in.code == Code::div || in.code == Code::neg || in.code == Code::cast;
    for (int k = 0; k < (product ? 2 : passes ? 1 : 0); ++k) {
      if (is(k, Hidden::zero)) return hidden(in, k);
      if (product && is(k, Hidden::same) && arg(in, k).inner) return {Hidden::zero, {in.args[k]}};
    }
    return {};
  }

  // Positions less positions; none: something else.
  std::optional<RowMask> sum_of(int i, int sign) const {
    auto& in = fused_.code[std::size_t(i)];
    if (in.dtype != DType::i32 && in.dtype != DType::i64) return {};
    if (in.code == Code::constant) return RowMask{false, sign * in.integer, {}};
    if (in.code == Code::iota) return RowMask{false, 0, {{i, sign}}};
    if (in.code == Code::cast) return sum_of(in.args[0], sign);
    if (in.code != Code::add && in.code != Code::sub) return {};
    return joined(sum_of(in.args[0], sign), sum_of(in.args[1], in.code == Code::add ? sign : -sign));
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
      if (*side && ((*side)->positions.size() > 8 || std::abs((*side)->constant) >= far_position)) return {};
    auto mask = joined(high, low);
    if (!mask) return {};
    std::int64_t step = 0;                           // from point to point of a row
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

std::optional<MaskedRows> masked_rows(const Fused& fused, int dim) { return Analysis(fused, dim).run(); }

}  // namespace haliax::cpu
