// Kernel: vector registers of 32-bit values in emitted machine code, and the constants that it
// reads. With AVX-512 a register holds 16 values, and the results of comparisons are mask
// registers. With AVX2 it holds 8, and a comparison sets all bits of a lane.
#pragma once
#include <xbyak/xbyak.h>

#include <bit>
#include <bitset>
#include <cstdint>
#include <map>

namespace haliax::cpu {

using Vector = Xbyak::Xmm;  // a register of any width

struct CannotAssemble {};

// Predicates of vcmpps that raise no exception for a quiet NaN. Those in the second line are true
// if an operand is NaN.
namespace float_compare {
constexpr std::uint8_t equal = 0, ordered = 7, ordered_not_equal = 12, less = 17, less_equal = 18;
constexpr std::uint8_t unordered = 3, not_equal = 4, unordered_or_equal = 8, not_less_equal = 22;
}  // namespace float_compare

class VectorRegisters : protected Xbyak::CodeGenerator {
 protected:
  using Address = Xbyak::Address;
  using Opmask = Xbyak::Opmask;
  using Operand = Xbyak::Operand;
  // AVX-512: mask registers. The first one marks the elements of a register that is not full.
  static constexpr int rest_mask = 1, scratch_mask = 2, first_test = 3;

  VectorRegisters(std::size_t bytes, bool avx512)
      : CodeGenerator(bytes, Xbyak::DontSetProtectRWE), avx512_(avx512) {}

  int lanes() const { return avx512_ ? 16 : 8; }
  // Marks all registers as free.
  void free_all() {
    free_ = avx512_ ? 0xffffffff : 0xffff;
    free_tests_.set();
  }
  Vector reg(int z) const { return Vector(avx512_ ? Operand::ZMM : Operand::YMM, z); }
  int take() {
    for (int z = 0; z < 32; ++z)
      if (free_[std::size_t(z)]) {
        free_.reset(std::size_t(z));
        return z;
      }

    throw CannotAssemble();
  }
  // Reserves a register for a scope.
  struct Temporary {
    VectorRegisters& of;
    const Vector z;
    explicit Temporary(VectorRegisters& a) : of(a), z(a.reg(a.take())) {}
    ~Temporary() { of.free_.set(std::size_t(z.getIdx())); }
    Temporary(const Temporary&) = delete;
  };
  int take_test() {
    if (!avx512_) return take();
    for (int k = first_test; k < 8; ++k)
      if (free_tests_[std::size_t(k)]) {
        free_tests_.reset(std::size_t(k));
        return k;
      }

    return -1;
  }

  // Returns a constant that all lanes share, as the last operand of an instruction.
  Address literal(std::uint32_t bits) {
    return avx512_ ? ptr_b[rip + literals_[bits]] : ptr[rip + literals_[bits]];
  }
  Address literal(float x) { return literal(std::bit_cast<std::uint32_t>(x)); }
  // Returns a constant of 32 bits, to broadcast.
  Address at(float x) { return dword[rip + literals_[std::bit_cast<std::uint32_t>(x)]]; }
  // Emits the constants after the code.
  void write_literals() {
    align(32);
    for (auto& [bits, label] : literals_) {
      L(label);
      for (int lane = 0; lane < (avx512_ ? 1 : 8); ++lane) dd(bits);
    }
  }

  const bool avx512_;  // else AVX2
  std::bitset<32> free_;
  std::bitset<8> free_tests_;
  std::map<std::uint32_t, Xbyak::Label> literals_;
};

}  // namespace haliax::cpu
