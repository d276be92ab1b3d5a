// llama: trains a Llama on sequences that follow a rule, on one device or a mesh. `--modes`
// compares layouts of the hidden states.
#include <cstdio>

#include "examples/command_line.h"
#include "examples/mesh_option.h"
#include "modes.h"

using namespace haliax;

int main(int argc, char** argv) {
  llama::Run run;
  run.verbose = true;
  std::string mesh, svg;
  auto& [model, Batch, Pos] = run.config;
  bool all = false;
  examples::CommandLine line(
      "Trains a Llama: rotary positions, grouped-query attention, RmsNorm, SwiGLU.");
  line.option("--steps", run.steps, "training steps").range(1, 1000000);
  line.option("--lr", run.learning_rate, "learning rate").positive();
  line.option("--policy", run.policy, "dtypes, as p=f32,c=bf16,r=f32");
  line.option("--batch", Batch.size, "examples per step").range(1, 1 << 20);
  line.option("--pos", Pos.size, "positions per example").range(2, 1 << 20);
  line.option("--embed", model.hidden_size, "width of the model").range(1, 1 << 20);
  line.option("--layers", model.num_hidden_layers, "layers").range(1, 1 << 10);
  line.option("--mesh", mesh,
              "mesh, as data=2,model=4, of threads or of the ranks that mpirun starts");
  line.flag("--scatters", run.mode.scatters,
            "shard positions along model between layers (reduce-scatter); "
            "default: replicated (all-reduce)");
  line.flag("--kept", run.mode.saves_activations,
            "save gathered values of a layer for the backward pass; default: gather them again");
  line.flag("--overlap", run.mode.overlap, "overlap collectives with computation");
  const auto modes = line.flag("--modes", all, "train in all of these modes and compare them");
  line.option("--svg", svg, "file for a picture of memory over time, with --modes").needs(modes);
  if (auto status = line.parse(argc, argv)) return *status;
  model.intermediate_size = 2 * model.hidden_size;
  try {
    if (!mesh.empty()) run.mesh = examples::mesh_option("llama", mesh);
    if (all)
      llama::compare_modes(run, run.mesh ? *run.mesh : examples::mesh_option("llama", "model=4"),
                           svg);
    else
      llama::train(run);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
