// A gathered value is read at once: the check refuses plans that retain it, and poison overwrites
// it after its last reader.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>

#include "haliax/jit.h"
#include "haliax/ops.h"
#include "haliax/random.h"
#include "program/devices.h"
#include "compile/debug_options.h"
#include "compile/memory/memory.h"

using namespace haliax;
using program::Home;
using program::Program;
using program::Step;

namespace {

// Slots of four floats each: 0 an argument, 1 gathered, 2 a result, 3 a saved value.
Program start() {
  Program p;
  p.arguments = p.results = 1;
  p.argument_slots = {0};
  p.result_slots = {2};
  p.slots = {
      {16, Home::argument, 0}, {16, Home::arena, -1}, {16, Home::result, 0}, {16, Home::arena, -1}};
  p.slots[1].gathered = true;
  return p;
}
program::View view(int slot) { return {slot, DType::f32, 0, {1}, {}}; }
Step copied(int from, int to) {
  Step s;
  s.kind = program::Kind::copy;
  s.copy = {{4}, view(from), view(to)};
  return s;
}
Step gathered(int from, int to) {
  Step s;
  s.kind = program::Kind::collective;
  s.collective.kind = program::CollectiveKind::all_gather;
  s.collective.x = {{{2}, view(from)}};
  s.collective.out = {{{4}, view(to)}};
  s.where = "model.cpp:7";
  return s;
}
Step loop(std::vector<Step> body) {
  Step s;
  s.kind = program::Kind::loop;
  s.loop.trips = 3;
  s.body = std::move(body);
  return s;
}
std::string refused(const Program& p) {
  try {
    check_gathered(p);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

struct Poison {  // for the duration of a scope
  // set by default in a debug build
  explicit Poison(bool on = true) { setenv("HALIAX_POISON", on ? "1" : "0", 1); }
  ~Poison() { unsetenv("HALIAX_POISON"); }
};

}  // namespace

TEST_CASE("gathered: a value that is read in its own iteration is legal") {
  auto p = start();
  p.steps = {gathered(0, 1), loop({copied(1, 3)}), copied(3, 2)};
  CHECK(refused(p) == "");
  p.steps = {loop({gathered(0, 1), copied(1, 3)}), copied(3, 2)};
  CHECK(refused(p) == "");
}
TEST_CASE("gathered: an output, a carry or a residual raises") {
  auto p = start();
  p.steps = {gathered(0, 2)};
  p.slots[2].gathered = true;
  CHECK(refused(p).find("a result is gathered") != std::string::npos);

  p = start();
  p.steps = {gathered(0, 1), copied(1, 2)};
  p.slots[0].gathered = true;
  CHECK(refused(p).find("an argument is gathered") != std::string::npos);

  p = start();
  p.steps = {copied(1, 2), gathered(0, 1)};
  CHECK(refused(p).find("it is read before it is written") != std::string::npos);

  p = start();
  p.steps = {gathered(0, 1), copied(1, 2)};
  p.slots[2].alias = 1;
  CHECK(refused(p).find("a result shares memory with a gathered value") != std::string::npos);

  p = start();
  p.steps = {loop(
      {copied(1, 2), gathered(0, 1)})};  // the next iteration reads a value that this one gathers
  CHECK(refused(p).find("a loop carry is gathered") != std::string::npos);

  p = start();
  p.steps = {loop({gathered(0, 1)}), copied(1, 2)};
  CHECK(refused(p).find("a gathered value is read after the loop that gathered it") !=
        std::string::npos);

  p = start();
  p.steps = {gathered(0, 1), copied(1, 3), copied(3, 2)};
  p.slots[3].alias = 1;
  CHECK(refused(p).find("a stored value shares memory with a gathered value") != std::string::npos);
}
TEST_CASE(
    "gathered: the plan retains nothing in gathered memory, and poisons it after the last reader") {
  for (bool poisoned : {false, true}) {
    auto p = start();
    // a copy of all elements could reuse its memory
    p.steps = {copied(0, 1), copied(1, 3), copied(3, 2)};
    {
      plan_memory(p, {false}, true, true);
      const Poison how(poisoned);
      if (debug_options().poison) poison(p);
    }
    CHECK(p.slots[3].alias != 1);
    CHECK(refused(p) == "");
    REQUIRE(p.slots[1].offset >= 0);
    auto device = reference::make_reference_device();
    std::vector<float> x{1, 2, 3, 4}, out(4);
    std::vector<float> arena(std::size_t(p.arena_bytes) / 4);
    device->compile(std::make_shared<Program>(p))
        ->run({x.data()}, {out.data()}, arena.data(), nullptr);
    CHECK(out == x);
    for (std::size_t i = 0; i < 4; ++i)
      CHECK(std::isnan(arena[std::size_t(p.slots[1].offset) / 4 + i]) == poisoned);
  }
}
TEST_CASE("gathered: poison changes no result") {
  Axis Layers{"layers", 3}, Embed{"embed", 4}, Batch{"batch", 6};
  auto loss = [=](const NamedArray& w, const NamedArray& x) {
    axis_mapping inside(Mapping{{"batch", "data"}});
    auto layer = [](const NamedArray& h, const NamedArray& w) {
      return h + rename(tanh(dot(h, w, "embed")), {{"out", "embed"}});
    };
    return mean(square(fold(layer, Layers, {.checkpoint = "carries"})(x, w)));
  };
  auto step = [=](const NamedArray& w, const NamedArray& x) { return value_and_grad(loss)(w, x); };
  auto w = random::normal(random::key(1), {Layers, Embed, Embed.alias("out")}),
       x = random::normal(random::key(2), {Batch, Embed});
  JitOptions options{.mesh = Mesh{{{"data", 2}}}, .axis_resources = Mapping{{"embed", "data"}}};
  auto plain = named_jit(step, options)(w, x);
  Poison on;
  auto f = named_jit(step, options);
  auto poisoned = f(w, x);
  CHECK(f.report().program.find("poison") != std::string::npos);
  CHECK(poisoned.first.doubles() == plain.first.doubles());
  CHECK(poisoned.second.doubles() == plain.second.doubles());
}
