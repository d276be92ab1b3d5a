// Checkpoints: values that were saved load on any mesh, old checkpoints are removed, and mismatches
// raise.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <thread>

#include "haliax/checkpoint.h"
#include "io/checksum.h"
#include "graph/node.h"
#include "devices/shards.h"
#include "support/folder.h"
#include "support/memory.h"
#include "support/raises.h"
#include "support/training.h"

using namespace haliax;
using namespace haliax::testing;
namespace fs = std::filesystem;

namespace {

const Shards* blocks_of(const NamedArray& a) {
  return dynamic_cast<const Shards*>(a.node()->value->device_storage());
}
bool is_put_together(const NamedArray& a) { return a.node()->value->on_host(); }
struct Large {
  NamedArray first, second;
};

}  // namespace

TEST_CASE("checkpoints: XXH64 matches reference values") {
  auto sum = [](std::string_view text) { return xxh64(std::as_bytes(std::span(text))); };
  CHECK(sum("") == 0xEF46DB3751D8E999);
  CHECK(sum("a") == 0xD24EC4F1A98C6E5B);
  CHECK(sum("abc") == 0x44BC2CF5AD770999);
  CHECK(sum("Nobody inspects the spammish repetition") == 0xFBCEA83C8A378BF1);
}

TEST_CASE("checkpoints: the file of one process equals the output of to_state_dict") {
  Folder folder(memory_folder());
  auto t = initialized(layouts()[0]);
  Checkpoints(folder / "run").save(12, t, {{"position", 34}, {"seed", -1}});
  auto file = read_safetensors(folder / "run/step-00000012/state.safetensors");
  auto wanted = to_state_dict(t);
  REQUIRE(file.tensors.size() == wanted.tensors.size());
  for (auto& tensor : wanted.tensors) {
    CAPTURE(tensor.name);
    auto& there = file.at(tensor.name);
    CHECK(there.shape == tensor.shape);
    CHECK(there.dtype == tensor.dtype);
    CHECK(there.data == tensor.data);
  }
  CHECK(file.find("model.blocks.2.up.weight") != nullptr);

  auto got = load_checkpoint(folder / "run", 12, eval_shape(&Training::init));
  CHECK(got.step == 12);
  CHECK(got.number("position") == 34);
  CHECK(got.number("seed") == -1);
  raises([&] { return got.number("postion"); }, {"no number postion", "did you mean position"});
  CHECK(bytes_of_all(got.state) == bytes_of_all(t));
}

TEST_CASE(
    "checkpoints: any mesh loads the checkpoint of any other mesh, "
    "without materializing full arrays") {
  Folder folder(memory_folder());
  int step = 0;
  for (auto& from : layouts()) {
    auto saved = initialized(from);
    Checkpoints(folder / "run", {.keep = 0}).save(++step, saved);
    for (auto* a : walk_of(saved).arrays)
      if (auto* s = blocks_of(*a); s && !s->at.is_replicated()) CHECK_FALSE(is_put_together(*a));
    const auto wanted = bytes_of_all(saved);
    for (auto& to : layouts()) {
      CAPTURE(from.name);
      CAPTURE(to.name);
      auto like = initialized(to);
      auto got = load_checkpoint(folder / "run", step, like).state;
      auto placed = walk_of(like).arrays;
      std::size_t k = 0;
      for (auto* a : walk_of(got).arrays) {
        auto there = placement(*placed[k++]), is = placement(*a);
        CHECK((there == nullptr) == (is == nullptr));
        if (there && is) CHECK(*there == *is);
        if (auto* s = blocks_of(*a)) {
          CHECK_FALSE(is_put_together(*a));
          CHECK(s->at == sharding_for(a->axes(), to.params, to.mesh, ""));
        }
      }
      CHECK(bytes_of_all(got) == wanted);
    }
  }
}

TEST_CASE("checkpoints: loading needs only the shapes, and uses the mesh in scope") {
  Folder folder(memory_folder());
  auto one = layouts()[0], sharded = layouts()[1];
  Checkpoints(folder / "run").save(1, initialized(one));
  use_mesh here(sharded.mesh);
  axis_mapping mapping(sharded.params);
  auto got = load_checkpoint(folder / "run", 1, eval_shape(&Training::init)).state;
  auto& weight = got.model.blocks.stacked.up.weight;
  REQUIRE(blocks_of(weight) != nullptr);
  CHECK(placement(weight)->mesh == sharded.mesh);
  CHECK(bytes_of_all(got) == bytes_of_all(initialized(one)));
}

TEST_CASE(
    "checkpoints: a resumed run is bitwise identical on the same mesh, "
    "and within 1e-6 on another one") {
  const auto all = layouts();
  std::vector<decltype(step_on(all[0]))> step;
  std::vector<Training> likes;
  for (auto& layout : all) {
    step.push_back(step_on(layout));
    likes.push_back(initialized(layout));
  }

  for (std::size_t from = 0; from < all.size(); ++from) {
    Folder folder(memory_folder());
    auto t = initialized(all[from]);
    trained(t, step[from], 2);
    Checkpoints(folder / "run").save(2, t);
    const auto rest = trained(t, step[from], 2);
    const auto wanted = bytes_of_all(t);
    for (std::size_t to = 0; to < all.size(); ++to) {
      if (to != from && from != 0 && from != 2)
        continue;  // each layout resumes on itself, and these two resume on all
      CAPTURE(all[from].name);
      CAPTURE(all[to].name);
      auto resumed = latest_checkpoint(folder / "run", likes[to]);
      REQUIRE(resumed.has_value());
      CHECK(resumed->step == 2);
      auto repeated = trained(resumed->state, step[to], 2);
      if (from == to) CHECK(repeated == rest);
      if (from == to) CHECK(bytes_of_all(resumed->state) == wanted);
      for (std::size_t i = 0; i < rest.size(); ++i)
        CHECK(std::abs(repeated[i] - rest[i]) <= 1e-6 * std::abs(rest[i]));
    }
    CHECK(step[from].report().traces ==
          1);  // loaded arrays have the shardings of the saved ones, so there is no second trace
  }
}

TEST_CASE("checkpoints: donating arrays while they are saved does not change the checkpoint") {
  for (auto& layout : {layouts()[0], layouts()[2]}) {
    CAPTURE(layout.name);
    Folder folder(memory_folder());
    auto step = step_on(layout);
    auto t = initialized(layout);
    Checkpoints saves(folder / "run", {.keep = 0});
    std::vector<std::vector<std::vector<std::byte>>> wanted;
    for (int i = 0; i < 6; ++i) {
      saves.save(i, t);
      auto copy = tree_map(
          [](const NamedArray& a) { return from_bytes(a.bytes(), a.dtype(), a.axes()); }, t);
      wanted.push_back(bytes_of_all(copy));
      trained(t, step, 3);
    }
    saves.wait();
    for (int i = 0; i < 6; ++i)
      CHECK(bytes_of_all(load_checkpoint(folder / "run", i, initialized(layout)).state) ==
            wanted[std::size_t(i)]);
  }
}

TEST_CASE(
    "checkpoints: only the last ones are retained, and a checkpoint of the same step is replaced") {
  Folder folder(memory_folder());
  auto t = initialized(layouts()[0]);
  CHECK_FALSE(latest_checkpoint(folder / "run", t).has_value());  // there is no folder yet
  Checkpoints saves(folder / "run", {.keep = 2});
  CHECK_FALSE(latest_checkpoint(folder / "run", t).has_value());
  for (int step : {1, 5, 30}) saves.save(step, t);
  saves.wait();
  CHECK(checkpoint_steps(folder / "run") == std::vector<std::int64_t>{5, 30});
  auto other = tree_map([](const NamedArray& a) { return a + 1; }, t);
  for (int i = 0; i < 3; ++i) saves.save(30, i == 2 ? other : t, {{"time", i}});
  saves.wait();
  CHECK(checkpoint_steps(folder / "run") == std::vector<std::int64_t>{5, 30});
  auto got = latest_checkpoint(folder / "run", t);
  CHECK(got->number("time") == 2);
  CHECK(bytes_of_all(got->state) == bytes_of_all(other));
  std::size_t folders = 0;
  for (auto& e : fs::directory_iterator(folder / "run")) folders += e.is_directory();
  CHECK(folders == 2);
  raises([&] { load_checkpoint(folder / "run", 1, t); },
         {"[load_checkpoint]", "no checkpoint of step 1", "5, 30", "checkpoint_test"});
}

TEST_CASE("checkpoints: a checkpoint of another model raises with the first ten differences") {
  Folder folder(memory_folder());
  auto t = initialized(layouts()[0]);
  Checkpoints(folder / "run").save(1, t);
  struct Other {
    Net model;
    Key keys;
  };
  raises(
      [&] {
        load_checkpoint(folder / "run", 1, Other{t.model, t.key});
      },
      {"[load_checkpoint]", "is of another model", "keys.words is missing; did you mean key.words?",
       "state.0.mu.norm", "is unexpected", "more; checkpoint_test.cpp:"});
  auto narrow = t;
  narrow.model = tree_map([](const NamedArray& a) { return a.astype(DType::bf16); }, t.model);
  narrow.model.norm.weight = ones({Mlp});
  const auto before = bytes_of_all(narrow);
  auto text = message_of([&] { latest_checkpoint(folder / "run", narrow); });
  CHECK(has(text, "6 arrays do not match"));
  CHECK(has(text, "model.norm.weight is (embed=8), but the model expects (mlp=12)"));
  CHECK(has(text, "model.blocks.{}.up.bias is f32, but the model expects bf16"));
  CHECK(bytes_of_all(narrow) == before);  // no array was loaded
}

TEST_CASE("checkpoints: one run at a time writes into a folder") {
  Folder folder(memory_folder());
  auto t = initialized(layouts()[0]);
  auto first = std::make_unique<Checkpoints>(folder / "run");
  first->save(1, t);
  first->wait();
  raises([&] { Checkpoints(folder / "run"); },
         {"[Checkpoints]", "another job (process ", "use another folder", "checkpoint_test"});
  CHECK(latest_checkpoint(folder / "run", t)->step == 1);  // reading needs no write permission
  first = nullptr;
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  auto child = fork();
  if (child == 0) {
    Checkpoints held(folder / "run");
    static_cast<void>(!write(ready[1], "x", 1));
    for (;;) pause();
  }
  char x;
  REQUIRE(read(ready[0], &x, 1) == 1);
  raises([&] { Checkpoints(folder / "run"); }, {("process " + std::to_string(child)).c_str()});
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  Checkpoints(folder / "run").save(2, t);  // the folder is released when the writer is destroyed
  CHECK(latest_checkpoint(folder / "run", t)->step == 2);
}

TEST_CASE("checkpoints: a forked child does not affect the saves of its parent") {
  Folder folder(memory_folder());
  auto t = initialized(layouts()[0]);
  Checkpoints saves(folder / "run");
  saves.save(1, t);
  auto child = fork();
  if (child == 0) {
    alarm(60);
    saves.~Checkpoints();
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  saves.save(2, t);
  saves.wait();
  CHECK(latest_checkpoint(folder / "run", t)->step == 2);
}

TEST_CASE("checkpoints: states that cannot be saved raise") {
  Folder folder(memory_folder());
  auto t = initialized(layouts()[0]);
  std::ofstream(folder / "file") << "text";
  raises([&] { Checkpoints(folder / "file"); },
         {"[Checkpoints]", "file cannot be created", "checkpoint_test"});
  raises([&] { Checkpoints(folder / "file/inside"); },
         {"[Checkpoints]", "inside cannot be created: Not a directory"});
  Checkpoints saves(folder / "run");
  raises([&] { saves.save(-1, t); }, {"[Checkpoints] step -1 is negative", "checkpoint_test"});
  struct Twice {
    Net a, b;
  };
  Checkpoints same(folder / "same", {.names = {{"a", "m"}, {"b", "m"}}});
  raises(
      [&] {
        same.save(1, Twice{t.model, t.model});
      },
      {"[Checkpoints] two arrays have the name m.", "checkpoint_test"});
  raises(
      [&] {
        jit([&](const Net& m) {
          saves.save(1, m);
          return m.norm(ones({Embed}));
        })(t.model);
      },
      {"jit"});  // arrays have no values while tracing
  CHECK(checkpoint_steps(folder / "run").empty());
}

TEST_CASE("checkpoints: a folder without write permission raises") {
  Folder folder(memory_folder());
  fs::create_directory(folder / "run");
  fs::permissions(folder / "run", fs::perms::owner_read | fs::perms::owner_exec |
                                      fs::perms::others_read | fs::perms::others_exec);
  fs::permissions(folder.path, fs::perms::all);
  auto child = fork();
  if (child == 0) {
    alarm(60);
    if (getuid() == 0 && setuid(65534) != 0) _exit(3);  // root may write everywhere
    auto text = message_of([&] { Checkpoints(folder / "run"); });
    _exit(has(text, "run/.lock cannot be opened: Permission denied") ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
}

TEST_CASE("checkpoints: write_one_file merges all blocks into one safetensors file") {
  Folder folder(memory_folder());
  auto t = initialized(layouts()[2]);
  Checkpoints(folder / "run").save(1, t);
  CHECK(read_safetensors(folder / "run/step-00000001/state.safetensors")
            .find("model.blocks.1.up.weight[mlp=6:12,embed=0:4]"));
  write_one_file(folder / "run", 1, folder / "all.safetensors");
  write_safetensors(folder / "wanted.safetensors", to_state_dict(t));
  auto all = read_safetensors(folder / "all.safetensors"),
       wanted = read_safetensors(folder / "wanted.safetensors");
  REQUIRE(all.tensors.size() == wanted.tensors.size());
  for (auto& w : wanted.tensors) {
    CHECK(all.at(w.name).data == w.data);
    CHECK(all.at(w.name).shape == w.shape);
  }
  write_one_file(folder / "run", 1, folder / "model.safetensors", "model.");
  auto model =
      from_state_dict(read_safetensors(folder / "model.safetensors"), Net::init(random::key(3)));
  CHECK(bytes_of_all(model) == bytes_of_all(t.model));
  raises([&] { write_one_file(folder / "run", 1, folder / "x", "mdel."); },
         {"[write_one_file]", "the prefix mdel."});
  raises([&] { write_one_file(folder / "run", 2, folder / "x"); },
         {"[write_one_file]", "no checkpoint of step 2"});
  CHECK_FALSE(fs::exists(folder / "x"));
}

TEST_CASE("checkpoints: extra memory of saving and loading") {
  const Axis Rows("rows", 4096), Columns("columns", 2048);  // 32 MiB each
  const std::int64_t mib = 1 << 20, each = 32 * mib, slack = 6 * mib;
  auto make = [&] {
    return Large{random::normal(random::key(0), {Rows, Columns}),
                 random::normal(random::key(1), {Rows, Columns})};
  };
  Folder folder(memory_folder());
  Mesh mesh{{{"data", 4}}};
  Mapping by_columns{{"columns", "data"}};
  auto t = named_jit(make, {.mesh = mesh, .axis_resources = by_columns})();
  Checkpoints saves(folder / "run");
  auto save = [&] {
    saves.save(1, t);
    saves.wait();
  };
  // Blocks are written directly from their memory.
  CHECK(peak_growth_of(save) < slack * resident_per_byte);
  auto step = named_jit(
      [](const Large& l) { return tree_map([](const NamedArray& a) { return a * 0.5; }, l); },
      {.donate = {0}, .mesh = mesh, .axis_resources = by_columns});
  t = step(t);
  auto and_step = [&] {
    saves.save(2, t);
    t = step(t);
    saves.wait();
  };
  // A donated step during a save needs one copy of the state.
  CHECK(peak_growth_of(and_step) < (2 * each + slack) * resident_per_byte);
  t = {};
  use_mesh here(mesh);
  axis_mapping mapping(by_columns);
  auto load = [&] { t = load_checkpoint(folder / "run", 1, eval_shape(make)).state; };
  CHECK(peak_growth_of(load) < (2 * each + slack) * resident_per_byte);  // the state itself
}
