// Compilation and calls on one device, and the default backend.
#include "runtime/run.h"

#include <atomic>
#include <cstdlib>

#include "base/where.h"
#include "devices/communicator.h"
#include "haliax/jit.h"
#include "runtime/graph_copy.h"
#include "runtime/profile.h"

namespace haliax {
namespace {

// Names that have been the default, since other threads may still read them. Never destroyed, and
// searched without a lock.
struct Used {
  std::string name;
  const Used* next;
};
const std::string* interned(const std::string& name) {
  static constinit std::atomic<const Used*> all{nullptr};
  for (auto* u = all.load(); u; u = u->next)
    if (u->name == name) return &u->name;
  auto* mine = new Used{name, all.load()};
  while (!all.compare_exchange_weak(mine->next, mine)) {}
  return &mine->name;
}
std::atomic<const std::string*>& default_name() {
  static std::atomic<const std::string*> name = [] {
    auto* requested_name = std::getenv("HALIAX_BACKEND");
    return interned(requested_name && *requested_name ? requested_name : "cpu");
  }();
  return name;
}

}  // namespace

void set_default_backend(const std::string& name, SourceLocation at) {
  CallSite here(at);
  backend(name);
  default_name() = interned(name);
}
std::string default_backend() { return *default_name().load(); }

CompileOptions options_for(const std::string& name, std::string called) {
  auto& device = backend(name);
  return {
      .optional = device.runs_optional_passes(), .device = &device, .called = std::move(called)};
}

Compiled finish(Compilation& c, const std::string& name, bool executable) {
  run(c, Stage::device, Stage::program);
  c.program->called = c.options.called;
  auto& device = backend(name);
  if (executable)
    c.program->backend_device = backend_device_of(device, c.options.mesh, c.program->device);
  Compiled out{c.program, nullptr, {device, c.program->backend_device}, c.captured};
  if (executable) out.executable = device.compile(out.program);
  return out;
}

Compiled compile(const Nodes& roots, const std::string& name) {
  OwnGraph own(roots);
  Compilation c{own.roots, {}, options_for(name, "eval at " + to_string(context().origin.at))};
  run(c, Stage::graph, Stage::graph);
  return finish(c, name);
}

std::unique_ptr<CallMemory> Compiled::for_call() const {
  return std::make_unique<CallMemory>(CallMemory{memory.arena(program->arena_bytes)});
}
std::vector<BufferPtr> call(const Compiled& c, const std::vector<ArgumentValue>& given,
                            program::Communicator* communicator, bool* began) {
  auto& p = *c.program;
  auto mine = c.idle.take();
  if (!mine) mine = c.for_call();
  auto &arguments = mine->arguments, &results = mine->results;
  arguments.clear();
  results.clear();
  std::vector<BufferPtr> created(std::size_t(p.results)), captured;
  for (std::size_t k = 0; k < given.size(); ++k) {
    arguments.push_back(given[k].data);
    if (p.donated[k] >= 0) created[std::size_t(p.donated[k])] = given[k].owner;
  }
  if (!c.captured.empty()) {
    GraphReader reader;
    for (auto& n : c.captured) {
      captured.push_back(n->value.get());
      if (!captured.back()) fail_at(n->origin, "eval", n->donated);
    }
  }
  for (auto& b : captured) arguments.push_back(c.memory.address(*b));
  for (std::size_t r = 0; r < created.size(); ++r) {
    bool taken_over = bool(created[r]);
    if (!taken_over) created[r] = c.memory.allocate(p.slot(p.result_slots[r]).bytes);
    results.push_back(taken_over ? nullptr : c.memory.address(*created[r]));
  }
  if (began) *began = true;
  auto* arena = c.memory.address(*mine->arena);
  if (auto* active_profiler = profiler())
    active_profiler->run(c, arguments, results, arena, communicator);
  else
    c.executable->run(arguments, results, arena, communicator);
  c.idle.put(std::move(mine));
  return created;
}

}  // namespace haliax
