// checkpoint DIR: lists the checkpoints of a folder. checkpoint DIR --one FILE: writes the arrays
// of one checkpoint to one safetensors file, which Python can read.
#include <cstdio>
#include <string>

#include "examples/command_line.h"
#include "haliax/checkpoint.h"

namespace {

int run(int argc, char** argv) {
  examples::CommandLine line(
      "Checkpoints of a training: lists them, or makes one safetensors file of one.");
  std::string folder, file, prefix;
  std::int64_t step = -1;
  line.option("folder", folder, "what Checkpoints writes into").required();
  const auto one = line.option(
      "--one", file, "write all arrays into this file: whole, whatever mesh has saved them");
  line.option("--step", step, "of this step; else of the latest").not_negative().needs(one);
  line.option("--prefix", prefix, "only arrays whose names begin so, without it: model.")
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
