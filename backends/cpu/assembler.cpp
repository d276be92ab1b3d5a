// Machine code for elementwise ops, for 16 values of 32 bits at a time. With AVX-512 they occupy
// one register, and tests (comparison results) are mask registers. With AVX2 they are two halves,
// one after the other, and a test has all bits of a lane set.
#include "assemble.h"

#if defined(HALIAX_XBYAK)
#include <xbyak/xbyak.h>

#include <bit>
#include <bitset>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "base/fork.h"

namespace haliax::cpu {
namespace {

using program::Code;
using Xbyak::Address;
using Xbyak::Opmask;
using Xbyak::Operand;
using Xbyak::Reg64;
using Vector = Xbyak::Xmm;  // a register of any width

bool is_float(LaneType lane) { return lane == LaneType::f32; }
bool is_test(Code c) { return is_comparison(c) || c == Code::logical_not; }
// Returns true for an op on bools that yields a test if both operands are tests.
bool joins_tests(const PointOp& op) {
  return op.to == DType::boolean &&
         (op.what == Code::bit_and || op.what == Code::bit_or || op.what == Code::bit_xor);
}

struct OutOfRegisters {};

class Assembler : Xbyak::CodeGenerator {
 public:
  // a tanh or an exp has about 900 bytes, and is emitted up to four times
  Assembler(const PointCode& code, bool wide)
      : CodeGenerator((wide ? 1 : 3) * (4096 + 1024 * code.ops.size()), Xbyak::DontSetProtectRWE),
        code_(code), wide_(wide) {
    count_uses();
    save();
    body(false);
    body(true);
    restore();
    align(32);
    for (auto& [bits, label] : literals_) {
      L(label);
      for (int lane = 0; lane < (wide_ ? 1 : 8); ++lane) dd(bits);
    }
    for (int half = 0; half < (wide_ ? 0 : 2); ++half) {
      L(lane_bits_[half]);
      for (int lane = 0; lane < 8; ++lane) dd(1u << (8 * half + lane));
    }
    setProtectModeRE();
  }
  AssembledCode entry() { return getCode<AssembledCode>(); }

 private:
  struct Place {
    enum { nowhere, array, bf16, scalar, vector, test } kind = nowhere;
    int at = 0;  // index of the array, the scalar or the register
  };
  static constexpr int bytes_ahead = 4096;  // a few tiles: covers the latency of memory
  static constexpr int rest_mask = 1, scratch_mask = 2, first_test = 3;  // AVX-512: mask registers
  static constexpr int rest_lanes = 15;  // AVX2: the register that marks the remaining elements

  void count_uses() {
    uses_.assign(code_.inputs.size() + code_.ops.size(), 0);
    for (auto& op : code_.ops)
      for (int a : op.args)
        if (a >= 0) ++uses_[std::size_t(a)];
    for (auto& o : code_.outputs) ++uses_[std::size_t(o.value)];
  }

  // ---- prologue and epilogue ----
  // rdi: the call; rcx: elements done; one register for each array and one for the prefetch address
  const Reg64& array_register(int k) const {
    const Reg64* const all[] = {&rax, &rdx, &rsi, &r8,  &r9,  &r10, &r11,
                                &rbx, &rbp, &r12, &r13, &r14, &r15};
    return *all[k];
  }
  int arrays() const {
    int n = int(code_.outputs.size());
    for (auto input : code_.inputs) n += input != PointCode::Input::one;
    return n;
  }
  Address in_call(std::size_t offset) { return ptr[rdi + offset]; }
  void save() {
    for (int k = 7; k <= arrays(); ++k) push(array_register(k));
    for (int k = 0; k < arrays(); ++k)
      mov(array_register(k), in_call(offsetof(AssembledCall, array) + 8 * std::size_t(k)));
    mov(array_register(arrays()), in_call(offsetof(AssembledCall, prefetch)));
    xor_(ecx, ecx);
  }
  void restore() {
    vzeroupper();
    for (int k = arrays(); k >= 7; --k) pop(array_register(k));
    ret();
  }
  void body(bool rest) {
    Xbyak::Label loop_start, done;
    if (rest) {
      cmp(qword[rdi + offsetof(AssembledCall, rest)], 0);
      je(done, T_NEAR);
      if (wide_) kmovw(Opmask(rest_mask), word[rdi + offsetof(AssembledCall, rest)]);
    } else {
      cmp(rcx, qword[rdi + offsetof(AssembledCall, points)]);
      jae(done, T_NEAR);
    }
    L(loop_start);
    if (!rest) fetch();
    rest_ = rest;
    for (half_ = 0; half_ < (wide_ ? 1 : 2); ++half_) points();
    if (!rest) {
      add(rcx, 16);
      cmp(rcx, qword[rdi + offsetof(AssembledCall, points)]);
      jb(loop_start, T_NEAR);
    }
    L(done);
  }

  // Emits prefetches of memory that is read soon: usually the memory after this tile in each array.
  void fetch() {
    if (!code_.fetches_inputs) return prefetcht1(ptr[array_register(arrays()) + rcx * 4]);
    int array = 0;
    for (auto input : code_.inputs) {
      if (input == PointCode::Input::array)
        prefetcht1(ptr[array_register(array++) + rcx * 4 + bytes_ahead]);
      if (input == PointCode::Input::bf16)
        prefetcht1(ptr[array_register(array++) + rcx * 2 + bytes_ahead]);
    }
  }

  // ---- the elements of a register ----
  void points() {
    left_ = uses_;
    free_ = wide_ ? 0xffffffff : 0xffff;
    free_tests_.set();
    if (rest_ && !wide_) {
      free_.reset(rest_lanes);
      const Vector lanes = reg(rest_lanes);
      vpbroadcastd(lanes, dword[rdi + offsetof(AssembledCall, rest)]);
      vpand(lanes, lanes, ptr[rip + lane_bits_[half_]]);
      vpcmpeqd(lanes, lanes, ptr[rip + lane_bits_[half_]]);
    }
    places_.assign(uses_.size(), {});
    int array = 0, scalar = 0;
    for (std::size_t i = 0; i < code_.inputs.size(); ++i)
      places_[i] = code_.inputs[i] == PointCode::Input::one    ? Place{Place::scalar, scalar++}
                   : code_.inputs[i] == PointCode::Input::bf16 ? Place{Place::bf16, array++}
                                                               : Place{Place::array, array++};
    for (std::size_t k = 0; k < code_.ops.size(); ++k)
      make(code_.ops[k], int(code_.inputs.size() + k));
    for (auto [value, bf16] : code_.outputs) {  // last, because an output may overwrite an input
      const Vector z = vector(value);
      const int k = array++;
      if (bf16) {
        Temporary half(*this);
        vpsrld(half.z, z, 16);
        const auto to = ptr[array_register(k) + rcx * 2];
        if (rest_)
          vpmovdw(to | Opmask(rest_mask), half.z);
        else
          vpmovdw(to, half.z);
      } else if (!rest_) {
        vmovups(here(k), z);
      } else if (wide_) {
        vmovups(here(k) | Opmask(rest_mask), z);
      } else {
        vmaskmovps(here(k), reg(rest_lanes), z);
      }
      used(value);
    }
  }
  Vector reg(int z) const { return Vector(wide_ ? Operand::ZMM : Operand::YMM, z); }
  Address here(int array) { return ptr[array_register(array) + rcx * 4 + 32 * half_]; }
  int take() {
    for (int z = 0; z < 32; ++z)
      if (free_[std::size_t(z)]) {
        free_.reset(std::size_t(z));
        return z;
      }

    throw OutOfRegisters();
  }
  // Reserves a register for a scope.
  struct Temporary {
    Assembler& of;
    const Vector z;
    explicit Temporary(Assembler& a) : of(a), z(a.reg(a.take())) {}
    ~Temporary() { of.free_.set(std::size_t(z.getIdx())); }
    Temporary(const Temporary&) = delete;
  };
  int take_test() {
    if (!wide_) return take();
    for (int k = first_test; k < 8; ++k)
      if (free_tests_[std::size_t(k)]) {
        free_tests_.reset(std::size_t(k));
        return k;
      }

    return -1;
  }
  void used(int value) {
    auto& place = places_[std::size_t(value)];
    if (--left_[std::size_t(value)] > 0) return;
    if (place.kind == Place::vector || (place.kind == Place::test && !wide_))
      free_.set(std::size_t(place.at));
    if (place.kind == Place::test && wide_) free_tests_.set(std::size_t(place.at));
    place.kind = Place::nowhere;
  }
  Address literal(std::uint32_t bits) {
    return wide_ ? ptr_b[rip + literals_[bits]] : ptr[rip + literals_[bits]];
  }
  Address literal(float x) { return literal(std::bit_cast<std::uint32_t>(x)); }
  Xbyak::RegExp scalar_at(int k) {
    return rdi + offsetof(AssembledCall, scalar) + 4 * std::size_t(k);
  }

  // Loads a value into a vector register, where it stays.
  Vector vector(int value) {
    auto& place = places_[std::size_t(value)];
    if (place.kind == Place::vector) return reg(place.at);
    if (place.kind == Place::test && !wide_) {
      place.kind = Place::vector;
      vpsrld(reg(place.at), reg(place.at), 31);
      return reg(place.at);
    }
    const Vector z = reg(take());
    if (place.kind == Place::scalar) {
      vbroadcastss(z, dword[scalar_at(place.at)]);
    } else if (place.kind == Place::test) {
      vpbroadcastd(z | Opmask(place.at) | T_z, one());
      free_tests_.set(std::size_t(place.at));
    } else if (place.kind == Place::bf16) {
      const auto from = ptr[array_register(place.at) + rcx * 2];
      if (rest_)
        vpmovzxwd(z | Opmask(rest_mask) | T_z, from);
      else
        vpmovzxwd(z, from);
      vpslld(z, z, 16);
    } else {
      const auto from = here(place.at);
      if (!rest_)
        vmovups(z, from);
      else if (wide_)
        vmovups(z | Opmask(rest_mask) | T_z, from);
      else
        vmaskmovps(z, reg(rest_lanes), from);
    }
    place = {Place::vector, z.getIdx()};
    return z;
  }
  Address one() { return dword[rip + literals_[1]]; }
  // The last operand of an instruction: a memory operand if the value is read only once.
  struct Last {
    std::optional<Address> address = {};
    Vector z = Vector(0);
    // a broadcast scalar, where instructions cannot broadcast
    std::unique_ptr<Temporary> copy = {};
    const Operand& get() const {
      return address ? static_cast<const Operand&>(*address) : copy ? copy->z : z;
    }
  };
  Last last(int value) {
    auto& place = places_[std::size_t(value)];
    if (place.kind == Place::scalar && wide_) return {ptr_b[scalar_at(place.at)]};
    if (place.kind == Place::scalar) {
      Last number{{}, Vector(0), std::make_unique<Temporary>(*this)};
      vbroadcastss(number.copy->z, dword[scalar_at(place.at)]);
      return number;
    }
    if (place.kind == Place::array && !rest_ && left_[std::size_t(value)] == 1)
      return {here(place.at)};
    return {{}, vector(value)};
  }
  // Converts a bool to a test in a vector register, and keeps it as a test.
  Vector lanes_of(int value) {
    auto& place = places_[std::size_t(value)];
    if (place.kind == Place::test) return reg(place.at);
    const Vector x = vector(value), z = reg(take());
    vpxor(z, z, z);
    vpcmpeqd(z, z, x);
    vpxor(z, z, literal(~0u));
    free_.set(std::size_t(place.at));
    place = {Place::test, z.getIdx()};
    return z;
  }
  // Returns a test in a mask register: its own, or the scratch register.
  Opmask test(int value) {
    auto& place = places_[std::size_t(value)];
    if (place.kind == Place::test) return Opmask(place.at);
    const Vector z = vector(value);
    vptestmd(Opmask(scratch_mask), z, z);
    return Opmask(scratch_mask);
  }
  // Allocates the register of a result.
  Vector result(int value) {
    const Vector z = reg(take());
    places_[std::size_t(value)] = {Place::vector, z.getIdx()};
    return z;
  }
  void finish(const PointCode::Op& op) {
    for (int a : op.args)
      if (a >= 0) used(a);
  }

  void make(const PointCode::Op& op, int value) {
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
  void code(const PointCode::Op& op, int value) {
    if (is_test(op.action.what)) return compare(op, value);
    if (joins_tests(op.action)) return join(op, value);
    if (op.action.what == Code::select) return select(op, value);
    if (op.args[1] < 0) return unary(op, value);
    binary(op, value);
  }
  void bits_and(const Vector& z, const Vector& x, const Operand& y) {
    wide_ ? vpandd(z, x, y) : vpand(z, x, y);
  }
  void bits_or(const Vector& z, const Vector& x, const Operand& y) {
    wide_ ? vpord(z, x, y) : vpor(z, x, y);
  }
  void bits_xor(const Vector& z, const Vector& x, const Operand& y) {
    wide_ ? vpxord(z, x, y) : vpxor(z, x, y);
  }
  void unary(const PointCode::Op& op, int value) {
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
      default:
        throw OutOfRegisters();
    }
    finish(op);
  }
  void binary(const PointCode::Op& op, int value) {
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
        if (wide_) {
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
        throw OutOfRegisters();
    }
    finish(op);
  }
  // Emits a comparison for AVX2: all bits of a lane of z are set where it holds.
  void compare_lanes(const PointCode::Op& op, int value) {
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
  void finish_test(const PointCode::Op& op, int value, const Vector& z) {
    finish(op);
    places_[std::size_t(value)] = {Place::test, z.getIdx()};
  }
  void compare(const PointCode::Op& op, int value) {
    if (!wide_) return compare_lanes(op, value);
    const int mine = take_test();
    const Opmask k(mine < 0 ? scratch_mask : mine);
    if (op.action.what == Code::logical_not) {
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
  void made_test(int value, int mine, const Opmask& k) {
    if (mine >= 0) {
      places_[std::size_t(value)] = {Place::test, mine};
      return;
    }
    const Vector z = result(value);
    vpbroadcastd(z | k | T_z, one());
  }
  void join(const PointCode::Op& op, int value) {
    const auto [a, b] = std::pair(op.args[0], op.args[1]);
    const bool both =
        places_[std::size_t(a)].kind == Place::test && places_[std::size_t(b)].kind == Place::test;
    const int mine = both ? take_test() : -1;
    if (mine < 0) return binary(op, value);
    if (!wide_) {
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
  void select(const PointCode::Op& op, int value) {
    const Vector no = vector(op.args[2]);
    const auto yes = last(op.args[1]);
    if (!wide_) {
      const Vector lanes = lanes_of(op.args[0]), z = result(value);
      vblendvps(z, no, yes.get(), lanes);
      return finish(op);
    }
    const Opmask k = test(op.args[0]);
    const Vector z = result(value);
    vblendmps(z | k, no, yes.get());
    finish(op);
  }

  // ---- rounding ----
  void round_to(const Vector& z, const Vector& x, DType to) {
    if (to == DType::f16) {
      const Vector half(wide_ ? Operand::YMM : Operand::XMM, z.getIdx());
      vcvtps2ph(half, x, 0);
      vcvtph2ps(z, half);
      return;
    }
    Temporary t(*this);  // bf16: rounds to nearest even; NaN stays NaN
    vpsrld(t.z, x, 16);
    bits_and(t.z, t.z, literal(1u));
    vpaddd(t.z, t.z, literal(0x7fffu));
    vpaddd(t.z, t.z, x);
    if (wide_) {
      vcmpps(Opmask(scratch_mask), x, x, 3);
      vpord(t.z | Opmask(scratch_mask), x, literal(0x400000u));
    } else {
      Temporary quiet(*this), unordered(*this);
      vpor(quiet.z, x, literal(0x400000u));
      vcmpps(unordered.z, x, x, 3);
      vblendvps(t.z, t.z, quiet.z, unordered.z);
    }
    bits_and(z, t.z, literal(0xffff0000u));
  }
  void round(const PointCode::Op& op, int value) {
    const Vector x = vector(op.args[0]), z = result(value);
    round_to(z, x, op.action.to);
    finish(op);
  }
  void convert(const PointCode::Op& op, int value) {
    const Vector x = vector(op.args[0]), z = result(value);
    if (op.action.from == LaneType::i32)
      vcvtdq2ps(z, x);
    else if (op.action.from == LaneType::u32 && wide_)
      vcvtudq2ps(z, x);
    else if (op.action.from == LaneType::u32)
      convert_halves(z, x);
    else if (op.action.to == DType::f32)
      vmovaps(z, x);
    if (op.action.to != DType::f32)
      round_to(z, op.action.from == LaneType::f32 ? x : z, op.action.to);
    finish(op);
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

  // ---- functions, bitwise identical to kernels_math.inc ----
  void exp(const Vector& z, const Vector& c) {  // overwrites c
    Temporary n(*this), q(*this);
    if (!wide_) return exp_of_lanes(z, c, n.z, q.z);
    const Opmask scaled(scratch_mask);
    vbroadcastss(n.z, at(-104.f));
    vmaxps(c, n.z, c);
    vbroadcastss(n.z, at(89.f));
    vminps(c, n.z, c);
    vcmpps(scaled, c, literal(-103.97208404541015625f), 0x16);  // not less or equal: includes NaN
    exp_within(z, c, n.z, q.z);
    vscalefps(z | scaled | T_z, z, n.z);
  }
  void exp_of_lanes(const Vector& z, const Vector& c, const Vector& n, const Vector& q) {
    Xbyak::Label wide_range, done;
    vandps(q, c, literal(0x7fffffffu));
    vcmpps(q, q, literal(87.f), 0x11);
    vtestps(q, literal(~0u));
    jnc(wide_range, T_NEAR);
    exp_within(z, c, n, q);  // the common case: all results are normal numbers
    vcvtps2dq(n, n);
    vpslld(n, n, 23);
    vpaddd(z, z, n);
    jmp(done, T_NEAR);
    L(wide_range);
    Temporary scaled(*this);
    vcmpps(scaled.z, c, literal(-103.97208404541015625f), 0x16);  // not less or equal: includes NaN
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
    vbroadcastss(n, at(12582912.f));
    vfmadd231ps(n, c, literal(1.44269504088896341f));
    vsubps(n, n, literal(12582912.f));
    vfnmadd231ps(c, n, literal(0.693359375f));
    vfmadd231ps(c, n, literal(2.12194440e-4f));
    vbroadcastss(z, at(1.9875691500e-4f));
    for (float k :
         {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
      vfmadd213ps(z, c, literal(k));
    vmulps(q, c, c);
    vfmadd213ps(z, q, c);
  }
  Address at(float x) { return dword[rip + literals_[std::bit_cast<std::uint32_t>(x)]]; }
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

  PointCode code_;
  std::vector<int> uses_, left_;
  std::vector<Place> places_;
  std::bitset<32> free_;
  std::bitset<8> free_tests_;
  std::map<std::uint32_t, Xbyak::Label> literals_;
  Xbyak::Label lane_bits_[2];  // 1, 2, 4, ...: bits of the first 8 elements, and of the other 8
  const bool wide_;            // AVX-512
  bool rest_ = false;
  int half_ = 0;  // half of the 16 elements
};

bool has_isa(std::string_view name) { return kernels().name == name; }

constinit std::mutex assembling;
[[maybe_unused]] const bool assembler_forks =
    at_fork({kForkRest, [] { assembling.lock(); }, [] { assembling.unlock(); }});

}  // namespace

AssembledCode assembled(const PointCode& code) {
  static auto& all = *new std::map<std::string, std::unique_ptr<Assembler>>;
  std::lock_guard hold(assembling);
  auto [known, is_new] = all.try_emplace(key_of(code));
  if (is_new) {
    try {
      known->second = std::make_unique<Assembler>(code, has_isa("avx512"));
    } catch (const OutOfRegisters&) {  // also if executable memory is not permitted
    } catch (const Xbyak::Error&) {}
  }
  return known->second ? known->second->entry() : nullptr;
}

}  // namespace haliax::cpu

#else
namespace haliax::cpu {
AssembledCode assembled(const PointCode&) { return nullptr; }
}  // namespace haliax::cpu
#endif
