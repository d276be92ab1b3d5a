// The list of passes, and the functions that run them.
#include "base/verify_error.h"
#include "compile/pipeline.h"

#include <fmt/format.h>

#include <cstdio>

#include "base/clock.h"
#include "compile/chunk/chunk.h"
#include "compile/loops/loops.h"
#include "compile/lower/masked_matmuls.h"
#include "compile/lower/rewrites.h"
#include "compile/memory/memory.h"
#include "compile/verify.h"
#include "program/profile.h"
#include "transforms/scores.h"

namespace haliax {
namespace {

void rewrite(Compilation& c, Nodes (*f)(Nodes)) { c.roots = f(std::move(c.roots)); }

const Pass kPasses[] = {
    // ---- the global graph ----
    {"strip_wraps", "drops tracers and custom gradients; region boundaries stay", Stage::graph,
     false, [](Compilation& c) { c.roots = strip_wraps(c.roots, c.options.optional); }},
    {"window_sums", "computes depthwise convolutions elementwise", Stage::graph, true,
     [](Compilation& c) { c.roots = window_sums(c.roots); }},
    {"scores", "marks attention scores too large to materialize as regions", Stage::graph, true,
     [](Compilation& c) {
       c.roots = with_score_boundaries(c.roots, c.options.scores_budget, c.options.chunk_depth, {},
                                       &c.untiled_notes);
     }},
    {"merge_carried", "merges a loop with the residuals of its gradient", Stage::graph, true,
     [](Compilation& c) { rewrite(c, merge_carried); }},
    {"f32_matmuls", "computes 16-bit matmuls in f32 if regions read f32", Stage::graph, true,
     [](Compilation& c) { c.roots = f32_matmuls(c.roots); }},
    {"defer_normalization", "moves the factors of queries out of sums over keys", Stage::graph,
     true,
     [](Compilation& c) {
       if (c.options.partition.ring_attention) c.roots = defer_normalization(c.roots);
     }},
    {"chunk", "tiles regions into loops over chunks, drops other boundaries", Stage::graph, true,
     [](Compilation& c) {
       auto& o = c.options;
       c.shares_queries = shares_queries(c.roots);
       c.roots = tile_regions(c.roots, chunk_trial(o.device, o.debug), o.chunk_depth,
                              o.partition.ring_attention, &c.untiled_notes);
       c.roots = strip_wraps(c.roots, false);
     }},
    {"drop_dead", "drops unread results and carries of loops", Stage::graph, false,
     [](Compilation& c) {
       rewrite(c, c.options.optional ? drop_dead_results : drop_dead_effects);
     }},
    {"merge_loops", "merges two loops over the same index", Stage::graph, true,
     [](Compilation& c) { rewrite(c, merge_loops); }},
    {"accumulate_sums", "starts loop sums from arrays, drops results left unread", Stage::graph,
     true,
     [](Compilation& c) {
       rewrite(c, accumulate_sums);
       rewrite(c, drop_dead_results);  // also those that merge_loops left
     }},
    // ---- a mesh ----
    {"plan", "chooses the sharding and the collectives of each value", Stage::sharding, false,
     [](Compilation& c) { c.partition->plan(); }},
    {"rematerialize", "saves communicated values, or communicates them again", Stage::sharding,
     false, [](Compilation& c) { c.partition->rematerialize(); }},
    {"ring", "replaces a gather before one contraction by a ring", Stage::sharding, false,
     [](Compilation& c) { c.partition->ring(); }},
    {"bucket", "merges collectives that are needed at the same time", Stage::sharding, false,
     [](Compilation& c) { c.partition->bucket(); }},
    {"emit", "writes the graph of one device", Stage::device, false,
     [](Compilation& c) {
       if (!c.partition) return;
       auto mine = c.partition->device_graph(c.number);
       c.roots = std::move(mine.roots);
       c.inputs = std::move(mine.inputs);
     }},
    // ---- the graph of one device ----
    {"lazy_selects", "computes only the side that one flag selects", Stage::device, true,
     [](Compilation& c) { c.roots = lazy_selects(c.roots); }},
    {"batch_loops", "loops over batches of matmuls whose results others read", Stage::device, true,
     [](Compilation& c) {
       const double max_parallel_slot_bytes =
           c.options.device ? c.options.device->machine().max_parallel_slot_bytes : 0;
       if (c.options.batch_loops && max_parallel_slot_bytes > 0)
         c.roots = batch_loops(c.roots, {max_parallel_slot_bytes});
     }},
    {"softmax_matmuls", "divides by softmax sums after the matmul", Stage::device, true,
     [](Compilation& c) { c.roots = softmax_matmuls(c.roots); }},
    {"row_dots", "computes dot products of matching rows elementwise", Stage::device, true,
     [](Compilation& c) { c.roots = row_dots(c.roots); }},
    {"masked_matmuls", "skips blocks of matmuls that masks set to zero", Stage::device, true,
     [](Compilation& c) {
       auto machine = c.options.device ? c.options.device->machine() : program::Machine();
       bool has_parallel_slots = machine.max_parallel_slot_bytes > 0;  // else skips save little
       if (has_parallel_slots) c.roots = masked_matmuls(c.roots, machine);
     }},
    {"first_positions", "finds the first positions of a sort without sorting", Stage::device, true,
     [](Compilation& c) {
       // The step is a function on the host.
       if (c.options.device && c.options.device->supports({.kind = program::Kind::custom}))
         c.roots = first_positions(c.roots);
     }},
    {"split_carries", "carries the parts of a concatenation", Stage::device, true,
     [](Compilation& c) { rewrite(c, split_carries); }},
    {"accumulate_updates", "scatters into the array that a scatter is added to", Stage::device,
     true, [](Compilation& c) { rewrite(c, accumulate_updates); }},
    {"early_exit", "ends iterations, or parts, that masks set to zero", Stage::device, true,
     [](Compilation& c) {
       c.iteration_parts = split_iterations(c.roots, !c.options.debug.check_finite);
     }},
    {"layout", "orders the axes of values in memory for matmuls", Stage::device, true,
     [](Compilation& c) { c.layouts = layouts_of(c.roots); }},
    // ---- the Program ----
    {"lower", "fuses, schedules and writes the steps of each scope", Stage::program, false,
     [](Compilation& c) {
       const bool optional = c.options.optional;
       const int row = c.options.device && optional ? c.options.device->machine().row_alignment : 1;
       auto low = lower(c.roots, c.inputs,
                        {.fuse = optional && !c.options.debug.check_finite, .row_alignment = row},
                        c.layouts, c.iteration_parts);
       c.program = std::move(low.program);
       c.captured = std::move(low.captured);
       c.program->device = c.number;
       if (c.options.mesh)
         for (auto& [name, size] : c.options.mesh->axes()) c.program->mesh.push_back(size);
     }},
    {"check_finite", "with HALIAX_NANS=1: stops where a step produces NaN or inf", Stage::program,
     false,
     [](Compilation& c) {
       if (c.options.debug.check_finite) check_finite(*c.program);
     }},
    {"parallel_slots", "runs iterations with disjoint writes in parallel slots", Stage::program,
     true,
     [](Compilation& c) {
       if (c.options.device)
         assign_parallel_slots(*c.program, *c.options.device, c.options.workers);
     }},
    {"reuse_matmuls", "keeps matmuls from loop to loop in idle memory", Stage::program, true,
     [](Compilation& c) { c.alternative = reuse_matmuls(*c.program); }},
    {"overlap", "starts collectives early, finishes each before its first use", Stage::program,
     false,
     [](Compilation& c) {
       if (!c.options.partition.overlap || !c.partition || !c.partition->has_even_blocks()) return;
       overlap(*c.program);
       if (c.alternative) overlap(*c.alternative);
     }},
    {"plan_memory", "shares memory, drops copies, assigns each slot an offset", Stage::program,
     false,
     [](Compilation& c) {
       if (auto* device = c.options.device) {
         query_scratch(*c.program, *device, c.options.workers);
         if (c.alternative) query_scratch(*c.alternative, *device, c.options.workers);
       }
       auto donated = c.options.donated;
       donated.resize(std::size_t(c.program->arguments));  // captured arrays are not donated
       plan_memory(*c.program, donated, c.options.optional, c.options.debug.verify);
       c.placed = true;
       if (!c.alternative) return;
       plan_memory(*c.alternative, donated, true, c.options.debug.verify);
       if (c.alternative->peak_bytes > c.program->peak_bytes) return;
       c.saved_work = 1 - multiplications(c.alternative->steps) / multiplications(c.program->steps);
       *c.program = std::move(*c.alternative);
       c.alternative.reset();
     }},
    {"poison", "with HALIAX_POISON=1: fills gathered values with NaN after use", Stage::program,
     false,
     [](Compilation& c) {
       if (c.options.debug.poison) poison(*c.program);
     }},
};

// ---- after each pass ----
// Returns a line per step with scratch memory, in order, bodies of loops included.
std::string scratch_text(const std::vector<program::Step>& steps) {
  std::string out;
  for (auto& s : steps) {
    if (s.scratch_bytes > 0)
      out += fmt::format("scratch of {}: {} bytes\n", program::name_of(s.kind), s.scratch_bytes);
    out += scratch_text(s.body);
  }
  return out;
}
std::string text_of(const program::Program& p) {
  return program::to_string(p) + scratch_text(p.steps);
}
std::int64_t size_of(const std::vector<program::Step>& steps) {
  auto n = std::int64_t(steps.size());
  for (auto& s : steps) n += size_of(s.body);
  return n;
}
// Returns the number of nodes of a graph, or of steps of a plan or a Program.
std::int64_t size_of(const Compilation& c, Stage on) {
  if (on == Stage::sharding) return c.partition->size();
  return on == Stage::program ? (c.program ? size_of(c.program->steps) : 0) : node_count(c.roots);
}
void verify_after(const Pass& p, const Compilation& c) try {
  if (p.stage == Stage::program) {
    verify(*c.program, p.name, c.placed, c.options.donated);
    if (c.alternative) verify(*c.alternative, p.name, c.placed, c.options.donated);
  } else if (p.stage == Stage::sharding) {
    c.partition->verify(p.name);
  } else {
    verify(c.roots, p.name, c.iteration_parts, c.layouts);
  }
} catch (const Error& e) {
  throw VerifyError(e.what());
}

}  // namespace

std::span<const Pass> passes() { return kPasses; }

std::string to_string(const Compilation& c, Stage on) {
  if (on == Stage::sharding) return c.partition->text();
  if (on == Stage::program)
    return text_of(*c.program) +
           (c.alternative ? "---- with saved matmuls\n" + text_of(*c.alternative) : "");
  return to_string(c.roots, c.layouts) + to_string(c.iteration_parts, c.roots);
}

void run(Compilation& c, Stage first, Stage last) {
  std::int64_t size = -1;
  Stage counted = first;
  bool reached = false, checked = false;
  // The first pass drops custom gradients, so the traced graph is checked before it.
  if (c.options.debug.verify && first == Stage::graph && c.options.from == kPasses[0].name)
    verify(c.roots, "tracing");
  for (auto& p : kPasses) {
    if (p.name == c.options.until) return;
    reached |= p.name == c.options.from;
    if (!reached || p.stage < first || p.stage > last || (p.optional && !c.options.optional))
      continue;
    if (p.stage == Stage::sharding && !c.options.mesh) continue;
    if (p.stage == Stage::sharding && !c.partition) {
      std::vector<PartitionInput> inputs;
      for (std::size_t k = 0; k < c.inputs.size(); ++k)
        inputs.push_back({c.inputs[k], c.options.in[k]});
      auto partition = c.options.partition;
      partition.verify = c.options.debug.verify;
      c.partition = std::make_shared<Partition>(c.roots, c.options.out, std::move(inputs),
                                                *c.options.mesh, partition);
    }
    if (size < 0 || counted != p.stage) {
      size = size_of(c, p.stage);
      counted = p.stage;
    }

    auto before = c.roots;
    const auto facts = c.iteration_parts.size() + c.layouts.size();
    auto started = seconds_now();
    p.run(c);
    auto seconds = seconds_now() - started;
    // Nodes are immutable, so equal roots imply an equal graph.
    bool same = p.stage != Stage::sharding && p.stage != Stage::program && c.roots == before;
    c.log.push_back({p.name, size, same ? size : size_of(c, p.stage), seconds});
    size = c.log.back().after;
    if (c.options.debug.prints(p.name)) {
      auto device =
          c.partition && p.stage > Stage::sharding ? fmt::format(", device {}", c.number) : "";
      std::fprintf(stderr, "---- after %s%s\n%s", p.name, device.c_str(),
                   to_string(c, p.stage).c_str());
    }
    // An unchanged graph without new parts or layouts needs no further check.
    if (same && checked && c.iteration_parts.size() + c.layouts.size() == facts) continue;
    if (c.options.debug.verify) verify_after(p, c);
    checked = true;
  }
}
void run(Compilation& c) { run(c, Stage::graph, Stage::program); }
void run_global(Compilation& c) {
  auto other = c;
  run(c, Stage::graph, Stage::sharding);
  auto& o = c.options.partition;
  if (!c.options.mesh || !c.shares_queries) return;
  if (o.ring_attention && !(o.strict && c.partition->unrequested_gathers() > 0)) return;
  other.options.partition.ring_attention = !o.ring_attention;
  run(other, Stage::graph, Stage::sharding);
  // A requested ring is replaced only if it needs more gathers that were not requested. It is never
  // replaced because of its communication volume.
  auto &mine = *c.partition, &its = *other.partition;
  if (o.ring_attention ? its.unrequested_gathers() < mine.unrequested_gathers()
                       : its.is_better_than(mine))
    c = std::move(other);
}

Compilation on_device(const Compilation& global, int number) {
  Compilation c{global.roots, global.inputs, global.options};
  c.partition = global.partition;
  c.number = number;
  return c;
}

CompileTrial chunk_trial(program::Device* device, DebugOptions debug) {
  constexpr int kTrialWorkers = 2;  // threads; the choice does not depend on their actual number
  // With batch loops, the search selects plans that need more memory for bf16 attention over long
  // sequences. Passes from `chunk` on do not read `scores_budget`.
  CompileOptions options{.device = device,
                         .workers = kTrialWorkers,
                         .batch_loops = false,
                         .scores_budget = std::nullopt,
                         .from = "chunk",
                         .debug = std::move(debug)};
  return [options](const Nodes& roots, const Nodes& inputs, int depth) {
    Compilation c{roots, inputs, options};
    c.options.chunk_depth = depth;
    run(c);
    auto machine = options.device ? options.device->machine() : program::Machine();
    return TrialResult{c.roots, c.program, c.saved_work, machine};
  };
}

std::string to_string(const std::vector<PassReport>& log) {
  auto out = fmt::format("{:<20}{:>8}{:>8}{:>11}\n", "pass", "before", "after", "ms");
  for (auto& r : log)
    out += fmt::format("{:<20}{:>8}{:>8}{:>11.3f}\n", r.name, r.before, r.after, r.seconds * 1e3);
  return out;
}
std::string table_of_passes() {
  const char* const stages[] = {"graph", "sharding", "device", "program"};
  std::string out;
  for (auto& p : kPasses)
    out += fmt::format("{:<20}{:<10}{}\n", p.name, stages[int(p.stage)], p.description);
  return out;
}

}  // namespace haliax
