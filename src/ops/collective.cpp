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
  for (auto& p : boxes) {
    if (p.array < 0 || p.array >= int(arrays.size()))
      return fmt::format("it has no array {}", p.array);
    auto& axes = arrays[std::size_t(p.array)];
    bool inside = p.start.size() == axes.size() && p.dims.size() == axes.size() &&
                  p.step.size() == axes.size();
    for (std::size_t d = 0; inside && d < axes.size(); ++d) {
      auto last = p.start[d] + (p.dims[d] - 1) * p.step[d];
      inside = p.dims[d] == 0 ||
               (std::min(p.start[d], last) >= 0 && std::max(p.start[d], last) < axes[d].size);
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
    std::int64_t come = 0;
    for (auto& p : how.receives)
      if (p.array == int(k)) come += program::points(p.dims);
    if (come > axis_size(out[k]))
      return fmt::format("{} elements are received into {}", come, to_string(out[k]));
  }
  return {};
}
// Checks a ring. The operands are an array and a block of another array. The result has the axes of
// the contraction with the full second array.
std::string fault_of_ring(const CollectiveSpec& w, const std::vector<Axes>& in) {
  if (in.size() != 2 || w.out.size() != 1 || w.along.size() != 1 || w.rank < 0 || w.rank >= w.ranks)
    return "it is not a ring";
  auto full = in[1];
  auto round =
      std::find_if(full.begin(), full.end(), [&](auto& a) { return a.name == w.along[0]; });
  if (round == full.end())
    return fmt::format("the block {} lacks axis {}", to_string(in[1]), w.along[0].text());
  round->size *= w.ranks;
  auto fits = [](const Axis& a, const Axes& other) {
    auto* b = find_axis(other, a.name);
    return !b || b->size == a.size;
  };
  for (auto& a : full)
    if (!fits(a, in[0]) || !fits(a, w.out[0]) ||
        (!find_axis(in[0], a.name) && !find_axis(w.out[0], a.name)))
      return fmt::format("axis {} of blocks of {} is neither in {} nor in {}", to_string(a),
                         to_string(in[1]), to_string(in[0]), to_string(w.out[0]));
  for (auto& a : w.out[0])
    if (!fits(a, in[0]) || (!find_axis(in[0], a.name) && !find_axis(full, a.name)))
      return fmt::format("no operand has axis {}", to_string(a));
  return fault_of_exchange(w.collective, {in[1]}, {in[1]});
}
// Checks one array. Operand and result have the same axes, except for the size of the axis that is
// split or joined: its blocks have ceil(size / ranks) positions, or fewer.
std::string fault_of_array(const CollectiveSpec& w, std::size_t k, const Axes& x) {
  auto& out = w.out[k];
  const bool joins = w.collective.kind == CollectiveKind::all_gather,
             splits = w.collective.kind == CollectiveKind::reduce_scatter;
  auto wrong = [&] { return fmt::format("it produces {} from {}", to_string(out), to_string(x)); };
  if (x.size() != out.size()) return wrong();
  bool met = !joins && !splits;
  for (std::size_t d = 0; d < x.size(); ++d) {
    if (x[d].name != out[d].name) return wrong();
    bool mine = (joins || splits) && x[d].name == w.along[k];
    auto full = mine ? w.collective.size[k] : x[d].size,
         most = (full + w.collective.ranks - 1) / w.collective.ranks;
    if (!mine && out[d].size != full) return wrong();
    if (mine && ((joins ? out : x)[d].size != full || (joins ? x : out)[d].size > most))
      return wrong();
    met |= mine;
  }
  return met ? ""
             : fmt::format("{} lacks the axis that is {}", to_string(x),
                           joins ? "gathered" : "scattered");
}
std::string collective_fault(const Node& n) {
  auto& w = collective_spec_of(n);
  std::vector<Axes> in;
  for (auto& x : n.in) in.push_back(x->axes);
  if (w.number < 1) return "the collective has no number";
  const bool is_ring = w.ranks > 0;
  if (is_ring) return fault_of_ring(w, in);
  if (w.collective.kind == CollectiveKind::exchange)
    return fault_of_exchange(w.collective, in, w.out);
  if (w.out.size() != in.size() || w.along.size() != in.size() ||
      w.collective.size.size() != in.size())
    return fmt::format("it produces {} arrays from {}", w.out.size(), in.size());
  for (std::size_t k = 0; k < in.size(); ++k)
    if (auto wrong = fault_of_array(w, k, in[k]); !wrong.empty()) return wrong;
  return {};
}

}  // namespace

const Op kCollective{
    .name = "collective",
    .kind = Kind::step,
    .lower = [](const Node& n,
                Emit&) { fail_at(n.origin, "lower", "a collective has results of its own"); },
    .fault = collective_fault};

NodePtr make_collective(Nodes x, CollectiveSpec w) {
  return make(kCollective, std::move(x), {}, DType::f32,
              {.payload = std::make_shared<CollectiveSpec>(std::move(w))});
}
NodePtr collective_result(NodeRef c, std::size_t k) {
  auto& w = collective_spec_of(*c);
  auto dtype = w.ranks > 0 ? w.dtype : c->in[std::min(k, c->in.size() - 1)]->dtype;
  return make(kResult, {c}, w.out[k], dtype, {.ints = {std::int64_t(k)}});
}

}  // namespace haliax
