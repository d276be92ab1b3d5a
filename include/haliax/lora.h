// Low-rank adapters (LoRA) for the linear layers of any model. See docs/how-to/fine-tuning.md.
#pragma once
#include <string>
#include <vector>

#include "haliax/nn.h"

namespace [[gnu::visibility("default")]] haliax {
namespace nn {

/// Options of `with_lora`.
struct LoraOptions {
  /// The adapter is multiplied by `alpha / rank`. Not set: by 1.
  std::optional<double> alpha = {};
};

namespace detail {
// The modules of `linears` are the `Linear` of a model.
void add_lora(const Walk& linears, const std::vector<std::string>& modules, std::int64_t rank,
              const Key& key, const LoraOptions& options, SourceLocation at);
void merge_lora(const Walk& linears);
void remove_lora(const Walk& linears);
template <class T> Walk linears_of(T& model) {
  return haliax::detail::walk_of_modules<Linear>(model, false);
}
}  // namespace detail

/// @name Low-rank adapters
/// @{

/// Returns the model with an adapter in each selected `Linear` (Hu et al. 2021): the layer adds
/// `alpha / rank * B(A(x))`, where `A` maps its input to `rank` features and `B` maps them to its
/// output. The model needs no code for this. `A` is uniform between `-1 / sqrt(size of In)` and
/// `1 / sqrt(size of In)`, and `B` is 0, as in PEFT, so the results do not change at first.
///
///     auto tuned = nn::with_lora(model, {"q_proj", "v_proj"}, 8, key, {.alpha = 16});
///     auto state = optimizer.init(trainable(tuned, "lora"));   // trains the adapters only
///     model = nn::merge_lora(tuned);
///
/// In layers of a `Stacked`, each layer has an adapter of its own.
///
/// @param model    a tree
/// @param modules  paths of the layers. A path may omit its first fields: `"q_proj"` selects all
///                 layers of this name. `*` stands for any characters
/// @param rank     number of features
/// @param key      random key
/// @param options  scale
/// @throws haliax::Error if an entry of `modules` selects no `Linear`, if a selected layer has an
///     adapter already, or if `rank` is less than 1
template <class T>
T with_lora(T model, const std::vector<std::string>& modules, std::int64_t rank, const Key& key,
            LoraOptions options = {}, SourceLocation at = SourceLocation::current()) {
  detail::add_lora(detail::linears_of(model), modules, rank, key, options, at);
  return model;
}
/// Returns the model with all adapters added to their weights. The results are equal up to
/// rounding.
template <class T> T merge_lora(T model) {
  detail::merge_lora(detail::linears_of(model));
  return model;
}
/// Returns the model without adapters. The weights do not change.
template <class T> T without_lora(T model) {
  detail::remove_lora(detail::linears_of(model));
  return model;
}

/// @}

}  // namespace nn
}  // namespace haliax
