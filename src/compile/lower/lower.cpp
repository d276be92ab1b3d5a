// Entry points of lowering: collects the arguments and the targets of a Program, and sizes its
// scratch.
#include "compile/lower/lower.h"

#include <fmt/format.h>

#include <unordered_set>

#include "compile/analysis/modules.h"
#include "compile/lower/lowering.h"
#include "program/views.h"
#include "ops/prim.h"

namespace haliax {
namespace {

// Returns the results of matmuls, and the arrays that matmuls read.
std::unordered_set<const Node*> multiplied(const Nodes& roots) {
  std::unordered_set<const Node*> out;
  for (auto& n : all_computed(roots)) {
    if (n->op->kind != Kind::contract) continue;
    out.insert(n.get());
    for (auto& x : n->in) out.insert(base_of(x).get());
  }
  return out;
}
// Returns the arrays that a graph has captured, including bodies of loops. Raises an error for a
// tracer that has no value.
Nodes captured_by(const Nodes& all, const Nodes& inputs) {
  const std::unordered_set<NodePtr> given(inputs.begin(), inputs.end());
  Nodes out;
  for (auto& n : all) {
    if (given.count(n)) continue;
    if (n->op == &prim::kInput && !n->value)
      fail("eval",
           "the value of a traced array is not available inside jit, scan or vmap; return the "
           "array and read it outside");
    if (n->value && !prim::needs_no_memory(*n))
      out.push_back(n);
    else if (!n->donated.empty())
      fail_at(n->origin, "eval", n->donated);
  }
  return out;
}

}  // namespace

Lowered lower(const Nodes& roots, const Nodes& inputs, const LowerOptions& options,
              const Layouts& layouts, const IterationParts& iteration_parts) {
  Lowered out{std::make_shared<program::Program>(), captured_by(all_computed(roots), inputs)};
  auto& p = *out.program;
  analysis::Purposes purposes(roots, inputs);
  const auto modules = analysis::modules_of(roots);
  Lowering l(p, options, purposes, modules, layouts, iteration_parts);
  if (options.row_alignment > 1) l.align(multiplied(roots));
  auto add = [&](const NodePtr& n, const char* purpose, program::Home home, std::vector<int>& slots,
                 int& count) {
    slots.push_back(l.new_slot(n->bytes(), purpose, home, count++));
    return l.in_slot(slots.back(), n);
  };
  Nodes arguments = inputs;
  arguments.insert(arguments.end(), out.captured.begin(), out.captured.end());
  for (auto& n : arguments)
    l.set_place(n.get(), add(n, purposes.of_argument(*n), program::Home::argument, p.argument_slots,
                             p.arguments));
  std::vector<Target> targets;
  for (auto& n : roots)
    targets.push_back(
        {n, add(n, purposes.of_result(*n), program::Home::result, p.result_slots, p.results)});
  l.lower_scope(targets);
  return out;
}

void query_scratch(program::Program& p, program::Device& device, int workers) {
  auto query = [&](auto& self, std::vector<program::Step>& steps, int of) -> void {
    for (auto& s : steps) {
      if (!device.supports(s))
        throw Error(fmt::format("[{}] backend {} does not support this step; {}", s.op,
                                device.name(), s.where));
      s.scratch_bytes = device.scratch_bytes(s, of);
      // A parallel slot belongs to one worker.
      self(self, s.body, s.loop.parallel_slots > 0 ? 1 : of);
    }
  };
  query(query, p.steps, workers);
}

}  // namespace haliax
