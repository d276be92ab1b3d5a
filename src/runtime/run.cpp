#include "runtime/run.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "program/devices.h"
#include "base/name.h"
#include "haliax/jit.h"

namespace haliax {
namespace {

std::string& default_name() {
  static std::string name = [] {
    auto* asked = std::getenv("HALIAX_BACKEND");
    return std::string(asked && *asked ? asked : "cpu");
  }();
  return name;
}

}  // namespace

program::Device& backend(const std::string& name) {
  static auto* cpu = cpu::make_cpu_device(0).release();
  static auto* reference = reference::make_reference_device().release();
  if (name == "cpu") return *cpu;
  if (name == "reference") return *reference;
  if (name == "cuda-sim") {
    static auto* simulated = cuda::make_simulated_device().release();
    return *simulated;
  }
  fail("backend", "there is no backend " + name + did_you_mean(name, std::vector<std::string>{"cpu", "reference"}) +
                      "; there are cpu and reference");
}
void set_default_backend(const std::string& name, SourceLocation at) {
  Here here(at);
  backend(name);
  default_name() = name;
}
std::string default_backend() { return default_name(); }

CompileOptions options_for(const std::string& name) { return {.optional = name != "reference", .device = &backend(name)}; }

Compiled finish(Compilation& c, const std::string& name, bool executable) {
  run(c, Stage::device, Stage::program);
  Compiled out{c.program, nullptr, c.captured};
  if (executable) out.executable = backend(name).compile(out.program);
  return out;
}

Compiled compile(const Nodes& roots, const std::string& name) {
  Compilation c{roots, {}, options_for(name)};
  run(c, Stage::graph, Stage::graph);
  return finish(c, name);
}

BufferPtr memory(std::int64_t bytes) {
  try {
    return std::make_shared<Buffer>(bytes);
  } catch (const std::bad_alloc&) { fail("memory", std::to_string(bytes) + " bytes are wanted, and there are not as many"); }
}

BufferPtr copied(const Buffer& b) {
  auto out = memory(b.bytes());
  std::copy(b.data(), b.data() + b.bytes(), out->data());
  return out;
}

std::vector<BufferPtr> call(const Compiled& c, const std::vector<Given>& given, BufferPtr& arena,
                            program::Communicator* communicator) {
  auto& p = *c.program;
  std::vector<void*> arguments, results;
  std::vector<BufferPtr> made(std::size_t(p.results));
  arguments.reserve(given.size() + c.captured.size()), results.reserve(made.size());
  for (std::size_t k = 0; k < given.size(); ++k) {
    arguments.push_back(given[k].data);
    if (p.donated[k] >= 0) made[std::size_t(p.donated[k])] = given[k].keeps;
  }
  for (auto& n : c.captured) arguments.push_back(n->value->data());
  for (std::size_t r = 0; r < made.size(); ++r) {
    bool taken_over = bool(made[r]);
    if (!taken_over) made[r] = memory(p.slot(p.result_slots[r]).bytes);
    results.push_back(taken_over ? nullptr : made[r]->data());
  }
  if (!arena) arena = memory(p.arena_bytes);
  c.executable->run(arguments, results, arena->data(), communicator);
  return made;
}

void evaluate(const Nodes& wanted) {
  Nodes roots;
  for (auto& n : wanted)
    if (n && !n->value) roots.push_back(n);
  if (roots.empty()) return;
  require_values(roots);
  auto c = compile(roots, default_name());
  BufferPtr arena;
  auto made = call(c, {}, arena, nullptr);
  for (std::size_t i = 0; i < roots.size(); ++i) {
    auto& n = const_cast<Node&>(*roots[i]);
    n.value = made[i];
    if (context().tracing == 0) detach(n);
  }
}

}  // namespace haliax
