// The group `gpt2`: the GPT-2 of examples/gpt2, trained as Haliax trains it, in several ways that
// must all come to the same.
#pragma once
#include <optional>
#include <string>

#include "case.h"
#include "haliax/jit.h"

namespace golden {

struct Layout {
  haliax::Mesh mesh;
  haliax::Mapping parameters, inside;  // inside: of what the loss computes
};
struct Variant {
  const char* name = "";
  bool vmap = false;  // a loss for each example, each with its own key, mapped over the batch
  std::optional<Layout> layout = {};  // none: one device
  bool chunked = false;               // a loss that never holds all logits
  bool overlap = false;               // calls go on beside the work
  // of training; with fewer than there are, nothing is said about final weights
  std::int64_t most_steps = 1000;
};
inline const Variant plain{};
inline const Layout fsdp{haliax::Mesh{{{"data", 2}}}, {{"embed", "data"}}, {{"batch", "data"}}};
inline const Variant variants[] = {{.name = "vmap", .vmap = true},
                                   {.name = "fsdp", .layout = fsdp},
                                   // the overview's own training script
                                   {.name = "fsdp-vmap", .vmap = true, .layout = fsdp},
                                   {.name = "chunked", .chunked = true},
                                   {.name = "all", .vmap = true, .layout = fsdp, .chunked = true}};

struct Gpt2Run {
  Problems problems;
  std::vector<double> losses;
  haliax::JitReport step;  // of the training step
};
// Logits, loss, every gradient, the training steps, final weights and greedy tokens of one case of
// the group.
Gpt2Run run_gpt2(const Group&, const Value& c, const Variant&, const std::string& backend);

// The layouts of docs/sharding.md on a mesh of all ranks: the case's numbers, and the bits of the
// same mesh as threads.
Problems run_gpt2_on_ranks(const Group&, const Value& c, const std::string& backend);

}  // namespace golden
