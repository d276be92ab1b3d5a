// Early exit: computes flags with which an iteration, or a part of it, is skipped at run time,
// because masks that are false everywhere make its values 0 or leave the carries unchanged.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "compile/analysis/flags.h"
#include "compile/analysis/masked_values.h"
#include "compile/analysis/masks.h"
#include "compile/analysis/ranges.h"
#include "compile/analysis/zero_masks.h"
#include "compile/loops/early_exit.h"
#include "ops/attr.h"
#include "ops/collective.h"

namespace haliax {
namespace {

// Returns the terms of a sum, in order. all = false: splits the sum only at terms that accumulate
// in place, that is at contractions and scatters, so that they need no temporary. For example,
// given x + dot(a, b), returns [x, dot(a, b)]; given x + y, returns [x + y], or [x, y] if `all`.
Nodes terms_of(const NodePtr& value, bool all) {
  auto adds = [](const NodePtr& x) {
    return x->op->kind == Kind::contract || accumulates(*x, Monoid::sum);
  };
  auto in = value->in;
  if (accumulates(*value, Monoid::sum) && adds(in[0])) {
    auto base = std::exchange(in[0], prim::zeros_like(in[0]));
    in = {base, prim::rebuilt(*value, in, value->axes)};
  } else {
    bool sum = prim::combines(*value, Monoid::sum) && in[0]->axes == value->axes &&
               in[1]->axes == value->axes;
    if (!sum || !(all || adds(in[0]) || adds(in[1]))) return {value};
  }
  auto terms = terms_of(in[0], all);
  for (auto& t : terms_of(in[1], all)) terms.push_back(t);
  return terms;
}

// A part of an iteration while it is assembled.
struct PartDraft {
  std::vector<std::pair<std::size_t, NodePtr>> values;
  std::unordered_set<const Node*> contractions;
  Nodes masks;               // all values are 0 if one of them is false everywhere
  std::int64_t largest = 1;  // number of elements of its largest value
  void join(const PartDraft& o) {
    values.insert(values.end(), o.values.begin(), o.values.end());
    contractions.insert(o.contractions.begin(), o.contractions.end());
    masks = analysis::masks_of_sum(masks, o.masks);
    largest = std::max(largest, o.largest);
  }
  bool shares_contraction(const PartDraft& o) const {
    return std::any_of(contractions.begin(), contractions.end(),
                       [&](auto* x) { return o.contractions.count(x) > 0; });
  }
  // Returns true if the first mask of one part is a mask of the other, or if both have no masks.
  bool has_same_masks(const PartDraft& o) const {
    if (masks.empty() || o.masks.empty()) return masks.empty() && o.masks.empty();
    return holds(masks, o.masks[0]) || holds(o.masks, masks[0]);
  }
};
// Returns true if an iteration must compute a contraction to evaluate the mask. Such a mask yields
// no flag: it would cost a second pass over the scores. The iteration continues instead, and its
// matmuls skip their masked blocks (masked_matmuls.h).
bool reads_contraction(const NodePtr& mask, const Node* index) {
  auto computed = level_of({mask}, index);
  return std::any_of(computed.begin(), computed.end(),
                     [](auto& n) { return n->op->kind == Kind::contract; });
}
// Joins parts that are `related`, also transitively. The order of parts is preserved.
template <class Related> void join(std::vector<PartDraft>& parts, const Related& related) {
  for (std::size_t i = 0; i < parts.size(); ++i)
    for (std::size_t j = i + 1; j < parts.size();) {
      if (!related(parts[i], parts[j])) {
        ++j;
        continue;
      }
      parts[i].join(parts[j]);
      parts.erase(parts.begin() + std::ptrdiff_t(j));
      j = i + 1;
    }
}

// Sets the flags of an iteration of a loop with carries.
//
// Until a query has processed a visible key, its running maximum is at most the mask value (-1e9).
// Masked keys then have weight exp(-1e9 - max) = 1, and the iteration changes the carries. With
// sliding windows or packed sequences, most masked keys precede the visible keys. If the order of
// iterations is free, iterations with visible keys therefore run first. The other iterations follow
// in a second loop (`deferred`), and most of them leave the carries unchanged and are skipped.
void set_carry_flags(IterationPart& single, const Loop& l, std::size_t body) {
  auto* index = l.index[body].get();
  std::vector<IterationResult> iteration_results;
  for (auto& r : l.results) {
    if (r.kind == ResultKind::fold && r.monoid != Monoid::sum) return;
    iteration_results.push_back({r.value[body], r.kind == ResultKind::carry ? r.carry : nullptr});
  }
  auto flags = iteration_flags(iteration_results, index);
  single.flag = flags.changes;
  if (!l.any_order || flags.changes == flags.may_be_true) return;
  single.flag = flags.may_be_true;
  single.deferred = analysis::both_flags(prim::logical_not(flags.may_be_true), flags.changes);
}

// Returns the parts of an iteration without carries, each with its flag. terms: its values, with
// sums split into terms. Returns `single` if the iteration must not be split.
std::vector<IterationPart> parts_by_masks(const Node* index, IterationPart single,
                                          const IterationPart& terms) {
  Nodes values;
  for (auto& [k, v] : terms.values) values.push_back(v);
  analysis::ZeroMasks masks(level_of(values, index));
  std::vector<PartDraft> parts;
  for (auto& v : terms.values) {
    PartDraft p{{v}, {}, masks.of(v.second)};
    for (auto& n : level_of({v.second}, index)) {
      if (n->op == &kCollective) return {single};  // other devices wait for the collective
      if (n->op->kind == Kind::contract) p.contractions.insert(n.get());
      p.largest = std::max(p.largest, n->size());
    }
    std::erase_if(p.masks, [&](auto& m) { return reads_contraction(m, index); });
    parts.push_back(std::move(p));
  }
  join(parts, [](auto& a, auto& b) { return a.shares_contraction(b); });
  // A flag is the maximum of a mask, which is too expensive unless the mask is much smaller than
  // the values of the part.
  constexpr std::int64_t kMaskShare = 8;
  for (auto& p : parts)
    if (!p.masks.empty() && kMaskShare * analysis::smallest(p.masks)->size() > p.largest)
      p.masks.clear();
  join(parts, [](auto& a, auto& b) { return a.has_same_masks(b); });
  if (parts.size() == 1) parts[0].values = std::move(single.values);
  std::vector<IterationPart> out;
  for (auto& p : parts) {
    auto flag =
        p.masks.empty() ? nullptr : prim::reduce(Monoid::max, analysis::smallest(p.masks), {});
    out.push_back({flag, std::move(p.values)});
  }
  return out;
}
// Returns the parts of an iteration, each with its flag. There is only one part if the loop has
// carries, or if an iteration must not be split.
std::vector<IterationPart> parts_of_iteration(const Loop& l, std::size_t body, bool may_skip) {
  IterationPart single, terms;
  bool carries = false;
  bool skips_to_zero = true;  // a skipped iteration adds 0 or stacks zeros
  for (std::size_t k = 0; k < l.results.size(); ++k) {
    auto& r = l.results[k];
    auto& value = r.value[body];
    bool sums = r.kind == ResultKind::fold && r.monoid == Monoid::sum;
    for (auto& v : sums ? terms_of(value, false) : Nodes{value}) single.values.push_back({k, v});
    for (auto& v : sums ? terms_of(value, true) : Nodes{value}) terms.values.push_back({k, v});
    carries |= r.kind == ResultKind::carry;
    skips_to_zero &= sums || r.kind == ResultKind::stack;
  }
  if (!may_skip) return {single};
  if (carries) {
    set_carry_flags(single, l, body);
    return {single};
  }
  if (!skips_to_zero) return {single};
  return parts_by_masks(l.index[body].get(), std::move(single), terms);
}

}  // namespace

IterationFlags iteration_flags(const std::vector<IterationResult>& results, const Node* index) {
  const Axis tile(IndexAttr::of(*index).axis.name, prim::index_chunk(*index));
  Nodes values, masks;
  for (auto& r : results) values.push_back(r.value);
  for (auto& n : level_of(values, index)) {
    if (n->op == &kCollective) return {};  // other devices wait for the collective
    if (n->op->kind != Kind::reduce && n->op->kind != Kind::contract) continue;
    for (auto& x : n->in)
      for (auto& m : analysis::masks_of(x, tile.name))
        if (!holds(masks, m)) masks.push_back(m);
  }
  IterationFlags out;
  for (auto& m : masks) {
    Nodes if_zero, stay;
    bool known = true;
    for (auto& r : results) {
      auto value = analysis::value_if_never_true(r.value, m.get(), tile.name, index, if_zero);
      known &= value && (r.carry || prim::is_number(value, 0));
      if (known && r.carry) stay.push_back(analysis::unchanged_flag(value, r.carry));
    }
    auto may = known ? analysis::may_be_true(m, {{tile, tile.size}}) : nullptr;
    if (!may || (may->axes.empty() && !may->varies_with(index))) continue;
    for (auto& x : if_zero) stay.push_back(prim::equal(x, prim::number(0, x->dtype)));
    may = prim::reduce(Monoid::max, may, {});
    out.changes = analysis::both_flags(out.changes, analysis::flag_or_not_all(may, stay));
    out.may_be_true = analysis::both_flags(out.may_be_true, may);
  }
  return out;
}

IterationPart unsplit_iteration(const Loop& l, std::size_t body) {
  IterationPart single;
  for (std::size_t k = 0; k < l.results.size(); ++k)
    single.values.push_back({k, l.results[k].value[body]});
  return single;
}
IterationParts split_iterations(const Nodes& roots, bool may_skip) {
  IterationParts out;
  for (auto& n : all_nodes(roots)) {
    if (n->op != &kLoop) continue;
    auto& l = loop_of(*n);
    for (std::size_t b = 0; b < l.index.size(); ++b)
      out[n.get()].push_back(
          parts_of_iteration(l, b, may_skip && origin_of(l) == LoopOrigin::region));
  }
  return out;
}

std::string to_string(const IterationParts& iterations, const Nodes& roots) {
  std::string out;
  for (auto& n : all_nodes(roots)) {
    auto found = iterations.find(n.get());
    if (found == iterations.end()) continue;
    for (std::size_t b = 0; b < found->second.size(); ++b)
      for (auto& part : found->second[b]) {
        if (!part.flag) continue;
        std::vector<std::size_t> results;
        for (auto& [k, value] : part.values) results.push_back(k);
        out += fmt::format("loop over {}, body {}: results {} are computed where\n{}",
                           loop_of(*n).axis.name.text(), b, fmt::join(results, ", "),
                           to_string(Nodes{part.flag}));
        if (part.deferred)
          out += fmt::format("then, in a second pass, where\n{}", to_string(Nodes{part.deferred}));
      }
  }
  return out;
}

}  // namespace haliax
