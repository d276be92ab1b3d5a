// Machine code for point-wise ops: 16 values of 32 bits a register, tests in mask registers.
#include "assemble.h"

#if defined(HALIAX_XBYAK)
#include <xbyak/xbyak.h>

#include <bit>
#include <bitset>
#include <map>
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
using Xbyak::Zmm;

bool is_float(Lane lane) { return lane == Lane::f32; }
bool is_test(Code c) { return (c >= Code::less && c <= Code::not_equal) || c == Code::logical_not; }
// An op of bools whose operands are tests is one too.
bool joins_tests(const PointOp& op) {
  return op.to == DType::boolean && (op.what == Code::bit_and || op.what == Code::bit_or || op.what == Code::bit_xor);
}

struct OutOfRegisters {};

class Assembler : Xbyak::CodeGenerator {
 public:
  explicit Assembler(const PointCode& code)
      : CodeGenerator(4096 + 1024 * code.ops.size(), Xbyak::DontSetProtectRWE), code_(code) {   // a tanh has some 900 bytes
    count_uses();
    save();
    body(false);
    body(true);
    restore();
    for (auto& [bits, label] : literals_) align(4), L(label), dd(bits);
    setProtectModeRE();
  }
  AssembledCode entry() { return getCode<AssembledCode>(); }

 private:
  struct Place {
    enum { nowhere, array, bf16, scalar, vector, test } kind = nowhere;
    int at = 0;                                  // which array, scalar, or register
  };
  static constexpr int bytes_ahead = 4096;       // a few tiles: long enough for memory to come
  static constexpr int rest_mask = 1, scratch_mask = 2, first_test = 3;

  void count_uses() {
    uses_.assign(code_.inputs.size() + code_.ops.size(), 0);
    for (auto& op : code_.ops)
      for (int a : op.args)
        if (a >= 0) ++uses_[std::size_t(a)];
    for (auto& o : code_.outputs) ++uses_[std::size_t(o.value)];
  }

  // ---- around the loop ----
  // rdi: the call; rcx: points done; one register for each array, and for what is fetched
  const Reg64& array_register(int k) const {
    const Reg64* const all[] = {&rax, &rdx, &rsi, &r8, &r9, &r10, &r11, &rbx, &rbp, &r12, &r13, &r14, &r15};
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
    for (int k = 0; k < arrays(); ++k) mov(array_register(k), in_call(offsetof(AssembledCall, array) + 8 * std::size_t(k)));
    mov(array_register(arrays()), in_call(offsetof(AssembledCall, soon)));
    xor_(ecx, ecx);
  }
  void restore() {
    vzeroupper();
    for (int k = arrays(); k >= 7; --k) pop(array_register(k));
    ret();
  }
  void body(bool rest) {
    Xbyak::Label again, done;
    if (rest) {
      cmp(qword[rdi + offsetof(AssembledCall, rest)], 0);
      je(done, T_NEAR);
      kmovw(Opmask(rest_mask), word[rdi + offsetof(AssembledCall, rest)]);
    } else {
      cmp(rcx, qword[rdi + offsetof(AssembledCall, points)]);
      jae(done, T_NEAR);
    }
    L(again);
    if (!rest) fetch();
    rest_ = rest;
    points();
    if (!rest) {
      add(rcx, 16);
      cmp(rcx, qword[rdi + offsetof(AssembledCall, points)]);
      jb(again, T_NEAR);
    }
    L(done);
  }

  // What is read soon, so that nobody waits for it: mostly what lies behind this tile in each array.
  void fetch() {
    if (!code_.fetches_inputs) return prefetcht1(ptr[array_register(arrays()) + rcx * 4]);
    int array = 0;
    for (auto input : code_.inputs) {
      if (input == PointCode::Input::array) prefetcht1(ptr[array_register(array++) + rcx * 4 + bytes_ahead]);
      if (input == PointCode::Input::bf16) prefetcht1(ptr[array_register(array++) + rcx * 2 + bytes_ahead]);
    }
  }

  // ---- the points of a register ----
  void points() {
    left_ = uses_;
    free_.set(), free_tests_.set();
    places_.assign(uses_.size(), {});
    int array = 0, scalar = 0;
    for (std::size_t i = 0; i < code_.inputs.size(); ++i)
      places_[i] = code_.inputs[i] == PointCode::Input::one    ? Place{Place::scalar, scalar++}
                   : code_.inputs[i] == PointCode::Input::bf16 ? Place{Place::bf16, array++}
                                                               : Place{Place::array, array++};
    for (std::size_t k = 0; k < code_.ops.size(); ++k) make(code_.ops[k], int(code_.inputs.size() + k));
    for (auto [value, bf16] : code_.outputs) {     // last, as they may be made where an input lies
      const Zmm z = vector(value);
      const auto& base = array_register(array++);
      if (bf16) {
        Temporary half(*this);
        vpsrld(half.z, z, 16);
        const auto to = ptr[base + rcx * 2];
        if (rest_) vpmovdw(to | Opmask(rest_mask), half.z);
        else vpmovdw(to, half.z);
      } else {
        const auto to = ptr[base + rcx * 4];
        if (rest_) vmovups(to | Opmask(rest_mask), z);
        else vmovups(to, z);
      }
      used(value);
    }
  }
  int take() {
    for (int z = 0; z < 32; ++z)
      if (free_[std::size_t(z)]) return free_.reset(std::size_t(z)), z;
    throw OutOfRegisters();
  }
  // A register for now.
  struct Temporary {
    Assembler& of;
    const Zmm z;
    explicit Temporary(Assembler& a) : of(a), z(a.take()) {}
    ~Temporary() { of.free_.set(std::size_t(z.getIdx())); }
    Temporary(const Temporary&) = delete;
  };
  int take_test() {
    for (int k = first_test; k < 8; ++k)
      if (free_tests_[std::size_t(k)]) return free_tests_.reset(std::size_t(k)), k;
    return -1;
  }
  void used(int value) {
    auto& place = places_[std::size_t(value)];
    if (--left_[std::size_t(value)] > 0) return;
    if (place.kind == Place::vector) free_.set(std::size_t(place.at));
    if (place.kind == Place::test) free_tests_.set(std::size_t(place.at));
    place.kind = Place::nowhere;
  }
  Address literal(std::uint32_t bits) { return ptr_b[rip + literals_[bits]]; }
  Address literal(float x) { return literal(std::bit_cast<std::uint32_t>(x)); }
  Address scalar_at(int k) { return ptr_b[rdi + offsetof(AssembledCall, scalar) + 4 * std::size_t(k)]; }

  // In a register, and so from now on.
  Zmm vector(int value) {
    auto& place = places_[std::size_t(value)];
    if (place.kind == Place::vector) return Zmm(place.at);
    const Zmm z(take());
    if (place.kind == Place::scalar) {
      vbroadcastss(z, dword[rdi + offsetof(AssembledCall, scalar) + 4 * std::size_t(place.at)]);
    } else if (place.kind == Place::test) {
      vpbroadcastd(z | Opmask(place.at) | T_z, one());
      free_tests_.set(std::size_t(place.at));
    } else if (place.kind == Place::bf16) {
      const auto from = ptr[array_register(place.at) + rcx * 2];
      if (rest_) vpmovzxwd(z | Opmask(rest_mask) | T_z, from);
      else vpmovzxwd(z, from);
      vpslld(z, z, 16);
    } else {
      const auto from = ptr[array_register(place.at) + rcx * 4];
      if (rest_) vmovups(z | Opmask(rest_mask) | T_z, from);
      else vmovups(z, from);
    }
    place = {Place::vector, z.getIdx()};
    return z;
  }
  Address one() { return dword[rip + literals_[1]]; }
  // As the last operand of an instruction: where it lies, if it is read this once.
  struct Last {
    std::optional<Address> address = {};
    Zmm z = Zmm(0);
    const Operand& get() const { return address ? static_cast<const Operand&>(*address) : z; }
  };
  Last last(int value) {
    auto& place = places_[std::size_t(value)];
    if (place.kind == Place::scalar) return {scalar_at(place.at)};
    if (place.kind == Place::array && !rest_ && left_[std::size_t(value)] == 1) return {ptr[array_register(place.at) + rcx * 4]};
    return {{}, vector(value)};
  }
  Opmask test(int value) {                       // in a mask register: its own, or the scratch one
    auto& place = places_[std::size_t(value)];
    if (place.kind == Place::test) return Opmask(place.at);
    const Zmm z = vector(value);
    vptestmd(Opmask(scratch_mask), z, z);
    return Opmask(scratch_mask);
  }
  // The result may take the register of an operand that is read for the last time.
  Zmm result(int value) {
    const Zmm z(take());
    places_[std::size_t(value)] = {Place::vector, z.getIdx()};
    return z;
  }
  void finish(const PointCode::Op& op) {
    for (int a : op.args)
      if (a >= 0) used(a);
  }

  void make(const PointCode::Op& op, int value) {
    switch (op.does.does) {
      case PointOp::code: return code(op, value);
      case PointOp::round: return round(op, value);
      case PointOp::convert: return convert(op, value);
      case PointOp::exp_of_difference: {
        const Zmm x = vector(op.args[0]);
        const auto less = last(op.args[1]);
        Temporary c(*this);
        vsubps(c.z, x, less.get());
        finish(op);
        return exp(result(value), c.z);
      }
      case PointOp::nothing: return;
    }
  }
  void code(const PointCode::Op& op, int value) {
    if (is_test(op.does.what)) return compare(op, value);
    if (joins_tests(op.does)) return join(op, value);
    if (op.does.what == Code::select) return select(op, value);
    if (op.args[1] < 0) return unary(op, value);
    binary(op, value);
  }
  void unary(const PointCode::Op& op, int value) {
    const Zmm x = vector(op.args[0]);
    if (op.does.what == Code::exp) {
      Temporary c(*this);
      vmovaps(c.z, x);
      finish(op);
      return exp(result(value), c.z);
    }
    if (op.does.what == Code::tanh) {
      const Zmm z = result(value);
      tanh(z, x);
      return finish(op);
    }
    const Zmm z = result(value);
    switch (op.does.what) {
      case Code::neg:
        if (is_float(op.does.from)) vpxord(z, x, literal(0x80000000u));
        else vpxord(z, z, z), vpsubd(z, z, x);
        break;
      case Code::abs: vpandd(z, x, literal(0x7fffffffu)); break;
      case Code::sqrt: vsqrtps(z, x); break;
      case Code::rsqrt: {
        Temporary root(*this);
        vsqrtps(root.z, x);
        vbroadcastss(z, dword[rip + literals_[std::bit_cast<std::uint32_t>(1.f)]]);
        vdivps(z, z, root.z);
        break;
      }
      case Code::bit_not: vpternlogd(z, x, x, 0x55); break;
      default: throw OutOfRegisters();
    }
    finish(op);
  }
  void binary(const PointCode::Op& op, int value) {
    auto [a, b] = std::pair(op.args[0], op.args[1]);
    const bool commutes = op.does.what == Code::add || op.does.what == Code::mul || op.does.what == Code::bit_and || op.does.what == Code::bit_or ||
                          op.does.what == Code::bit_xor;
    if (commutes && places_[std::size_t(a)].kind != Place::vector && places_[std::size_t(b)].kind == Place::vector) std::swap(a, b);
    const Zmm x = vector(a);
    const auto other = last(b);
    const Operand& y = other.get();
    const Zmm z = result(value);
    const bool f = is_float(op.does.from);
    switch (op.does.what) {
      case Code::add: f ? vaddps(z, x, y) : vpaddd(z, x, y); break;
      case Code::sub: f ? vsubps(z, x, y) : vpsubd(z, x, y); break;
      case Code::mul: f ? vmulps(z, x, y) : vpmulld(z, x, y); break;
      case Code::div: vdivps(z, x, y); break;
      case Code::max:
      case Code::min:                            // NaN of either passes: the instruction passes that of its last operand
        if (!f) {
          const bool is_signed = op.does.from == Lane::i32;
          if (op.does.what == Code::max) is_signed ? vpmaxsd(z, x, y) : vpmaxud(z, x, y);
          else is_signed ? vpminsd(z, x, y) : vpminud(z, x, y);
          break;
        }
        op.does.what == Code::max ? vmaxps(z, x, y) : vminps(z, x, y);
        vcmpps(Opmask(scratch_mask), x, x, 3);   // unordered
        vmovaps(z | Opmask(scratch_mask), x);
        break;
      case Code::bit_and: vpandd(z, x, y); break;
      case Code::bit_or: vpord(z, x, y); break;
      case Code::bit_xor: vpxord(z, x, y); break;
      case Code::shift_left: vpsllvd(z, x, y); break;
      case Code::shift_right: op.does.from == Lane::i32 ? vpsravd(z, x, y) : vpsrlvd(z, x, y); break;
      default: throw OutOfRegisters();
    }
    finish(op);
  }
  void compare(const PointCode::Op& op, int value) {
    const int mine = take_test();
    const Opmask k(mine < 0 ? scratch_mask : mine);
    if (op.does.what == Code::logical_not) {
      if (places_[std::size_t(op.args[0])].kind == Place::test) {
        knotw(k, test(op.args[0]));
      } else {
        const Zmm x = vector(op.args[0]);
        if (is_float(op.does.from)) {
          Temporary zero(*this);
          vpxord(zero.z, zero.z, zero.z);
          vcmpps(k, x, zero.z, 0);
        } else {
          vptestnmd(k, x, x);
        }
      }
    } else {
      const Zmm x = vector(op.args[0]);
      const auto other = last(op.args[1]);
      const Operand& y = other.get();
      const auto pick = [&](int less, int less_equal, int equal, int not_equal) {
        return std::uint8_t(op.does.what == Code::less         ? less
                            : op.does.what == Code::less_equal ? less_equal
                            : op.does.what == Code::equal      ? equal
                                                          : not_equal);
      };
      if (is_float(op.does.from)) vcmpps(k, x, y, pick(0x11, 0x12, 0, 4));   // false for NaN, but for not_equal
      else if (op.does.from == Lane::i32) vpcmpd(k, x, y, pick(1, 2, 0, 4));
      else vpcmpud(k, x, y, pick(1, 2, 0, 4));
    }
    finish(op);
    made_test(value, mine, k);
  }
  void made_test(int value, int mine, const Opmask& k) {
    if (mine >= 0) {
      places_[std::size_t(value)] = {Place::test, mine};
      return;
    }
    const Zmm z = result(value);
    vpbroadcastd(z | k | T_z, one());
  }
  void join(const PointCode::Op& op, int value) {
    const auto [a, b] = std::pair(op.args[0], op.args[1]);
    const bool both = places_[std::size_t(a)].kind == Place::test && places_[std::size_t(b)].kind == Place::test;
    const int mine = both ? take_test() : -1;
    if (mine < 0) return binary(op, value);
    const Opmask k(mine), x = test(a), y = test(b);
    if (op.does.what == Code::bit_and) kandw(k, x, y);
    else if (op.does.what == Code::bit_or) korw(k, x, y);
    else kxorw(k, x, y);
    finish(op);
    made_test(value, mine, k);
  }
  void select(const PointCode::Op& op, int value) {
    const Zmm no = vector(op.args[2]);
    const auto yes = last(op.args[1]);
    const Opmask k = test(op.args[0]);
    const Zmm z = result(value);
    vblendmps(z | k, no, yes.get());
    finish(op);
  }

  // ---- rounding ----
  void round_to(const Zmm& z, const Zmm& x, DType to) {
    if (to == DType::f16) {
      vcvtps2ph(Xbyak::Ymm(z.getIdx()), x, 0);
      vcvtph2ps(z, Xbyak::Ymm(z.getIdx()));
      return;
    }
    Temporary t(*this);                          // bf16: to nearest even, and a NaN stays one
    vcmpps(Opmask(scratch_mask), x, x, 3);
    vpsrld(t.z, x, 16);
    vpandd(t.z, t.z, literal(1u));
    vpaddd(t.z, t.z, literal(0x7fffu));
    vpaddd(t.z, t.z, x);
    vpord(t.z | Opmask(scratch_mask), x, literal(0x400000u));
    vpandd(z, t.z, literal(0xffff0000u));
  }
  void round(const PointCode::Op& op, int value) {
    const Zmm x = vector(op.args[0]), z = result(value);
    round_to(z, x, op.does.to);
    finish(op);
  }
  void convert(const PointCode::Op& op, int value) {
    const Zmm x = vector(op.args[0]), z = result(value);
    if (op.does.from == Lane::i32) vcvtdq2ps(z, x);
    else if (op.does.from == Lane::u32) vcvtudq2ps(z, x);
    else if (op.does.to == DType::f32) vmovaps(z, x);
    if (op.does.to != DType::f32) round_to(z, op.does.from == Lane::f32 ? x : z, op.does.to);
    finish(op);
  }

  // ---- functions, step by step as in kernels_math.inc ----
  void exp(const Zmm& z, const Zmm& c) {         // takes c
    Temporary n(*this), q(*this);
    const Opmask scaled(scratch_mask);
    vbroadcastss(n.z, at(-104.f));
    vmaxps(c, n.z, c);
    vbroadcastss(n.z, at(89.f));
    vminps(c, n.z, c);
    vcmpps(scaled, c, literal(-103.97208404541015625f), 0x16);   // not less or equal: NaN too
    exp_within(z, c, n.z, q.z);
    vscalefps(z | scaled | T_z, z, n.z);
  }
  // z 2^n is exp(c); for c in [-104, 89]
  void exp_within(const Zmm& z, const Zmm& c, const Zmm& n, const Zmm& q) {
    vbroadcastss(n, at(12582912.f));
    vfmadd231ps(n, c, literal(1.44269504088896341f));
    vsubps(n, n, literal(12582912.f));
    vfnmadd231ps(c, n, literal(0.693359375f));
    vfmadd231ps(c, n, literal(2.12194440e-4f));
    vbroadcastss(z, at(1.9875691500e-4f));
    for (float k : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
      vfmadd213ps(z, c, literal(k));
    vmulps(q, c, c);
    vfmadd213ps(z, q, c);
    vaddps(z, z, literal(1.f));
  }
  Address at(float x) { return dword[rip + literals_[std::bit_cast<std::uint32_t>(x)]]; }
  void tanh(const Zmm& z, const Zmm& x) {
    Temporary c(*this), n(*this), q(*this), p(*this);
    vpandd(q.z, x, literal(0x7fffffffu));
    vcmpps(Opmask(scratch_mask), q.z, literal(0.625f), 0x11);
    vaddps(c.z, q.z, q.z);
    vbroadcastss(n.z, at(20.f));
    vminps(c.z, n.z, c.z);
    exp_within(z, c.z, n.z, q.z);
    vscalefps(z, z, n.z);
    vaddps(z, z, literal(1.f));
    vbroadcastss(p.z, at(2.f));
    vdivps(p.z, p.z, z);
    vbroadcastss(z, at(1.f));
    vsubps(z, z, p.z);
    vpandd(p.z, x, literal(0x80000000u));
    vpord(z, z, p.z);                            // of large values
    vmulps(q.z, x, x);
    vbroadcastss(p.z, at(-5.70498872745e-3f));
    for (float k : {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f}) vfmadd213ps(p.z, q.z, literal(k));
    vmulps(p.z, p.z, q.z);
    vfmadd213ps(p.z, x, x);
    vmovaps(z | Opmask(scratch_mask), p.z);      // of small ones
  }

  PointCode code_;
  std::vector<int> uses_, left_;
  std::vector<Place> places_;
  std::bitset<32> free_;
  std::bitset<8> free_tests_;
  std::map<std::uint32_t, Xbyak::Label> literals_;
  bool rest_ = false;
};

std::string key_of(const PointCode& code) {
  std::string key;
  auto add = [&](int x) { key.append(reinterpret_cast<const char*>(&x), sizeof x); };
  add(int(code.inputs.size())), add(int(code.ops.size())), add(code.fetches_inputs);
  for (auto input : code.inputs) add(int(input));
  for (auto& op : code.ops) {
    add(op.does.does), add(int(op.does.what)), add(int(op.does.from)), add(int(op.does.to));
    for (int a : op.args) add(a);
  }
  for (auto& o : code.outputs) add(o.value), add(o.bf16);
  return key;
}

constinit std::mutex assembling;
[[maybe_unused]] const bool forks = at_fork({kForkRest, [] { assembling.lock(); }, [] { assembling.unlock(); }});

}  // namespace

bool can_assemble() {
  static const bool can = std::string_view(kernels().name) == "avx512";
  return can;
}
bool can_assemble(const PointOp& op) {
  if (op.does == PointOp::nothing) return false;
  const bool narrow_float = op.to == DType::bf16 || op.to == DType::f16;
  if (op.does == PointOp::round) return narrow_float;
  const bool whole = op.from == Lane::i32 || op.from == Lane::u32;
  if (op.from != Lane::f32 && !whole) return false;
  if (op.does == PointOp::convert) return narrow_float || op.to == DType::f32;
  switch (op.what) {
    case Code::exp: case Code::tanh: case Code::sqrt: case Code::rsqrt: case Code::abs: case Code::div:
      return op.from == Lane::f32;
    case Code::bit_not: case Code::bit_and: case Code::bit_or: case Code::bit_xor: case Code::shift_left: case Code::shift_right:
      return whole;
    case Code::neg: case Code::add: case Code::sub: case Code::mul: case Code::max: case Code::min: case Code::less:
    case Code::less_equal: case Code::equal: case Code::not_equal: case Code::logical_not: case Code::select:
      return true;
    default:
      return op.does == PointOp::exp_of_difference;
  }
}

AssembledCode assembled(const PointCode& code) {
  static auto& all = *new std::map<std::string, std::unique_ptr<Assembler>>;
  std::lock_guard hold(assembling);
  auto [known, is_new] = all.try_emplace(key_of(code));
  if (is_new) {
    try {
      known->second = std::make_unique<Assembler>(code);
    } catch (const OutOfRegisters&) {            // or memory may not be made executable here
    } catch (const Xbyak::Error&) {}
  }
  return known->second ? known->second->entry() : nullptr;
}

}  // namespace haliax::cpu

#else
namespace haliax::cpu {
bool can_assemble() { return false; }
bool can_assemble(const PointOp&) { return false; }
AssembledCode assembled(const PointCode&) { return nullptr; }
}  // namespace haliax::cpu
#endif
