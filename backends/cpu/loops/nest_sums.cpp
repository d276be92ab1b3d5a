// Kernel: the reductions of nest_code.h.
#if defined(HALIAX_XBYAK)
#include <algorithm>
#include <limits>
#include <memory>

#include "nest_code.h"

namespace haliax::cpu {

using program::Code;
using Xbyak::Xmm;
using Xbyak::Ymm;
using Xbyak::Zmm;

// ---- reductions: sums in f64, rounded once ----

NestCode::Accumulator NestCode::start(int value) {
  Accumulator sum{value, nest_->code[std::size_t(value)].code, {Vector(0), Vector(0)}};
  if (sum.code == Code::reduce_sum) {
    sum.sum = zero_sum();
  } else {
    const float infinity = std::numeric_limits<float>::infinity();
    sum.sum.low = reg(take());
    vbroadcastss(sum.sum.low, at(sum.code == Code::reduce_max ? -infinity : infinity));
  }
  return sum;
}
NestCode::F64Sum NestCode::zero_sum() {
  F64Sum sum{reg(take()), reg(take())};
  for (const Vector& z : {sum.low, sum.high}) bits_xor(z, z, z);
  return sum;
}
void NestCode::add_as_f64(const F64Sum& sum, const Vector& x) {
  Temporary t(*this);
  vcvtps2pd(t.z, lower_half(x));
  vaddpd(sum.low, sum.low, t.z);
  upper_half(t.z, x);
  vcvtps2pd(t.z, lower_half(t.z));
  vaddpd(sum.high, sum.high, t.z);
}
// Rounds the sums to f32, in the register `low`.
void NestCode::round_to_f32(const F64Sum& sum) {
  vcvtpd2ps(lower_half(sum.low), sum.low);
  vcvtpd2ps(lower_half(sum.high), sum.high);
  const int low = sum.low.getIdx(), high = sum.high.getIdx();
  if (avx512_)
    vinsertf64x4(Zmm(low), Zmm(low), Ymm(high), 1);
  else
    vinsertf128(Ymm(low), Ymm(low), Xmm(high), 1);
  free_.set(std::size_t(high));
}
// Adds the sums of all lanes and rounds once, in each lane of the register `low`.
void NestCode::add_lanes(const F64Sum& sum) {
  const Xmm x(sum.low.getIdx()), y(sum.high.getIdx());
  vaddpd(sum.low, sum.low, sum.high);
  if (avx512_) {
    upper_half(sum.high, sum.low);
    vaddpd(Ymm(x.getIdx()), Ymm(x.getIdx()), Ymm(y.getIdx()));
    vextractf32x4(y, Ymm(x.getIdx()), 1);
  } else {
    vextractf128(y, Ymm(x.getIdx()), 1);
  }
  vaddpd(x, x, y);
  vunpckhpd(y, x, x);
  vaddsd(x, x, y);
  vcvtsd2ss(x, x, x);
  vbroadcastss(sum.low, x);
  free_.set(std::size_t(y.getIdx()));
}
// Returns the register of half as many bits.
Xmm NestCode::lower_half(const Vector& z) const {
  return avx512_ ? static_cast<Xmm>(Ymm(z.getIdx())) : Xmm(z.getIdx());
}
void NestCode::upper_half(const Vector& to, const Vector& z) {
  if (avx512_)
    vextractf64x4(Ymm(to.getIdx()), Zmm(z.getIdx()), 1);
  else
    vextractf128(Xmm(to.getIdx()), Ymm(z.getIdx()), 1);
}
void NestCode::accumulate(Accumulator& sum) {
  const int source = nest_->code[std::size_t(sum.value)].args[0];
  Vector x = vector(source);
  std::optional<Temporary> cleared;
  if (rest_ && reduces_lanes()) {  // elements past the end must not count
    cleared.emplace(*this);
    const float infinity = std::numeric_limits<float>::infinity();
    const float nothing = sum.code == Code::reduce_sum   ? 0
                          : sum.code == Code::reduce_max ? -infinity
                                                         : infinity;
    vbroadcastss(cleared->z, at(nothing));
    if (avx512_)
      vmovaps(cleared->z | Opmask(rest_mask), x);
    else
      vblendvps(cleared->z, cleared->z, x, reg(rest_lanes));
    x = cleared->z;
  }
  if (sum.code == Code::reduce_sum)
    add_as_f64(sum.sum, x);
  else
    combine(sum.code == Code::reduce_max ? Code::max : Code::min, sum.sum.low, x);
  cleared.reset();
  finish_read(source);
}
// to = max(to, x) or min(to, x), NaN if either is NaN.
void NestCode::combine(Code code, const Vector& to, const Vector& x) {
  const auto better = [&](const auto& out) {
    code == Code::max ? vmaxps(out, to, x) : vminps(out, to, x);
  };
  if (avx512_) {
    vcmpps(Opmask(scratch_mask), to, to, float_compare::ordered);
    better(to | Opmask(scratch_mask));
  } else {
    Temporary unordered(*this), other(*this);
    const Vector u = to.isYMM() ? unordered.z : Xmm(unordered.z.getIdx()),
                 o = to.isYMM() ? other.z : Xmm(other.z.getIdx());
    vcmpps(u, to, to, float_compare::unordered);
    better(o);
    vblendvps(to, o, to, u);
  }
}
void NestCode::finish_reduction(Accumulator& sum) {
  if (sum.code == Code::reduce_sum)
    reduces_lanes() ? add_lanes(sum.sum) : round_to_f32(sum.sum);
  else if (reduces_lanes())
    combine_lanes(sum);
  places_[std::size_t(sum.value)] = {Place::vector, sum.sum.low.getIdx()};
}
void NestCode::combine_lanes(const Accumulator& sum) {
  const Code code = sum.code == Code::reduce_max ? Code::max : Code::min;
  Temporary t(*this);
  const Xmm x(sum.sum.low.getIdx()), y(t.z.getIdx());
  upper_half(t.z, sum.sum.low);
  if (avx512_) {
    combine(code, Ymm(x.getIdx()), Ymm(y.getIdx()));
    vextractf32x4(y, Ymm(x.getIdx()), 1);
  }
  combine(code, x, y);
  vpermilps(y, x, 0x4e);
  combine(code, x, y);
  vpermilps(y, x, 0xb1);
  combine(code, x, y);
  vbroadcastss(sum.sum.low, x);
}

}  // namespace haliax::cpu
#endif
