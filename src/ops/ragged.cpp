// Contractions by groups of rows, whose sizes are known only when the program runs. The step is a
// function: on the host one matmul per group, on the rows of the group, in parallel; on a GPU one
// thread per element of the result.
#include "ops/ragged.h"

#include <algorithm>

#include "graph/emit.h"
#include "haliax/custom_op.h"
#include "haliax/error.h"
#include "haliax/fmt.h"
#include "ops/fault.h"
#include "program/host_matmul.h"

namespace haliax::prim {
namespace {

using Way = Along::Way;

// ---- the functions that run ----
// The inner dims of the step, in order, and its arrays.
enum RaggedDim { kRows, kGroups, kInner, kColumns };
enum RaggedArray { kA, kB, kSizes, kOut };

struct RaggedCall {
  void* const* data;
  const std::int64_t* sizes;
  const std::int64_t* const* strides;
  int bytes;
  void* at(RaggedArray array, std::int64_t row, std::int64_t group) const {
    auto* s = strides[array];
    return static_cast<std::byte*>(data[array]) + (row * s[kRows] + group * s[kGroups]) * bytes;
  }
  // Calls f(group, first row, number of rows). Raises for sizes that are no partition of rows.
  template <class F> void each_group(const F& f) const {
    const auto* counts = static_cast<const std::int64_t*>(data[kSizes]);
    std::int64_t first = 0;
    for (std::int64_t g = 0; g < sizes[kGroups]; ++g) {
      const auto count = counts[g * strides[kSizes][kGroups]];
      if (count < 0)
        throw Error(
            fmt::format("[ragged_dot] group {} has size {}; sizes must be 0 or more", g, count));
      if (count > sizes[kRows] - first)
        throw Error(
            fmt::format("[ragged_dot] group {} has size {}, but only {} of {} rows are left; "
                        "the sizes must not exceed the rows",
                        g, count, sizes[kRows] - first, sizes[kRows]));
      f(g, first, count);
      first += count;
    }
    f(-1, first, sizes[kRows] - first);
  }
  program::HostMatmul matmul(DType dtype) const {
    return {.n = sizes[kColumns],
            .dtype = dtype,
            .b_n = strides[kB][kColumns],
            .out_n = strides[kOut][kColumns]};
  }
};

template <DType dtype>
void run_ragged(void* const* data, const std::int64_t* sizes,
                const std::int64_t* const* strides) noexcept {
  try {
    const RaggedCall c{data, sizes, strides, int(bytes_of(dtype))};
    program::HostMatmuls matmuls;
    c.each_group([&](std::int64_t group, std::int64_t first, std::int64_t count) {
      auto p = c.matmul(dtype);
      p.m = count;
      p.k = group < 0 ? 0 : sizes[kInner];  // rows of no group are 0
      p.a = c.at(kA, first, 0);
      p.a_m = strides[kA][kRows];
      p.a_k = strides[kA][kInner];
      p.b = c.at(kB, 0, std::max<std::int64_t>(group, 0));
      p.b_k = strides[kB][kInner];
      p.out = c.at(kOut, first, 0);
      p.out_m = strides[kOut][kRows];
      matmuls.add(p);
    });
    matmuls.run();
  } catch (...) {
    haliax::detail::kernel_has_thrown();
  }
}
template <DType dtype>
void run_ragged_sums(void* const* data, const std::int64_t* sizes,
                     const std::int64_t* const* strides) noexcept {
  try {
    const RaggedCall c{data, sizes, strides, int(bytes_of(dtype))};
    program::HostMatmuls matmuls;
    c.each_group([&](std::int64_t group, std::int64_t first, std::int64_t count) {
      if (group < 0) return;
      auto p = c.matmul(dtype);
      p.m = sizes[kInner];
      p.k = count;  // the sums of an empty group are 0
      p.a = c.at(kA, first, 0);
      p.a_m = strides[kA][kInner];
      p.a_k = strides[kA][kRows];
      p.b = c.at(kB, first, 0);
      p.b_k = strides[kB][kRows];
      p.out = c.at(kOut, 0, group);
      p.out_m = strides[kOut][kInner];
      matmuls.add(p);
    });
    matmuls.run();
  } catch (...) {
    haliax::detail::kernel_has_thrown();
  }
}
template <DType dtype> program::CustomRun run_of(bool sums) {
  return sums ? run_ragged_sums<dtype> : run_ragged<dtype>;
}
program::CustomRun run_of(DType dtype, bool sums) {
  switch (dtype) {
    case DType::f64:
      return run_of<DType::f64>(sums);
    case DType::bf16:
      return run_of<DType::bf16>(sums);
    case DType::f16:
      return run_of<DType::f16>(sums);
    default:
      return run_of<DType::f32>(sums);
  }
}

// On a GPU, negative sizes count as 0, and sizes end at the last row.
constexpr const char* kRaggedText = R"(
I group = 0;
for (I first = 0; group < size[1]; ++group) {
  const I count = load<S2>(array[2], group * stride[2][1]);
  first += count < 0 ? 0 : count;
  if (at[0] < first) break;
}
Number<S3> sum = 0;
const I a = at[0] * stride[0][0], b = group * stride[1][1] + at[3] * stride[1][3];
for (I k = 0; group < size[1] && k < size[2];) {
  Number<S3> part = 0;
  for (const I end = k + 32; k < end && k < size[2]; ++k)
    part = kernel::fma(load<S0>(array[0], a + k * stride[0][2]),
                       load<S1>(array[1], b + k * stride[1][2]), part);
  sum += part;
}
store<S3>(array[3], at[0] * stride[3][0] + at[3] * stride[3][3], sum);
)";
constexpr const char* kRaggedSumsText = R"(
I end = 0, row = 0;
for (I group = 0; group <= at[1]; ++group) {
  const I count = load<S2>(array[2], group * stride[2][1]);
  row = end;
  end += count < 0 ? 0 : count;
}
if (end > size[0]) end = size[0];
Number<S3> sum = 0;
const I a = at[2] * stride[0][2], b = at[3] * stride[1][3];
while (row < end) {
  Number<S3> part = 0;
  for (const I last = row + 32; row < last && row < end; ++row)
    part = kernel::fma(load<S0>(array[0], a + row * stride[0][0]),
                       load<S1>(array[1], b + row * stride[1][0]), part);
  sum += part;
}
store<S3>(array[3], at[1] * stride[3][1] + at[2] * stride[3][2] + at[3] * stride[3][3], sum);
)";

// ---- the ops ----
Axis ragged_axis(const Node& n, Name name) {
  if (auto* mine = find(n, name)) return *mine;
  for (auto& x : n.in)
    if (auto* its = find(*x, name)) return *its;
  fail_at(n.origin, n.op->name, "axis " + std::string(name.text()) + " is in no operand");
}
Along ragged_along(const Node& n, std::size_t, Name a) {
  auto r = RaggedAttr::of(n);
  if (a == r.rows || a == r.groups) return {Way::full, a};
  return find(n, a) ? Along{Way::map, a} : Along{Way::fold, a, Monoid::sum};
}
Linear ragged_linear(const Node&, std::size_t k) { return k < 2 ? Linear::one : Linear::no; }
std::string ragged_fault(const Node& n) {
  if (auto wrong = fault_of_dtypes(n, 2); !wrong.empty()) return wrong;
  if (n.in[2]->dtype != DType::i64) return "the sizes are not i64";
  auto r = RaggedAttr::of(n);
  const bool complete = find(*n.in[0], r.rows) && find(*n.in[0], r.inner) &&
                        find(*n.in[1], r.columns) && find(n, r.columns) && find(*n.in[2], r.groups);
  return complete ? "" : fault_of_sizes(n);
}
void ragged_lower(const Node& n, Emit& e) {
  auto r = RaggedAttr::of(n);
  const Axis rows = ragged_axis(n, r.rows), groups = ragged_axis(n, r.groups),
             inner = ragged_axis(n, r.inner), columns = ragged_axis(n, r.columns);
  if (n.size() == 0) return;
  if (rows.size == 0 || groups.size == 0 || inner.size == 0) return e.zero(e.result(), n.axes);
  Axes batch;
  for (auto& a : n.axes)
    if (a.name != r.rows && a.name != r.groups && a.name != r.inner && a.name != r.columns)
      batch.push_back(a);
  auto dims = batch;
  for (auto& a : {rows, groups, inner, columns}) dims.push_back(a);
  program::Step s;
  s.kind = program::Kind::custom;
  s.custom.dims = Emit::sizes(dims);
  for (std::size_t k = 0; k < 3; ++k)
    s.custom.arrays.push_back(Emit::view(e.operand(k), n.in[k]->axes, dims));
  s.custom.arrays.push_back(Emit::view(e.result(), n.axes, dims));
  s.custom.outer = int(batch.size());
  s.custom.uses_threads = true;
  const bool sums = n.op == &kRaggedSums;
  s.custom.run = run_of(n.dtype, sums);
  s.custom.text = sums ? program::CustomText{kRaggedSumsText, {kGroups, kInner, kColumns}}
                       : program::CustomText{kRaggedText, {kRows, kColumns}};
  e.push(std::move(s));
}
Nodes ragged_grad(NodeRef o, NodeRef g) {
  auto r = RaggedAttr::of(*o);
  auto &x = o->in[0], &weight = o->in[1], &sizes = o->in[2];
  return {ragged(g, weight, sizes, {r.rows, r.groups, r.columns, r.inner}),
          ragged_sums(x, g, sizes, r, *find(*weight, r.groups)), nullptr};
}
Nodes ragged_sums_grad(NodeRef o, NodeRef g) {
  auto r = RaggedAttr::of(*o);
  auto &a = o->in[0], &b = o->in[1], &sizes = o->in[2];
  return {ragged(b, g, sizes, {r.rows, r.groups, r.columns, r.inner}), ragged(a, g, sizes, r),
          nullptr};
}

}  // namespace

const Op kRagged{.name = "ragged_dot",
                 .kind = Kind::step,
                 .grad = ragged_grad,
                 .lower = ragged_lower,
                 .along = ragged_along,
                 .linear_in = ragged_linear,
                 .fault = ragged_fault};
const Op kRaggedSums{.name = "ragged_sums",
                     .kind = Kind::step,
                     .grad = ragged_sums_grad,
                     .lower = ragged_lower,
                     .along = ragged_along,
                     .linear_in = ragged_linear,
                     .fault = ragged_fault};

NodePtr ragged(NodeRef x, NodeRef weight, NodeRef sizes, const RaggedAttr& r) {
  auto axes = joined(without(x->axes, {*find(*x, r.inner)}),
                     without(weight->axes, {*find(*weight, r.groups), *find(*weight, r.inner)}));
  axes = joined(axes, without(sizes->axes, {*find(*sizes, r.groups)}));
  return make(kRagged, {x, weight, sizes}, axes, x->dtype, r.attr());
}
NodePtr ragged_sums(NodeRef a, NodeRef b, NodeRef sizes, const RaggedAttr& r, const Axis& groups) {
  auto rest = without(joined(a->axes, b->axes),
                      {*find(*a, r.rows), *find(*a, r.inner), *find(*b, r.columns)});
  rest = joined(rest, without(sizes->axes, {groups}));
  auto axes = joined(rest, {groups, *find(*a, r.inner), *find(*b, r.columns)});
  return make(kRaggedSums, {a, b, sizes}, axes, a->dtype, r.attr());
}

namespace {
const bool ragged_registered = register_ops({&kRagged, &kRaggedSums});
}  // namespace
}  // namespace haliax::prim
