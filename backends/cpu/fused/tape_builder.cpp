// Plan: adds values and ops to tapes.
#include "tape_builder.h"

#include <algorithm>

#include "haliax/error.h"

namespace haliax::cpu {
namespace {

using program::Code;

// Returns true if a result needs no rounding when all operands have this dtype.
bool needs_no_rounding(Code c, DType dtype) {
  const bool floating = lane_type_of(dtype) == LaneType::f32;
  return c == Code::select || c == Code::max || c == Code::min || c == Code::bit_and ||
         c == Code::bit_or || c == Code::bit_xor || c == Code::shift_right ||
         (floating && (c == Code::neg || c == Code::abs || c == Code::sign)) || yields_bool(c);
}

}  // namespace

Kernel need(Kernel kernel, const char* what) {
  if (!kernel) throw Error(std::string("[fused] no kernel for ") + what + " of this dtype");
  return kernel;
}

Tape& TapeBuilder::tape(int id) {
  if (id == constant_tape) return plan_.constants;
  if (id == prologue_tape) return plan_.prologue;
  if (id == outer_tape) return plan_.outer[static_cast<std::size_t>(level_)];
  return plan_.inner[static_cast<std::size_t>(id)];
}

int TapeBuilder::tape_of(const InstrFacts& facts, int inner) {
  return facts.constant ? constant_tape
         : facts.fixed  ? prologue_tape
         : facts.inner  ? inner
                        : outer_tape;
}

int TapeBuilder::new_value(int tape, LaneType lane) {
  Register::Home home = tape <= prologue_tape ? Register::pool
                        : tape == outer_tape  ? Register::outer
                                              : Register::inner;
  plan_.values.push_back({home, lane});
  return static_cast<int>(plan_.values.size()) - 1;
}

Op& TapeBuilder::push(int id, Op::Kind kind, Extent extent, LaneType lane) {
  Op op;
  op.kind = kind;
  op.extent = extent;
  op.lane = lane;
  op.out = new_value(id, lane);
  plan_.values.back().extent = extent;
  tape(id).push_back(op);
  return tape(id).back();
}

int TapeBuilder::constant(const program::Instr& in) {
  const int value = new_value(constant_tape, lane_type_of(in.dtype));
  if (is_float(in.dtype))
    plan_.float_constants.push_back({value, in.number});
  else
    plan_.integer_constants.push_back(
        {value, in.dtype == DType::boolean ? in.integer != 0 : in.integer});
  wrap(constant_tape, value, Extent::one, in.dtype);
  return value;
}

int TapeBuilder::map(int tape, Code code, Extent extent, LaneType from, DType result,
                     const MapOperands& args) {
  Shape shape = args.n == 2 && args.scalar[0]   ? Shape::scalar_vector
                : args.n == 2 && args.scalar[1] ? Shape::vector_scalar
                                                : Shape::vector_vector;
  Kernel kernel = need(kernels().map(code, from, shape), "an operation");
  Op& op = push(tape, args.by_row ? Op::map_rows : Op::map, extent, lane_type_of(result));
  std::copy(std::begin(args.values), std::end(args.values), op.in);
  std::copy(std::begin(args.scalar), std::end(args.scalar), op.scalar);
  std::copy(std::begin(args.extents), std::end(args.extents), op.from);
  op.kernel = kernel;
  op.map_op = {.kind = MapOp::instruction, .code = code, .from = from, .to = result};
  const int value = op.out;
  if (!needs_no_rounding(code, result)) wrap(tape, value, extent, result);
  return value;
}

void TapeBuilder::wrap(int id, int value, Extent extent, DType dtype) {
  Kernel kernel = kernels().wrap(dtype);
  if (!kernel) return;
  Op op;
  op.extent = extent;
  op.lane = lane_type_of(dtype);
  op.in[0] = op.out = value;
  op.kernel = kernel;
  op.map_op = {.kind = MapOp::round, .code = Code::cast, .from = op.lane, .to = dtype};
  tape(id).push_back(op);
}

int TapeBuilder::convert(int value, Extent extent, DType from, DType to, int tape) {
  if (from == to || (lane_type_of(from) == lane_type_of(to) && !is_widened(to))) return value;
  Op& op = push(tape, Op::map, extent, lane_type_of(to));
  op.in[0] = value;
  op.kernel = kernels().cast(lane_type_of(from), to);
  op.map_op = {.kind = MapOp::convert, .code = Code::cast, .from = lane_type_of(from), .to = to};
  return op.out;
}

int TapeBuilder::recast_bits(int value, Extent extent, DType from, DType to, int tape) {
  if (haliax::bytes_of(from) != haliax::bytes_of(to))
    throw Error("[fused] a bitcast between dtypes of different size");
  if (!is_widened(from) && !is_widened(to)) return value;  // lanes have the bits of the dtypes
  const int temporary = new_value(tape, LaneType::f64);
  plan_.values.back().extent = extent;
  Op& op = push(tape, Op::recode, extent, lane_type_of(to));
  op.in[0] = value;
  op.in[1] = temporary;
  op.store_rows = kernels().store_rows(from);
  op.load_rows = kernels().load_rows(to);
  return op.out;
}

int TapeBuilder::filled(int i, Extent extent, int tape) {
  const InstrFacts& facts = step_.info(i);
  if (points(facts.extent) == points(extent)) return facts.value;
  // a tile may be smaller than a box, and then its row pitch differs
  const bool may_be_shorter = plan_.inner_major || (step_.masked && plan_.outer_box > 1);
  const bool is_shared = facts.uniform || (facts.fixed && !may_be_shorter);
  const int home = is_shared ? tape_of(facts, tape) : tape;
  int& cached = filled_[{facts.value, extent, home}];
  if (cached > 0) return cached;
  Op& op = push(home, facts.extent == Extent::one ? Op::splat : Op::expand, extent,
                lane_type_of(step_.instr(i).dtype));
  op.in[0] = facts.value;
  op.from[0] = facts.extent;
  return cached = op.out;
}

}  // namespace haliax::cpu
