// checkpoint [FOLDER [ROUNDS]]: writes and reads the training state of a GPT-2 with 124 million
// parameters under AdamW, alternating with plain writes and reads of as many bytes. Also measures a
// step directly after a save.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "examples/command_line.h"
#include "examples/models/gpt2.h"
#include "haliax/checkpoint.h"

namespace {

using namespace haliax;
namespace fs = std::filesystem;
using Model = models::GPT2LMHeadModel;
struct Training {
  Model model;
  optim::State<optim::AdamW, Model> state;
  Key key;
  static Training init() {
    auto model = Model::init(models::GPT2Config(), random::key(0));  // 124 M
    return {model, optim::adamw().init(model), random::key(1)};
  }
};

template <class F> double seconds_of(const F& f) {
  auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
constexpr std::size_t kMiB = 1 << 20;
// Writes as `dd bs=1M conv=fsync` does.
void write_plain(const std::string& path, std::int64_t bytes) {
  const std::vector<char> data(kMiB, 1);
  int file = open(path.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
  for (std::int64_t left = bytes; left > 0; left -= std::int64_t(kMiB))
    if (write(file, data.data(), std::size_t(std::min<std::int64_t>(left, kMiB))) < 0)
      throw Error("[bench] the disk is full");
  fsync(file);
  close(file);
}
void read_plain(const std::string& path) {
  std::vector<char> data(kMiB);
  int file = open(path.c_str(), O_RDONLY);
  while (read(file, data.data(), data.size()) > 0) {}
  close(file);
}
void forget(const fs::path& folder) {  // drops the page cache of the files in the folder
  for (auto& e : fs::recursive_directory_iterator(folder))
    if (int file = open(e.path().c_str(), O_RDONLY); file >= 0) {
      posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
      close(file);
    }
}
struct Times {
  const char* what;
  std::vector<double> all = {};
  void print(double mb) {
    std::sort(all.begin(), all.end());
    fmt::print("{:<28}best {:.2f} s ({:.0f} MB/s), median {:.2f} s\n", what, all[0], mb / all[0],
               all[all.size() / 2]);
  }
};

int run(const fs::path& folder, int rounds) {
  auto t = jit(&Training::init)();
  std::int64_t bytes = 0;
  for (auto& a : flatten(t)) bytes += a.empty() ? 0 : a.nbytes();
  const double mb = double(bytes) / 1e6;
  fmt::print("a state of {:.0f} MB\n", mb);
  const std::string plain = folder / "plain", saved = folder / "saved";
  fs::create_directories(folder);
  Times times[] = {{"written plainly"}, {"saved"}, {"read plainly"}, {"loaded"}};
  const auto like = eval_shape(&Training::init);
  for (int r = 0; r < rounds; ++r) {
    for (int k : {r % 2, 1 - r % 2})  // alternates the order, since the first writer finds another
                                      // state of the page cache
      times[k].all.push_back(seconds_of([&] {
        if (k == 0)
          write_plain(plain, bytes);
        else
          Checkpoints(saved, {.background = false}).save(1, t);
      }));
    forget(folder);
    for (int k : {r % 2, 1 - r % 2})
      times[2 + k].all.push_back(seconds_of([&] {
        if (k == 0)
          read_plain(plain);
        else
          load_checkpoint(saved, 1, like);
      }));
    fs::remove(plain);
    fs::remove_all(saved);
  }
  for (auto& each : times) each.print(mb);

  // A step that overwrites the full state and does little else.
  auto step = jit(
      [](const Training& now) {
        return tree_map([](const NamedArray& a) { return is_float(a.dtype()) ? a * 1.0001 : a; },
                        now);
      },
      {.donate = {0}});
  for (int i = 0; i < 3; ++i) t = step(t);
  Times waits[] = {{"a step"}, {"a step right after a save"}, {"a copy of all, as memcpy"}};
  for (int r = 0; r < rounds; ++r) {
    waits[0].all.push_back(seconds_of([&] { t = step(t); }));
    Checkpoints saves(saved);
    saves.save(r, t);
    waits[1].all.push_back(seconds_of([&] { t = step(t); }));
    saves.wait();
    waits[2].all.push_back(seconds_of([&] {
                             std::vector<NamedArray> copies;
                             for (auto& a : flatten(t))
                               // from_bytes copies twice, hence the division by 2.
                               if (!a.empty())
                                 copies.push_back(from_bytes(a.bytes(), a.dtype(), a.axes()));
                           }) /
                           2);
  }
  for (auto& each : waits) each.print(mb);
  fs::remove_all(saved);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder = "checkpoint-bench";
  int rounds = 5;
  examples::CommandLine line(
      "Times the checkpoints of a GPT-2 with 124 million parameters and AdamW (1.5 GB).");
  line.option("folder", folder, "folder for the files, which are deleted at the end");
  line.option("rounds", rounds, "number of timed writes and reads").range(1, 1000000);
  if (auto status = line.parse(argc, argv)) return *status;
  try {
    return run(folder, rounds);
  } catch (const std::exception& e) {
    fmt::print(stderr, "checkpoint: {}\n", e.what());
    return 1;
  }
}
