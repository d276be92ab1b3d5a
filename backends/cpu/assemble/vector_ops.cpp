// Kernel: the ops of vector_ops.h.
#if defined(HALIAX_XBYAK)
#include "vector_ops.h"

#include <limits>

namespace haliax::cpu {
namespace {

using program::Code;

bool is_float(LaneType lane) { return lane == LaneType::f32; }
bool is_test(Code c) {
  return is_comparison(c) || program::is_float_test(c) || c == Code::logical_not;
}
// Returns the operand of an instruction that rounds to an integer, without exceptions.
std::uint8_t rounding_of(Code c) {
  return c == Code::round ? 8 : c == Code::floor ? 9 : c == Code::ceil ? 10 : 11;
}
bool needs_intermediates(Code c) { return c == Code::exp || c == Code::sigmoid || c == Code::tanh; }
std::uint8_t float_predicate(Code c) {
  return c == Code::less         ? float_compare::less
         : c == Code::less_equal ? float_compare::less_equal
         : c == Code::equal      ? float_compare::equal
                                 : float_compare::not_equal;
}
std::uint8_t integer_predicate(Code c) {  // for vpcmpd and vpcmpud
  return c == Code::equal ? 0 : c == Code::less ? 1 : c == Code::less_equal ? 2 : 4;
}
// Returns true for an op on bools that yields a test if both operands are tests.
bool joins_tests(const MapOp& op) {
  return op.to == DType::boolean &&
         (op.code == Code::bit_and || op.code == Code::bit_or || op.code == Code::bit_xor);
}

}  // namespace

void VectorOps::emit_op(const MapCode::Op& op, int value) {
  switch (op.map.kind) {
    case MapOp::instruction:
      return emit_code(op, value);
    case MapOp::round:
      return round(op, value);
    case MapOp::convert:
      return convert(op, value);
    case MapOp::exp_of_difference: {
      const Vector x = vector(op.args[0]);
      const auto less = last_operand(op.args[1]);
      Temporary c(*this);
      vsubps(c.z, x, less.get());
      finish_reads(op);
      return exp(result(value), c.z);
    }
    case MapOp::nothing:
      return;
  }
}

void VectorOps::emit_code(const MapCode::Op& op, int value) {
  if (is_test(op.map.code)) return compare(op, value);
  if (joins_tests(op.map)) return join(op, value);
  if (op.map.code == Code::select) return select(op, value);
  if (needs_intermediates(op.map.code)) return unary_function(op, value);
  op.args[1] < 0 ? unary(op, value) : binary(op, value);
}

// Emits exp, sigmoid and tanh, which need registers for intermediates.
void VectorOps::unary_function(const MapCode::Op& op, int value) {
  const Vector x = vector(op.args[0]);
  if (op.map.code == Code::exp) {
    Temporary c(*this);
    vmovaps(c.z, x);
    finish_reads(op);
    return exp(result(value), c.z);
  }
  if (op.map.code == Code::sigmoid) {  // 1 / (1 + exp(-x))
    Temporary c(*this);
    bits_xor(c.z, x, literal(0x80000000u));
    finish_reads(op);
    const Vector z = result(value);
    exp(z, c.z);
    vaddps(z, z, literal(1.f));
    vbroadcastss(c.z, at(1.f));
    return vdivps(z, c.z, z);
  }
  const Vector z = result(value);
  tanh(z, x);
  finish_reads(op);
}

void VectorOps::unary(const MapCode::Op& op, int value) {
  const Vector x = vector(op.args[0]), z = result(value);
  switch (op.map.code) {
    case Code::neg:
      if (is_float(op.map.from)) {
        bits_xor(z, x, literal(0x80000000u));
      } else {
        bits_xor(z, z, z);
        vpsubd(z, z, x);
      }
      break;
    case Code::abs:
      bits_and(z, x, literal(0x7fffffffu));
      break;
    case Code::sqrt:
      vsqrtps(z, x);
      break;
    case Code::rsqrt: {
      Temporary root(*this);
      vsqrtps(root.z, x);
      vbroadcastss(z, at(1.f));
      vdivps(z, z, root.z);
      break;
    }
    case Code::bit_not:
      bits_xor(z, x, literal(~0u));
      break;
    case Code::sign:
      sign(z, x);
      break;
    case Code::floor:
    case Code::ceil:
    case Code::round:
    case Code::trunc:
      avx512_ ? vrndscaleps(z, x, rounding_of(op.map.code))
              : vroundps(z, x, rounding_of(op.map.code));
      break;
    default:
      throw CannotAssemble();
  }
  finish_reads(op);
}

// z = 1 with the sign of x; x itself if it is 0 or NaN.
void VectorOps::sign(const Vector& z, const Vector& x) {
  Temporary zero(*this);
  bits_xor(zero.z, zero.z, zero.z);
  bits_and(z, x, literal(0x80000000u));
  bits_or(z, z, literal(1.f));
  if (avx512_) {
    vcmpps(Opmask(scratch_mask), x, zero.z, float_compare::unordered_or_equal);
    vmovaps(z | Opmask(scratch_mask), x);
  } else {
    vcmpps(zero.z, x, zero.z, float_compare::ordered_not_equal);
    vblendvps(z, x, z, zero.z);
  }
}
void VectorOps::float_test(const auto& to, Code code, const Vector& x) {
  if (code == Code::is_nan) return vcmpps(to, x, x, float_compare::unordered);
  Temporary size(*this);
  bits_and(size.z, x, literal(0x7fffffffu));
  vcmpps(to, size.z, literal(std::numeric_limits<float>::infinity()),
         code == Code::is_finite ? float_compare::less : float_compare::equal);
}

// NaN propagates from both sides: vmaxps and vminps return their last operand if either is NaN.
void VectorOps::max_or_min(const MapOp& op, const Vector& z, const Vector& x, const Operand& y) {
  const bool is_max = op.code == Code::max;
  if (op.from == LaneType::i32) return is_max ? vpmaxsd(z, x, y) : vpminsd(z, x, y);
  if (op.from == LaneType::u32) return is_max ? vpmaxud(z, x, y) : vpminud(z, x, y);
  is_max ? vmaxps(z, x, y) : vminps(z, x, y);
  if (avx512_) {
    vcmpps(Opmask(scratch_mask), x, x, float_compare::unordered);
    vmovaps(z | Opmask(scratch_mask), x);
  } else {
    Temporary unordered(*this);
    vcmpps(unordered.z, x, x, float_compare::unordered);
    vblendvps(z, z, x, unordered.z);
  }
}

void VectorOps::binary(const MapCode::Op& op, int value) {
  auto [a, b] = std::pair(op.args[0], op.args[1]);
  const bool commutes = op.map.code == Code::add || op.map.code == Code::mul ||
                        op.map.code == Code::bit_and || op.map.code == Code::bit_or ||
                        op.map.code == Code::bit_xor;
  if (commutes && places_[std::size_t(a)].kind != Place::vector &&
      places_[std::size_t(b)].kind == Place::vector)
    std::swap(a, b);
  const Vector x = vector(a);
  const auto other = last_operand(b);
  const Operand& y = other.get();
  const Vector z = result(value);
  const bool f = is_float(op.map.from);
  switch (op.map.code) {
    case Code::add:
      f ? vaddps(z, x, y) : vpaddd(z, x, y);
      break;
    case Code::sub:
      f ? vsubps(z, x, y) : vpsubd(z, x, y);
      break;
    case Code::mul:
      f ? vmulps(z, x, y) : vpmulld(z, x, y);
      break;
    case Code::div:
      vdivps(z, x, y);
      break;
    case Code::max:
    case Code::min:
      max_or_min(op.map, z, x, y);
      break;
    case Code::bit_and:
      bits_and(z, x, y);
      break;
    case Code::bit_or:
      bits_or(z, x, y);
      break;
    case Code::bit_xor:
      bits_xor(z, x, y);
      break;
    case Code::shift_left:
      vpsllvd(z, x, y);
      break;
    case Code::shift_right:
      op.map.from == LaneType::i32 ? vpsravd(z, x, y) : vpsrlvd(z, x, y);
      break;
    default:
      throw CannotAssemble();
  }
  finish_reads(op);
}

void VectorOps::compare_avx2(const MapCode::Op& op, int value) {
  const auto code = op.map.code;
  if (code == Code::logical_not) {
    const bool in_lanes = holds_test(op.args[0]);
    const Vector x = in_lanes ? lanes_of(op.args[0]) : vector(op.args[0]), z = reg(take());
    if (in_lanes) {
      vpxor(z, x, literal(~0u));
    } else {
      vpxor(z, z, z);
      is_float(op.map.from) ? vcmpps(z, z, x, float_compare::equal) : vpcmpeqd(z, z, x);
    }
    finish_test(op, value, z);
  } else if (program::is_float_test(code)) {
    const Vector x = vector(op.args[0]), z = reg(take());
    float_test(z, code, x);
    finish_test(op, value, z);
  } else if (is_float(op.map.from)) {
    const Vector x = vector(op.args[0]);
    const auto other = last_operand(op.args[1]);
    const Vector z = reg(take());
    vcmpps(z, x, other.get(), float_predicate(code));
    finish_test(op, value, z);
  } else {
    const Vector x = vector(op.args[0]), y = vector(op.args[1]), z = reg(take());
    compare_integers_avx2(op.map, z, x, y);
    finish_test(op, value, z);
  }
}
// AVX2 has only "equal" and the signed "greater than".
void VectorOps::compare_integers_avx2(const MapOp& op, const Vector& z, const Vector& x,
                                      const Vector& y) {
  if (op.code == Code::equal || op.code == Code::not_equal) {
    vpcmpeqd(z, x, y);
  } else {
    Temporary a(*this), b(*this);  // unsigned integers in the order of signed ones
    const auto ordered = [&](const Vector& to, const Vector& v) {
      op.from == LaneType::i32 ? vmovaps(to, v) : vpxor(to, v, literal(0x80000000u));
    };
    ordered(a.z, x);
    ordered(b.z, y);
    op.code == Code::less ? vpcmpgtd(z, b.z, a.z) : vpcmpgtd(z, a.z, b.z);
  }
  if (op.code == Code::less_equal || op.code == Code::not_equal) vpxor(z, z, literal(~0u));
}

void VectorOps::finish_test(const MapCode::Op& op, int value, const Vector& z) {
  finish_reads(op);
  places_[std::size_t(value)] = {Place::test, z.getIdx()};
}

void VectorOps::compare(const MapCode::Op& op, int value) {
  if (!avx512_) return compare_avx2(op, value);
  const int test_register = take_test();
  const Opmask k(test_register < 0 ? scratch_mask : test_register);
  if (program::is_float_test(op.map.code)) {
    float_test(k, op.map.code, vector(op.args[0]));
  } else if (op.map.code == Code::logical_not) {
    if (holds_test(op.args[0])) {
      knotw(k, test(op.args[0]));
    } else {
      const Vector x = vector(op.args[0]);
      if (is_float(op.map.from)) {
        Temporary zero(*this);
        bits_xor(zero.z, zero.z, zero.z);
        vcmpps(k, x, zero.z, float_compare::equal);
      } else {
        vptestnmd(k, x, x);
      }
    }
  } else {
    const Vector x = vector(op.args[0]);
    const auto other = last_operand(op.args[1]);
    const Operand& y = other.get();
    if (is_float(op.map.from))
      vcmpps(k, x, y, float_predicate(op.map.code));
    else if (op.map.from == LaneType::i32)
      vpcmpd(k, x, y, integer_predicate(op.map.code));
    else
      vpcmpud(k, x, y, integer_predicate(op.map.code));
  }
  finish_reads(op);
  keep_test(value, test_register, k);
}

void VectorOps::keep_test(int value, int test_register, const Opmask& k) {
  if (test_register >= 0) {
    places_[std::size_t(value)] = {Place::test, test_register};
    return;
  }
  const Vector z = result(value);
  vpbroadcastd(z | k | T_z, one());
}

void VectorOps::join(const MapCode::Op& op, int value) {
  const auto [a, b] = std::pair(op.args[0], op.args[1]);
  const bool both = holds_test(a) && holds_test(b);
  const int test_register = both ? take_test() : -1;
  if (test_register < 0) return binary(op, value);
  if (!avx512_) {
    const Vector z = reg(test_register), x = lanes_of(a), y = lanes_of(b);
    if (op.map.code == Code::bit_and)
      vpand(z, x, y);
    else if (op.map.code == Code::bit_or)
      vpor(z, x, y);
    else
      vpxor(z, x, y);
    return finish_test(op, value, z);
  }
  const Opmask k(test_register), x = test(a), y = test(b);
  if (op.map.code == Code::bit_and)
    kandw(k, x, y);
  else if (op.map.code == Code::bit_or)
    korw(k, x, y);
  else
    kxorw(k, x, y);
  finish_reads(op);
  keep_test(value, test_register, k);
}

void VectorOps::select(const MapCode::Op& op, int value) {
  const Vector no = vector(op.args[2]);
  const auto yes = last_operand(op.args[1]);
  if (!avx512_) {
    const Vector lanes = lanes_of(op.args[0]), z = result(value);
    vblendvps(z, no, yes.get(), lanes);
    return finish_reads(op);
  }
  const Opmask k = test(op.args[0]);
  const Vector z = result(value);
  vblendmps(z | k, no, yes.get());
  finish_reads(op);
}

void VectorOps::round(const MapCode::Op& op, int value) {
  const Vector x = vector(op.args[0]), z = result(value);
  round_to(z, x, op.map.to);
  finish_reads(op);
}

void VectorOps::convert(const MapCode::Op& op, int value) {
  const Vector x = vector(op.args[0]), z = result(value);
  if (op.map.from == LaneType::i32)
    vcvtdq2ps(z, x);
  else if (op.map.from == LaneType::u32 && avx512_)
    vcvtudq2ps(z, x);
  else if (op.map.from == LaneType::u32)
    convert_halves(z, x);
  else if (op.map.to == DType::f32)
    vmovaps(z, x);
  if (op.map.to != DType::f32) round_to(z, op.map.from == LaneType::f32 ? x : z, op.map.to);
  finish_reads(op);
}

}  // namespace haliax::cpu
#endif
