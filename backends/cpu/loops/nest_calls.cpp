// Kernel: calls of kernels from nests, for functions without code of their own.
#if defined(HALIAX_XBYAK)
#include "nest_code.h"

namespace haliax::cpu {

using Xbyak::Reg64;

namespace {

// A kernel may change these registers.
constexpr int caller_saved = 7;

}  // namespace

// Emits a call of a function of registers. All registers are the caller's.
void NestCode::emit_register_kernel(RegisterKernel kernel, const MapCode::Op& op, int value) {
  const Vector x = vector(op.args[0]), y = op.args[1] < 0 ? x : vector(op.args[1]);
  finish_reads(op);
  save_registers();
  const auto live = free_;
  const Vector z = result(value);
  if (op.args[1] >= 0) {
    const Vector moved = reg(avx512_ ? 31 : 15);
    vmovaps(moved, y);
    if (x.getIdx() != 0) vmovaps(reg(0), x);
    vmovaps(reg(1), moved);
  } else if (x.getIdx() != 0) {
    vmovaps(reg(0), x);
  }
  mov(rax, reinterpret_cast<std::size_t>(kernel));
  call(rax);
  if (z.getIdx() != 0) vmovaps(z, reg(0));
  const auto with_result = std::exchange(free_, live);
  restore_registers();
  free_ = with_result;
}
// Emits out = kernel(operands) for the elements of a register.
void NestCode::emit_kernel(Kernel kernel, const MapCode::Op& op, int value) {
  int operands = 0;
  for (; operands < 4 && op.args[operands] >= 0; ++operands)
    vmovups(vector_slot(operands), vector(op.args[operands]));
  finish_reads(op);
  save_registers();
  for (int k = 0; k < operands; ++k) {
    lea(rax, vector_slot(k));
    mov(pointer_slot(k), rax);
  }
  lea(rdi, vector_slot(4));
  lea(rsi, pointer_slot(0));
  mov(edx, elements_);
  mov(rax, reinterpret_cast<std::size_t>(kernel));
  call(rax);
  restore_registers();
  const Vector z = result(value);
  if (elements_ == 1)
    vbroadcastss(z, vector_slot(4));  // an outer value is in all lanes
  else
    vmovups(z, vector_slot(4));
}
Xbyak::Address NestCode::vector_slot(int k) { return ptr[rsp + vectors_at + 64 * k]; }
Xbyak::Address NestCode::pointer_slot(int k) { return qword[rsp + pointers_at + 8 * k]; }
void NestCode::save_registers() {
  for (int k = 0; k < caller_saved; ++k) mov(pointer_slot(4 + k), cursor_register(k));
  each_live_register([&](int z) { vmovups(vector_slot(5 + z), reg(z)); });
  each_live_mask([&](int k) { kmovw(word[rsp + masks_at + 2 * k], Opmask(k)); });
}
void NestCode::restore_registers() {
  for (int k = 0; k < caller_saved; ++k) mov(cursor_register(k), pointer_slot(4 + k));
  each_live_register([&](int z) { vmovups(reg(z), vector_slot(5 + z)); });
  each_live_mask([&](int k) { kmovw(Opmask(k), word[rsp + masks_at + 2 * k]); });
}
void NestCode::each_live_register(const std::function<void(int)>& f) {
  for (int z = 0; z < (avx512_ ? 32 : 16); ++z)
    if (!free_[std::size_t(z)]) f(z);
}
void NestCode::each_live_mask(const std::function<void(int)>& f) {
  for (int k = rest_mask; avx512_ && k < 8; ++k)
    if (k != scratch_mask && (k == rest_mask || !free_tests_[std::size_t(k)])) f(k);
}

}  // namespace haliax::cpu
#endif
