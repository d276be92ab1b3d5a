// Plan: analyzes a fused step: which instructions are needed, which dims are rows, and where each
// instruction is computed.
#include <algorithm>
#include <array>

#include "analyzed_step.h"
#include "base/scalar.h"
#include "one_hot.h"

namespace haliax::cpu {
namespace {

using program::Code;
using program::Fused;
using program::Instr;

constexpr std::int64_t long_row = 512;  // minimum row length for which a masked tail is searched
constexpr std::int64_t min_row = 64;    // minimum row length for which a step keeps its rows

std::int64_t inner_points(const Fused& fused, int outer) {
  std::int64_t points = 1;
  for (std::size_t d = static_cast<std::size_t>(outer); d < fused.dims.size(); ++d)
    points *= fused.dims[d];
  return points;
}

// Replaces max and min reductions over zero elements by their result. An integer of 8 or 16 bits
// has a smaller range than its lane type, so the start value of the lane would be wrong.
void fold_empty_reductions(Fused& fused) {
  for (auto& in : fused.code) {
    const bool max = in.code == Code::reduce_max;
    const bool is_small_int = in.dtype == DType::i8 || in.dtype == DType::i16;
    if (!is_small_int || !(max || in.code == Code::reduce_min)) continue;
    const auto least = scalar::lowest(in.dtype).integer;
    in = {.code = Code::constant,
          .dtype = in.dtype,
          .number = double(max ? least : ~least),
          .integer = max ? least : ~least};
  }
}

// Replaces reductions over exactly one element by that element.
void fold_reductions_of_one(Fused& fused) {
  if (inner_points(fused, fused.outer) != 1) return;
  for (auto& in : fused.code)
    if (is_reduction(in.code) && !finds_position(in.code)) in.code = Code::cast;
}

// Returns the elementwise code that combines two elements as the reduction does.
Code pairwise(Code reduction) {
  return reduction == Code::reduce_sum    ? Code::add
         : reduction == Code::reduce_prod ? Code::mul
         : reduction == Code::reduce_max  ? Code::max
                                          : Code::min;
}

// Returns true if each inner instruction can be computed for one of two inner elements (along
// `dim`), and no load is contiguous along the pair. Contiguous pairs are reduced faster in vectors
// of rows.
bool can_fold_pairs(const Fused& fused, std::size_t dim) {
  const auto fits = [&](const Instr& in) {
    if (!in.inner) return !finds_position(in.code);
    if (is_element_op(in) || is_store(in.code)) return false;
    if (in.code == Code::iota) return in.dim != static_cast<int>(dim);
    return in.code != Code::load || std::abs(stride_of(in, dim)) != 1;
  };
  return std::all_of(fused.code.begin(), fused.code.end(), fits);
}

// Replaces reductions over exactly two elements by an elementwise op: sum over n=2 of x[m, n] is
// x[m, 0] + x[m, 1].
void fold_reductions_of_two(Fused& fused) {
  constexpr std::size_t most_instructions = 24;  // copies stay in registers
  if (inner_points(fused, fused.outer) != 2 || fused.code.size() > most_instructions) return;
  auto& size = *std::find(fused.dims.begin() + fused.outer, fused.dims.end(), 2);
  const auto dim = static_cast<std::size_t>(&size - fused.dims.data());
  if (!can_fold_pairs(fused, dim)) return;

  std::vector<Instr> code;
  std::vector<std::array<int, 2>> copies;  // by instruction: its index for each element
  const auto add = [&](Instr in, std::size_t element) {
    for (int& arg : in.args)
      if (arg >= 0) arg = copies[static_cast<std::size_t>(arg)][element];
    if (in.code == Code::load && in.inner && element == 1) in.view.offset += stride_of(in, dim);
    code.push_back(std::move(in));
    return static_cast<int>(code.size()) - 1;
  };
  for (const Instr& in : fused.code) {
    if (is_reduction(in.code)) {
      const auto [a, b] = copies[static_cast<std::size_t>(in.args[0])];
      code.push_back(
          {.code = pairwise(in.code), .dtype = in.dtype, .args = {a, b, -1, -1}, .inner = true});
      Instr result = in;
      result.code = Code::cast;
      result.args[0] = static_cast<int>(code.size()) - 1;
      code.push_back(result);
      const int at = static_cast<int>(code.size()) - 1;
      copies.push_back({at, at});
      continue;
    }
    const int first = add(in, 0);
    copies.push_back({first, in.inner ? add(in, 1) : first});
  }
  fused.code = std::move(code);
  size = 1;
}

void mark_needed(AnalyzedStep& step) {
  step.facts.assign(step.fused.code.size(), {});
  const auto needed = program::needed_instructions(step.fused);
  for (int i = 0; i < step.count(); ++i) {
    const Instr& in = step.instr(i);
    step.info(i).needed = needed[static_cast<std::size_t>(i)];
    if (!step.info(i).needed) continue;
    step.only_reduces &= !in.inner || in.code == Code::load;
    if (!is_element_op(in)) continue;
    step.has_element_ops = true;
    step.info(in.dim).position = true;
  }
}

// Rewrites ops that affect one element per row (one_hot.h). Rows must have a single dim, and some
// input must be contiguous along it.
void use_element_ops(AnalyzedStep& step) {
  if (step.has_element_ops) return;
  int dim = -1;
  for (int d = step.outer; d < static_cast<int>(step.fused.dims.size()); ++d) {
    if (step.fused.dims[static_cast<std::size_t>(d)] == 1) continue;
    if (dim >= 0) return;
    dim = d;
  }
  if (dim < 0) return;
  auto is_contiguous = [&](const Instr& in) {
    return in.code == Code::load && stride_of(in, static_cast<std::size_t>(dim)) == 1;
  };
  if (std::none_of(step.fused.code.begin(), step.fused.code.end(), is_contiguous)) return;
  step.fused = with_element_ops(step.fused, dim);
  mark_needed(step);
}

// Returns true if some load is the same for all elements of a row, and if all accesses are
// contiguous along the rows. `last` is the number of dims, the last of which is the row.
bool rows_share_values(const AnalyzedStep& step, std::size_t last) {
  bool shared = false;
  for (int i = 0; i < step.count(); ++i) {
    const Instr& in = step.instr(i);
    if (!step.info(i).needed || !accesses_memory(in.code)) continue;
    const std::int64_t along = std::abs(stride_of(in, last - 1));
    if (along > 1) return false;
    if (in.code != Code::load || along != 0) continue;
    for (std::size_t d = 0; d + 1 < last; ++d) shared |= stride_of(in, d) != 0;
  }
  return shared;
}

// Chooses the outer dims. Without reductions all dims are inner ones, and values live for one tile
// only. Rows remain if all elements of a row share some value.
void choose_rows(AnalyzedStep& step) {
  step.outer = step.fused.outer;
  bool outer_stores = false;
  for (int i = 0; i < step.count(); ++i) {
    const Instr& in = step.instr(i);
    if (!step.info(i).needed) continue;
    step.reduces |= is_reduction(in.code);
    outer_stores |= is_store(in.code) && !in.inner;
  }
  if (step.reduces) return use_element_ops(step);
  step.elementwise = !outer_stores || inner_points(step.fused, step.outer) == 1;
  if (!step.elementwise) return use_element_ops(step);
  step.outer = 0;
  std::size_t last = step.fused.dims.size();
  while (last > 0 && step.fused.dims[last - 1] == 1) --last;
  if (last < 2 || step.fused.dims[last - 1] < min_row || !rows_share_values(step, last)) return;
  step.outer = static_cast<int>(last) - 1;
  use_element_ops(step);
}

// Sets where the value of a load or an iota varies.
void classify_access(InstrFacts& facts, const Access& access, const FusedPlan& plan, bool flat) {
  facts.constant = false;
  bool outer = false;
  for (int d = 0; d < plan.dims; ++d) {
    if (access.strides[static_cast<std::size_t>(d)] == 0) continue;
    const bool is_outer = d < plan.outer_dims;
    (is_outer ? outer : facts.varies) = true;
    if (plan.box[d] > 1) facts.extent = facts.extent | (is_outer ? Extent::outer : Extent::inner);
  }
  facts.uniform = !facts.varies && !outer;
  facts.fixed = !outer && (!facts.varies || (!flat && plan.inner_boxes <= 1));
}

void classify_reduction(const AnalyzedStep& step, const Instr& in, InstrFacts& facts,
                        FusedPlan& plan) {
  facts.uniform = facts.constant = facts.fixed = facts.varies = facts.inner = false;
  facts.extent = plan.outer_box == 1 ? Extent::one : Extent::outer;
  facts.reduction = static_cast<int>(plan.reductions.size());
  const DType dtype = finds_position(in.code) ? step.instr(in.args[0]).dtype : in.dtype;
  plan.reductions.push_back(kernels().reduce(in.code, lane_type_of(dtype), in.dtype));
  plan.reduction_level.push_back(facts.level - 1);
}

bool reduces_bools(const Instr& in) {
  return in.dtype == DType::boolean && (in.code == Code::reduce_max || in.code == Code::reduce_min);
}
// Marks loads of bools that are only reduced, and their reductions. The elements of a tile are
// bytes then, not words.
void mark_bytes(AnalyzedStep& step, FusedPlan& plan) {
  constexpr std::int64_t fewest_columns = 64;  // shorter rows are reduced faster in words
  if (!plan.inner_major && plan.inner_box < fewest_columns) return;
  for (int i = 0; i < step.count(); ++i) {
    InstrFacts& load = step.info(i);
    const Instr& in = step.instr(i);
    if (!load.needed || in.code != Code::load || !load.inner || !plan.is_full(load.extent) ||
        in.view.dtype != DType::boolean || in.dtype != DType::boolean)
      continue;
    std::vector<int> readers;
    for (int k = i + 1; k < step.count(); ++k)
      if (const auto args = program::operands(step.instr(k));
          step.info(k).needed && std::find(args.begin(), args.end(), i) != args.end())
        readers.push_back(k);
    load.as_bytes = std::all_of(readers.begin(), readers.end(),
                                [&](int k) { return reduces_bools(step.instr(k)); });
    for (int k : readers) {
      if (!load.as_bytes) break;
      step.info(k).as_bytes = true;
      plan.reductions[std::size_t(step.info(k).reduction)] =
          kernels().reduce_bytes(step.instr(k).code);
    }
  }
}

}  // namespace

AnalyzedStep analyze(const Fused& fused) {
  AnalyzedStep step;
  step.fused = Fused(fused);  // moved, since the assignment of a copy exports a symbol of std
  step.is_empty = !program::has_inner_points(fused);
  if (step.is_empty) fold_empty_reductions(step.fused);
  fold_reductions_of_two(step.fused);
  fold_reductions_of_one(step.fused);
  mark_needed(step);
  choose_rows(step);
  const auto levels = program::reduction_levels(step.fused);
  for (int i = 0; i < step.count(); ++i) step.info(i).level = levels[static_cast<std::size_t>(i)];
  return step;
}

int AnalyzedStep::last_pass() const {
  int last = 0;
  for (int i = 0; i < count(); ++i) {
    if (!info(i).needed) continue;
    if (is_reduction(instr(i).code)) last = std::max(last, info(i).level - 1);
    if (is_inner_store(i)) last = std::max(last, info(i).level);
  }
  return last;
}

void find_masks(AnalyzedStep& step, const FusedPlan& plan) {
  if (plan.inner_major || plan.serial || step.has_element_ops || !step.reduces ||
      plan.dims != plan.outer_dims + 1 || plan.inner_points < long_row)
    return;
  int row = step.outer;
  while (step.fused.dims[static_cast<std::size_t>(row)] == 1) ++row;
  step.masked = masked_rows(step.fused, row);
  if (!step.masked) return;
  for (auto& mask : step.masked->masks)
    for (auto [iota, sign] : mask.positions)
      if (!step.info(iota).needed) return step.masked.reset();  // iota without an access
}

void classify(AnalyzedStep& step, FusedPlan& plan) {
  for (int i = 0; i < step.count(); ++i) {
    InstrFacts& facts = step.info(i);
    const Instr& in = step.instr(i);
    if (!facts.needed) continue;
    facts.uniform = facts.constant = facts.fixed = true;
    if (in.code == Code::load || in.code == Code::iota)
      classify_access(facts, plan.accesses[static_cast<std::size_t>(facts.access)], plan,
                      step.flat());
    for (int a : program::operands(in)) {
      const InstrFacts& arg = step.info(a);
      facts.uniform &= arg.uniform;
      facts.constant &= arg.constant;
      facts.fixed &= arg.fixed;
      facts.varies |= arg.varies;
      facts.extent = facts.extent | arg.extent;
    }
    if (is_element_op(in)) {
      facts.uniform = facts.constant = facts.fixed = false;
      facts.varies = true;
      facts.extent = Extent::full;
    }
    facts.inner = facts.varies && !facts.fixed;
    if (is_reduction(in.code)) classify_reduction(step, in, facts, plan);
    plan.levels = std::max(plan.levels, facts.level + 1);
  }
  mark_bytes(step, plan);
}

}  // namespace haliax::cpu
