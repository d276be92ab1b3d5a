#include "compile/lower/lower.h"

#include <set>

#include "compile/lower/lowering.h"
#include "ops/prim.h"

namespace haliax {
namespace {

// The arrays that a graph has captured, bodies of loops included. Raises for what has no value and will have none.
Nodes captured_by(const std::vector<Nodes>& bodies, const Nodes& inputs) {
  std::set<const Node*> given;
  for (auto& n : inputs) given.insert(n.get());
  Nodes out;
  for (auto& body : bodies)
    for (auto& n : body) {
      if (given.count(n.get())) continue;
      if (n->op == &prim::kInput && !n->value)
        fail("eval", "a value is asked for inside jit, scan or vmap, where there is none yet");
      bool said = n->op == &prim::kNumber || n->op == &prim::kIota;   // as good as its value, and never in memory
      if (n->value && !said) given.insert(n.get()), out.push_back(n);
      else if (!n->donated.empty()) fail_at(n->origin, "eval", n->donated);
    }
  return out;
}

}  // namespace

Lowered lower(const Nodes& roots, const Nodes& inputs, const LowerOptions& options, const Layouts& layouts) {
  Lowered out{std::make_shared<program::Program>(), captured_by(bodies_of(roots), inputs)};
  auto& p = *out.program;
  Purposes purposes(roots, inputs);
  Lowering l(p, options, purposes, layouts);
  Nodes arguments = inputs;
  arguments.insert(arguments.end(), out.captured.begin(), out.captured.end());
  for (auto& n : arguments) {
    int slot = l.new_slot(n->bytes(), purposes.of_argument(*n), program::Home::argument, p.arguments);
    p.argument_slots.push_back(slot);
    ++p.arguments;
    l.know(n.get(), l.in_slot(slot, n));
  }
  std::vector<Target> targets;
  for (auto& n : roots) {
    int slot = l.new_slot(n->bytes(), purposes.of_result(*n), program::Home::result, p.results);
    p.result_slots.push_back(slot);
    ++p.results;
    targets.push_back({n, l.in_slot(slot, n)});
  }
  l.scope(targets);
  return out;
}

void ask_scratch(program::Program& p, program::Device& device, int workers) {
  std::vector<std::vector<program::Step>*> todo{&p.steps};
  while (!todo.empty()) {
    auto* steps = todo.back();
    todo.pop_back();
    for (auto& s : *steps) {
      if (!device.supports(s)) throw Error(std::string("[") + s.why + "] backend " + device.name() + " cannot run it; " + s.where);
      if (s.kind == program::Kind::loop) todo.push_back(&s.loop.body);
      else s.scratch_bytes = device.scratch_bytes(s, workers);
    }
  }
}

}  // namespace haliax
