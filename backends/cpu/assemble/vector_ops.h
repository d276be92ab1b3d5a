// Kernel: elementwise ops on one vector register in emitted machine code.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "backends/cpu/fused/fused.h"
#include "vector_functions.h"

namespace haliax::cpu {

// Emits ops on values, which are numbered. A value stays where it is until an op reads it; then it
// stays in a register until its last reader.
class VectorOps : public VectorFunctions {
 protected:
  using VectorFunctions::VectorFunctions;
  struct Place {
    enum Kind { nowhere, array, bf16, boolean, scalar, other, vector, test } kind = nowhere;
    int at = 0;  // index of the array or the scalar, or the register
  };
  static constexpr int rest_lanes = 15;  // AVX2: the register that marks the remaining elements

  // The memory of a value: a full register, or one scalar for all elements.
  virtual Address array_address(int array) = 0;
  virtual Address bf16_address(int array) = 0;
  virtual Address bool_address(int) { throw CannotAssemble(); }
  virtual Xbyak::RegExp scalar_address(int scalar) = 0;
  // Loads a value of kind `other`.
  virtual void load_other(const Vector&, int) {}

  void finish_read(int value) {
    auto& place = places_[std::size_t(value)];
    if (--reads_left_[std::size_t(value)] > 0) return;
    if (place.kind == Place::vector || (place.kind == Place::test && !avx512_))
      free_.set(std::size_t(place.at));
    if (place.kind == Place::test && avx512_) free_tests_.set(std::size_t(place.at));
    place.kind = Place::nowhere;
  }

  // Load and store a register, or only its first elements if it is not full.
  void load_register(const Vector& z, const Address& from, bool is_part) {
    if (is_part && part_ == 1)
      vmovss(Vector(z.getIdx()), from);
    else if (is_part && part_ == 2)
      vmovq(Vector(z.getIdx()), from);
    else if (!is_part || has_register_of_part())
      vmovups(is_part ? register_of_part(z) : z, from);
    else if (avx512_)
      vmovups(z | Opmask(rest_mask) | T_z, from);
    else
      vmaskmovps(z, reg(rest_lanes), from);
  }
  void store_register(const Address& to, const Vector& z, bool is_part) {
    if (is_part && part_ == 1)
      vmovss(to, Vector(z.getIdx()));
    else if (is_part && part_ == 2)
      vmovq(to, Vector(z.getIdx()));
    else if (!is_part || has_register_of_part())
      vmovups(to, is_part ? register_of_part(z) : z);
    else if (avx512_)
      vmovups(to | Opmask(rest_mask), z);
    else
      vmaskmovps(to, reg(rest_lanes), z);
  }
  bool has_register_of_part() const { return part_ == 4 || (part_ == 8 && avx512_); }
  Vector register_of_part(const Vector& z) const {
    return Vector(part_ == 8 ? Operand::YMM : Operand::XMM, z.getIdx());
  }

  // Loads a value into a vector register, where it stays.
  Vector vector(int value) {
    auto& place = places_[std::size_t(value)];
    if (place.kind == Place::boolean) load_bools(value);
    if (place.kind == Place::vector) return reg(place.at);
    if (place.kind == Place::test && !avx512_) {
      place.kind = Place::vector;
      vpsrld(reg(place.at), reg(place.at), 31);
      return reg(place.at);
    }
    const Vector z = reg(take());
    if (place.kind == Place::scalar) {
      vbroadcastss(z, dword[scalar_address(place.at)]);
    } else if (place.kind == Place::test) {
      vpbroadcastd(z | Opmask(place.at) | T_z, one());
      free_tests_.set(std::size_t(place.at));
    } else if (place.kind == Place::other) {
      load_other(z, value);
    } else if (place.kind == Place::bf16) {
      load_bf16(z, bf16_address(place.at));
    } else {
      load_register(z, array_address(place.at), rest_);
    }
    place = {Place::vector, z.getIdx()};
    return z;
  }
  // Loads bf16 values. rcx is free if part_ is not 0.
  void load_bf16(const Vector& z, const Address& from) {
    const Vector low(z.getIdx());
    if (rest_ && part_ == 1) {
      movzx(ecx, word[from.getRegExp()]);
      vmovd(low, ecx);
    } else if (rest_ && (part_ == 2 || part_ == 4)) {
      part_ == 2 ? vmovd(low, from) : vmovq(low, from);
      vpmovzxwd(low, low);
    } else if (rest_ && part_ == 8) {
      vpmovzxwd(register_of_part(z), from);
    } else if (rest_) {
      vpmovzxwd(z | Opmask(rest_mask) | T_z, from);
    } else {
      vpmovzxwd(z, from);
    }
    vpslld(z, z, 16);
  }
  // Stores bf16 values, which overwrites z. rcx is free if part_ is not 0.
  void store_bf16(const Address& to, const Vector& z) {
    vpsrld(z, z, 16);
    const Vector low(z.getIdx());
    if (rest_ && part_ == 1) {
      vmovd(ecx, low);
      mov(word[to.getRegExp()], cx);
    } else if (rest_ && (part_ == 2 || part_ == 4 || part_ == 8)) {
      vpmovdw(Xbyak::Ymm(z.getIdx()), z);
      if (part_ == 8) return vmovups(to, low);
      part_ == 2 ? vmovd(to, low) : vmovq(to, low);
    } else if (rest_) {
      vpmovdw(to | Opmask(rest_mask), z);
    } else {
      vpmovdw(to, z);
    }
  }
  // AVX-512: loads bools as a test, so that bytes other than 0 are true. If no mask register is
  // left, they become 0 and 1.
  void load_bools(int value) {
    auto& place = places_[std::size_t(value)];
    const int test_register = take_test();
    const Opmask k(test_register < 0 ? scratch_mask : test_register);
    {
      Temporary bytes(*this);
      const Xbyak::Xmm x(bytes.z.getIdx());
      if (rest_)
        vmovdqu8(x | Opmask(rest_mask) | T_z, bool_address(place.at));
      else
        vmovdqu(x, bool_address(place.at));
      vptestmb(k, x, x);
    }
    keep_test(value, test_register, k);
  }
  // Returns true if the value is in a mask register (AVX2: in the lanes of a vector register).
  bool holds_test(int value) {
    auto& place = places_[std::size_t(value)];
    if (place.kind == Place::boolean) load_bools(value);
    return place.kind == Place::test;
  }
  // AVX-512: stores a bool value as bytes of 0 and 1.
  void store_bools(const Address& to, int value, bool non_temporal) {
    Temporary bytes(*this);
    const Xbyak::Xmm x(bytes.z.getIdx());
    if (holds_test(value)) {
      vpmovm2b(x, test(value));
      vpabsb(x, x);
    } else {
      vpmovdb(x, vector(value));
    }
    if (non_temporal)
      vmovntdq(to, x);
    else if (rest_)
      vmovdqu8(to | Opmask(rest_mask), x);
    else
      vmovdqu(to, x);
  }
  Address one() { return dword[rip + literals_[1]]; }
  // The last operand of an instruction: a memory operand if the value is read only once.
  struct LastOperand {
    std::optional<Address> address = {};
    Vector z = Vector(0);
    // a broadcast scalar, where instructions cannot broadcast
    std::unique_ptr<Temporary> copy = {};
    const Operand& get() const {
      return address ? static_cast<const Operand&>(*address) : copy ? copy->z : z;
    }
  };
  LastOperand last_operand(int value) {
    auto& place = places_[std::size_t(value)];
    if (place.kind == Place::scalar && avx512_) return {ptr_b[scalar_address(place.at)]};
    if (place.kind == Place::scalar) {
      LastOperand number{{}, Vector(0), std::make_unique<Temporary>(*this)};
      vbroadcastss(number.copy->z, dword[scalar_address(place.at)]);
      return number;
    }
    if (place.kind == Place::array && !rest_ && reads_left_[std::size_t(value)] == 1)
      return {array_address(place.at)};
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
    if (holds_test(value)) return Opmask(place.at);
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
  void finish_reads(const MapCode::Op& op) {
    for (int a : op.args)
      if (a >= 0) finish_read(a);
  }

  void emit_op(const MapCode::Op& op, int value);
  void emit_code(const MapCode::Op& op, int value);
  void unary(const MapCode::Op& op, int value);
  void unary_function(const MapCode::Op& op, int value);
  void binary(const MapCode::Op& op, int value);
  void max_or_min(const MapOp&, const Vector& z, const Vector& x, const Operand& y);
  // Emits a comparison for AVX2: all bits of a lane of z are set where it holds.
  void compare_avx2(const MapCode::Op& op, int value);
  void compare_integers_avx2(const MapOp&, const Vector& z, const Vector& x, const Vector& y);
  void finish_test(const MapCode::Op& op, int value, const Vector& z);
  void compare(const MapCode::Op& op, int value);
  // Emits a test of x for is_finite, is_nan or is_inf.
  void float_test(const auto& to, program::Code, const Vector& x);
  void sign(const Vector& z, const Vector& x);
  // Keeps the result k of a comparison in its register, or as a bool if it has none (-1).
  void keep_test(int value, int test_register, const Opmask& k);
  void join(const MapCode::Op& op, int value);
  void select(const MapCode::Op& op, int value);
  void round(const MapCode::Op& op, int value);
  void convert(const MapCode::Op& op, int value);

  std::vector<int> reads_left_;  // per value: readers that are left
  std::vector<Place> places_;
  bool rest_ = false;  // the register is not full
  // The number of elements of a register that is not full; 0: known at run time only. Memory that
  // was stored under a mask is slow to load again, so registers of 1, 2, 4 and 8 elements have
  // their own instructions.
  int part_ = 0;
};

}  // namespace haliax::cpu
