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
bool can_assemble_as_stored() { return selected_isa_is("avx512"); }
bool can_assemble(const MapOp& op) {
  if (op.kind == MapOp::nothing) return false;
  const bool float_of_16_bits = op.to == DType::bf16 || op.to == DType::f16;
  if (op.kind == MapOp::round) return float_of_16_bits;
  const bool integer = op.from == LaneType::i32 || op.from == LaneType::u32;
  if (op.from != LaneType::f32 && !integer) return false;
  if (op.kind == MapOp::convert) return float_of_16_bits || op.to == DType::f32;
  switch (op.code) {
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
      return op.kind == MapOp::exp_of_difference;
  }
}

std::string key_of(const MapCode& code) {
  std::string key;
  auto add = [&](int x) { key.append(reinterpret_cast<const char*>(&x), sizeof x); };
  add(int(code.inputs.size()));
  add(int(code.ops.size()));
  add(code.fetches_inputs);
  for (auto input : code.inputs) {
    add(input.is_array);
    add(int(input.stored));
  }
  for (auto& op : code.ops) {
    add(op.map.kind);
    add(int(op.map.code));
    add(int(op.map.from));
    add(int(op.map.to));
    for (int a : op.args) add(a);
  }
  for (auto& o : code.outputs) {
    add(o.value);
    add(int(o.stored));
    add(o.non_temporal);
  }

  return key;
}
#else
bool can_assemble() { return false; }
bool can_assemble_as_stored() { return false; }
bool can_assemble(const MapOp&) { return false; }
#endif

}  // namespace haliax::cpu
