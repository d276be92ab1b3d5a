// Kernel: machine code for elementwise ops, for 16 values of 32 bits at a time. With AVX-512 they
// occupy one register, and tests (comparison results) are mask registers. With AVX2 they are two
// halves, one after the other, and a test has all bits of a lane set.
#include "assemble.h"

#if defined(HALIAX_XBYAK)
#include <map>
#include <memory>
#include <mutex>
#include <string_view>

#include "base/fork.h"
#include "vector_ops.h"

namespace haliax::cpu {
namespace {

using Xbyak::Reg64;

class Assembler : VectorOps {
 public:
  // a tanh or an exp has about 900 bytes, and is emitted up to four times
  Assembler(const MapCode& code, bool avx512)
      : VectorOps((avx512 ? 1 : 3) * (4096 + 1024 * code.ops.size()), avx512), code_(code) {
    count_uses();
    save();
    body(false);
    body(true);
    restore();
    write_literals();
    for (int half = 0; half < (avx512_ ? 0 : 2); ++half) {
      L(lane_bits_[half]);
      for (int lane = 0; lane < 8; ++lane) dd(1u << (8 * half + lane));
    }
    setProtectModeRE();
  }
  AssembledCode entry() { return getCode<AssembledCode>(); }

 private:
  static constexpr int bytes_ahead = 4096;  // a few tiles: covers the latency of memory

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
    for (auto input : code_.inputs) n += input.is_array;
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
      if (avx512_) kmovw(Opmask(rest_mask), word[rdi + offsetof(AssembledCall, rest)]);
    } else {
      cmp(rcx, qword[rdi + offsetof(AssembledCall, points)]);
      jae(done, T_NEAR);
    }
    L(loop_start);
    if (!rest) fetch();
    rest_ = rest;
    for (half_ = 0; half_ < (avx512_ ? 1 : 2); ++half_) points();
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
      if (input.is_array) prefetcht1(ptr[element_address(array++, input.stored) + bytes_ahead]);
    }
  }

  // ---- the elements of a register ----
  void points() {
    reads_left_ = uses_;
    free_all();
    if (rest_ && !avx512_) {
      free_.reset(rest_lanes);
      const Vector lanes = reg(rest_lanes);
      vpbroadcastd(lanes, dword[rdi + offsetof(AssembledCall, rest)]);
      vpand(lanes, lanes, ptr[rip + lane_bits_[half_]]);
      vpcmpeqd(lanes, lanes, ptr[rip + lane_bits_[half_]]);
    }
    places_.assign(uses_.size(), {});
    int array = 0, scalar = 0;
    for (std::size_t i = 0; i < code_.inputs.size(); ++i)
      places_[i] = code_.inputs[i].is_array ? Place{place_of(code_.inputs[i].stored), array++}
                                            : Place{Place::scalar, scalar++};
    for (std::size_t k = 0; k < code_.ops.size(); ++k)
      emit_op(code_.ops[k], int(code_.inputs.size() + k));
    for (auto& out : code_.outputs) {  // last, because an output may overwrite an input
      emit_store(out, array++);
      finish_read(out.value);
    }
  }
  void emit_store(const MapCode::Output& out, int k) {
    const bool non_temporal = out.non_temporal && !rest_;
    if (out.stored == Stored::boolean)
      return store_bools(ptr[element_address(k, out.stored)], out.value, non_temporal);
    const Vector z = vector(out.value);
    if (out.stored == Stored::word) {
      if (non_temporal) return vmovntps(array_address(k), z);
      return store_register(array_address(k), z, rest_);
    }
    Temporary bits(*this);
    if (!non_temporal) {
      vmovaps(bits.z, z);
      return store_bf16(bf16_address(k), bits.z);
    }
    const Xbyak::Ymm bf16(bits.z.getIdx());
    vpsrld(bits.z, z, 16);
    vpmovdw(bf16, bits.z);
    vmovntdq(bf16_address(k), bf16);
  }
  static Place::Kind place_of(Stored stored) {
    return stored == Stored::word   ? Place::array
           : stored == Stored::bf16 ? Place::bf16
                                    : Place::boolean;
  }
  Xbyak::RegExp element_address(int k, Stored stored) {
    return array_register(k) + rcx * int(bytes_of(stored));
  }
  Address array_address(int k) override { return ptr[array_register(k) + rcx * 4 + 32 * half_]; }
  Address bf16_address(int k) override { return ptr[element_address(k, Stored::bf16)]; }
  Address bool_address(int k) override { return ptr[element_address(k, Stored::boolean)]; }
  Xbyak::RegExp scalar_address(int k) override {
    return rdi + offsetof(AssembledCall, scalar) + 4 * std::size_t(k);
  }

  MapCode code_;
  std::vector<int> uses_;
  Xbyak::Label lane_bits_[2];  // 1, 2, 4, ...: bits of the first 8 elements, and of the other 8
  int half_ = 0;               // half of the 16 elements
};

bool has_isa(std::string_view name) { return kernels().name == name; }

constinit std::mutex assembling;
[[maybe_unused]] const bool assembler_forks =
    at_fork({kForkRest, [] { assembling.lock(); }, [] { assembling.unlock(); }});

}  // namespace

AssembledCode assembled(const MapCode& code) {
  static auto& all = *new std::map<std::string, std::unique_ptr<Assembler>>;
  std::lock_guard hold(assembling);
  auto [known, is_new] = all.try_emplace(key_of(code));
  if (is_new) {
    try {
      known->second = std::make_unique<Assembler>(code, has_isa("avx512"));
    } catch (const CannotAssemble&) {  // also if executable memory is not permitted
    } catch (const Xbyak::Error&) {}
  }
  return known->second ? known->second->entry() : nullptr;
}

}  // namespace haliax::cpu

#else
namespace haliax::cpu {
AssembledCode assembled(const MapCode&) { return nullptr; }
}  // namespace haliax::cpu
#endif
