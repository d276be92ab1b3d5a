// Collective nodes: their construction, and their checks for the verifier.
#include "ops/collective.h"

#include <fmt/format.h>

#include <algorithm>

namespace haliax {
namespace {

using program::CollectiveKind;

// Checks that the boxes are inside of the arrays.
std::string fault_of(const std::vector<program::BoxTransfer>& boxes,
                     const std::vector<Axes>& arrays) {
  for (auto& box : boxes) {
    if (box.array < 0 || box.array >= int(arrays.size()))
      return fmt::format("it has no array {}", box.array);
    auto& axes = arrays[std::size_t(box.array)];
    bool inside = box.start.size() == axes.size() && box.dims.size() == axes.size() &&
                  box.step.size() == axes.size();
    for (std::size_t d = 0; inside && d < axes.size(); ++d) {
      auto last = box.start[d] + (box.dims[d] - 1) * box.step[d];
      inside = box.dims[d] == 0 ||
               (std::min(box.start[d], last) >= 0 && std::max(box.start[d], last) < axes[d].size);
    }
    if (!inside) return "a box reaches outside of " + to_string(axes);
  }
  return {};
}
// Checks the boxes of an exchange. Each element is received at most once, so an array receives at
// most as many elements as it has.
std::string fault_of_exchange(const program::Collective& how, const std::vector<Axes>& in,
                              const std::vector<Axes>& out) {
  if (auto wrong = fault_of(how.sends, in); !wrong.empty()) return wrong;
  if (auto wrong = fault_of(how.receives, out); !wrong.empty()) return wrong;
  for (std::size_t k = 0; k < out.size(); ++k) {
    std::int64_t received = 0;
    for (auto& box : how.receives)
      if (box.array == int(k)) received += program::points(box.dims);
    if (received > axis_size(out[k]))
      return fmt::format("{} elements are received into {}", received, to_string(out[k]));
  }
  return {};
}
// Checks a ring. The operands are an array and a block of another array. The result has the axes of
// the contraction with the full second array.
std::string fault_of_ring(const CollectiveSpec& spec, const std::vector<Axes>& in) {
  if (in.size() != 2 || spec.out.size() != 1 || spec.along.size() != 1 || spec.rank < 0 ||
      spec.rank >= spec.ranks)
    return "it is not a ring";
  auto full = in[1];
  auto rotated =
      std::find_if(full.begin(), full.end(), [&](auto& a) { return a.name == spec.along[0]; });
  if (rotated == full.end())
    return fmt::format("the block {} lacks axis {}", to_string(in[1]), spec.along[0].text());
  rotated->size *= spec.ranks;
  auto fits = [](const Axis& a, const Axes& other) {
    auto* b = find_axis(other, a.name);
    return !b || b->size == a.size;
  };
  for (auto& a : full)
    if (!fits(a, in[0]) || !fits(a, spec.out[0]) ||
        (!find_axis(in[0], a.name) && !find_axis(spec.out[0], a.name)))
      return fmt::format("axis {} of blocks of {} is neither in {} nor in {}", to_string(a),
                         to_string(in[1]), to_string(in[0]), to_string(spec.out[0]));
  for (auto& a : spec.out[0])
    if (!fits(a, in[0]) || (!find_axis(in[0], a.name) && !find_axis(full, a.name)))
      return fmt::format("no operand has axis {}", to_string(a));
  return fault_of_exchange(spec.collective, {in[1]}, {in[1]});
}
// Checks one array. Operand and result have the same axes, except for the size of the axis that is
// split or joined: its blocks have ceil(size / ranks) positions, or fewer.
std::string fault_of_array(const CollectiveSpec& spec, std::size_t k, const Axes& x) {
  auto& out = spec.out[k];
  const bool joins = spec.collective.kind == CollectiveKind::all_gather,
             splits = spec.collective.kind == CollectiveKind::reduce_scatter;
  auto wrong = [&] { return fmt::format("it produces {} from {}", to_string(out), to_string(x)); };
  if (x.size() != out.size()) return wrong();
  bool found = !joins && !splits;
  for (std::size_t d = 0; d < x.size(); ++d) {
    if (x[d].name != out[d].name) return wrong();
    bool is_split = (joins || splits) && x[d].name == spec.along[k];
    auto full = is_split ? spec.collective.size[k] : x[d].size,
         most = (full + spec.collective.ranks - 1) / spec.collective.ranks;
    if (!is_split && out[d].size != full) return wrong();
    if (is_split && ((joins ? out : x)[d].size != full || (joins ? x : out)[d].size > most))
      return wrong();
    found |= is_split;
  }
  return found ? ""
               : fmt::format("{} lacks the axis that is {}", to_string(x),
                             joins ? "gathered" : "scattered");
}
std::string collective_fault(const Node& n) {
  auto& spec = collective_spec_of(n);
  std::vector<Axes> in;
  for (auto& x : n.in) in.push_back(x->axes);
  if (spec.number < 1) return "the collective has no number";
  if (spec.is_ring()) return fault_of_ring(spec, in);
  if (spec.collective.kind == CollectiveKind::exchange)
    return fault_of_exchange(spec.collective, in, spec.out);
  if (spec.out.size() != in.size() || spec.along.size() != in.size() ||
      spec.collective.size.size() != in.size())
    return fmt::format("it produces {} arrays from {}", spec.out.size(), in.size());
  for (std::size_t k = 0; k < in.size(); ++k)
    if (auto wrong = fault_of_array(spec, k, in[k]); !wrong.empty()) return wrong;
  return {};
}

}  // namespace

const Op kCollective{
    .name = "collective",
    .kind = Kind::step,
    .lower = [](const Node& n,
                Emit&) { fail_at(n.origin, "lower", "a collective has results of its own"); },
    .fault = collective_fault};

NodePtr make_collective(Nodes x, CollectiveSpec spec) {
  return make(kCollective, std::move(x), {}, DType::f32,
              {.payload = std::make_shared<CollectiveSpec>(std::move(spec))});
}
NodePtr collective_result(NodeRef c, std::size_t k) {
  auto& spec = collective_spec_of(*c);
  auto dtype = spec.is_ring() ? spec.dtype : c->in[std::min(k, c->in.size() - 1)]->dtype;
  return make(kResult, {c}, spec.out[k], dtype, {.ints = {std::int64_t(k)}});
}

}  // namespace haliax
