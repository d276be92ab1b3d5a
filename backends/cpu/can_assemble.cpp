// Plan: which elementwise ops the assembler translates to machine code, and the key of its cache.
#include <string_view>

#include "assemble.h"

namespace haliax::cpu {

#if defined(HALIAX_XBYAK)
namespace {

using program::Code;

bool selected_isa_is(std::string_view name) { return kernels().name == name; }

}  // namespace

bool can_assemble() {
  static const bool can = selected_isa_is("avx512") || selected_isa_is("avx2");
  return can;
}
bool can_assemble_bf16() { return selected_isa_is("avx512"); }
bool can_assemble(const PointOp& op) {
  if (op.action == PointOp::nothing) return false;
  const bool float_of_16_bits = op.to == DType::bf16 || op.to == DType::f16;
  if (op.action == PointOp::round) return float_of_16_bits;
  const bool integer = op.from == LaneType::i32 || op.from == LaneType::u32;
  if (op.from != LaneType::f32 && !integer) return false;
  if (op.action == PointOp::convert) return float_of_16_bits || op.to == DType::f32;
  switch (op.what) {
    case Code::exp:
    case Code::tanh:
    case Code::sigmoid:
    case Code::sqrt:
    case Code::rsqrt:
    case Code::abs:
    case Code::sign:
    case Code::floor:
    case Code::ceil:
    case Code::round:
    case Code::trunc:
    case Code::is_finite:
    case Code::is_nan:
    case Code::is_inf:
    case Code::div:
      return op.from == LaneType::f32;
    case Code::bit_not:
    case Code::bit_and:
    case Code::bit_or:
    case Code::bit_xor:
    case Code::shift_left:
    case Code::shift_right:
      return integer;
    case Code::neg:
    case Code::add:
    case Code::sub:
    case Code::mul:
    case Code::max:
    case Code::min:
    case Code::less:
    case Code::less_equal:
    case Code::equal:
    case Code::not_equal:
    case Code::logical_not:
    case Code::select:
      return true;
    default:
      return op.action == PointOp::exp_of_difference;
  }
}

std::string key_of(const PointCode& code) {
  std::string key;
  auto add = [&](int x) { key.append(reinterpret_cast<const char*>(&x), sizeof x); };
  add(int(code.inputs.size()));
  add(int(code.ops.size()));
  add(code.fetches_inputs);
  for (auto input : code.inputs) add(int(input));
  for (auto& op : code.ops) {
    add(op.action.action);
    add(int(op.action.what));
    add(int(op.action.from));
    add(int(op.action.to));
    for (int a : op.args) add(a);
  }
  for (auto& o : code.outputs) {
    add(o.value);
    add(o.bf16);
    add(o.non_temporal);
  }

  return key;
}
#else
bool can_assemble() { return false; }
bool can_assemble_bf16() { return false; }
bool can_assemble(const PointOp&) { return false; }
#endif

}  // namespace haliax::cpu
