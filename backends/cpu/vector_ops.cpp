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
// Returns true for an op on bools that yields a test if both operands are tests.
bool joins_tests(const PointOp& op) {
  return op.to == DType::boolean &&
         (op.what == Code::bit_and || op.what == Code::bit_or || op.what == Code::bit_xor);
}

}  // namespace

void VectorOps::make(const PointCode::Op& op, int value) {
  switch (op.action.action) {
    case PointOp::code:
      return code(op, value);
    case PointOp::round:
      return round(op, value);
    case PointOp::convert:
      return convert(op, value);
    case PointOp::exp_of_difference: {
      const Vector x = vector(op.args[0]);
      const auto less = last(op.args[1]);
      Temporary c(*this);
      vsubps(c.z, x, less.get());
      finish(op);
      return exp(result(value), c.z);
    }
    case PointOp::nothing:
      return;
  }
}

void VectorOps::code(const PointCode::Op& op, int value) {
  if (is_test(op.action.what)) return compare(op, value);
  if (joins_tests(op.action)) return join(op, value);
  if (op.action.what == Code::select) return select(op, value);
  if (op.args[1] < 0) return unary(op, value);
  binary(op, value);
}

void VectorOps::unary(const PointCode::Op& op, int value) {
  const Vector x = vector(op.args[0]);
  if (op.action.what == Code::exp) {
    Temporary c(*this);
    vmovaps(c.z, x);
    finish(op);
    return exp(result(value), c.z);
  }
  if (op.action.what == Code::sigmoid) {  // 1 / (1 + exp(-x))
    Temporary c(*this);
    bits_xor(c.z, x, literal(0x80000000u));
    finish(op);
    const Vector z = result(value);
    exp(z, c.z);
    vaddps(z, z, literal(1.f));
    vbroadcastss(c.z, at(1.f));
    return vdivps(z, c.z, z);
  }
  if (op.action.what == Code::tanh) {
    const Vector z = result(value);
    tanh(z, x);
    return finish(op);
  }
  const Vector z = result(value);
  switch (op.action.what) {
    case Code::neg:
      if (is_float(op.action.from))
        bits_xor(z, x, literal(0x80000000u));
      else {
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
      vbroadcastss(z, dword[rip + literals_[std::bit_cast<std::uint32_t>(1.f)]]);
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
      avx512_ ? vrndscaleps(z, x, rounding_of(op.action.what))
              : vroundps(z, x, rounding_of(op.action.what));
      break;
    default:
      throw CannotAssemble();
  }
  finish(op);
}

// z = 1 with the sign of x; x itself if it is 0 or NaN.
void VectorOps::sign(const Vector& z, const Vector& x) {
  Temporary zero(*this);
  bits_xor(zero.z, zero.z, zero.z);
  bits_and(z, x, literal(0x80000000u));
  bits_or(z, z, literal(1.f));
  constexpr std::uint8_t ordered_not_equal = 0xc, unordered_or_equal = 0x8;
  if (avx512_) {
    vcmpps(Opmask(scratch_mask), x, zero.z, unordered_or_equal);
    vmovaps(z | Opmask(scratch_mask), x);
  } else {
    vcmpps(zero.z, x, zero.z, ordered_not_equal);
    vblendvps(z, x, z, zero.z);
  }
}
void VectorOps::float_test(const auto& to, Code what, const Vector& x) {
  if (what == Code::is_nan) return vcmpps(to, x, x, 3);  // unordered
  Temporary size(*this);
  bits_and(size.z, x, literal(0x7fffffffu));
  const std::uint8_t less = 0x11, equal = 0;
  vcmpps(to, size.z, literal(std::numeric_limits<float>::infinity()),
         what == Code::is_finite ? less : equal);
}

void VectorOps::binary(const PointCode::Op& op, int value) {
  auto [a, b] = std::pair(op.args[0], op.args[1]);
  const bool commutes = op.action.what == Code::add || op.action.what == Code::mul ||
                        op.action.what == Code::bit_and || op.action.what == Code::bit_or ||
                        op.action.what == Code::bit_xor;
  if (commutes && places_[std::size_t(a)].kind != Place::vector &&
      places_[std::size_t(b)].kind == Place::vector)
    std::swap(a, b);
  const Vector x = vector(a);
  const auto other = last(b);
  const Operand& y = other.get();
  const Vector z = result(value);
  const bool f = is_float(op.action.from);
  switch (op.action.what) {
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
    // NaN propagates from both sides: vmaxps and vminps return their last operand if either is
    // NaN
    case Code::min:
      if (!f) {
        const bool is_signed = op.action.from == LaneType::i32;
        if (op.action.what == Code::max)
          is_signed ? vpmaxsd(z, x, y) : vpmaxud(z, x, y);
        else
          is_signed ? vpminsd(z, x, y) : vpminud(z, x, y);
        break;
      }
      op.action.what == Code::max ? vmaxps(z, x, y) : vminps(z, x, y);
      if (avx512_) {
        vcmpps(Opmask(scratch_mask), x, x, 3);  // unordered
        vmovaps(z | Opmask(scratch_mask), x);
      } else {
        Temporary unordered(*this);
        vcmpps(unordered.z, x, x, 3);
        vblendvps(z, z, x, unordered.z);
      }
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
      op.action.from == LaneType::i32 ? vpsravd(z, x, y) : vpsrlvd(z, x, y);
      break;
    default:
      throw CannotAssemble();
  }
  finish(op);
}

void VectorOps::compare_avx2(const PointCode::Op& op, int value) {
  const auto what = op.action.what;
  if (what == Code::logical_not) {
    const bool is_test = places_[std::size_t(op.args[0])].kind == Place::test;
    const Vector x = is_test ? lanes_of(op.args[0]) : vector(op.args[0]), z = reg(take());
    if (is_test) {
      vpxor(z, x, literal(~0u));
      return finish_test(op, value, z);
    }

    vpxor(z, z, z);
    if (is_float(op.action.from))
      vcmpps(z, z, x, 0);
    else
      vpcmpeqd(z, z, x);
    return finish_test(op, value, z);
  }
  if (program::is_float_test(what)) {
    const Vector x = vector(op.args[0]), z = reg(take());
    float_test(z, what, x);
    return finish_test(op, value, z);
  }
  if (is_float(op.action.from)) {
    const Vector x = vector(op.args[0]);
    const auto other = last(op.args[1]);
    const Vector z = reg(take());
    vcmpps(z, x, other.get(),
           std::uint8_t(what == Code::less         ? 0x11
                        : what == Code::less_equal ? 0x12
                        : what == Code::equal      ? 0
                                                   : 4));
    return finish_test(op, value, z);
  }
  const Vector x = vector(op.args[0]), y = vector(op.args[1]), z = reg(take());
  const bool negated = what == Code::less_equal || what == Code::not_equal;
  if (what == Code::equal || what == Code::not_equal) {
    vpcmpeqd(z, x, y);
  } else {
    Temporary a(*this), b(*this);  // compares unsigned integers in the order of signed ones
    const bool is_signed = op.action.from == LaneType::i32;
    const auto ordered = [&](const Vector& t, const Vector& v) {
      is_signed ? vmovaps(t, v) : vpxor(t, v, literal(0x80000000u));
    };
    ordered(a.z, x);
    ordered(b.z, y);
    if (what == Code::less)
      vpcmpgtd(z, b.z, a.z);
    else
      vpcmpgtd(z, a.z, b.z);
  }
  if (negated) vpxor(z, z, literal(~0u));
  finish_test(op, value, z);
}

void VectorOps::finish_test(const PointCode::Op& op, int value, const Vector& z) {
  finish(op);
  places_[std::size_t(value)] = {Place::test, z.getIdx()};
}

void VectorOps::compare(const PointCode::Op& op, int value) {
  if (!avx512_) return compare_avx2(op, value);
  const int mine = take_test();
  const Opmask k(mine < 0 ? scratch_mask : mine);
  if (program::is_float_test(op.action.what)) {
    float_test(k, op.action.what, vector(op.args[0]));
  } else if (op.action.what == Code::logical_not) {
    if (places_[std::size_t(op.args[0])].kind == Place::test) {
      knotw(k, test(op.args[0]));
    } else {
      const Vector x = vector(op.args[0]);
      if (is_float(op.action.from)) {
        Temporary zero(*this);
        bits_xor(zero.z, zero.z, zero.z);
        vcmpps(k, x, zero.z, 0);
      } else {
        vptestnmd(k, x, x);
      }
    }
  } else {
    const Vector x = vector(op.args[0]);
    const auto other = last(op.args[1]);
    const Operand& y = other.get();
    const auto pick = [&](int less, int less_equal, int equal, int not_equal) {
      return std::uint8_t(op.action.what == Code::less         ? less
                          : op.action.what == Code::less_equal ? less_equal
                          : op.action.what == Code::equal      ? equal
                                                               : not_equal);
    };
    // comparisons with NaN are false, except for not_equal
    if (is_float(op.action.from))
      vcmpps(k, x, y, pick(0x11, 0x12, 0, 4));
    else if (op.action.from == LaneType::i32)
      vpcmpd(k, x, y, pick(1, 2, 0, 4));
    else
      vpcmpud(k, x, y, pick(1, 2, 0, 4));
  }
  finish(op);
  made_test(value, mine, k);
}

void VectorOps::made_test(int value, int mine, const Opmask& k) {
  if (mine >= 0) {
    places_[std::size_t(value)] = {Place::test, mine};
    return;
  }
  const Vector z = result(value);
  vpbroadcastd(z | k | T_z, one());
}

void VectorOps::join(const PointCode::Op& op, int value) {
  const auto [a, b] = std::pair(op.args[0], op.args[1]);
  const bool both =
      places_[std::size_t(a)].kind == Place::test && places_[std::size_t(b)].kind == Place::test;
  const int mine = both ? take_test() : -1;
  if (mine < 0) return binary(op, value);
  if (!avx512_) {
    const Vector z = reg(mine), x = lanes_of(a), y = lanes_of(b);
    if (op.action.what == Code::bit_and)
      vpand(z, x, y);
    else if (op.action.what == Code::bit_or)
      vpor(z, x, y);
    else
      vpxor(z, x, y);
    return finish_test(op, value, z);
  }
  const Opmask k(mine), x = test(a), y = test(b);
  if (op.action.what == Code::bit_and)
    kandw(k, x, y);
  else if (op.action.what == Code::bit_or)
    korw(k, x, y);
  else
    kxorw(k, x, y);
  finish(op);
  made_test(value, mine, k);
}

void VectorOps::select(const PointCode::Op& op, int value) {
  const Vector no = vector(op.args[2]);
  const auto yes = last(op.args[1]);
  if (!avx512_) {
    const Vector lanes = lanes_of(op.args[0]), z = result(value);
    vblendvps(z, no, yes.get(), lanes);
    return finish(op);
  }
  const Opmask k = test(op.args[0]);
  const Vector z = result(value);
  vblendmps(z | k, no, yes.get());
  finish(op);
}

void VectorOps::round(const PointCode::Op& op, int value) {
  const Vector x = vector(op.args[0]), z = result(value);
  round_to(z, x, op.action.to);
  finish(op);
}

void VectorOps::convert(const PointCode::Op& op, int value) {
  const Vector x = vector(op.args[0]), z = result(value);
  if (op.action.from == LaneType::i32)
    vcvtdq2ps(z, x);
  else if (op.action.from == LaneType::u32 && avx512_)
    vcvtudq2ps(z, x);
  else if (op.action.from == LaneType::u32)
    convert_halves(z, x);
  else if (op.action.to == DType::f32)
    vmovaps(z, x);
  if (op.action.to != DType::f32)
    round_to(z, op.action.from == LaneType::f32 ? x : z, op.action.to);
  finish(op);
}

}  // namespace haliax::cpu
#endif
