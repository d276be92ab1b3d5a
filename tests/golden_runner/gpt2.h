// The group `gpt2`: the GPT-2 of examples/gpt2, trained as Haliax trains it, in several variants
// with equal results.
#pragma once
#include <optional>
#include <string>

#include "case.h"
#include "haliax/jit.h"

namespace golden {

struct Layout {
  haliax::Mesh mesh;
  haliax::Mapping parameters, inside;  // inside: the mapping of the loss computation
};
struct Variant {
  const char* name = "";
  bool vmap = false;                  // a loss per example with its own key, mapped over the batch
  std::optional<Layout> layout = {};  // none: one device
  bool chunked = false;               // a loss that never materializes all logits
  bool overlap = false;               // collectives run concurrently with computation
  // The training steps to run. With fewer steps than the case has, final weights are not checked.
  std::int64_t most_steps = 1000;
};
inline const Variant plain{};
inline const Layout fsdp{haliax::Mesh{{{"data", 2}}}, {{"embed", "data"}}, {{"batch", "data"}}};
inline const Variant variants[] = {{.name = "vmap", .vmap = true},
                                   {.name = "fsdp", .layout = fsdp},
                                   // The training script of the Levanter introduction.
                                   {.name = "fsdp-vmap", .vmap = true, .layout = fsdp},
                                   {.name = "chunked", .chunked = true},
                                   {.name = "all", .vmap = true, .layout = fsdp, .chunked = true}};

struct Gpt2Run {
  Problems problems;
  std::vector<double> losses;
  haliax::JitReport step;  // the report of the training step
};
// Checks logits, loss, every gradient, the training steps, final weights and greedy tokens of one
// case of the group.
Gpt2Run run_gpt2(const Group&, const Value& c, const Variant&, const std::string& backend);

// Runs the layouts of docs/how-to/parallelism.md on a mesh of all ranks. Checks the values of the
// case, and that results are bitwise identical to the results of the same mesh with threads.
Problems run_gpt2_on_ranks(const Group&, const Value& c, const std::string& backend);

}  // namespace golden
