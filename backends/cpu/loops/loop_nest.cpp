// Plan: chooses the loops and the lanes of small steps; see loop_nest.h.
#include "loop_nest.h"

#include <algorithm>
#include <cstdlib>

#include "backends/cpu/assemble/assemble.h"
#include "program/matrices.h"

namespace haliax::cpu {
namespace {

using program::Code;
using program::Fused;
using program::Instr;

// limits of a step: below them, a step is faster on one thread than on several
constexpr std::int64_t most_work = 1 << 17, most_multiplications = 32 * 1024;
// The terms of larger matmuls are added in f32: conversions to f64 would take most of the time.
constexpr std::int64_t most_exact = 8 * 1024;
constexpr std::int64_t lanes = 16;
constexpr std::int64_t most_stride = (1 << 30) / lanes;  // offsets of lanes have 32 bits
// costs in registers
constexpr std::int64_t most_waste = 1024;  // more than the cost of the call of a step
constexpr std::int64_t far_cost = 8;       // a register of elements that are far apart
constexpr std::int64_t call_cost = 8;      // a kernel that computes one register
constexpr std::int64_t lane_sum_cost = 8;  // a reduction of the lanes of a register

bool is_word(DType d) { return d == DType::f32 || d == DType::i32 || d == DType::u32; }
bool has_lane(DType d) { return is_word(d) || (d == DType::bf16 && can_assemble_as_stored()); }
MapOp map_op_of(const std::vector<Instr>& code, const Instr& in) {
  const DType first = in.code == Code::select ? in.dtype : code[std::size_t(in.args[0])].dtype;
  return {.kind = MapOp::instruction, .code = in.code, .from = lane_type_of(first), .to = in.dtype};
}
bool is_vector_code(const Fused& f, const Instr& in) {
  const auto operand = [&](int k) -> const Instr& { return f.code[std::size_t(in.args[k])]; };
  if (in.view.dtype == DType::bf16 && in.code == Code::store)
    return has_lane(DType::bf16) && operand(0).dtype == DType::bf16;
  if (in.view.dtype == DType::bf16 && in.code == Code::load)
    return has_lane(DType::bf16) && in.dtype == DType::bf16;
  if (in.code == Code::load || is_store(in.code))
    return is_word(in.view.dtype) && is_word(in.dtype);
  if (in.code == Code::constant) return has_lane(in.dtype) || in.dtype == DType::boolean;
  if (in.code == Code::iota) return in.dtype == DType::i32 || in.dtype == DType::u32;
  if (is_reduction(in.code))
    return in.dtype == DType::f32 && operand(0).dtype == DType::f32 &&
           (in.code == Code::reduce_sum || in.code == Code::reduce_max ||
            in.code == Code::reduce_min);
  if (in.dtype != DType::boolean && !has_lane(in.dtype)) return false;
  for (int a : program::operands(in)) {
    const DType d = f.code[std::size_t(a)].dtype;
    if (d != DType::boolean && !has_lane(d)) return false;
  }
  if (in.code == Code::bitcast) return is_word(in.dtype) && is_word(operand(0).dtype);
  return in.code == Code::cast || kernel_of(f.code, in) || can_assemble(map_op_of(f.code, in));
}

std::int64_t registers_of(const Dims& dims, int vector) {
  std::int64_t n = program::points(dims);
  if (vector < 0 || n == 0) return n;
  const std::int64_t along = dims[std::size_t(vector)];
  return n / along * ((along + lanes - 1) / lanes);
}

// Returns true if all dims may be treated as inner dims: there are no reductions, and each inner
// position may recompute the outer values.
bool is_flat(const Fused& f) {
  std::int64_t inner = 1;
  for (std::size_t d = std::size_t(f.outer); d < f.dims.size(); ++d) inner *= f.dims[d];
  return std::none_of(f.code.begin(), f.code.end(), [&](const Instr& in) {
    return is_reduction(in.code) || (is_store(in.code) && !in.inner && inner != 1);
  });
}

// Returns true if a store may change an element that a load at another position reads.
bool conflicts(const Fused& f, const Context& context) {
  const bool flat = is_flat(f);
  for (auto& store : f.code) {
    if (!is_store(store.code)) continue;
    for (auto& other : f.code) {
      if (&other == &store || !accesses_memory(other.code) ||
          !context.overlap(store.view.slot, other.view.slot))
        continue;
      const bool is_same_slot = context.same(other.view.slot, store.view.slot);
      // an outer store may precede a pass over the inner positions
      if (other.code == Code::load && other.inner && !store.inner && !flat) return true;
      const bool is_same_view =
          is_same_slot && other.view.offset == store.view.offset &&
          other.view.terms == store.view.terms &&
          program::access_strides(f, other) == program::access_strides(f, store);
      if (!is_same_view && !(is_store(other.code) && is_same_slot)) return true;
    }
  }
  return false;
}

// Returns true for a load of elements that a store overwrites.
bool is_overwritten(const Fused& f, const Instr& in, const Context& context) {
  return in.code == Code::load && std::any_of(f.code.begin(), f.code.end(), [&](auto& other) {
           return is_store(other.code) && context.same(other.view.slot, in.view.slot);
         });
}

Nest nest_with_accesses(const Fused& f, const Context& context) {
  Nest nest;
  nest.dims = f.dims;
  const bool flat = is_flat(f);
  nest.outer = flat ? 0 : f.outer;
  const auto needed = program::needed_instructions(f);
  const auto levels = program::reduction_levels(f);
  std::vector<int> number(f.code.size(), -1);
  for (std::size_t i = 0; i < f.code.size(); ++i) {
    if (!needed[i]) continue;
    Instr in = f.code[i];
    for (int& a : in.args)
      if (a >= 0) a = number[std::size_t(a)];
    in.inner |= flat;
    number[i] = int(nest.code.size());
    nest.level.push_back(levels[i]);
    nest.access.push_back(-1);
    if (accesses_memory(in.code) || in.code == Code::iota) {
      nest.access.back() = int(nest.accesses.size());
      nest.accesses.push_back({.view = in.view,
                               .strides = program::access_strides(f, f.code[i]),
                               .iota = in.code == Code::iota,
                               .start = in.integer,
                               .overwritten = is_overwritten(f, in, context)});
    }
    nest.code.push_back(std::move(in));
  }
  std::vector<Dims> strides;
  for (auto& access : nest.accesses) strides.push_back(access.strides);
  std::size_t outer = std::size_t(nest.outer);
  program::merge_dims(nest.dims, outer, strides);
  nest.outer = int(outer);
  for (std::size_t a = 0; a < strides.size(); ++a) nest.accesses[a].strides = strides[a];
  return nest;
}

// The cost of a nest whose lanes run along a dim, in registers.
struct LaneCost {
  bool fits = true;
  std::int64_t near = 0;  // if no elements were far apart
  std::int64_t total = 0;
};
// per_register: the cost of the code for one register. d = -1: a single position.
LaneCost cost_of_lanes(const Nest& nest, int d, bool any_stride, std::int64_t per_register) {
  const std::int64_t registers = registers_of(nest.dims, d);
  LaneCost cost{.near = per_register * registers, .total = per_register * registers};
  if (d < 0) return cost;
  const Dims outer(nest.dims.begin(), nest.dims.begin() + nest.outer);
  for (std::size_t i = 0; i < nest.code.size(); ++i) {
    const Instr& in = nest.code[i];
    if (nest.reduces(d) && is_reduction(in.code)) {
      cost.near += lane_sum_cost * program::points(outer);
      cost.total += lane_sum_cost * program::points(outer);
    }
    const int access = nest.access[i];
    if (access < 0 || nest.accesses[std::size_t(access)].iota) continue;
    const std::int64_t stride = nest.accesses[std::size_t(access)].strides[std::size_t(d)];
    const bool stores_all_lanes = is_store(in.code) && (in.inner || !nest.reduces(d));
    if (stride == 1 || (stride == 0 && !stores_all_lanes)) continue;
    cost.fits &= any_stride && stride != 0 && std::abs(stride) <= most_stride;
    cost.total += far_cost * registers;
  }
  return cost;
}
// Chooses the dim of the lanes with the least cost. Returns false if there is no choice, or if the
// step is faster when it is called, since it copies short rows into full registers.
bool choose_lanes(Nest& nest, bool any_stride) {
  const auto kernels = std::count_if(nest.code.begin(), nest.code.end(),
                                     [&](auto& in) { return kernel_of(nest.code, in); });
  const std::int64_t per_register = 1 + call_cost * kernels;
  std::optional<LaneCost> best;
  for (int d = program::points(nest.dims) == 1 ? -1 : 0; d < int(nest.dims.size()); ++d) {
    const LaneCost cost = cost_of_lanes(nest, d, any_stride, per_register);
    if (!cost.fits || (best && cost.total >= best->total)) continue;
    best = cost;
    nest.vector = d;
  }
  const std::int64_t full = (program::points(nest.dims) + lanes - 1) / lanes;
  return best && best->near <= full * per_register + most_waste;
}

// Returns the longest of the first `count` dims that b lacks, or -1. Several of its positions share
// registers of b.
int longest_shared_dim(const MatmulNest& nest, std::size_t count) {
  int longest = -1;
  for (std::size_t d = 0; d < count; ++d) {
    const bool is_longer = longest < 0 || nest.dims[d] > nest.dims[std::size_t(longest)];
    if (nest.b.strides[d] == 0 && is_longer) longest = int(d);
  }
  return longest;
}
// Returns the nest of a matmul, or of out^T = b^T a^T if `swapped`, without the choice of the dim
// of the lanes.
MatmulNest nest_without_lanes(const program::Contract& c, const program::ContractDims& dims,
                              bool swapped) {
  MatmulNest nest;
  nest.accumulate = c.accumulate;
  nest.a.view = swapped ? c.b : c.a;
  nest.b.view = swapped ? c.a : c.b;
  nest.out.view = c.out;
  for (auto* part : {&dims.batch, &dims.m, &dims.n, &dims.k})
    for (auto& dim : *part) {
      nest.dims.push_back(dim.n);
      nest.a.strides.push_back(dim.a);
      nest.b.strides.push_back(dim.b);
      nest.out.strides.push_back(dim.out);
    }
  nest.outer = int(nest.dims.size() - dims.k.size());
  nest.row = longest_shared_dim(nest, std::size_t(nest.outer) - dims.n.size());
  return nest;
}
// Returns true if the lanes of each register are neighbors in memory.
bool has_unit_strides(const MatmulNest& nest) {
  const auto d = std::size_t(nest.vector);
  if (nest.b.strides[d] != 1) return false;
  return nest.sums_lanes() ? nest.a.strides[d] == 1 : nest.out.strides[d] == 1 || nest.dims[d] == 1;
}
std::int64_t cost_of(const MatmulNest& nest) {
  const Dims outer(nest.dims.begin(), nest.dims.begin() + nest.outer);
  return registers_of(nest.dims, nest.vector) +
         (nest.sums_lanes() ? lane_sum_cost * program::points(outer) : 0);
}

}  // namespace

Kernel kernel_of(const std::vector<Instr>& code, const Instr& in) {
  if (is_leaf(in.code) || is_store(in.code) || is_reduction(in.code) || in.code == Code::bitcast ||
      is_rounding(in.code) || is_float_test(in.code))
    return nullptr;
  const MapOp op = map_op_of(code, in);
  if (in.code != Code::cast)
    return can_assemble(op) ? nullptr : kernels().map(in.code, op.from, Shape::vector_vector);
  const bool is_same = lane_type_of(in.dtype) == op.from || in.dtype == DType::f32;
  return is_same || in.dtype == DType::boolean ? nullptr : kernels().cast(op.from, in.dtype);
}

std::int64_t Nest::lane_stride(int access) const {
  return vector < 0 ? 0 : accesses[std::size_t(access)].strides[std::size_t(vector)];
}

std::optional<Nest> nest_of(const program::Step& step, const Context& context, bool any_stride) {
  Fused copy;
  if (step.kind == program::Kind::copy) {
    const program::Copy& c = step.copy;
    copy = {.dims = c.dims,
            .outer = int(c.dims.size()),
            .code = {
                {.code = Code::load, .dtype = c.x.dtype, .view = c.x},
                {.code = Code::store, .dtype = c.x.dtype, .args = {0, -1, -1, -1}, .view = c.out}}};
  }
  const Fused& f = step.kind == program::Kind::copy ? copy : step.fused;
  const std::int64_t points = program::points(f.dims);
  if (points == 0 || points * std::int64_t(f.code.size()) > most_work) return {};
  if (program::writes_repeatedly(f) || conflicts(f, context)) return {};
  for (auto& in : f.code)
    if (!is_vector_code(f, in)) return {};
  Nest nest = nest_with_accesses(f, context);
  // an outer bool would change its register within the loop over inner positions
  for (auto& in : nest.code)
    if (!in.inner && in.dtype == DType::boolean) return {};
  if (!choose_lanes(nest, any_stride)) return {};
  return nest;
}

std::optional<MatmulNest> matmul_nest_of(const program::Contract& c) {
  if (c.a.dtype != DType::f32 || c.b.dtype != DType::f32 || c.out.dtype != DType::f32 ||
      c.block_mask.flags.slot >= 0)
    return {};
  auto dims = program::dims_of(c);
  const std::int64_t multiplications = program::points(dims.batch) * program::points(dims.m) *
                                       program::points(dims.n) * program::points(dims.k);
  if (multiplications == 0 || multiplications > most_multiplications) return {};
  dims.normalize();
  std::optional<MatmulNest> best;
  auto consider = [&](MatmulNest nest, std::size_t lanes_dim) {
    nest.vector = int(lanes_dim);
    nest.is_exact = multiplications <= most_exact;
    if (has_unit_strides(nest) && (!best || cost_of(nest) < cost_of(*best))) best = std::move(nest);
  };
  MatmulNest nest = nest_without_lanes(c, dims, false);
  const auto outer = std::size_t(nest.outer);
  for (std::size_t d = outer - dims.n.size(); d < outer; ++d) consider(nest, d);
  auto swapped_dims = dims;
  swapped_dims.swap_operands();
  const MatmulNest swapped = nest_without_lanes(c, swapped_dims, true);
  for (std::size_t d = outer - swapped_dims.n.size(); d < outer; ++d) consider(swapped, d);
  nest.row = -1;  // one result at a time
  for (std::size_t d = outer; d < nest.dims.size(); ++d) consider(nest, d);
  return best;
}

}  // namespace haliax::cpu
