// Kernel: rounding and functions of one vector register in emitted machine code.
#pragma once
#include "haliax/dtype.h"
#include "vector_registers.h"

namespace haliax::cpu {

// The results are bitwise identical to those of kernels/math.inc.
class VectorFunctions : public VectorRegisters {
 protected:
  using VectorRegisters::VectorRegisters;
  static constexpr float exp_is_zero = -103.97208404541015625f;  // from here down
  static constexpr float round_magic = 12582912.f;  // adding it rounds to the nearest integer

  void bits_and(const Vector& z, const Vector& x, const Operand& y) {
    avx512_ ? vpandd(z, x, y) : vpand(z, x, y);
  }
  void bits_or(const Vector& z, const Vector& x, const Operand& y) {
    avx512_ ? vpord(z, x, y) : vpor(z, x, y);
  }
  void bits_xor(const Vector& z, const Vector& x, const Operand& y) {
    avx512_ ? vpxord(z, x, y) : vpxor(z, x, y);
  }
  void round_to(const Vector& z, const Vector& x, DType to) {
    if (to == DType::f16) {
      const Vector half(avx512_ ? Operand::YMM : Operand::XMM, z.getIdx());
      vcvtps2ph(half, x, 0);
      vcvtph2ps(z, half);
      return;
    }
    Temporary t(*this);  // bf16: rounds to nearest even; NaN stays NaN
    vpsrld(t.z, x, 16);
    bits_and(t.z, t.z, literal(1u));
    vpaddd(t.z, t.z, literal(0x7fffu));
    vpaddd(t.z, t.z, x);
    if (avx512_) {
      vcmpps(Opmask(scratch_mask), x, x, float_compare::unordered);
      vpord(t.z | Opmask(scratch_mask), x, literal(0x400000u));
    } else {
      Temporary quiet(*this), unordered(*this);
      vpor(quiet.z, x, literal(0x400000u));
      vcmpps(unordered.z, x, x, float_compare::unordered);
      vblendvps(t.z, t.z, quiet.z, unordered.z);
    }
    bits_and(z, t.z, literal(0xffff0000u));
  }
  // Converts u32 in two exact halves, so that only their sum is rounded.
  void convert_halves(const Vector& z, const Vector& x) {
    Temporary low(*this);
    vpand(low.z, x, literal(0xffffu));
    vpsrld(z, x, 16);
    vcvtdq2ps(low.z, low.z);
    vcvtdq2ps(z, z);
    vmulps(z, z, literal(65536.f));
    vaddps(z, z, low.z);
  }

  void exp(const Vector& z, const Vector& c) {  // overwrites c
    Temporary n(*this), q(*this);
    if (!avx512_) return exp_avx2(z, c, n.z, q.z);
    const Opmask scaled(scratch_mask);
    vbroadcastss(n.z, at(-104.f));
    vmaxps(c, n.z, c);
    vbroadcastss(n.z, at(89.f));
    vminps(c, n.z, c);
    vcmpps(scaled, c, literal(exp_is_zero), float_compare::not_less_equal);
    exp_within(z, c, n.z, q.z);
    vscalefps(z | scaled | T_z, z, n.z);
  }
  void exp_avx2(const Vector& z, const Vector& c, const Vector& n, const Vector& q) {
    Xbyak::Label full_range, done;
    vandps(q, c, literal(0x7fffffffu));
    vcmpps(q, q, literal(87.f), float_compare::less);
    vtestps(q, literal(~0u));
    jnc(full_range, T_NEAR);
    exp_within(z, c, n, q);  // the common case: all results are normal numbers
    vcvtps2dq(n, n);
    vpslld(n, n, 23);
    vpaddd(z, z, n);
    jmp(done, T_NEAR);
    L(full_range);
    Temporary scaled(*this);
    vcmpps(scaled.z, c, literal(exp_is_zero), float_compare::not_less_equal);
    vbroadcastss(n, at(89.f));
    vminps(c, n, c);
    vandps(c, c, scaled.z);  // zeros avoid underflow, which is slow on some machines
    exp_within(z, c, n, q);
    vcvtps2dq(n, n);
    vpsrad(q, n, 1);  // in two factors, because 2^n itself may be out of range
    vpsubd(n, n, q);
    for (auto& power : {q, n}) {
      to_power(power);
      vmulps(z, z, power);
    }
    vandps(z, z, scaled.z);
    L(done);
  }
  void to_power(const Vector& n) {  // 2^n for integral n
    vpaddd(n, n, literal(127u));
    vpslld(n, n, 23);
  }
  // Computes z and n so that z 2^n is exp(c), for c in [-104, 89].
  void exp_within(const Vector& z, const Vector& c, const Vector& n, const Vector& q) {
    expm1_within(z, c, n, q);
    vaddps(z, z, literal(1.f));
  }
  // Computes z and n so that (z + 1) 2^n is exp(c).
  void expm1_within(const Vector& z, const Vector& c, const Vector& n, const Vector& q) {
    vbroadcastss(n, at(round_magic));
    vfmadd231ps(n, c, literal(1.44269504088896341f));
    vsubps(n, n, literal(round_magic));
    vfnmadd231ps(c, n, literal(0.693359375f));
    vfmadd231ps(c, n, literal(2.12194440e-4f));
    vbroadcastss(z, at(1.9875691500e-4f));
    for (float k :
         {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
      vfmadd213ps(z, c, literal(k));
    vmulps(q, c, c);
    vfmadd213ps(z, q, c);
  }
  void tanh(const Vector& z, const Vector& x) {
    Temporary c(*this), n(*this), q(*this);
    bits_and(c.z, x, literal(0x7fffffffu));
    vaddps(c.z, c.z, c.z);
    vbroadcastss(n.z, at(20.f));
    vminps(c.z, n.z, c.z);
    expm1_within(z, c.z, n.z, q.z);
    vcvtps2dq(n.z, n.z);
    to_power(n.z);
    vsubps(q.z, n.z, literal(1.f));
    vfmadd213ps(z, n.z, q.z);  // exp(2 |x|) - 1
    vaddps(q.z, z, literal(2.f));
    vdivps(z, z, q.z);
    bits_and(q.z, x, literal(0x80000000u));
    bits_or(z, z, q.z);
  }
};

}  // namespace haliax::cpu
