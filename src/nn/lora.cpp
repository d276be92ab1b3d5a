// Low-rank adapters.
#include "haliax/lora.h"

#include <cmath>
#include <string_view>

#include "graph/fail.h"
#include "graph/node.h"

namespace haliax::nn::detail {
namespace {

// Returns true if the text matches a pattern, in which * stands for any characters.
bool matches(std::string_view text, std::string_view pattern) {
  if (pattern.empty()) return text.empty();
  if (pattern[0] != '*')
    return !text.empty() && text[0] == pattern[0] && matches(text.substr(1), pattern.substr(1));
  for (std::size_t skipped = 0; skipped <= text.size(); ++skipped)
    if (matches(text.substr(skipped), pattern.substr(1))) return true;
  return false;
}
// Returns true if the pattern matches the path, or its last fields.
bool selects(std::string_view pattern, std::string_view path) {
  for (;;) {
    if (matches(path, pattern)) return true;
    const auto dot = path.find('.');
    if (dot == path.npos) return false;
    path.remove_prefix(dot + 1);
  }
}
struct NamedLinear {
  std::string path;
  Linear* layer;
};
std::vector<NamedLinear> linears_in(const Walk& walk) {
  std::vector<NamedLinear> out;
  for (auto& m : walk.modules()) out.push_back({m.path, static_cast<Linear*>(m.node)});
  return out;
}
// Returns the path of a layer as reports show it.
std::string shown(const NamedLinear& l) { return std::string(module_path(l.path).text()); }

std::string listed(const std::vector<NamedLinear>& layers) {
  constexpr std::size_t most = 12;
  std::string out;
  for (std::size_t k = 0; k < std::min(most, layers.size()); ++k)
    out += (k > 0 ? ", " : "") + shown(layers[k]);
  return layers.size() > most ? out + ", ..." : out;
}

void add_adapter(Linear& l, const std::string& path, std::int64_t rank, const Key& key,
                 const LoraOptions& options) {
  if (l.lora) fail("with_lora", "layer {} has an adapter already; call merge_lora first", path);
  const Axis Rank("lora_rank", rank);
  // Axes of layers, in a Stacked.
  const auto outer = without_axes(l.weight.axes(), concat_axes(l.In.axes(), l.Out.axes()));
  const double limit = 1 / std::sqrt(double(axis_size(l.In)));
  auto a = concat_axes(concat_axes(outer, {Rank}), l.In.axes()),
       b = concat_axes(concat_axes(outer, l.Out.axes()), {Rank});
  l.lora = Lora{random::uniform(key, a) * (2 * limit) - limit, zeros(b),
                options.alpha ? *options.alpha / double(rank) : 1};
}

void merge_adapter(Linear& l) {
  if (!l.lora) return;
  auto product = dot(l.lora->B, l.lora->A, "lora_rank") * (l.lora->scale / l.reparam.active_scale);
  l.weight = astype(l.weight + rearrange(product, l.weight.axes()), l.weight.dtype());
  l.lora = std::nullopt;
}

}  // namespace

void add_lora(const Walk& linears, const std::vector<std::string>& modules, std::int64_t rank,
              const Key& key, const LoraOptions& options, SourceLocation at) {
  CallSite here(at, CallSite::layer);
  const auto layers = linears_in(linears);
  if (rank < 1) fail("with_lora", "rank is {}; it must be at least 1", rank);
  for (auto& pattern : modules)
    if (std::none_of(layers.begin(), layers.end(),
                     [&](auto& l) { return selects(pattern, shown(l)); }))
      fail("with_lora", "{} selects no Linear; the model has {}", pattern,
           layers.empty() ? "none" : listed(layers));
  for (std::size_t k = 0; k < layers.size(); ++k) {
    const auto path = shown(layers[k]);
    if (std::any_of(modules.begin(), modules.end(),
                    [&](auto& pattern) { return selects(pattern, path); }))
      add_adapter(*layers[k].layer, path, rank, random::fold_in(key, std::int64_t(k)), options);
  }
}

void merge_lora(const Walk& linears) {
  for (auto& l : linears_in(linears)) merge_adapter(*l.layer);
}
void remove_lora(const Walk& linears) {
  for (auto& l : linears_in(linears)) l.layer->lora = std::nullopt;
}

}  // namespace haliax::nn::detail
