// checkpoint DIR: lists the checkpoints of a folder. checkpoint DIR --one FILE: writes the arrays
// of one checkpoint to one safetensors file, which Python can read.
#include <cstdio>
#include <string>

#include "examples/command_line.h"
#include "haliax/checkpoint.h"

namespace {

int run(int argc, char** argv) {
  examples::CommandLine line(
      "Lists the checkpoints of a training run, or converts one to a safetensors file.");
  std::string folder, file, prefix;
  std::int64_t step = -1;
  line.option("folder", folder, "folder of the checkpoints").required();
  const auto one = line.option(
      "--one", file,
      "write all arrays, unsharded, to this safetensors file; default: list the checkpoints");
  line.option("--step", step, "step of the checkpoint; default: the latest")
      .not_negative()
      .needs(one);
  line.option(
          "--prefix", prefix,
          "write only arrays with this prefix, such as model., and remove the prefix from their "
          "names; default: all arrays")
      .needs(one);
  if (auto status = line.parse(argc, argv)) return *status;
  auto steps = haliax::checkpoint_steps(folder);
  if (steps.empty()) {
    std::fprintf(stderr, "checkpoint: %s has no checkpoint\n", folder.c_str());
    return 1;
  }
  if (file.empty())
    for (auto s : steps) std::printf("step %lld\n", static_cast<long long>(s));
  else
    haliax::write_one_file(folder, step < 0 ? steps.back() : step, file, prefix);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "checkpoint: %s\n", e.what());
    return 1;
  }
}
