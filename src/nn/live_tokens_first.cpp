// An order of the tokens of a loss in which masked tokens come last.
#include "nn/live_tokens_first.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "haliax/fmt.h"
#include "haliax/nn.h"
#include "ops/named.h"
#include "transforms/chunked.h"

namespace haliax::nn {
namespace {

using Options = LinearCrossEntropyOptions;

std::vector<NamedArray*> of_tokens(LossArrays& a) {
  return {&a.x, &a.targets, &a.mask, &a.weights};
}
// For other selections, chunked_reduce reports the error.
bool plain(const Options& o) {
  if (o.walked.all()) return o.chunks.chunks.empty();
  auto& items = o.walked.items();
  for (auto& a : items)
    if (a.size >= 0 ||
        std::count_if(items.begin(), items.end(), [&](auto& b) { return b.name == a.name; }) > 1)
      return false;
  return o.chunks.chunks.empty() || o.chunks.chunks.size() == items.size();
}
// Returns true if devices of the mesh each store a part of the axis. A reordering would
// communicate tokens.
bool is_shared(Name axis) {
  auto mesh = current_mesh();
  auto mapping = current_mapping();
  return mesh && (!mapping || mapping->find(axis));
}

}  // namespace

bool is_named(const AxisSelection& s, Name n) {
  return std::any_of(s.items().begin(), s.items().end(), [&](auto& a) { return a.name == n; });
}

LiveTokensFirst::LiveTokensFirst(const LossProblem& p, const LossArrays& a) {
  auto& o = p.options;
  auto& give = o.outputs;
  bool every_token = give.logsumexp || give.log_prob || give.ids || give.entropy ||
                     give.top_k > 0 || give.sample || o.teacher;
  // Unreduced losses may have cotangents that depend on them. One pass suffices for these; a
  // change of the order would require two.
  bool masked = o.mask || (o.ignore_index && is_integer(a.targets.dtype()));
  // A norm may have captured or drawn a value per token, which matches the original order.
  if (!masked || every_token || o.reduction == Reduction::none || o.norm ||
      axis_size(p.tokens) == 0 || !plain(o))
    return;
  if (std::any_of(p.tokens.begin(), p.tokens.end(), [](auto& t) { return is_shared(t.name); }))
    return;
  auto rows = p.tokens;
  std::erase_if(rows, [&](auto& t) { return !o.walked.all() && !is_named(o.walked, t.name); });
  if (rows.empty() || !a.x.has_axis(rows)) return;
  auto name = fmt::format("{}", fmt::join(names_of(rows), ","));
  rows_ = rows;
  tiled_axis_ = Axis(name, axis_size(rows));
  row_ = "row of " + name;
}

std::pair<AxisSelection, ChunkOptions> LiveTokensFirst::chunks_of(const Options& o,
                                                                  const Axes& tokens) const {
  const AxisSelection requested = o.walked.all() ? AxisSelection(tokens) : o.walked;
  if (rows_.empty()) return {requested, o.chunks};
  Names names;
  std::vector<std::int64_t> chunk;
  for (std::size_t i = 0; i < requested.items().size(); ++i) {
    const auto name =
        has(rows_, requested.items()[i].name) ? tiled_axis_.name : requested.items()[i].name;
    const auto at = std::size_t(std::find(names.begin(), names.end(), name) - names.begin());
    if (at == names.size()) {
      names.push_back(name);
      chunk.push_back(1);
    }

    if (!o.chunks.chunks.empty()) chunk[at] *= o.chunks.chunks[i];
  }
  auto chunks = o.chunks;
  if (!chunks.chunks.empty()) chunks.chunks = chunk;
  return {names, chunks};
}
Axes LiveTokensFirst::in_order(const Axes& tokens) const {
  return rows_.empty() ? tokens : concat_axes({tiled_axis_}, without_axes(tokens, rows_));
}
LossArrays LiveTokensFirst::ordered(LossArrays a, const NamedArray& live) const {
  if (rows_.empty()) return a;
  for (auto* v : of_tokens(a))
    if (!v->empty()) *v = flatten_axes(*v, rows_, row_);
  a.order = rename(argsort(~of_rows(live), row_), row_, tiled_axis_.name);
  return a;
}
LossArrays LiveTokensFirst::taken(LossArrays a) const {
  if (rows_.empty()) return a;
  for (auto* v : of_tokens(a))
    if (!v->empty()) *v = take(*v, row_, a.order);
  if (!a.here.empty()) a.mask = !a.mask.empty() ? a.mask & a.here : a.here;
  return a;
}
NamedArray LiveTokensFirst::put_back(const NamedArray& v, const NamedArray& order) const {
  return rows_.empty() ? v
                       : unflatten_axis(take(v, tiled_axis_, argsort(order, tiled_axis_)),
                                        tiled_axis_, rows_);
}

std::int64_t LiveTokensFirst::large_chunk(const LossProblem& p, const LossArrays& a) const {
  auto& o = p.options;
  auto& c = o.chunks;
  bool requested = c.chunk || !c.chunks.empty() || c.memory > 0 || c.form == ChunkForm::tile ||
                   o.vocab_chunk != 0;
  bool tokens_only = o.walked.all() || o.walked.items().size() == rows_.size();
  if (rows_.empty() || requested || !tokens_only || bytes_of(a.weight.dtype()) < 4) return 0;
  auto bytes = [](const NamedArray& v) { return v.size() * bytes_of(v.dtype()); };
  auto budget = default_budget(bytes(a.x) + bytes(a.weight));
  auto logits = p.Vocab.size * axis_size(without_axes(p.tokens, rows_)) * bytes_of(p.dtype);
  // gathered rows and their gradients
  auto most = budget / (logits + 2 * bytes(a.x) / tiled_axis_.size);
  if (std::min(most, tiled_axis_.size) < 2 * small_chunk) return 0;
  auto chunk_count = std::max<std::int64_t>(2, (tiled_axis_.size + most - 1) / most);
  return (tiled_axis_.size + chunk_count - 1) / chunk_count;
}
NamedArray LiveTokensFirst::filling(std::int64_t chunk, const NamedArray& live) const {
  auto count = sum(of_rows(live));
  return arange(tiled_axis_) < where(count == tiled_axis_.size, count, count - mod(count, chunk));
}
NamedArray LiveTokensFirst::of_rows(const NamedArray& live) const {
  auto counts = flatten_axes(live, rows_, row_);
  return any(counts, without_axes(counts.axes(), row_));
}

}  // namespace haliax::nn
