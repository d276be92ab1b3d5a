// checkpoint DIR: which checkpoints a folder has. checkpoint DIR --one FILE: one safetensors file of the arrays of one of them,
// as Python reads it.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "haliax/checkpoint.h"

namespace {

int run(int argc, char** argv) {
  CLI::App app{"Checkpoints of a training: lists them, or makes one safetensors file of one."};
  std::string folder, file, prefix;
  std::int64_t step = -1;
  app.add_option("folder", folder, "what Checkpoints writes into")->required();
  auto* one = app.add_option("--one", file, "write all arrays into this file: whole, whatever mesh has saved them");
  app.add_option("--step", step, "of this step; else of the latest")->check(CLI::NonNegativeNumber)->needs(one);
  app.add_option("--prefix", prefix, "only arrays whose names begin so, without it: model.")->needs(one);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) { return app.exit(e); } catch (const CLI::ParseError& e) {
    std::fprintf(stderr, "checkpoint: %s\n", e.what());
    return 2;
  }
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
