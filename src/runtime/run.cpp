#include "runtime/run.h"

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
  throw Error("[backend] there is no backend " + name + did_you_mean(name, std::vector<std::string>{"cpu", "reference"}) + "; there are cpu and reference");
}
void set_default_backend(const std::string& name) {
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

void evaluate(const Nodes& wanted) {
  Nodes roots;
  for (auto& n : wanted) if (n && !n->value) roots.push_back(n);
  if (roots.empty()) return;
  auto c = compile(roots, default_name());
  std::vector<void*> arguments, results;
  for (auto& n : c.captured) {
    if (!n->donated.empty()) fail("eval", n->donated);
    if (!n->value) fail("eval", "a value is asked for inside jit, scan or vmap, where there is none yet");
    arguments.push_back(n->value->data());
  }
  std::vector<BufferPtr> made;
  for (auto& n : roots) made.push_back(memory(n->bytes())), results.push_back(made.back()->data());
  auto arena = memory(c.program->arena_bytes);
  c.executable->run(arguments, results, arena->data(), nullptr);
  for (std::size_t i = 0; i < roots.size(); ++i) {
    auto& n = const_cast<Node&>(*roots[i]);
    n.value = made[i];
    if (context().tracing == 0) detach(n);
  }
}

}  // namespace haliax
