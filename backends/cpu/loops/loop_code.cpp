// Plan: the steps of a loop as one function of machine code; see loop_code.h.
#include "loop_code.h"

#if defined(HALIAX_XBYAK)
#include <cstddef>
#include <set>
#include <string_view>

#include "backends/cpu/assemble/assemble.h"
#include "backends/cpu/matmul/flush_subnormals.h"
#include "nest_code.h"

namespace haliax::cpu {
namespace {

using program::Kind;
using program::Step;

// more than the first-level instruction cache holds
constexpr std::size_t code_bytes = 1 << 16;

class StepsCode final : public StepsFunction, NestCode {
 public:
  // Steps in `refused` are called. `current`: set to each step before its code is emitted. If the
  // constructor raises CannotAssemble, compile_steps refuses this step and tries again.
  StepsCode(std::span<const Step> steps, const Context& context, const CompileStep& compile,
            const std::set<const Step*>& refused, const Step*& current)
      : NestCode(code_bytes, std::string_view(kernels().name) == "avx512"), context_(context),
        compile_(compile), refused_(refused), current_(current) {
    enter();
    emit_steps(steps);
    leave();
    write_tables();
    setProtectModeRE();
  }
  // Returns true if a step needs no call.
  bool has_small_steps() const { return small_steps_ > 0; }
  void run(Frame& frame) override {
    if (getCode<int (*)(Frame*)>()(&frame)) std::rethrow_exception(std::exchange(error_, {}));
  }

 private:
  struct Call {
    StepsCode* code;
    std::unique_ptr<CompiledStep> step;
  };
  // An exception must not pass through the emitted code, which has no unwind tables.
  static int run_step(Call* call, Frame* frame) noexcept {
    try {
      call->step->run(*frame);
      return 0;
    } catch (...) {
      call->code->error_ = std::current_exception();
      return 1;
    }
  }

  void enter() {
    for (auto& r : {rbx, rbp, r12, r13, r14, r15}) push(r);
    sub(rsp, stack_bytes);
    mov(r15, rdi);
    mov(rbx, qword[r15 + offsetof(Frame, slots)]);
    mov(rbp, qword[r15 + offsetof(Frame, loops)]);
    set_constants_register();
    stmxcsr(mxcsr(false));
    mov(eax, mxcsr(false));
    or_(eax, flush_subnormals);
    mov(mxcsr(true), eax);
  }
  void leave() {
    xor_(eax, eax);
    L(exit_);
    vzeroupper();
    add(rsp, stack_bytes);
    for (auto& r : {r15, r14, r13, r12, rbp, rbx}) pop(r);
    ret();
  }
  void emit_steps(std::span<const Step> steps) {
    for (const Step& step : steps) {
      current_ = &step;
      emit_step(step);
    }
    set_flushes(false);
  }
  // Emits code that sets the mode of subnormals, if the mode changes. Always: they are not flushed
  // in calls, nor at the start and the end of a body.
  void set_flushes(bool flushes) {
    if (std::exchange(flushes_, flushes) != flushes) ldmxcsr(mxcsr(flushes));
  }
  // Returns the place of MXCSR in the stack.
  Address mxcsr(bool flushes) { return dword[rsp + mxcsr_at + (flushes ? 4 : 0)]; }
  void emit_step(const Step& step) {
    if (refused_.count(&step)) return emit_call(step);
    switch (step.kind) {
      case Kind::fused:
      case Kind::copy:
        if (auto nest = nest_of(step, context_, avx512_)) {
          ++small_steps_;
          set_flushes(false);
          return emit_nest(*nest);
        }
        break;
      case Kind::contract:
        if (auto matmul = matmul_nest_of(step.contract)) {
          ++small_steps_;
          set_flushes(true);
          return emit_matmul(*matmul);
        }
        break;
      case Kind::loop:
        if (step.loop.parallel_slots == 0) return emit_loop(step);
        break;
      case Kind::conditional:
        return emit_conditional(step);
      default:
        break;
    }
    emit_call(step);
  }
  void emit_loop(const Step& step) {
    const program::Loop& loop = step.loop;
    if (loop.trips == 0) return;
    if (loop.trips > INT32_MAX) throw CannotAssemble();
    set_flushes(false);
    const auto variable = qword[rbp + 8 * loop.variable];
    Xbyak::Label start;
    mov(variable, int(loop.reverse ? loop.trips - 1 : 0));
    L(start);
    emit_steps(step.body);
    if (loop.reverse) {
      dec(variable);
      jns(start, T_NEAR);
    } else {
      inc(variable);
      cmp(variable, int(loop.trips));
      jl(start, T_NEAR);
    }
  }
  void emit_conditional(const Step& step) {
    const program::View& flag = step.conditional.flag;
    Xbyak::Label skip;
    set_flushes(false);
    mov(rdx, qword[rbx + 8 * flag.slot]);
    add_number(rdx, flag.offset);
    add_terms(rdx, flag.terms, 1);
    cmp(byte[rdx], 0);
    je(skip, T_NEAR);
    emit_steps(step.body);
    L(skip);
  }
  // Emits the call run_step(call, frame). If the step raises, jumps to the exit with 1 in eax, and
  // `run` rethrows the error. The upper halves of the vector registers are cleared first, because
  // compiled code may use SSE instructions. No value is in a vector register between steps.
  void emit_call(const Step& step) {
    calls_.push_back(std::make_unique<Call>(Call{this, compile_(step, context_)}));
    set_flushes(false);
    vzeroupper();
    mov(rdi, reinterpret_cast<std::size_t>(calls_.back().get()));
    mov(rsi, r15);
    mov(rax, reinterpret_cast<std::size_t>(&run_step));
    call(rax);
    Xbyak::CodeGenerator::test(eax, eax);
    jnz(exit_, T_NEAR);
  }

  const Context context_;
  const CompileStep& compile_;
  const std::set<const Step*>& refused_;
  const Step*& current_;
  std::vector<std::unique_ptr<Call>> calls_;
  std::exception_ptr error_;
  Xbyak::Label exit_;
  int small_steps_ = 0;
  bool flushes_ = false;  // the emitted code flushes subnormals from here on
};

}  // namespace

std::unique_ptr<StepsFunction> compile_steps(std::span<const Step> steps, const Context& context,
                                             const CompileStep& compile) {
  if (!can_assemble()) return nullptr;
  std::set<const Step*> refused;
  for (;;) {
    const Step* current = nullptr;
    try {
      auto code = std::make_unique<StepsCode>(steps, context, compile, refused, current);
      return code->has_small_steps() ? std::move(code) : nullptr;
    } catch (const CannotAssemble&) {
      if (!current || !refused.insert(current).second) return nullptr;
    } catch (const Xbyak::Error&) {  // too long, or executable memory is not permitted
      return nullptr;
    }
  }
}

}  // namespace haliax::cpu

#else
namespace haliax::cpu {
std::unique_ptr<StepsFunction> compile_steps(std::span<const program::Step>, const Context&,
                                             const CompileStep&) {
  return nullptr;
}
}  // namespace haliax::cpu
#endif
