// Faults of checkpoint files: damaged files, full disks, killed saves and failing processes. The
// latest complete checkpoint loads, and a state is never loaded partially.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "haliax/checkpoint.h"
#include "graph/node.h"
#include "devices/shards.h"
#include "io/process_group.h"
#include "support/child.h"
#include "support/folder.h"
#include "support/raises.h"
#include "support/training.h"

using namespace haliax;
using namespace haliax::testing;
namespace fs = std::filesystem;

// ---- injected faults of write, fsync, mkdir and rename: full disks and killed processes ----
namespace {

struct DiskFault {
  enum Kind { none, full, killed } kind = none;
  long calls = 0;        // calls that succeed before the fault
  std::size_t amid = 0;  // bytes of the next write that are written
};
std::atomic<DiskFault*> of_all{nullptr};
thread_local DiskFault* of_this_thread = nullptr;
std::atomic<long> disk_calls{0};

DiskFault* fault_now() {
  ++disk_calls;
  auto* f = of_this_thread ? of_this_thread : of_all.load();
  return f && f->kind != DiskFault::none && __atomic_sub_fetch(&f->calls, 1, __ATOMIC_RELAXED) < 0
             ? f
             : nullptr;
}
int failed(const DiskFault& f) {
  if (f.kind == DiskFault::killed) kill(getpid(), SIGKILL);
  errno = ENOSPC;
  return -1;
}

}  // namespace

extern "C" {
ssize_t write(int file, const void* data, std::size_t bytes) {
  auto* f = file > 2 ? fault_now() : nullptr;
  if (!f) return syscall(SYS_write, file, data, bytes);
  if (f->amid > 0) static_cast<void>(!syscall(SYS_write, file, data, std::min(bytes, f->amid)));
  return failed(*f);
}
int fsync(int file) {
  auto* f = fault_now();
  return f ? failed(*f) : int(syscall(SYS_fsync, file));
}
int rename(const char* from, const char* to) noexcept {
  auto* f = fault_now();
  return f ? failed(*f) : int(syscall(SYS_rename, from, to));
}
int mkdir(const char* path, mode_t mode) noexcept {
  auto* f = fault_now();
  return f ? failed(*f) : int(syscall(SYS_mkdir, path, mode));
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  auto* f = fault_now();
  // Deleting files succeeds on a full disk.
  return f && f->kind == DiskFault::killed ? failed(*f)
                                           : int(syscall(SYS_unlinkat, folder, path, flags));
}
}

namespace {

std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void spill(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// Returns the warnings that `latest_checkpoint` prints on stderr.
template <class F> std::string warnings_of(const F& f) {
  std::fflush(stderr);
  Folder folder(memory_folder());
  auto path = folder / "stderr";
  int before = dup(2), file = open(path.c_str(), O_CREAT | O_WRONLY, 0600);
  dup2(file, 2);
  f();
  std::fflush(stderr);
  dup2(before, 2);
  close(before);
  close(file);
  return slurp(path);
}

// Two checkpoints of a run on one device: step 1, and step 2 with another state.
struct TwoSaved {
  Folder folder{memory_folder()};
  std::string run = folder / "run";
  Training first = initialized(layouts()[0]), second = initialized(layouts()[0]);
  std::vector<std::vector<std::byte>> bytes[2];
  fs::path step(int n) const { return fs::path(run) / ("step-0000000" + std::to_string(n)); }
  TwoSaved() {
    Checkpoints saves(run);
    saves.save(1, first);
    bytes[0] = bytes_of_all(first);
    trained(second, step_on(layouts()[0]), 1);
    saves.save(2, second);
    bytes[1] = bytes_of_all(second);
    saves.wait();
  }
  // Checks that the second checkpoint is refused with `reason`, and that the first one loads
  // instead, with a warning that names the second.
  void check_second_is_refused(const char* reason) {
    auto like = second;
    raises([&] { load_checkpoint(run, 2, like); },
           {"[load_checkpoint]", "step-00000002 is damaged", reason});
    auto warned = warnings_of([&] {
      auto got = latest_checkpoint(run, like);
      REQUIRE(got.has_value());
      CHECK(got->step == 1);
      CHECK(bytes_of_all(got->state) == bytes[0]);
    });
    CHECK(has(warned, "haliax: warning: [load_checkpoint]"));
    CHECK(has(warned, "step-00000002 is damaged and skipped: "));
    CHECK(has(warned, reason));
    CHECK(bytes_of_all(like) == bytes[1]);
  }
  int loads() const {  // the step of the latest complete checkpoint
    int step = -1;
    warnings_of([&] {
      auto got = latest_checkpoint(run, first);
      step = got ? int(got->step) : 0;
      if (step == 1 || step == 2) CHECK(bytes_of_all(got->state) == bytes[step - 1]);
    });
    return step;
  }
};

}  // namespace

TEST_CASE("checkpoint files: missing, truncated, extended or swapped files are refused") {
  TwoSaved saved;
  const auto state = saved.step(2) / "state.safetensors",
             manifest = saved.step(2) / "manifest.json";
  const auto good_state = slurp(state), good_manifest = slurp(manifest);
  const auto restore = [&] {
    spill(state, good_state);
    spill(manifest, good_manifest);
  };
  fs::remove(state);
  saved.check_second_is_refused("there is no state.safetensors");
  restore();
  fs::remove(manifest);
  saved.check_second_is_refused("there is no manifest.json");
  for (auto [path, good] : {std::pair(state, good_state), std::pair(manifest, good_manifest)})
    for (std::size_t size :
         {std::size_t(0), std::size_t(1), good.size() / 2, good.size() - 1, good.size() + 1}) {
      CAPTURE(size);
      restore();
      spill(path, size > good.size() ? good + "x" : good.substr(0, size));
      saved.check_second_is_refused(path == state ? "bytes, expected " : "manifest.json is ");
    }
  restore();
  spill(state, slurp(saved.step(1) / "state.safetensors"));
  // Its header contains the step.
  saved.check_second_is_refused("header is corrupt (checksum mismatch)");
  auto data = good_state;  // the same header, with the data of the other checkpoint
  auto other = slurp(saved.step(1) / "state.safetensors");
  std::copy(other.end() - 200, other.end(), data.end() - 200);
  restore();
  spill(state, data);
  saved.check_second_is_refused("are corrupt (checksum mismatch)");
  restore();
  spill(manifest, slurp(saved.step(1) / "manifest.json"));
  saved.check_second_is_refused("it is a checkpoint of step 1");
  restore();
  CHECK(saved.loads() == 2);
  fs::remove(state);
  fs::remove(saved.step(1) / "state.safetensors");
  warnings_of([&] {
    raises([&] { latest_checkpoint(saved.run, saved.first); },
           {"all checkpoints are damaged:", "step-00000002 is", "step-00000001 is"});
  });
}

TEST_CASE("checkpoint files: any flipped bit is detected") {
  TwoSaved saved;
  std::mt19937 random(7);
  for (auto name : {"state.safetensors", "manifest.json"}) {
    const auto path = saved.step(2) / name;
    const auto good = slurp(path);
    std::vector<std::size_t> places{0, 7, 8, good.size() - 1};
    for (std::size_t at = 9; at < good.size(); at += 1 + random() % 61) places.push_back(at);
    CHECK(places.size() > 100);
    for (auto at : places) {
      CAPTURE(at);
      auto bad = good;
      bad[at] = char(bad[at] ^ 1 << random() % 8);
      spill(path, bad);
      CHECK(has(message_of([&] { load_checkpoint(saved.run, 2, saved.first); }), "is damaged"));
    }
    spill(path, good);
  }
  CHECK(saved.loads() == 2);
}

TEST_CASE(
    "checkpoint files: a full disk raises at the next save, "
    "leaves no files, and later saves succeed") {
  TwoSaved saved;
  auto third = saved.second;
  trained(third, step_on(layouts()[0]), 1);
  disk_calls = 0;
  { Checkpoints(saved.run, {.keep = 0}).save(3, third); }
  const long calls = disk_calls;
  CHECK(calls > 5);
  fs::remove_all(saved.step(3));
  // The last call makes the renamed folder durable: if only that call fails, the checkpoint is
  // already saved.
  for (long n = 0; n + 1 < calls; ++n) {
    CAPTURE(n);
    Checkpoints saves(saved.run, {.keep = 0});
    DiskFault full{DiskFault::full, n, 100};
    of_all = &full;
    saves.save(3, third);
    std::string text = error_of([&] { saves.wait(); });
    of_all = nullptr;
    if (text.empty()) break;  // a call after the rename failed
    CHECK(has(text, "[Checkpoints]"));
    CHECK(has(text, "No space left on device"));
    CHECK(has(text, "checkpoint_faults_test"));
    CHECK(saved.loads() == 2);
    for (auto& e : fs::directory_iterator(saved.run))
      CHECK_FALSE(e.path().filename().string().starts_with(".saving"));
  }
  fs::remove_all(saved.step(3));
  Checkpoints saves(saved.run, {.keep = 0});
  DiskFault full{DiskFault::full, 2, 100};
  of_all = &full;
  saves.save(3, third);
  auto still_succeeds = [&] { return __atomic_load_n(&full.calls, __ATOMIC_RELAXED) >= 0; };
  while (fs::exists(fs::path(saved.run) / ".saving-step-00000003") || still_succeeds())
    std::this_thread::yield();
  of_all = nullptr;
  raises([&] { saves.save(3, third); }, {"[Checkpoints]", "No space left on device"});
  saves.save(4, third);  // the error is raised once
  saves.wait();
  CHECK(checkpoint_steps(saved.run) == std::vector<std::int64_t>{1, 2, 4});
}

TEST_CASE(
    "checkpoint files: after a killed save the latest "
    "complete checkpoint loads, and the next run saves") {
  TwoSaved saved;
  auto third = saved.second;
  trained(third, step_on(layouts()[0]), 1);
  const auto wanted = bytes_of_all(third);
  std::mt19937 random(3);
  int complete = 0, killed = 0;
  long n = 0;
  for (; n < 100; ++n) {
    CAPTURE(n);
    auto child = fork();
    if (child == 0) {
      alarm(60);
      test::leave_old_stacks();
      DiskFault dies{DiskFault::killed, n, random() % 20000};
      of_all = &dies;
      { Checkpoints(saved.run, {.keep = 2}).save(3, third); }
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    auto got = latest_checkpoint(saved.run, saved.first);
    REQUIRE(got.has_value());
    CHECK((got->step == 2 || got->step == 3));
    CHECK(bytes_of_all(got->state) == (got->step == 3 ? wanted : saved.bytes[1]));
    complete += got->step == 3;
    killed += WIFSIGNALED(status);
    // The next run removes the leftovers, and saves.
    { Checkpoints(saved.run, {.keep = 0}).save(9, saved.first); }
    CHECK(latest_checkpoint(saved.run, saved.first)->step == 9);
    for (auto& e : fs::directory_iterator(saved.run))
      CHECK_FALSE(e.path().filename().string().starts_with(".s"));
    fs::remove_all(fs::path(saved.run) / "step-00000009");
    fs::remove_all(saved.step(3));
    if (!WIFSIGNALED(status)) break;
    if (!fs::exists(saved.step(1))) {
      fs::create_directory(saved.step(1));
      fs::copy(saved.step(2), saved.step(1));
    }
  }
  CHECK(killed > 8);
  CHECK(killed == n);
  CHECK(complete > 1);  // some saves were killed while older checkpoints were deleted
}

// ---- several processes, as threads of this process ----
namespace {

struct Ranks {
  explicit Ranks(int n) : contributions(std::size_t(n)), meet(n), count(n) {}
  std::vector<std::string> contributions;
  std::barrier<> meet;
  int count;
  ProcessGroup group(int rank) {
    ProcessGroup g;
    g.rank = rank;
    g.count = count;
    g.rank_of = [n = count](const Mesh& mesh, int device) { return device * n / mesh.devices(); };
    g.all_gather = [this, rank](const std::string& mine) {
      contributions[std::size_t(rank)] = mine;
      meet.arrive_and_wait();
      auto all = contributions;
      meet.arrive_and_wait();
      return all;
    };
    return g;
  }
  // Runs f(group) for each rank and returns the error messages by rank.
  template <class F> std::vector<std::string> run(const F& f) {
    std::vector<std::string> errors((std::size_t(count)));
    std::vector<std::thread> threads;
    for (int r = 0; r < count; ++r)
      threads.emplace_back([&, r] {
        auto mine = group(r);
        errors[std::size_t(r)] = error_of([&] { f(mine); });
      });
    for (auto& t : threads) t.join();
    return errors;
  }
};
bool no_errors(const std::vector<std::string>& errors) {
  return std::all_of(errors.begin(), errors.end(), [](auto& e) { return e.empty(); });
}
const Shards* blocks_of(const NamedArray& a) {
  return dynamic_cast<const Shards*>(a.node()->value->device_storage());
}

// Checks that a process has exactly the blocks of its devices, and that they equal these parts of
// the full array.
void check_blocks(const NamedArray& got, const NamedArray& full, const ProcessGroup& group) {
  auto* s = blocks_of(got);
  REQUIRE(s != nullptr);
  const auto all = from_bytes(full.bytes(), s->dtype, s->axes);
  int mine = 0;
  for (int d = 0; d < s->mesh.devices(); ++d) {
    if (group.rank_of(s->mesh, d) != group.rank) continue;
    ++mine;
    REQUIRE((d >= s->first && d < s->first + int(s->blocks.size())));
    auto part = all;
    for (auto& a : s->axes) {
      auto [from, size] = block_of(a, s->at.mesh_axes(a.name), s->mesh, d);
      part = slice(part, a, from, size);
    }
    auto wanted = part.bytes();
    CHECK(std::equal(wanted.begin(), wanted.end(), s->blocks[std::size_t(d - s->first)]->data()));
  }
  CHECK(mine == int(s->blocks.size()));
}

}  // namespace

TEST_CASE("processes: each one writes its blocks once, and any number of processes load them") {
  const auto all = layouts();
  auto t = initialized(all[2]);
  Folder folder(memory_folder());
  Ranks four(4);
  CHECK(no_errors(four.run([&](const ProcessGroup& g) {
    Checkpoints saves(folder / "run", {.group = &g});
    saves.save(1, t);
    saves.save(2, t);
  })));
  CHECK(checkpoint_steps(folder / "run") == std::vector<std::int64_t>{1, 2});
  for (auto& a : flatten(t))
    if (!a.empty() && !blocks_of(a)->at.is_replicated()) CHECK_FALSE(a.node()->value->on_host());
  std::int64_t bytes = 0, there = 0;
  for (auto& a : flatten(t)) bytes += a.nbytes();
  for (int r = 1; r <= 4; ++r) {
    auto file = read_safetensors(
        folder /
        ("run/step-00000002/state-0000" + std::to_string(r) + "-of-00004.safetensors").c_str());
    for (auto& tensor : file.tensors) there += std::int64_t(tensor.data.size());
    CHECK(file.find("model.blocks.1.up.weight[mlp=" + std::string(r % 2 ? "0:6" : "6:12") +
                    ",embed=" + (r < 3 ? "0:4]" : "4:8]")));
  }
  CHECK(there == bytes);
  CHECK(bytes_of_all(load_checkpoint(folder / "run", 2, initialized(all[0])).state) ==
        bytes_of_all(t));
  for (int k : {1, 2, 4, 5}) {
    CAPTURE(all[std::size_t(k)].name);
    auto like = initialized(all[std::size_t(k)]);
    Ranks two(2);
    std::vector<std::optional<Training>> got(2);
    CHECK(no_errors(two.run([&](const ProcessGroup& g) {
      got[std::size_t(g.rank)] = latest_checkpoint(folder / "run", like, {.group = &g})->state;
    })));
    for (int r = 0; r < 2; ++r) {
      auto mine = flatten(*got[std::size_t(r)]), full = flatten(t);
      for (std::size_t i = 0; i < mine.size(); ++i) check_blocks(mine[i], full[i], two.group(r));
    }
  }
}

TEST_CASE("processes: each one reads only the bytes of its shard") {
  struct Large {
    NamedArray x;
  };
  const Axis Rows("rows", 1024), Columns("columns", 2048);  // 8 MiB
  auto make = [&] { return Large{random::normal(random::key(0), {Rows, Columns})}; };
  const std::int64_t all = 8 << 20;
  Folder folder(memory_folder());
  Mesh mesh{{{"data", 4}}};
  auto initialized_on = [&](const char* axis) {
    return named_jit(make, {.mesh = mesh, .axis_resources = Mapping{{axis, "data"}}})();
  };
  auto by_rows = initialized_on("rows"), by_columns = initialized_on("columns");
  Ranks four(4);
  auto save = [&](int step, const Large& l) {
    CHECK(no_errors(four.run(
        [&](const ProcessGroup& g) { Checkpoints(folder / "run", {.group = &g}).save(step, l); })));
  };
  auto most_read = [&](int step, const Large& like) {
    std::vector<std::int64_t> bytes(4);
    CHECK(no_errors(four.run([&](const ProcessGroup& g) {
      bytes[std::size_t(g.rank)] =
          load_checkpoint(folder / "run", step, like, {.group = &g}).bytes_read;
    })));
    return *std::max_element(bytes.begin(), bytes.end());
  };
  save(1, by_rows);
  Checkpoints(folder / "run").save(2, jit(make)());
  save(3, by_columns);
  CHECK(most_read(1, by_rows) == all / 4);  // saved on the same mesh
  CHECK(most_read(2, by_rows) == all / 4);  // saved by one process
  CHECK(most_read(3, by_columns) == all / 4);
  CHECK(most_read(3, by_rows) == all / 4);  // a quarter of each block
  CHECK(load_checkpoint(folder / "run", 3, make()).bytes_read == all);
  CHECK(load_checkpoint(folder / "run", 1, by_columns).bytes_read == all);
}

TEST_CASE(
    "processes: a fault in one raises in all, "
    "and a checkpoint that is damaged for one is skipped by all") {
  auto t = initialized(layouts()[2]);
  Folder folder(memory_folder());
  Ranks four(4);
  DiskFault full{DiskFault::full, 1, 100};
  std::vector<std::string> raised(4);
  CHECK(no_errors(four.run([&](const ProcessGroup& g) {
    Checkpoints saves(folder / "run", {.background = false, .group = &g});
    saves.save(1, t);
    if (g.rank == 2) of_this_thread = &full;
    raised[std::size_t(g.rank)] = error_of([&] { saves.save(2, t); });
    of_this_thread = nullptr;
    saves.save(3, t);
  })));
  for (auto& text : raised) {
    CHECK(has(text, "[Checkpoints] process 2: "));
    CHECK(has(text, "state-00003-of-00004.safetensors cannot be written: No space left on device"));
  }
  CHECK(checkpoint_steps(folder / "run") == std::vector<std::int64_t>{1, 3});

  const auto one = fs::path(folder / "run") / "step-00000003/state-00004-of-00004.safetensors";
  auto bytes = slurp(one);
  bytes.back() = char(bytes.back() ^ 4);
  spill(one, bytes);
  std::vector<std::int64_t> steps(4);
  auto warned = warnings_of([&] {
    CHECK(no_errors(four.run([&](const ProcessGroup& g) {
      steps[std::size_t(g.rank)] = latest_checkpoint(folder / "run", t, {.group = &g})->step;
    })));
  });
  CHECK(steps == std::vector<std::int64_t>(4, 1));
  CHECK(has(warned,
            "step-00000003 is damaged and skipped: process 3: state-00004-of-00004.safetensors"));
  // Swaps the files of two processes, which have the same size.
  fs::rename(one, one.string() + ".x");
  fs::rename(fs::path(folder / "run") / "step-00000003/state-00001-of-00004.safetensors", one);
  fs::rename(one.string() + ".x",
             fs::path(folder / "run") / "step-00000003/state-00001-of-00004.safetensors");
  CHECK(has(message_of([&] { load_checkpoint(folder / "run", 3, t); }), "is damaged"));

  auto others = four.run([&](const ProcessGroup& g) {
    Checkpoints saves(folder / "run", {.background = false, .group = &g});
    if (g.rank == 3)
      saves.save(4, t.model);
    else
      saves.save(4, t);
  });
  for (auto& text : others)
    CHECK(has(text, "process 3 saves a different state or step than process 0"));
}
